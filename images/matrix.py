"""The jobs of a pipeline: which flavours of which engines it builds."""

from __future__ import annotations

from typing import TypedDict

from images import flavours
from patches import engines


class Job(TypedDict):
    """One job. `smoke`: it can be run without a GPU; `slow`: it takes an hour or more on two cores."""

    flavour: str
    engine: str
    pin: str
    base: str
    smoke: bool
    slow: bool


def matrix() -> dict[str, list[Job]]:
    """The matrix in the form that GitHub Actions reads: `{"include": [job, ...]}`."""
    pins = [engines.load(name) for name in engines.names()]
    chosen = [flavours.load(name) for name in flavours.names()]
    return {
        "include": [
            Job(
                flavour=flavour.name,
                engine=engine.name,
                pin=engine.pin,
                base=flavour.bases[0],
                smoke=flavour.device is None,
                slow=bool(flavour.device and flavour.device.target),
            )
            for engine in pins
            for flavour in chosen
        ]
    }
