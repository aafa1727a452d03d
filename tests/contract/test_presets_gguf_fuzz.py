"""Mutated headers: whatever the bytes, the reader answers or refuses; it never crashes, hangs or eats memory.

HALOFORGE_FUZZ sets the number of inputs; each failure prints the seed that makes its input again.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from errors import BadInput
from presets import gguf
from tests.makers import hollow, shapes

INPUTS = int(os.environ.get("HALOFORGE_FUZZ", "100000"))
HEADROOM = 64 << 20
"""Bytes that the whole run may allocate beyond what the process has."""
EDGES = [
    0,
    1,
    7,
    8,
    31,
    32,
    255,
    65_535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**60,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


def small() -> hollow.Model:
    """A header with every kind of value that a real one has, and few of each."""
    keys: dict[str, hollow.Meta] = {
        "general.architecture": "qwen4exp",
        "general.name": "a model",
        "general.alignment": 32,
        "qwen4exp.block_count": 3,
        "qwen4exp.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen4exp.rope.dimension_sections": [11, 11, 10, 0],
        "qwen4exp.attention.head_count_kv": [0, 0, 2],
        "qwen4exp.ple.head_offsets": [2**40, 2**41],
        "qwen4exp.flag": True,
        "split.count": 0,
    }
    tensors = [
        ("token_embd.weight", (64, 300), "q8_0"),
        *((f"blk.{i}.attn_q.weight", (256, 32), "q4_K") for i in range(3)),
        ("output_norm.weight", (64,), "f32"),
    ]
    return hollow.Model(metadata=keys, tensors=tensors, vocabulary=300, listed=True)


def corpus() -> list[bytes]:
    """Whole headers: the small one, and one of a shape as it is published, cut to its first tensors."""
    real = shapes.MODELS["qwen35-27b-mtp"]()
    first = hollow.Model(metadata=real.metadata, tensors=real.tensors[:12], vocabulary=200, listed=True)
    bare = hollow.Model(metadata={}, tensors=[], vocabulary=0)
    return [hollow.head(small()), hollow.head(first), hollow.head(bare)]


def flip(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    for _turn in range(dice.choice((1, 1, 2, 8, 64))):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def edge(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    at = dice.randrange(max(1, len(data) - 8))
    form, most = dice.choice((("<I", 2**32 - 1), ("<Q", 2**64 - 1)))
    value = struct.pack(form, min(dice.choice(EDGES) + dice.choice((0, 0, 1)), most))
    data[at : at + len(value)] = value


def counts(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    at = dice.choice((4, 8, 16))
    data[at : at + 4] = struct.pack("<I", dice.choice((0, 1, 2, 3, 5, 1000, 2**31, 2**32 - 1)))


def cut(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    del data[dice.randrange(len(data)) :]


def remove(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    at = dice.randrange(len(data))
    del data[at : at + dice.choice((1, 4, 8, 100))]


def double(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    at = dice.randrange(len(data))
    piece = data[at : at + dice.choice((1, 8, 40, 500))]
    data[at:at] = piece * dice.choice((1, 2, 20))


def splice(data: bytearray, dice: random.Random, whole: list[bytes]) -> None:
    other = dice.choice(whole)
    data[dice.randrange(len(data)) :] = other[dice.randrange(len(other)) :]


def noise(data: bytearray, dice: random.Random, _: list[bytes]) -> None:
    at = dice.randrange(len(data))
    piece = dice.randbytes(dice.choice((1, 4, 16, 200)))
    data[at : at + len(piece)] = piece


MUTATIONS: list[Callable[[bytearray, random.Random, list[bytes]], None]] = [
    flip, edge, edge, counts, cut, remove, double, splice, noise,
]  # fmt: skip


def mutated(seed: int, whole: list[bytes]) -> bytes:
    """One input, made again by its seed."""
    dice = random.Random(seed)
    data = bytearray(whole[seed % len(whole)])
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if data:
            dice.choice(MUTATIONS)(data, dice, whole)
    return bytes(data)


@contextmanager
def limits(seconds: int) -> Iterator[None]:
    """Little more memory than the process has now, and an alarm that breaks a hang."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(data: bytes, size: int) -> str:
    """ "read" or "refused"; any other exception goes through."""
    try:
        header = gguf.parse(data, file_size=size)
    except BadInput as refusal:
        return "refused" if str(refusal) else "refused without a word"
    assert all(tensor.offset + tensor.nbytes + header.data_offset <= size for tensor in header.tensors)
    return "read"


def test_the_corpus_itself_is_read() -> None:
    assert [outcome(data, 1 << 40) for data in corpus()] == ["read"] * len(corpus())


def test_mutated_headers_are_read_or_refused() -> None:
    whole = corpus()
    seen: Counter[str] = Counter()
    seed = 0
    try:
        with limits(seconds=600):
            for seed in range(INPUTS):
                data = mutated(seed, whole)
                seen[outcome(data, len(data) if seed % 2 else 1 << 40)] += 1
    except BaseException as error:
        pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
    assert seen["read"] > INPUTS // 100
    assert seen["refused"] > INPUTS // 4
    assert seen["read"] + seen["refused"] == INPUTS


def test_a_promise_of_memory_is_not_kept() -> None:
    """The fuzzer's own guard works: what allocates beyond the headroom is caught."""
    with pytest.raises(MemoryError), limits(seconds=60):
        bytearray(2 * HEADROOM)
