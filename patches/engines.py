"""The engines: which llama.cpp tree is built, where it comes from, and what the rest must know of it.

One folder each, `patches/<name>/engine.yaml`. Every source is pinned: a git source by the engine's full
commit, a file by its SHA-256; a URL without one is refused when the file is read.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import documents
from errors import BadInput, nearest
from patches.traits import Traits

FOLDER: Final = Path(__file__).resolve().parent
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GitSource(_Data):
    """A git repository; the commit is the engine's own, `ref` only says under which name to ask for it."""

    kind: Literal["git"]
    url: str
    ref: str = ""


class ArchiveSource(_Data):
    """A tar archive at a fixed address; `strip` is the folder inside it that is the tree."""

    kind: Literal["archive"]
    url: str
    sha256: Sha256
    strip: str = ""


class PypiSource(_Data):
    """A file of a Python package index, found through pip's own configuration."""

    kind: Literal["pypi"]
    project: str
    file: str
    sha256: Sha256
    strip: str = ""


Source = Annotated[GitSource | ArchiveSource | PypiSource, Field(discriminator="kind")]


class Engine(_Data):
    """A pinned engine.

    `cmake` holds the options that every flavour of this engine is configured with; `tree` the digest of
    the pristine tree per kind of source, where it is known (an archive may leave out files that git has).
    `landmarks` are files without which a folder is not a tree of this engine at all.
    """

    name: str
    folder: Path = Field(exclude=True)
    repository: str
    commit: Commit
    tag: str = ""
    build_number: Annotated[int, Field(gt=0)]
    licence: str
    reviewed: datetime.date
    sources: Annotated[tuple[Source, ...], Field(min_length=1)]
    tree: Mapping[Literal["git", "archive", "pypi"], Sha256] = Field(default_factory=dict)
    cmake: Mapping[str, str] = Field(default_factory=dict)
    landmarks: tuple[str, ...] = ("CMakeLists.txt", "include/llama.h")
    notes: str = ""
    traits: Traits

    @field_validator("cmake", mode="before")
    @classmethod
    def _switches(cls, value: object) -> object:
        """YAML reads ON and OFF as booleans; CMake wants the words back."""
        if not isinstance(value, dict):
            return value
        return {k: ("ON" if v else "OFF") if isinstance(v, bool) else str(v) for k, v in value.items()}

    @property
    def pin(self) -> str:
        """The short form of the pin, for folders, tags and labels: build number and commit."""
        return f"b{self.build_number}-{self.commit[:9]}"

    @property
    def cmake_pins(self) -> dict[str, str]:
        """What tells CMake the build number and commit, which it would otherwise take from some git."""
        return {"LLAMA_BUILD_NUMBER": str(self.build_number), "LLAMA_BUILD_COMMIT": self.commit[:9]}


def names() -> list[str]:
    """The names of all engines, the default one first."""
    found = sorted(path.parent.name for path in FOLDER.glob("*/engine.yaml"))
    return sorted(found, key=lambda name: name != "llama.cpp")


@cache
def load(name: str = "llama.cpp") -> Engine:
    """The engine of that name.

    Raises:
        BadInput: there is none, or its file is wrong; names the file and each wrong field.
    """
    path = FOLDER / name / "engine.yaml"
    if name not in names():
        raise BadInput(
            f"no engine named {name!r}", why=nearest(name, names()), hint="./inv fetch --engine NAME"
        )
    return parse(documents.read(path), path)


def parse(document: object, path: Path) -> Engine:
    """Check one engine's document; the name is that of its folder."""
    if not isinstance(document, dict):
        raise BadInput(f"{path} is not a mapping", hint="see patches/llama.cpp/engine.yaml for the form")
    try:
        return Engine.model_validate({"name": path.parent.name, "folder": path.parent, **document})
    except ValidationError as error:
        raise BadInput(f"{path} is wrong", why=describe(error)) from error


def describe(error: ValidationError) -> str:
    """Each wrong field of a document in one line."""
    return "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
