"""Hollow GGUF files: a true header over holes, so that an engine sizes a 100 GB model from 0.1 MB of disk.

Written byte by byte here and not through the `gguf` package, which knows neither every architecture nor
how to leave the weights out.

    python -m tests.makers.hollow NAME OUT.gguf     (NAME: see tests.makers.shapes)
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from presets.gguf import DEFAULT_ALIGNMENT, GGML_TYPES, row_bytes

Meta: TypeAlias = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[bool]
_NUMBERS = {name: number for number, (name, _, _) in GGML_TYPES.items()}
_WIDE = ("ple.layer_multipliers", "ple.head_offsets", "ple.head_vocab_sizes")
"""Arrays that the engine reads as u64."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model to be: keys, and tensors as (name, shape with the row length first, ggml type)."""

    metadata: Mapping[str, Meta]
    tensors: Sequence[tuple[str, tuple[int, ...], str]]
    vocabulary: int
    listed: bool = field(default=False)
    """True writes every token of the vocabulary, as real files do; False only its size."""


def write(model: Model, path: Path) -> Path:
    """Write a hollow file; its apparent size is that of the real one."""
    header = head(model)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(_padded(_nbytes(shape, kind)) for _, shape, kind in model.tensors))
    return path


def write_split(model: Model, folder: Path, stem: str, shards: int) -> list[Path]:
    """Write a hollow model as shards of about equally many tensors; keys go into the first."""
    share = -(-len(model.tensors) // shards)
    paths = []
    for number in range(shards):
        own = model.tensors[number * share : (number + 1) * share]
        keys: dict[str, Meta] = dict(model.metadata) if number == 0 else {}
        keys |= {"split.no": number, "split.count": shards, "split.tensors.count": len(model.tensors)}
        part = Model(
            metadata=keys, tensors=own, vocabulary=model.vocabulary, listed=model.listed and not number
        )
        paths.append(write(part, folder / f"{stem}-{number + 1:05d}-of-{shards:05d}.gguf"))
    return paths


def head(model: Model) -> bytes:
    """The header of a model with its padding."""
    keys = dict(model.metadata)
    if model.listed:
        keys |= _tokenizer(model.vocabulary)
    elif "general.architecture" in keys:
        keys |= {
            "tokenizer.ggml.model": "none",
            f"{keys['general.architecture']}.vocab_size": model.vocabulary,
        }
    out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(model.tensors), len(keys)))
    for key, value in keys.items():
        out += _string(key) + _value(key, value)
    offset = 0
    for name, shape, kind in model.tensors:
        out += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out += struct.pack("<IQ", _NUMBERS[kind], offset)
        offset += _padded(_nbytes(shape, kind))
    return bytes(out) + bytes(-len(out) % DEFAULT_ALIGNMENT)


def _tokenizer(size: int) -> dict[str, Meta]:
    """A byte-level vocabulary of made-up words, as long in entries as a real one."""
    tokens = [f"t{number:06d}" for number in range(size)]
    merges = [f"t{number:06d} x" for number in range(size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": size - 1,
    }


def _nbytes(shape: tuple[int, ...], kind: str) -> int:
    rows = 1
    for size in shape[1:]:
        rows *= size
    return row_bytes(kind, shape[0]) * rows


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Meta) -> bytes:
    if key in ("split.no", "split.count"):
        return struct.pack("<IH", 2, int(value))  # type: ignore[arg-type]
    if key == "split.tensors.count":
        return struct.pack("<Ii", 5, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 9) + _array(value, "Q" if key.endswith(_WIDE) else "i")


def _array(values: Sequence[str] | Sequence[int] | Sequence[bool], letter: str) -> bytes:
    if isinstance(values[0], str):
        return struct.pack("<IQ", 8, len(values)) + b"".join(_string(str(value)) for value in values)
    if isinstance(values[0], bool):
        return struct.pack(f"<IQ{len(values)}?", 7, len(values), *values)
    kind = {"Q": 10, "i": 5}[letter]
    return struct.pack(f"<IQ{len(values)}{letter}", kind, len(values), *values)


def main() -> None:
    """Write one of the models of `tests.makers.shapes`."""
    from tests.makers import shapes

    if len(sys.argv) != 3 or sys.argv[1] not in shapes.MODELS:
        sys.exit(
            f"usage: python -m tests.makers.hollow NAME OUT.gguf, NAME one of {', '.join(shapes.MODELS)}"
        )
    print(write(shapes.MODELS[sys.argv[1]](), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
