"""How much memory a preset takes, before anything is downloaded or started."""

from __future__ import annotations

from presets.planner.assess import Plan, Question, assess, plan
from presets.planner.options import Options, Shape, override, shape
from presets.planner.terms import CPU, FLAVOURS, GFX1151, GFX1151_VULKAN, Budget, Device, Term, device

__all__ = [
    "CPU",
    "FLAVOURS",
    "GFX1151",
    "GFX1151_VULKAN",
    "Budget",
    "Device",
    "Options",
    "Plan",
    "Question",
    "Shape",
    "Term",
    "assess",
    "device",
    "override",
    "plan",
    "shape",
]
