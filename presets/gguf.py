"""Reads the header of a GGUF file: its keys and the list of its tensors, never the weights.

Layout (all little-endian): magic, version u32, tensor count u64, key count u64, the keys, the tensor
descriptions, padding to the alignment, tensor data. A vocabulary of 250 000 entries is walked over
without being built, which is what makes this fast (0.1 s) where the `gguf` package takes seconds.
No number in the file is trusted: each count and length is held against the bytes that are left.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from errors import BadInput

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_KEY_BYTES: Final = 65_535
MAX_NAME_BYTES: Final = 63
"""The engine's GGML_MAX_NAME is 64 with the final zero."""
MAX_DIMS: Final = 4
MAX_KEPT_NUMBERS: Final = 4096
"""Longer arrays of numbers become an `ArrayStub`; per-layer arrays have a few hundred entries."""
MAX_KEPT_STRINGS: Final = 256
SPLIT_NAME: Final = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

GGML_TYPES: Final[Mapping[int, tuple[str, int, int]]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 36),
    10: ("q2_K", 256, 84),
    11: ("q3_K", 256, 110),
    12: ("q4_K", 256, 144),
    13: ("q5_K", 256, 176),
    14: ("q6_K", 256, 210),
    15: ("q8_K", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
    41: ("q1_0", 128, 18),
    42: ("q2_0", 64, 18),
}
"""ggml's type number -> (name, elements per block, bytes per block); ggml.h and ggml-common.h of b11434."""

