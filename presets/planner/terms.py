"""The pieces of a plan: terms, the device they are placed on, the budget they are held against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from errors import BadInput

Where = Literal["device", "host"]
Certainty = Literal["exact", "bounded", "measured"]
DeviceKind = Literal["cpu", "gpu", "igpu"]

MIB: Final = 2**20
GIB: Final = 2**30

ORDER: Final = (
    "weights_device", "weights_host", "ngram_table", "kv_cache", "kv_cache_swa", "indexer_cache",
    "recurrent_state", "compute_device", "compute_host", "output", "draft_weights", "draft_kv_cache",
    "draft_recurrent_state", "draft_compute", "checkpoints", "prompt_cache", "runtime",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Term:
    """One share of memory.

    `exact`: the engine allocates this to the byte. `bounded`: it is at most this. `measured`: fitted from
    measurements, or the engine's own projection.
    """

    name: str
    bytes: int
    where: Where
    certainty: Certainty
    formula: str

    def __post_init__(self) -> None:
        if self.name not in ORDER or self.bytes < 0:
            raise ValueError(f"no term {self.name} of {self.bytes} bytes")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What computes: the CPU, a GPU with memory of its own, or one that shares the host's (gfx1151)."""

    kind: DeviceKind
    backend: Literal["cpu", "rocm", "vulkan"]

    @property
    def layers_on(self) -> Where:
        """Where repeating layers go when all are offloaded."""
        return "host" if self.kind == "cpu" else "device"


CPU: Final = Device(kind="cpu", backend="cpu")
GFX1151: Final = Device(kind="igpu", backend="rocm")
GFX1151_VULKAN: Final = Device(kind="igpu", backend="vulkan")
FLAVOURS: Final = {"cpu": CPU, "rocm": GFX1151, "vulkan": GFX1151_VULKAN}


def device(flavour: str) -> Device:
    """The device that an image flavour runs on.

    Raises:
        BadInput: no such flavour.
    """
    if flavour not in FLAVOURS:
        raise BadInput(f"no flavour {flavour!r}", why=f"known: {', '.join(FLAVOURS)}", hint="--flavour rocm")
    return FLAVOURS[flavour]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What there is: available host memory less a reserve, and GTT as the ceiling of what the GPU maps.

    `container_bytes` is a container's memory limit; it holds host terms only, since GTT is not charged to it.
    """

    available_bytes: int
    reserve_bytes: int = 6 * GIB
    gtt_bytes: int | None = None
    container_bytes: int | None = None

    @property
    def budget_bytes(self) -> int:
        """Available less reserve, never below zero."""
        return max(self.available_bytes - self.reserve_bytes, 0)
