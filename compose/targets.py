"""The files of a preset for other ways to run it: podman's Quadlet and Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import paths
import say
from compose.render import LABEL, Inputs, fill, render, settle, slug
from errors import BadInput, nearest
from presets.schema import Preset, compact

GIB: Final = 2**30


def compose(inputs: Inputs) -> dict[str, str]:
    """The compose file, by file name."""
    return dict(render(inputs).files)


def quadlet(inputs: Inputs) -> dict[str, str]:
    """A `.container` unit for podman 5, by file name."""
    name = f"haloforge-{slug(inputs.preset.name)}"
    values = settle(inputs)
    filled = {
        **values,
        "container": name,
        "image_ref": qualified(inputs.image.ref),
        "entrypoint_json": compact(values["entrypoint"]),
        "has_key": inputs.preset.api_key_file is not None,
        "labels": {**values["labels"], f"{LABEL}target": "quadlet"},
    }
    return {f"{name}.container": fill("haloforge.container.j2", filled)}


def kubernetes(inputs: Inputs) -> dict[str, str]:
    """A Deployment, its Service and the claim for its models, by file name."""
    preset, weights = inputs.preset, inputs.weights
    name = f"haloforge-{slug(preset.name)}"
    values = settle(inputs)
    filled = {
        **values,
        "name": name,
        "image_ref": inputs.image.ref,
        "gpu": preset.flavour == "rocm",
        "planned_mib": -(-inputs.planned // 2**20),
        "memory_quantity": _quantity(preset.memory_limit),
        "has_key": preset.api_key_file is not None,
        "file_names": " ".join(name for _, name in weights.mounts),
        "storage_gib": -(-weights.bytes // GIB) + 1,
        "labels": {**values["labels"], f"{LABEL}target": "kubernetes"},
    }
    return {f"{name}.yaml": fill("kubernetes.yaml.j2", filled)}


TARGETS: Final[dict[str, Callable[[Inputs], dict[str, str]]]] = {
    "compose": compose,
    "quadlet": quadlet,
    "kubernetes": kubernetes,
}


def maker(target: str) -> Callable[[Inputs], dict[str, str]]:
    """What renders a target, by its name.

    Raises:
        BadInput: no such target.
    """
    if target not in TARGETS:
        raise BadInput(f"no target {target!r}", why=nearest(target, list(TARGETS)), hint="--target compose")
    return TARGETS[target]


def write(preset: Preset, *, target: str, out: str) -> None:
    """Render a preset and write its files to a folder, or print them.

    Raises:
        HaloforgeError: what `preview.inputs_for` raises, or the folder cannot be written.
    """
    from compose.preview import inputs_for

    chosen = maker(target)
    for name, text in chosen(inputs_for(preset)).items():
        if not out:
            print(text, end="")
            continue
        path = Path(out) / name
        try:
            with paths.replacing(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write {path}", why=error.strerror or str(error)) from error
        say.step("render", str(path))


def qualified(ref: str) -> str:
    """An image name with its registry; podman keeps images without one (`podman load`) under localhost."""
    first, slash, _ = ref.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return ref if named else f"localhost/{ref}"


def _quantity(limit: str | None) -> str:
    """A compose size as a Kubernetes quantity: `12g` is `12Gi`."""
    if limit is None:
        return ""
    return f"{limit[:-1]}{limit[-1].upper()}i" if limit[-1].isalpha() else limit
