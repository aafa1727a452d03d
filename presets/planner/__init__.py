"""How much memory a preset takes, before anything is downloaded or started."""

from __future__ import annotations

from presets.planner.options import Options, Shape, shape

__all__ = ["Options", "Shape", "shape"]
