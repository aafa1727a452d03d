"""Which preset is meant when none is named."""

from __future__ import annotations

import os

import say


def default_preset() -> str:
    """`HALOFORGE_PRESET`, else `quality` where a usable gfx1151 GPU is, else `demo`; says which and why."""
    if named := os.environ.get("HALOFORGE_PRESET"):
        say.step("preset", f"{named} (HALOFORGE_PRESET)")
        return named
    from compose.doctor import gpu_ready

    if gpu_ready():
        say.step("preset", "quality: a gfx1151 GPU is here")
        return "quality"
    say.step("preset", "demo: no usable gfx1151 GPU here; choose another with --preset")
    return "demo"
