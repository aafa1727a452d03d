"""The memory that each preset states in its file, computed anew."""

from __future__ import annotations

import re
from typing import Final

from paths import replacing
from presets import schema
from presets.planner import ask
from presets.schema import Preset

BOX_GIB: Final = 106.5
"""What an empty 128 GB box has to give (GiB of MemAvailable); the prediction does not depend on it."""


def mib(preset: Preset) -> int:
    """The planner's total for a preset in MiB, rounded up."""
    plan = ask.judge(ask.of_preset(preset, ask.Request(free_gib=BOX_GIB))[0])
    return -(-plan.total_bytes // 2**20)


def refresh() -> dict[str, int]:
    """Write `predicted_mib` into the file of every preset; returns what changed."""
    changed = {}
    for name in schema.names():
        preset = schema.load(name)
        now = mib(preset)
        if now == preset.predicted_mib:
            continue
        path = schema.FOLDER / f"{name}.yaml"
        text = re.sub(r"^predicted_mib: .*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        text = re.sub(r"^(purpose: .*\n)", rf"\1predicted_mib: {now}\n", text, count=1, flags=re.MULTILINE)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        changed[name] = now
    return changed
