"""Headers and plans for the planner's tests: hollow models in memory, no file."""

from __future__ import annotations

from functools import cache

from patches.traits import Traits
from presets import gguf
from presets.gguf import Header
from presets.planner import GFX1151, Budget, Device, Options, Plan, plan
from presets.planner.architecture import Architecture, describe
from presets.planner.terms import GIB
from tests.makers import hollow, shapes
from tests.makers.hollow import Model

B11434 = Traits()
PLENTY = Budget(available_bytes=1 << 50, reserve_bytes=0)
BOX = Budget(available_bytes=int(106.5 * GIB), reserve_bytes=6 * GIB, gtt_bytes=124 * GIB)


def header_of(model: Model) -> Header:
    """The header that a hollow file of this model would have."""
    return gguf.parse(hollow.head(model), file_size=1 << 50, complete=False)


@cache
def header(name: str) -> Header:
    """The header of one of the makers' models."""
    return header_of(shapes.MODELS[name]())


@cache
def architecture(name: str) -> Architecture:
    """What the planner makes of it."""
    return describe(header(name))


def planned(
    name: str,
    *,
    draft: str = "",
    traits: Traits = B11434,
    device: Device = GFX1151,
    budget: Budget = PLENTY,
    **options: object,
) -> Plan:
    """A plan of one of the makers' models."""
    return plan(
        header(name), header(draft) if draft else None, Options(**options), traits, device, budget,  # type: ignore[arg-type]
        preset=name,
    )  # fmt: skip


def mib(plan: Plan, term: str) -> float:
    """A term in MiB, as logs print it."""
    return round(plan.bytes_of(term) / 2**20, 2)
