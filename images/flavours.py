"""The flavours of the image: what the engine is configured with, as data (`flavours.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import documents
from errors import BadInput, nearest

FILE: Final = Path(__file__).resolve().parent / "flavours.yaml"


class Data(BaseModel):
    """A document of ours: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def switches(value: object) -> object:
    """YAML reads ON and OFF as booleans; CMake wants the words back."""
    if not isinstance(value, dict):
        return value
    return {name: ("ON" if v else "OFF") if isinstance(v, bool) else str(v) for name, v in value.items()}


class Device(Data):
    """The GPU of a flavour: llama-server's name for it, and the only code target allowed (empty: none)."""

    kind: str
    target: str = ""


class Cpu(Data):
    """A processor that the host part is compiled for."""

    summary: str
    cmake: Mapping[str, str]

    _words = field_validator("cmake", mode="before")(switches)


class Flavour(Data):
    """One flavour, resolved.

    `bases` in order of preference; `cmake` includes the options of the processor; `job_mib` is the memory
    that one compile job may take, in MiB; `targets` the CMake targets that are built and shipped.
    """

    name: str
    summary: str
    bases: Annotated[tuple[str, ...], Field(min_length=1)]
    cpu: str
    device: Device | None = None
    job_mib: Annotated[int, Field(gt=0)]
    cmake: Mapping[str, str]
    targets: tuple[str, ...]

    _words = field_validator("cmake", mode="before")(switches)


@cache
def _document() -> dict[str, Any]:
    return parse_file(documents.read(FILE))


def parse_file(document: Any) -> dict[str, Any]:
    """Check the outer shape of the file: flavours, targets and cpus."""
    if not isinstance(document, dict) or set(document) != {"flavours", "targets", "cpus"}:
        raise BadInput(f"{FILE} needs the keys flavours, targets and cpus, and no others")
    return document


def names() -> list[str]:
    """The names of all flavours, in the order of the file."""
    return list(_document()["flavours"])


def cpu_names() -> list[str]:
    """The processors that a flavour can be compiled for."""
    return list(_document()["cpus"])


def load(name: str, *, cpu: str = "") -> Flavour:
    """The flavour of that name, for its own processor or the one given.

    Raises:
        BadInput: no such flavour or processor (the nearest is suggested), or the file is wrong.
    """
    document = _document()
    if name not in names():
        raise BadInput(
            f"no flavour named {name!r}",
            why=nearest(name, names()),
            hint=f"--flavour NAME, NAME being one of {', '.join(names())}",
        )
    raw = document["flavours"][name]
    chosen = cpu or raw.get("cpu", "")
    if chosen not in document["cpus"]:
        raise BadInput(
            f"no processor named {chosen!r}", why=nearest(chosen, cpu_names()), hint="./inv build --cpu NAME"
        )
    try:
        target = Cpu.model_validate(document["cpus"][chosen])
        flavour = Flavour.model_validate({"name": name, "targets": document["targets"], **raw, "cpu": chosen})
    except ValidationError as error:
        raise BadInput(f"{FILE} is wrong", why=describe(error)) from error
    return flavour.model_copy(update={"cmake": {**flavour.cmake, **target.cmake}})


def describe(error: ValidationError) -> str:
    """Each wrong field of a document in one line."""
    return "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
