"""Pinning a base: ask the registry what its tag stands for today, and write the digest into `bases.yaml`."""

from __future__ import annotations

import re
from pathlib import Path

import paths
import say
from errors import BadInput, NetworkFailed
from images import base as bases
from images import daemon


def pin(name: str) -> str:
    """Write the digest that the registry's tag has now; returns it.

    Raises:
        BadInput: no such base, or it has no registry image.
        NetworkFailed: the registry does not answer.
    """
    base = bases.load(name)
    if base.registry is None:
        raise BadInput(f"the base {name} is not from a registry", hint="./inv images.pin trixie")
    image = base.registry.image
    done = daemon.docker(
        "buildx", "imagetools", "inspect", image, "--format", "{{.Manifest.Digest}}", check=False
    )
    digest = done.out.strip()
    if done.code or not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        reason = (done.err.strip() or digest or "it printed nothing").splitlines()[-1]
        raise NetworkFailed(f"no digest for {image}", why=reason, hint="try where the registry answers")
    if digest == base.registry.digest:
        say.step("pin", f"{name} is {image} at {digest}, as pinned")
        return digest
    write(bases.FILE, base.registry.digest, digest)
    say.step("pin", f"{name}: {image} {base.registry.digest} -> {digest}")
    return digest


def write(file: Path, old: str, new: str) -> None:
    """Put a digest in the place of another, which must be there exactly once; the rest of the file stays."""
    text = file.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise BadInput(f"{old} is in {file} {text.count(old)} times", why="each base has its own digest")
    with paths.replacing(file) as temporary:
        temporary.write_text(text.replace(old, new), encoding="utf-8")
