"""Finds the headers that a plan is made from: real files, hollow files, else the outline of a catalog model.

Nothing is downloaded here. An outline is data (`outlines.yaml`): right keys, and weights known by the
file's size alone, so that its weights are "about" and everything else is as exact as with the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import documents
import paths
from errors import BadInput
from presets import gguf
from presets.gguf import ArrayStub, Header, Tensor, Value, row_bytes

if TYPE_CHECKING:
    from presets.catalog import Files

REMOTE: Final = re.compile(
    r"https?://[^/]+/(?P<repo>[\w.-]+/[\w.-]+)/(?:resolve|blob)/(?P<revision>[\w.-]+)/(?P<path>.+\.gguf)(?:\?.*)?$"
    r"|(?P<named>[\w.-]+/[\w.-]+)@(?P<at>[^:]+):(?P<file>.+\.gguf)$"
)
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
CATALOG: Final = re.compile(r"(?P<model>[\w.-]+)/(?P<entry>(?:heads/)?[\w.-]+)$")
OUTLINES: Final = Path(__file__).with_name("outlines.yaml")


class Wants(Protocol):
    """The part of a preset that names files."""

    @property
    def model(self) -> str: ...
    @property
    def quant(self) -> str | None: ...
    @property
    def head(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class Found:
    """Headers of model and head; `outlined` when weights are known by the file's size alone."""

    header: Header
    draft: Header | None
    outlined: bool
    origin: str


def path_of(reference: str) -> Path:
    """A file named by its path, or one of the Hub, of which only the header is fetched and laid hollow.

    Args:
        reference: a path; `MODEL/QUANT` or `MODEL/heads/HEAD` of the catalog; `OWNER/REPO@REVISION:PATH`;
            or the address that the Hub shows for a file, with a full revision in it.

    Raises:
        BadInput: an address with a branch in the place of a revision, or no such file.
        NetworkFailed: the Hub does not answer.
    """
    if Path(reference).exists() or not (match := REMOTE.match(reference) or CATALOG.match(reference)):
        return Path(reference)
    from presets import catalog, models_header

    if match.re is CATALOG and match["model"] not in catalog.names():
        return Path(reference)
    if match.re is REMOTE:
        reference = _pinned(reference, match)
    return models_header.fetch(reference)


def _pinned(reference: str, match: re.Match[str]) -> str:
    """`OWNER/REPO@REVISION:PATH` from that or from an address.

    Raises:
        BadInput: the revision is not a full commit.
    """
    repo, revision, path = (
        match[name] or match[other]
        for name, other in (("repo", "named"), ("revision", "at"), ("path", "file"))
    )
    if not COMMIT.fullmatch(revision):
        raise BadInput(
            f"{reference} names {revision}, which is not a full commit",
            why="a branch or tag may move; a plan is for one file",
            hint=f"write {repo}@COMMIT:{path}, COMMIT being the 40 digits that the Hub's page lists",
        )
    return f"{repo}@{revision}:{path}"


def of_files(model: Path, draft: Path | None) -> Found:
    """Headers of files named by the user; a hollow or cut file will do.

    Raises:
        BadInput: a file cannot be used.
    """
    header = gguf.read_set(model, complete=False)
    drafted = gguf.read_set(draft, complete=False) if draft else None
    return Found(header=header, draft=drafted, outlined=False, origin=str(model))


def of_preset(preset: Wants) -> Found:
    """Headers for a preset: its files where they are here, else hollow ones, else the outline.

    Raises:
        BadInput: the preset names unknown entries, or nothing is known of the model yet.
    """
    from presets import catalog  # it imports pydantic, which `plan --gguf` has no time for

    model, head = located(preset)
    if preset.model.endswith(".gguf"):
        return of_files(Path(preset.model), Path(preset.head) if preset.head else None)
    header = gguf.read_set(model, complete=False) if model else None
    drafted = gguf.read_set(head, complete=False) if head else None
    outlined = header is None or (preset.head is not None and drafted is None)
    known = _outlines().get(preset.model)
    if outlined and known is None:
        raise BadInput(
            f"nothing is known of {preset.model} {preset.quant} before its header is here",
            why="no file, no hollow file and no outline",
            hint=f"./inv models.header {preset.model}/{preset.quant}",
        )
    if header is None and known is not None:
        header = _outline(known, _bytes_of(catalog.quant(preset.model, preset.quant or "")))
    if preset.head is not None and drafted is None and known is not None:
        drafted = _head_outline(known, catalog.model(preset.model).head(preset.head).bytes)
    assert header is not None
    origin = "outline of the catalog model, weights by file size" if outlined else "files here"
    return Found(header=header, draft=drafted, outlined=outlined, origin=origin)


