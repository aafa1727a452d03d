"""The headers of remote files, fetched by ranges and laid as hollow files: all a plan needs.

A hollow file has the real header and the real size, and holes where the weights would be. The
planner and the engine's own projection read it like the model, days before 100 GB are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import requests

import paths
from errors import BadInput, nearest
from presets import catalog, download, download_door, gguf, models, models_check, models_lock
from presets.catalog import Files, Hub, Shard
from presets.download_door import Door, Passing
from presets.download_part import disk
from presets.models_lock import Pin

FIRST_BYTES: Final = 2 << 20
"""Enough for the header of every shard but the first; doubled until the header is whole."""
LARGEST_HEADER: Final = 256 << 20
FREE_REFERENCE: Final = re.compile(r"^([\w.-]+/[\w.-]+)@([0-9a-f]{40}):(.+\.gguf)$")


def fetch(
    reference: str,
    *,
    door: Door | None = None,
    lock: Path = models_lock.LOCK,
    options: download.Options | None = None,
) -> Path:
    """Lay the hollow files of a quant or head; returns the first shard.

    Args:
        reference: `MODEL/QUANT` or `MODEL/heads/HEAD` of the catalog, or of the Hub
            `OWNER/REPO@REVISION:PATH`, PATH being the first shard.

    Raises:
        BadInput: no such reference, or the remote file is no GGUF.
        NetworkFailed: the Hub cannot be asked.
    """
    door = door or download_door.hub()
    files, folder = _resolve(reference)
    if not isinstance(files.source, Hub):
        raise BadInput(
            f"{reference} does not come from the Hub", why="only there headers can be had by themselves"
        )
    pins = models_lock.pins_of(files, door, lock)
    source = files.source
    with ThreadPoolExecutor(max_workers=8) as pool:
        laid = list(
            pool.map(
                lambda shard: _lay(door, source, shard, pins[shard.path], folder / shard.name, options),
                files.shards,
            )
        )
    gguf.read_set(laid[0])
    return laid[0]


def of_preset(
    preset: models.Wants,
    *,
    door: Door | None = None,
    lock: Path = models_lock.LOCK,
    options: download.Options | None = None,
) -> models.ModelFiles | None:
    """The files of a preset as hollow ones: what a plan needs, before anything big is fetched.

    Returns None for a model that does not come from the Hub.

    Raises:
        BadInput: unknown names, or a head that does not fit the engine or the model.
        NetworkFailed: the Hub cannot be asked.
    """
    model, quant, head = models.chosen(preset)
    if not isinstance(quant.source, Hub) or (head is not None and not isinstance(head.source, Hub)):
        return None
    first = fetch(f"{preset.model}/{preset.quant}", door=door, lock=lock, options=options)
    header = models_check.check_model(model, quant, first)
    draft, draft_header = None, None
    if head is not None:
        draft = fetch(f"{preset.model}/heads/{preset.head}", door=door, lock=lock, options=options)
        draft_header = models_check.check_head(head, draft, header)
    files = (*gguf.shard_paths(first), *([draft] if draft else []))
    return models.ModelFiles(
        model=first,
        draft=draft,
        files=files,
        bytes=sum(file.stat().st_size for file in files),
        header=header,
        draft_header=draft_header,
    )


def _resolve(reference: str) -> tuple[Files, Path]:
    free = FREE_REFERENCE.match(reference)
    root = paths.home() / "headers"
    if free:
        repo, revision, path = free.groups()
        parent = Path(path).parent
        names = [shard.name for shard in gguf.shard_paths(Path(path))]
        shards = [{"path": str(parent / name)} for name in names]
        source = {"kind": "hub", "repo": repo, "revision": revision}
        files = Files.model_validate({"from": source, "shards": shards})
        return files, root / repo.replace("/", "--") / revision / parent
    model_name, _, entry = reference.partition("/")
    model = catalog.model(model_name)
    entries: dict[str, Files] = {
        **model.quants,
        **{f"heads/{name}": each for name, each in model.heads.items()},
    }
    if entry not in entries:
        raise BadInput(
            f"{model_name} has no {entry!r}",
            why=nearest(entry, list(entries)),
            hint="./inv models.header MODEL/QUANT, or MODEL/heads/HEAD",
        )
    return entries[entry], root / model_name / entry


def _lay(
    door: Door, source: Hub, shard: Shard, pin: Pin, target: Path, options: download.Options | None
) -> Path:
    """One hollow file; kept from an earlier time if it is there."""
    if target.exists() and target.stat().st_size == pin.bytes:
        return target
    url = door.file_url(source.repo, source.revision, shard.path)
    with door.made() as session:

        def more(data: bytes, want: int) -> bytes:
            return download.patiently(lambda: _more(door, session, url, data, want, pin), options)

        head = _header_bytes(more, pin, shard.name)
    with disk(target), paths.replacing(target) as temporary, temporary.open("wb") as out:
        out.write(head)
        out.truncate(pin.bytes)
    return target


def _header_bytes(more: Callable[[bytes, int], bytes], pin: Pin, name: str) -> bytes:
    """The first bytes of a remote file, as many as its header needs; `more` grows what is there."""
    data = b""
    want = FIRST_BYTES
    while True:
        want = min(max(want, 2 * len(data)), pin.bytes, LARGEST_HEADER)
        data = more(data, want)
        try:
            header = gguf.parse(data, file_size=pin.bytes, name=name)
        except gguf.HeaderCut as cut:
            if len(data) >= min(pin.bytes, LARGEST_HEADER):
                raise
            want = cut.needed
            continue
        return data[: header.data_offset]


def _more(door: Door, session: requests.Session, url: str, data: bytes, want: int, pin: Pin) -> bytes:
    """`data` grown to `want` bytes."""
    with download_door.opened(door, session, url, (len(data), want)) as answer:
        if answer.sha256 not in (None, pin.sha256) or answer.total not in (None, pin.bytes):
            raise Passing("the answer is not the file", why=f"{answer.total} bytes, sha256 {answer.sha256}")
        chunks: list[bytes] = [data] if answer.status == 206 else []
        size = sum(map(len, chunks))
        while size < want:
            chunk = download_door.read_some(answer, want - size)
            if not chunk:
                raise Passing("the line was cut", why=f"after {size} of {want} bytes")
            chunks.append(chunk)
            size += len(chunk)
    return b"".join(chunks)
