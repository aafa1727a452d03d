"""Presets and settings as tables, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from patches import engines
from presets import schema
from presets.schema import Preset
from presets.settings import Environment, Option, Settings


@dataclass(frozen=True, kw_only=True)
class Row:
    """One preset in the list; sizes in tokens and MiB."""

    name: str
    purpose: str
    flavour: str
    engine: str
    model: str
    quant: str
    head: str | None
    slots: int
    slot_context: int
    predicted_mib: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def rows() -> list[Row]:
    """All presets that come with Haloforge."""
    return [_row(schema.load(name)) for name in schema.names()]


def _row(preset: Preset) -> Row:
    return Row(
        name=preset.name,
        purpose=preset.purpose,
        flavour=preset.flavour,
        engine=preset.engine,
        model=preset.model,
        quant=preset.quant,
        head=preset.head,
        slots=preset.slots,
        slot_context=preset.ctx if preset.kv_unified else preset.ctx // preset.slots,
        predicted_mib=preset.predicted_mib,
    )


def table(found: Sequence[Row]) -> str:
    """The list for people."""
    shown = Table("preset", "quant", "slots", "GiB", "purpose", box=None)
    for row in found:
        size = "" if row.predicted_mib is None else f"{row.predicted_mib / 1024:.1f}"
        shown.add_row(
            row.name, row.quant, f"{row.slots} x {row.slot_context}", size, escape(row.purpose)
        )  # fmt: skip
    return _text(shown)


def resolved(preset: Preset) -> dict[str, Any]:
    """Every setting of a preset, and the engine's arguments with placeholders for paths."""
    return {"name": preset.name, **preset.model_dump(), "arguments": _arguments(preset)}


def shown(preset: Preset) -> str:
    """The settings that differ from the defaults, warnings, and the engine's arguments."""
    lines = [f"{preset.name}: {preset.purpose}", ""]
    values = preset.model_dump(exclude_defaults=True, exclude={"purpose"})
    lines += [f"  {name}: {_plain(value)}" for name, value in values.items()]
    lines += ["", "  " + " ".join(["llama-server", *_arguments(preset)])]
    lines += [f"  warning: {text}" for text in preset.warnings()]
    return "\n".join(lines)


def settings_page() -> str:
    """The page of the documentation about settings; `docs/settings.md` is this text."""
    made = "Made by `./inv presets.schema --settings`; declared in `presets/settings.py`."
    title = f"# Settings of a preset\n\n{made}\n"
    about = [name for name in Preset.model_fields if name not in Settings.model_fields and name != "name"]
    rows = [f"| `{name}` | {Preset.model_fields[name].description} |" for name in about]
    head = ["## What it is for and what it runs", "", "| key | what it is |", "|---|---|", *rows, ""]
    return "\n".join([title, *head, "## Settings", "", settings_table(), ""])


def settings_table() -> str:
    """Every setting with its option, default and help, as a Markdown table."""
    lines = ["| setting | becomes | default | what it is |", "|---|---|---|---|"]
    for name, item in Settings.model_fields.items():
        default = "(required)" if item.is_required() else f"`{_plain(item.default)}`"
        lines.append(f"| `{name}` | {_becomes(item.metadata)} | {default} | {item.description} |")
    return "\n".join(lines)


def _becomes(metadata: Sequence[object]) -> str:
    for found in metadata:
        if isinstance(found, Option):
            newest, *older = found.spellings
            words = f"`{newest.on}`" + (f" / `{newest.off}`" if newest.off else "")
            before = [f"`{each.on}`" if each.on else f"template key `{each.template_key}`" for each in older]
            return words + (f" (before b{newest.since}: {before[0]})" if before else "")
        if isinstance(found, Environment):
            return f"`{found.variable}`"
    return "the container"


def _arguments(preset: Preset) -> list[str]:
    engine = engines.load(preset.engine)
    build = getattr(engine.traits, "flags_as_of", None) or engine.build_number
    draft = "DRAFT" if preset.head else None
    return preset.arguments(build, model="MODEL", draft=draft)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)


def _text(shown: Table) -> str:
    out = StringIO()
    Console(file=out, width=120, highlight=False, color_system=None).print(shown)
    return out.getvalue().rstrip()
