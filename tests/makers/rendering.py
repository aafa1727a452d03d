"""Inputs for rendering that stand for a built image, downloaded files and a host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compose.host import Device, Host
from compose.render import Inputs, Rendered, Weights, render
from presets.schema import Preset

HELP = (Path(__file__).parents[1] / "data" / "llama-server-b11434.help").read_text(encoding="utf-8")
BOX = Host(
    home=Path("/srv/haloforge"),
    devices=(Device(path="/dev/kfd", gid=992), Device(path="/dev/dri/renderD128", gid=110)),
)
"""A Strix Halo box: two device nodes with two groups, a daemon that may raise limits."""
LAPTOP = replace(BOX, devices=(), memlock=8388608, uid=1000, gid=1000)
"""A machine without a GPU, a caller that is not root, a daemon that may not raise limits."""
PLAN: dict[str, Any] = {"total_bytes": 1_500_000_000, "per_slot_context": 2048, "terms": []}


@dataclass(frozen=True)
class Image:
    """A built image."""

    ref: str = "haloforge/llama.cpp:b11434-cpu"
    id: str = "sha256:" + "ab" * 32
    digest: str = "sha256:" + "ab" * 32
    identity: str = "b11434-5e03bdd87-0123456789"
    help_text: str = HELP


def weights(*, head: bool = False, size: int = 98_362_432) -> Weights:
    """One model file, and a head in another folder where wanted."""
    mounts: tuple[tuple[Path, str], ...] = ((Path("/data/models/main/model.gguf"), "model.gguf"),)
    if head:
        mounts += ((Path("/data/models/heads/head.gguf"), "head.gguf"),)
    return Weights(model="model.gguf", draft="head.gguf" if head else None, mounts=mounts, bytes=size)


def inputs(preset: Preset, *, host: Host = BOX, image: Image | None = None, size: int = 98_362_432) -> Inputs:
    """What rendering needs, from these stand-ins."""
    server = ["/app/llama-server"]
    if preset.flavour != "cpu":
        server = ["/app/require-device", "ROCm", *server]
    return Inputs(
        preset=preset,
        image=image or Image(),
        weights=weights(head=preset.head is not None, size=size),
        plan=PLAN,
        host=host,
        build=11434,
        server=server,
    )


def rendered(
    preset: Preset, *, host: Host = BOX, image: Image | None = None, size: int = 98_362_432
) -> Rendered:
    """A preset rendered with these stand-ins."""
    return render(inputs(preset, host=host, image=image, size=size))