def located(preset: Wants) -> tuple[Path | None, Path | None]:
    """First shards of a preset's model and head, real or hollow; None for what is not here.

    Raises:
        BadInput: the preset names unknown entries.
    """
    if preset.model.endswith(".gguf"):
        return Path(preset.model), Path(preset.head) if preset.head else None
    from presets import catalog

    model = catalog.model(preset.model)
    assert preset.quant is not None, "the schema demands a quant for a catalog model"
    root = paths.models() / preset.model
    first = _on_disk(model.quant(preset.quant), [root / preset.quant, _hollow(preset.model, preset.quant)])
    if preset.head is None:
        return first, None
    name = f"heads/{preset.head}"
    own = [root / name, _hollow(preset.model, name)]
    return first, _on_disk(model.head(preset.head), own)


def _bytes_of(files: Files) -> int:
    return files.bytes or 0


def _hollow(model: str, entry: str) -> Path:
    """Where `models.header` lays the hollow files of an entry."""
    return paths.home() / "headers" / model / entry


def _on_disk(files: Files, folders: list[Path]) -> Path | None:
    for folder in folders:
        if all((folder / shard.name).exists() for shard in files.shards):
            return folder / files.shards[0].name
    return None


@cache
def _outlines() -> dict[str, dict[str, Any]]:
    document = documents.read(OUTLINES)
    assert isinstance(document, dict)
    return document


def outline(model: str, file_bytes: int) -> Header | None:
    """The outline of a catalog model whose files have that many bytes; None when there is none."""
    known = _outlines().get(model)
    return _outline(known, file_bytes) if known else None


def head_outline(model: str, file_bytes: int) -> Header | None:
    """The outline of a catalog model's MTP head of that many bytes; None when there is none."""
    known = _outlines().get(model)
    return _head_outline(known, file_bytes) if known and "head" in known else None


def _outline(known: Mapping[str, Any], file_bytes: int) -> Header:
    return _filled(known["metadata"], known["tensors"], known, file_bytes)


def _head_outline(known: Mapping[str, Any], file_bytes: int | None) -> Header:
    head = known["head"]
    keys = {key: value for key, value in known["metadata"].items() if key not in head["without"]}
    return _filled(
        keys | head["metadata"], head["tensors"], {**known, **head}, file_bytes or head["largest_bytes"]
    )


def _filled(
    metadata: Mapping[str, Any], tensors: Mapping[str, Any], known: Mapping[str, Any], file_bytes: int
) -> Header:
    """A header whose last tensor is the lump that fills the file up."""
    listed: list[Tensor] = []
    offset = 0
    for name, entry in tensors.items():
        shape = tuple(entry["shape"])
        size = row_bytes(entry["type"], shape[0]) * gguf.product(shape[1:])
        listed.append(Tensor(name=name, shape=shape, type=entry["type"], offset=offset, nbytes=size))
        offset += size
    lump = max(file_bytes - known["header_bytes"] - offset, 0)
    listed.append(Tensor(name=known["rest"], shape=(lump,), type="i8", offset=offset, nbytes=lump))
    keys: dict[str, Value] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in metadata.items()
    }
    keys["tokenizer.ggml.tokens"] = ArrayStub(type="str", length=known["vocabulary"])
    return Header(
        version=3, metadata=keys, tensors=tuple(listed), data_offset=known["header_bytes"],
        file_size=file_bytes, alignment=gguf.DEFAULT_ALIGNMENT, complete=False,
    )  # fmt: skip
