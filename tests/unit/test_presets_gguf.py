"""The GGUF header reader, against the `gguf` package's writer and against files made to mislead it."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errors import BadInput
from presets import gguf as reader
from presets.gguf import ArrayStub, HeaderCut


def write(path: Path, *, tokens: int = 10, weights: bool = True) -> Path:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(2)
    writer.add_rope_freq_base(1e6)
    writer.add_array("qwen3.attention.head_count_kv", [2, 0])
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}é" for i in range(tokens)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 5000)
    writer.add_array("general.tags", ["one", "two"])
    writer.add_bool("general.flag", True)
    writer.add_tensor("token_embd.weight", np.ones((3, 64), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(7, np.float32))
    raw = np.zeros((2, 34 * 2), np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file() if weights else writer.write_ti_data_to_file()
    writer.close()
    return path


def sample(factory: pytest.TempPathFactory) -> bytes:
    path = factory.getbasetemp() / "sample.gguf"
    return (path if path.exists() else write(path)).read_bytes()


def test_reads_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", tokens=300)
    header = reader.read(path)
    assert header.architecture == "qwen3"
    assert header.metadata["qwen3.attention.head_count_kv"] == (2, 0)
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayStub(type="str", length=300)
    assert header.metadata["tokenizer.ggml.scores"] == ArrayStub(type="f32", length=5000)
    assert header.metadata["general.tags"] == ("one", "two")
    assert header.metadata["general.flag"] is True
    assert header.length("tokenizer.ggml.tokens") == 300
    theirs = gguf.GGUFReader(path)
    assert header.data_offset == theirs.data_offset
    assert [(t.name, t.shape, t.type.upper(), t.nbytes) for t in header.tensors] == [
        (t.name, tuple(t.shape), t.tensor_type.name, t.n_bytes) for t in theirs.tensors
    ]
    assert header.data_offset + header.tensors[-1].offset == theirs.tensors[-1].data_offset


def test_sizes_of_types_agree_with_the_gguf_package() -> None:
    ours = {number: (block, size) for number, (_, block, size) in reader.GGML_TYPES.items()}
    theirs = {kind.value: sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    known = (ours.keys() & theirs.keys()) - {9}  # q8_1 has two halves here, two floats in the package
    assert len(known) >= 30
    assert {number: ours[number] for number in known} == {number: theirs[number] for number in known}


def test_a_row_is_made_of_whole_blocks() -> None:
    assert reader.row_bytes("q8_0", 1024) == 1088
    assert reader.row_bytes("q4_0", 64) == 36
    with pytest.raises(BadInput, match="100 elements"):
        reader.row_bytes("q4_0", 100)
    with pytest.raises(BadInput, match="q9_9"):
        reader.row_bytes("q9_9", 256)


def test_a_header_alone_is_read_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", weights=False)
    with pytest.raises(BadInput, match="tensor data are missing"):
        reader.read(path)
    header = reader.read(path, complete=False)
    assert not header.complete
    assert len(header.tensors) == 3


def test_holes_count_as_data(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", weights=False)
    header = reader.read(path, complete=False)
    with path.open("r+b") as file:
        file.truncate(header.data_offset + header.tensors[-1].offset + header.tensors[-1].nbytes)
    assert reader.read(path).complete


@settings(max_examples=150, deadline=None)
@given(cut=st.integers(0, 10_000))
def test_every_cut_is_one_clear_error(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    whole = sample(tmp_path_factory)
    cut %= reader.parse(whole).data_offset - 31
    with pytest.raises(BadInput) as raised:
        reader.parse(whole[:cut], file_size=len(whole))
    if isinstance(raised.value, HeaderCut):
        assert cut < raised.value.needed
    else:
        assert cut < 4


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 10_000), value=st.binary(min_size=1, max_size=8))
def test_a_changed_header_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: bytes
) -> None:
    data = bytearray(sample(tmp_path_factory))
    at %= len(data)
    data[at : at + len(value)] = value
    try:
        header = reader.parse(bytes(data))
    except BadInput:
        return
    assert header.file_size == len(data)
    assert all(0 <= t.offset <= len(data) and 0 <= t.nbytes <= len(data) for t in header.tensors)


def key(name: str, code: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", code) + value


def tensor(name: str, shape: tuple[int, ...], code: int, offset: int) -> bytes:
    packed = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
    return packed + b"".join(struct.pack("<Q", n) for n in shape) + struct.pack("<IQ", code, offset)


def file(keys: list[bytes], tensors: list[bytes], *, version: int = 3, data: int = 4096) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    return head + b"".join(keys) + b"".join(tensors) + bytes(data)


T = tensor("t", (32,), 0, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF"),
        (b"<!doctype html><html>", "not a GGUF file"),
        (file([], [T], version=1), "version 1"),
        (file([], [T], version=3 << 24), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "tensor count"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "key count"),
        (file([struct.pack("<Q", 2**62) + b"k"], []), "65535"),
        (file([key("k", 8, struct.pack("<Q", 2**62))], []), "the header is cut"),
        (file([key("k", 9, struct.pack("<IQ", 8, 2**61))], []), "the header is cut"),
        (file([key("k", 9, struct.pack("<IQ", 9, 2))], []), "element type 9"),
        (file([key("k", 99, b"")], []), "value type 99"),
        (file([key("k", 7, b"\1"), key("k", 7, b"\1")], []), "appears twice"),
        (file([key("general.alignment", 4, struct.pack("<I", 24))], [T]), "power of two"),
        (file([key("general.alignment", 4, struct.pack("<I", 0))], [T]), "power of two"),
        (file([], [T, tensor("t", (32,), 0, 128)]), "appears twice"),
        (file([], [T, tensor("u", (32,), 0, 4096)]), "starts at 4096"),
        (file([], [tensor("t", (32,), 200, 0)]), "type number 200"),
        (file([], [tensor("t", (33,), 8, 0)]), "rows of 33"),
        (file([], [tensor("t", (2**40, 2**40), 0, 0)]), "impossible shape"),
        (file([], [tensor("t", (1, 1, 1, 1, 1), 0, 0)]), "5 dimensions"),
        (file([], [tensor("t" * 64, (1,), 0, 0)]), "64 bytes"),
        (file([], [tensor("t", (8192,), 0, 0)]), "tensor data are missing"),
    ],
)
def test_bad_files_are_named(data: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message) as raised:
        reader.parse(data)
    assert raised.value.exit_code == 2
    assert raised.value.why
    assert raised.value.hint


def test_missing_empty_and_unreadable_paths(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    for path, message in [
        (tmp_path / "no.gguf", "cannot read"),
        (tmp_path / "empty.gguf", "is empty"),
        (tmp_path, "cannot read"),
    ]:
        with pytest.raises(BadInput, match=message):
            reader.read(path)


def shard(path: Path, number: int, count: int, total: int) -> Path:
    keys = [
        key("split.no", 2, struct.pack("<H", number)),
        key("split.count", 2, struct.pack("<H", count)),
        key("split.tensors.count", 5, struct.pack("<i", total)),
    ]
    path.write_bytes(file(keys, [tensor(f"t{number}", (32,), 0, 0)], data=160))
    return path


def test_shards_are_merged(tmp_path: Path) -> None:
    paths = [shard(tmp_path / f"m-{i + 1:05d}-of-00003.gguf", i, 3, 3) for i in range(3)]
    header = reader.read_set(paths[0])
    assert [(t.name, t.shard) for t in header.tensors] == [("t0", 0), ("t1", 1), ("t2", 2)]
    assert header.file_size == sum(path.stat().st_size for path in paths)
    assert header.shards == 3


def test_one_of_one_is_complete(tmp_path: Path) -> None:
    assert reader.read_set(shard(tmp_path / "m-00001-of-00001.gguf", 0, 1, 1)).shards == 1


def test_shards_missing_swapped_or_miscounted(tmp_path: Path) -> None:
    one = shard(tmp_path / "m-00001-of-00002.gguf", 0, 2, 2)
    with pytest.raises(BadInput, match="1 of 2 shards are missing"):
        reader.read_set(one)
    two = shard(tmp_path / "m-00002-of-00002.gguf", 0, 2, 2)
    with pytest.raises(BadInput, match="says it is number 0"):
        reader.read_set(one)
    with pytest.raises(BadInput, match="not the first shard"):
        reader.read_set(two)
    shard(two, 1, 2, 3)
    shard(one, 0, 2, 3)
    with pytest.raises(BadInput, match="2 tensors in the shards, 3 promised"):
        reader.read_set(one)
    shard(one, 0, 3, 3)
    with pytest.raises(BadInput, match="one of 3 shards"):
        reader.read_set(one)