_SIZES: Final = {name: (block, size) for name, block, size in GGML_TYPES.values()}
_SCALARS: Final[Mapping[int, tuple[str, str]]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "?"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

Scalar: TypeAlias = str | int | float | bool
Buffer: TypeAlias = bytes | mmap.mmap


class HeaderCut(BadInput):
    """The bytes end before the header does. `needed` is the least length in bytes that could go on."""

    def __init__(self, name: str, what: str, needed: int, held: int) -> None:
        super().__init__(
            f"{name}: the header is cut",
            why=f"{what} needs {needed} bytes, there are {held}",
            hint="./inv models.verify names damaged files; remove them and run ./inv models.fetch",
        )
        self.needed = needed


@dataclass(frozen=True, kw_only=True)
class ArrayStub:
    """Stands for an array that was walked over: its element type and its length."""

    type: str
    length: int


Value: TypeAlias = Scalar | tuple[Scalar, ...] | ArrayStub


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """One tensor: `shape` in ggml order (ne0, the row length, first), `offset` from its shard's data."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int
    shard: int = 0

    @property
    def elements(self) -> int:
        """The number of elements."""
        return product(self.shape)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What one GGUF file, or all shards of a set, says about itself. `file_size` is the sum over shards."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    data_offset: int
    file_size: int
    alignment: int
    shards: int = 1
    complete: bool = True
    by_name: Mapping[str, Tensor] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {tensor.name: tensor for tensor in self.tensors})

    @property
    def architecture(self) -> str:
        """`general.architecture`, or "" when the file has none."""
        value = self.metadata.get("general.architecture", "")
        return value if isinstance(value, str) else ""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors without padding."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def length(self, key: str) -> int:
        """Entries of an array, whether it was kept or walked over; 0 when the key is absent."""
        value = self.metadata.get(key)
        if isinstance(value, ArrayStub):
            return value.length
        return len(value) if isinstance(value, tuple) else 0


def product(shape: tuple[int, ...]) -> int:
    """The product of the dimensions; 1 for no dimension."""
    total = 1
    for size in shape:
        total *= size
    return total


def type_names() -> tuple[str, ...]:
    """Every ggml type this reader knows."""
    return tuple(_SIZES)


def row_bytes(type_name: str, elements: int) -> int:
    """Bytes of a row of `elements` of a type (ggml_row_size).

    Raises:
        BadInput: the type is unknown, or the row does not consist of whole blocks.
    """
    if type_name not in _SIZES:
        raise BadInput(f"unknown ggml type {type_name!r}", hint="known: " + ", ".join(_SIZES))
    block, size = _SIZES[type_name]
    if elements % block:
        raise BadInput(
            f"a row of {elements} elements cannot be stored as {type_name}",
            why=f"{type_name} packs {block} elements into {size} bytes",
        )
    return elements // block * size


def read(path: Path | str, *, complete: bool = True) -> Header:
    """The header of one file.

    Args:
        complete: True demands that the file holds every byte of tensor data that its header promises
            (holes count as bytes). False accepts a header-only or cut file.

    Raises:
        BadInput: the file cannot be read or is not a usable GGUF; `HeaderCut` where the header itself ends
            early.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size == 0:
                raise BadInput(
                    f"{path} is empty",
                    hint="./inv models.verify names damaged files; remove them and run ./inv models.fetch",
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return parse(mapped, file_size=size, name=str(path), complete=complete)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BadInput(
            f"cannot read {path}", why=why, hint="check the path; ./inv models lists what is here"
        ) from error


def shard_paths(first: Path | str) -> list[Path]:
    """All files of a model, from the name of its first shard; a name without a shard number is itself.

    Raises:
        BadInput: another shard than the first was named.
    """
    first = Path(first)
    match = SPLIT_NAME.match(first.name)
    if match is None:
        return [first]
    count = int(match["count"])
    paths = [first.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
    if not paths or paths[0] != first:
        expected = f"{match['stem']}-00001-of-{count:05d}.gguf"
        raise BadInput(
            f"{first.name} is not the first shard", why="the engine opens a model by shard 1", hint=expected
        )
    return paths


def read_set(first_shard: Path | str, *, complete: bool = True) -> Header:
    """The headers of all shards of a model, merged; keys are those of the first shard.

    Raises:
        BadInput: a shard is missing, or the shards do not belong together.
    """
    paths = shard_paths(first_shard)
    missing = [path.name for path in paths if not path.exists()]
    if missing and len(paths) > 1:
        raise BadInput(
            f"{len(missing)} of {len(paths)} shards are missing",
            why=", ".join(missing[:4]),
            hint="./inv models.fetch",
        )
    return merge([read(path, complete=complete) for path in paths], Path(first_shard).name)


def merge(headers: list[Header], name: str = "the model") -> Header:
    """Join the headers of the shards of one model, in order."""
    first = headers[0]
    declared = first.metadata.get("split.count", len(headers))
    if declared not in (len(headers), 0):
        raise BadInput(
            f"{name}: the file says it is one of {declared} shards, there are {len(headers)}",
            why="split.count in the header does not match the file names",
            hint="keep the shard names the publisher gave (…-00001-of-0000N.gguf)",
        )
    tensors: list[Tensor] = []
    seen: set[str] = set()
    for number, header in enumerate(headers):
        if header.metadata.get("split.no", number) != number:
            raise BadInput(
                f"{name}: shard {number + 1} says it is number {header.metadata['split.no']} (from 0)",
                why="two shards have been swapped or renamed",
                hint="./inv models.verify",
            )
        for tensor in header.tensors:
            if tensor.name in seen:
                raise BadInput(f"{name}: tensor {tensor.name!r} is in two shards", hint="./inv models.verify")
            seen.add(tensor.name)
            tensors.append(replace(tensor, shard=number))
    total = first.metadata.get("split.tensors.count", len(tensors))
    if len(headers) > 1 and total != len(tensors):
        raise BadInput(
            f"{name}: {len(tensors)} tensors in the shards, {total} promised", hint="./inv models.verify"
        )
    return replace(
        first,
        tensors=tuple(tensors),
        file_size=sum(header.file_size for header in headers),
        shards=len(headers),
        complete=all(header.complete for header in headers),
    )


def parse(
    data: Buffer, *, file_size: int | None = None, name: str = "GGUF data", complete: bool = True
) -> Header:
    """Parse a header out of bytes that begin a GGUF file.

    Args:
        data: the first bytes of the file, at least the whole header.
        file_size: bytes of the whole file; None means `data` is all there is.
        complete: see `read`.

    Raises:
        HeaderCut: `data` ends inside the header; read more and try again.
        BadInput: this is not a GGUF the engine could load.
    """
    size = len(data) if file_size is None else file_size
    cursor = _Cursor(data, name)
    cursor.magic()
    version = cursor.version()
    tensor_count = cursor.count("the tensor count", size, least=8 + 4 + 8 + 4 + 8)
    key_count = cursor.count("the key count", size, least=8 + 4 + 1)
    metadata = _metadata(cursor, key_count)
    alignment = _alignment(metadata, name)
    tensors = _tensors(cursor, tensor_count, alignment)
    data_offset = _pad(cursor.at, alignment)
    end = data_offset + (max((t.offset + t.nbytes for t in tensors), default=0))
    whole = end <= size
    if complete and not whole:
        raise BadInput(
            f"{name} is cut: {end - size} bytes of tensor data are missing",
            why=f"the header promises {end} bytes, the file has {size}",
            hint="./inv models.verify names damaged files; remove them and run ./inv models.fetch",
        )
    return Header(
        version=version,
        metadata=metadata,
        tensors=tensors,
        data_offset=data_offset,
        file_size=size,
        alignment=alignment,
        complete=whole,
    )


def _pad(size: int, to: int) -> int:
    return -(-size // to) * to


class _Cursor:
    """Walks over the bytes of a header; every step is checked against their end."""

    def __init__(self, data: Buffer, name: str) -> None:
        self.data, self.name, self.at, self.end = data, name, 0, len(data)

    def bad(self, what: str, why: str = "") -> BadInput:
        return BadInput(
            f"{self.name}: {what}",
            why=why or f"at byte {self.at} of the header",
            hint="./inv models.verify; a file you made yourself must be converted again",
        )

    def need(self, size: int, what: str) -> None:
        if self.at + size > self.end:
            raise HeaderCut(self.name, what, self.at + size, self.end)

    def magic(self) -> None:
        head = bytes(self.data[:4])
        if head != MAGIC:
            shown = repr(bytes(self.data[:16]))[2:-1]
            raise BadInput(
                f"{self.name} is not a GGUF file",
                why=f"it begins with {shown!r}, not 'GGUF' (a saved web page or error text looks like this)",
                hint="./inv models.verify",
            )
        self.at = 4

    def version(self) -> int:
        version = self.u32("the version")
        if version in VERSIONS:
            return version
        if version and not version & 0xFFFF:
            raise self.bad("a big-endian GGUF", "the engine reads little-endian files only")
        raise self.bad(f"GGUF version {version} is not supported", f"the engine reads versions {VERSIONS}")

    def u32(self, what: str) -> int:
        self.need(4, what)
        (value,) = _U32.unpack_from(self.data, self.at)
        self.at += 4
        return int(value)

    def u64(self, what: str) -> int:
        self.need(8, what)
        (value,) = _U64.unpack_from(self.data, self.at)
        self.at += 8
        return int(value)

    def count(self, what: str, size: int, *, least: int) -> int:
        """A count of things of at least `least` bytes each; refused if the file could not hold them."""
        value = self.u64(what)
        if value * least > size:
            raise self.bad(f"{what} is {value}", f"the file has only {size} bytes")
        return value

    def string(self, what: str, limit: int | None = None) -> str:
        length = self.u64(f"the length of {what}")
        if limit is not None and length > limit:
            raise self.bad(f"{what} is {length} bytes long", f"at most {limit} are allowed")
        self.need(length, what)
        raw = bytes(self.data[self.at : self.at + length])
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def scalar(self, code: int, key: str) -> Scalar:
        if code == _STRING:
            return self.string(f"the value of {key!r}")
        if code not in _SCALARS:
            raise self.bad(f"key {key!r} has the unknown value type {code}")
        form = "<" + _SCALARS[code][1]
        size = struct.calcsize(form)
        self.need(size, f"the value of {key!r}")
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return value  # type: ignore[no-any-return]

    def array(self, key: str) -> Value:
        code = self.u32(f"the element type of {key!r}")
        length = self.u64(f"the length of {key!r}")
        if code == _STRING:
            return self._strings(key, length)
        if code not in _SCALARS:
            raise self.bad(f"array {key!r} has the unsupported element type {code}")
        kind, letter = _SCALARS[code]
        size = struct.calcsize(letter) * length
        self.need(size, f"array {key!r}")
        start, self.at = self.at, self.at + size
        if length > MAX_KEPT_NUMBERS:
            return ArrayStub(type=kind, length=length)
        return struct.unpack_from(f"<{length}{letter}", self.data, start)

    def _strings(self, key: str, length: int) -> Value:
        self.need(8 * length, f"array {key!r}")
        if length <= MAX_KEPT_STRINGS:
            return tuple(self.string(f"array {key!r}") for _ in range(length))
        data, at, end, unpack = self.data, self.at, self.end, _U64.unpack_from
        for _ in range(length):
            if at + 8 > end:
                raise HeaderCut(self.name, f"array {key!r}", at + 8, end)
            at += 8 + unpack(data, at)[0]
        if at > end:
            raise HeaderCut(self.name, f"array {key!r}", at, end)
        self.at = at
        return ArrayStub(type="str", length=length)


def _metadata(cursor: _Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(count):
        key = cursor.string("a key", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.bad(f"key {key!r} appears twice")
        code = cursor.u32(f"the type of {key!r}")
        metadata[key] = cursor.array(key) if code == _ARRAY else cursor.scalar(code, key)
    return metadata


def _alignment(metadata: Mapping[str, Value], name: str) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or value <= 0 or value & (value - 1):
        raise BadInput(
            f"{name}: general.alignment is {value!r}",
            why="it must be a power of two",
            hint="convert the file again",
        )
    return value


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[Tensor, ...]:
    tensors: list[Tensor] = []
    names: set[str] = set()
    expected = 0
    for _ in range(count):
        tensor = _tensor(cursor)
        if tensor.name in names:
            raise cursor.bad(f"tensor {tensor.name!r} appears twice")
        if tensor.offset != expected:
            raise cursor.bad(
                f"tensor {tensor.name!r} starts at {tensor.offset}",
                f"the tensors before it end at {expected}; the engine refuses gaps",
            )
        names.add(tensor.name)
        tensors.append(tensor)
        expected = _pad(tensor.offset + tensor.nbytes, alignment)
    return tuple(tensors)


def _tensor(cursor: _Cursor) -> Tensor:
    name = cursor.string("a tensor name", MAX_NAME_BYTES)
    dims = cursor.u32(f"the dimensions of {name!r}")
    if dims > MAX_DIMS:
        raise cursor.bad(f"tensor {name!r} has {dims} dimensions", f"at most {MAX_DIMS} are possible")
    shape = tuple(cursor.u64(f"the shape of {name!r}") for _ in range(dims)) or (1,)
    code = cursor.u32(f"the type of {name!r}")
    offset = cursor.u64(f"the offset of {name!r}")
    if code not in GGML_TYPES:
        raise cursor.bad(
            f"tensor {name!r} has the unknown type number {code}", "the pinned engine does not know it either"
        )
    type_name, block, size = GGML_TYPES[code]
    elements = product(shape)
    if elements >= 2**63 or 0 in shape:
        raise cursor.bad(f"tensor {name!r} has the impossible shape {shape}")
    if shape[0] % block:
        raise cursor.bad(
            f"tensor {name!r} has rows of {shape[0]}", f"{type_name} packs {block} elements at a time"
        )
    return Tensor(name=name, shape=shape, type=type_name, offset=offset, nbytes=elements // block * size)
