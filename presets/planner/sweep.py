"""The same plan over a range of one setting: what ubatch, context, slots or the cache's type cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import paths
from errors import BadInput, HostLacks, nearest
from presets.planner.assess import Plan, Question, assess
from presets.planner.options import CACHE_TYPES, Options
from presets.planner.terms import GIB, MIB

RANGES: Final[dict[str, tuple[Any, ...]]] = {
    "ub": (64, 128, 256, 512, 1024, 2048),
    "ctx": (4096, 8192, 16384, 32768, 65536, 131072, 262144),
    "np": (1, 2, 4, 8, 16),
    "kv": tuple(kind for kind in CACHE_TYPES if kind not in ("f32", "bf16")),
}
GROUPS: Final = {
    "weights": ("weights_device", "weights_host", "ngram_table", "draft_weights"),
    "caches": ("kv_cache", "kv_cache_swa", "indexer_cache", "draft_kv_cache"),
    "state": ("recurrent_state", "draft_recurrent_state"),
    "compute": ("compute_device", "compute_host", "draft_compute"),
    "server": ("output", "checkpoints", "prompt_cache", "runtime"),
}
TITLES: Final = {
    "ub": "ubatch (tokens)",
    "ctx": "context in all (tokens)",
    "np": "slots, the context shared among them",
    "kv": "type of the KV cache",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value and its plan."""

    value: int | str
    plan: Plan

    def groups(self) -> dict[str, int]:
        """Bytes by kind of term."""
        return {name: sum(self.plan.bytes_of(term) for term in terms) for name, terms in GROUPS.items()}

    def to_json(self) -> dict[str, Any]:
        """One point of the document."""
        return {
            "value": self.value,
            "verdict": self.plan.verdict,
            "total_bytes": self.plan.total_bytes,
            "per_slot_context": self.plan.per_slot_context,
            **{f"{name}_bytes": size for name, size in self.groups().items()},
        }


def over(asked: Question, key: str) -> list[Point]:
    """The plans over one key, values of the preset among them.

    Raises:
        BadInput: the key is none of `RANGES`.
    """
    if key not in RANGES:
        raise BadInput(f"cannot sweep over {key!r}", why=nearest(key, list(RANGES)), hint="--over ub")
    own = current(asked.options, key)
    values = list(RANGES[key])
    if own not in values and own is not None:
        values = sorted([*values, own], key=lambda value: (str(type(value)), value))
    return [Point(value=value, plan=assess(replace(asked, options=changed(asked.options, key, value))))
            for value in values]  # fmt: skip


def current(options: Options, key: str) -> int | str | None:
    """The value that a key has now."""
    fields = {"ub": options.ubatch, "ctx": options.ctx, "np": options.slots, "kv": options.cache_type_k}
    return fields[key] or None


def changed(options: Options, key: str, value: Any) -> Options:
    """Options with one value in place of another; `batch` follows a larger ubatch."""
    if key == "ub":
        return replace(options, ubatch=value, batch=max(options.batch, value))
    if key == "kv":
        return replace(options, cache_type_k=value, cache_type_v=value)
    return replace(options, **{"ctx" if key == "ctx" else "slots": value})


def text(points: Sequence[Point], key: str) -> str:
    """A table in MiB."""
    names = list(GROUPS)
    lines = [f"{key:>8}" + "".join(f"{name:>12}" for name in names) + f"{'total MiB':>12}  per slot  verdict"]
    for point in points:
        sizes = "".join(f"{size / MIB:>12,.0f}" for size in point.groups().values())
        total = f"{point.plan.total_bytes / MIB:>12,.0f}"
        lines.append(f"{point.value:>8}{sizes}{total}{point.plan.per_slot_context:>10}  {point.plan.verdict}")
    return "\n".join(lines)


def plot(points: Sequence[Point], key: str, target: Path, title: str) -> Path:
    """Stacked bars with the budget as a line, as SVG or PNG by the name's ending.

    Raises:
        BadInput: another ending.
        HostLacks: matplotlib is not installed.
    """
    if target.suffix not in (".svg", ".png"):
        raise BadInput(
            f"cannot draw {target.name}", why="the name must end in .svg or .png", hint="--plot a.svg"
        )
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise HostLacks("matplotlib is not installed", hint="pip install 'haloforge[report]'") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    labels = [str(point.value) for point in points]
    below = [0.0] * len(points)
    for name in GROUPS:
        sizes = [point.groups()[name] / GIB for point in points]
        axes.bar(labels, sizes, bottom=below, label=name)
        below = [low + size for low, size in zip(below, sizes, strict=True)]
    axes.axhline(points[0].plan.budget.budget_bytes / GIB, color="black", linestyle="--", label="budget")
    axes.set(xlabel=TITLES[key], ylabel="GiB", title=title)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    with paths.replacing(target) as temporary:
        figure.savefig(temporary, format=target.suffix[1:])
    pyplot.close(figure)
    return target
