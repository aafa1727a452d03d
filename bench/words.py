"""Column names and figures as people read them."""

from __future__ import annotations

from typing import Final

UNITS: Final = {
    "tps": "tokens/s", "s": "s", "gib": "GiB", "mib": "MiB", "percent": "%", "k": "thousand tokens",
    "min": "min",
}  # fmt: skip
"""Last part of a column's name -> unit."""

NAMES: Final = {
    "ttft": "time to first token", "prompt": "prompt speed", "decode": "decode speed", "total": "all users",
    "user": "each user", "healthy": "start to healthy", "teardown": "teardown", "hit": "taken from cache",
    "turn": "follow-up turn", "cold": "cold turn", "used": "used", "estimated": "estimated", "read": "read",
    "predicted": "predicted", "measured": "measured", "free_min": "least free", "gtt": "GTT", "rss": "RSS",
    "pp": "prompt, empty", "pp_d0": "prompt, empty", "pp_64k": "prompt, at 64k", "pp_131k": "prompt, deep",
    "tg": "decode, empty", "tg_d0": "decode, empty", "tg_64k": "decode, at 64k", "tg_131k": "decode, deep",
    "pp512": "prompt 512", "tg128": "decode 128", "pass_1": "solved in 1 try", "pass_2": "solved in 2 tries",
    "pass_3": "solved in 3 tries", "hit_share": "taken from cache (share)",
    "clean_share": "clean answers (share)", "mixed_up": "answers mixed up",
    "acceptance": "accepted drafts (share)", "available_drop": "MemAvailable drop", "gtt_peak": "GTT peak",
    "first_token": "first token", "later_hit": "taken from cache, all later turns", "depth": "depth",
    "compute": "compute buffer", "error": "error", "ubatch": "ubatch (tokens)", "of": "of", "load": "load",
    "with": "with drafting", "without": "without drafting", "memory": "memory", "gtt_total": "GTT total",
    "cpu": "CPU", "kv": "KV", "core_tps": "tokens/s per core", "streams": "streams",
}  # fmt: skip


def label(name: str) -> str:
    """A column's name with its unit: `ttft_s` becomes "Time to first token (s)"."""
    text, unit = _parts(name)
    text = text[:1].upper() + text[1:]
    return f"{text} ({unit})" if unit else text


def short_label(name: str) -> str:
    """The same without the unit."""
    return _parts(name)[0]


def _parts(name: str) -> tuple[str, str]:
    if name in NAMES:
        return NAMES[name], ""
    stem, _, last = name.rpartition("_")
    if stem and last in UNITS:
        return NAMES.get(stem, stem.replace("_", " ")), UNITS[last]
    return name.replace("_", " "), ""


def number(value: float | int | str | None) -> str:
    """A figure with three to four significant digits, thousands set apart: 1188, 12 345, 0.047.

    >>> number(12345.6), number(20.84), number(0.0471), number(3)
    ('12\u202f346', '20.8', '0.047', '3')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if float(value).is_integer() and abs(value) < 1e15:
        return _spaced(f"{value:.0f}")
    size = abs(value)
    digits = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 1 else 3
    return _spaced(f"{value:.{digits}f}")


def _spaced(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, dot, rest = digits.partition(".")
    if len(whole) > 4:
        whole = f"{int(whole):,}".replace(",", "\u202f")
    return ("\u2212" if sign else "") + whole + dot + rest
