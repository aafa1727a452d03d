"""The downloader against a real server that misbehaves in every way a line or a server can."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import web
from errors import CheckFailed, HostLacks, NetworkFailed
from presets import download
from presets.download import Options, Remote
from presets.download_door import Door, retry_after
from presets.download_part import Part, verified
from tests.contract.hub_server import Content, HubServer

REPO = "org/repo"
REVISION = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
TOKEN = "hf_topsecrettoken"
QUICK = Options(backoff_s=0.001, longest_wait_s=0.01, buffer=64 << 10, tries=4)


def model_bytes(size: int, seed: int = 1) -> bytes:
    """Random bytes that begin like a GGUF."""
    return b"GGUF" + random.Random(seed).randbytes(size - 4)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def door(hub: HubServer, stall_s: float = 5.0) -> Door:
    return Door(endpoint=hub.url, token=TOKEN, stall_s=stall_s, made=lambda: web.session(local=True))


def remote(hub: HubServer, folder: Path, size: int = 300_000, name: str = "a.gguf") -> Remote:
    """Publish a file of random bytes and say how it is fetched."""
    content = hub.add(REPO, REVISION, name, model_bytes(size, seed=size))
    return remote_of(hub, content, folder, name)


def remote_of(hub: HubServer, content: Content, folder: Path, name: str = "a.gguf") -> Remote:
    place = door(hub)
    return Remote(
        url=place.file_url(REPO, REVISION, name),
        target=folder / name,
        size=content.size,
        sha256=content.sha256,
        door=place,
        revision=REVISION,
    )


def with_stall(file: Remote, stall_s: float) -> Remote:
    short = Door(endpoint=file.door.endpoint, token=TOKEN, stall_s=stall_s, made=file.door.made)
    return Remote(
        url=file.url, target=file.target, size=file.size, sha256=file.sha256, door=short, revision=REVISION
    )


def right(file: Remote) -> bool:
    """Whether the file is there with the right content and nothing is left beside it."""
    left_over = [p.name for p in file.target.parent.iterdir() if ".part" in p.name or p.suffix == ".tmp"]
    assert not left_over
    return hashlib.sha256(file.target.read_bytes()).hexdigest() == file.sha256 == verified(file.target)


def keep_part(file: Remote, hub: HubServer, size: int, etag: str | None = None) -> None:
    """Lay the first `size` right bytes of a file as an earlier, killed run would have left them."""
    data = hub.blobs[file.sha256].data
    with Part(file.target, file.size, file.sha256) as part:
        part.etag = etag if etag is not None else (file.sha256 if hub.linked else f"{file.sha256[:32]}")
        part.write(0, [data[:size]])


def test_a_set_of_files_is_fetched_verified_and_named(hub: HubServer, tmp_path: Path) -> None:
    files = [remote(hub, tmp_path, size, f"{size}.gguf") for size in (5, 70_000, 1_000_003, 262_144)]
    download.fetch_all(files, QUICK)
    assert all(right(file) for file in files)
    assert stat.S_IMODE(files[0].target.stat().st_mode) & 0o444 == 0o444


def test_the_token_goes_to_the_hub_and_to_nobody_else(hub: HubServer, tmp_path: Path) -> None:
    download.fetch_all([remote(hub, tmp_path)], QUICK)
    assert {request.authorization for request in hub.requests("hub")} == {f"Bearer {TOKEN}"}
    assert {request.authorization for request in hub.requests("bytes")} == {""}
    assert hub.requests("bytes")


def test_netrc_does_not_leak_into_either_host(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password hunter2\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    file = remote(hub, tmp_path)
    plain = Remote(
        url=file.url, target=file.target, size=file.size, sha256=file.sha256, door=Door(endpoint=hub.url)
    )
    download.fetch_all([plain], QUICK)
    assert {request.authorization for request in hub.log} == {""}


PASSING: list[dict[str, object]] = [
    {"kind": "cut", "after": 0},
    {"kind": "cut", "after": 1},
    {"kind": "cut", "after": 100_000},
    {"kind": "cut", "after": 299_999},
    {"kind": "cut", "after": 50_000, "times": 5},
    {"kind": "html"},
    {"kind": "text", "value": "GGUF" + "x" * 10},
    {"kind": "text", "value": "GG"},
    {"kind": "gzip"},
    {"kind": "longer"},
    {"kind": "shorter"},
    {"kind": "416"},
    {"kind": "ignore-range", "times": 9},
    {"kind": "refuse-bytes", "value": "expired"},
    {"kind": "refuse-bytes", "value": "503", "times": 3},
    {"kind": "refuse", "value": "429", "headers": {"Retry-After": "0"}},
    {"kind": "refuse", "value": "503"},
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda f: "-".join(str(v) for v in f.values())[:40])
@pytest.mark.parametrize("held", [0, 120_000])
def test_a_passing_fault_is_overcome(
    hub: HubServer, tmp_path: Path, fault: dict[str, object], held: int
) -> None:
    file = remote(hub, tmp_path)
    if held:
        keep_part(file, hub, held)
    hub.misbehave(**fault)  # type: ignore[arg-type]
    download.fetch_all([file], QUICK)
    assert right(file)


@pytest.mark.parametrize("kind", ["wrong-offset", "bare-206", "other-total"])
def test_a_206_answer_that_is_not_what_was_asked_for_is_not_appended(
    hub: HubServer, tmp_path: Path, kind: str
) -> None:
    file = remote(hub, tmp_path)
    keep_part(file, hub, 120_000)
    hub.misbehave(kind, times=2)
    download.fetch_all([file], QUICK)
    assert right(file)
    assert all(request.start == 120_000 for request in hub.requests("bytes"))


def test_resume_asks_only_for_what_is_missing(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path, 1_000_000)
    keep_part(file, hub, 900_000)
    download.fetch_all([file], QUICK)
    assert right(file)
    assert hub.sent == 100_000


def test_a_complete_part_needs_no_bytes(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    keep_part(file, hub, file.size)
    download.fetch_all([file], QUICK)
    assert right(file)
    assert not hub.log


def test_a_server_without_ranges_starts_again_and_is_not_appended(hub: HubServer, tmp_path: Path) -> None:
    """Case 36: a 200 answer to a range request is the whole file."""
    file = remote(hub, tmp_path, 4096)
    keep_part(file, hub, 1000)
    hub.misbehave("ignore-range", times=99)
    download.fetch_all([file], QUICK)
    assert right(file)
    assert file.target.stat().st_size == 4096


def test_a_server_that_ignores_ranges_and_cuts_ends_in_an_error(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    for _ in range(40):
        hub.misbehave("ignore-range", only_ranges=True)
        hub.misbehave("cut", after=1000)
    with pytest.raises(NetworkFailed, match="without progress"):
        download.fetch_all([file], QUICK)


def test_a_range_that_is_always_refused_starts_again(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    keep_part(file, hub, 1000)
    hub.misbehave("416", times=99, only_ranges=True)
    download.fetch_all([file], QUICK)
    assert right(file)


def test_another_etag_between_two_tries_starts_again(hub: HubServer, tmp_path: Path) -> None:
    hub.linked = False
    file = remote(hub, tmp_path)
    keep_part(file, hub, 100_000, etag="another")
    download.fetch_all([file], QUICK)
    assert right(file)
    assert hub.requests("bytes")[-1].range == ""


def test_an_etag_of_the_byte_host_may_change_when_the_linked_one_does_not(
    hub: HubServer, tmp_path: Path
) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("cut", after=100_000)
    hub.on_sent = lambda _: setattr(hub, "etag_suffix", "-2")
    download.fetch_all([file], QUICK)
    assert right(file)
    assert hub.sent == file.size


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        ("linked-etag", '"' + "a" * 64 + '"', "not the file that was pinned"),
        ("linked-size", "17", "another size"),
        ("commit", OTHER, "another revision"),
    ],
)
def test_other_content_on_the_hub_stops_before_the_first_byte(
    hub: HubServer, tmp_path: Path, kind: str, value: str, words: str
) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave(kind, value=value)
    with pytest.raises(CheckFailed, match=words):
        download.fetch_all([file], QUICK)
    assert not file.target.exists()


def test_altered_bytes_are_never_named(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("flip")
    with pytest.raises(CheckFailed, match="not the file that was asked for"):
        download.fetch_all([file], QUICK)
    assert not file.target.exists()
    download.fetch_all([file], QUICK)
    assert right(file)


def test_a_damaged_part_is_found_by_the_hash(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    keep_part(file, hub, 120_000)
    part = tmp_path / ".a.gguf.part"
    data = bytearray(part.read_bytes())
    data[5000] ^= 255
    part.write_bytes(bytes(data))
    with pytest.raises(CheckFailed):
        download.fetch_all([file], QUICK)
    download.fetch_all([file], QUICK)
    assert right(file)


@pytest.mark.parametrize("kind", ["stall", "trickle"])
def test_a_stalled_transfer_is_taken_up_again(hub: HubServer, tmp_path: Path, kind: str) -> None:
    file = with_stall(remote(hub, tmp_path), 0.3)
    hub.misbehave(kind, after=50_000)
    download.fetch_all([file], QUICK)
    assert right(file)
    assert len(hub.requests("bytes")) >= 2


REFUSALS = [
    ("401", "HF_TOKEN", NetworkFailed),
    ("gated", "accept the licence", NetworkFailed),
    ("404", "models.lock", NetworkFailed),
    ("revision", "models.lock", NetworkFailed),
    ("repo", "private", NetworkFailed),
]


@pytest.mark.parametrize(("name", "words", "error"), REFUSALS, ids=[name for name, *_ in REFUSALS])
def test_a_refusal_is_final_and_says_what_to_do(
    hub: HubServer, tmp_path: Path, name: str, words: str, error: type[Exception]
) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("refuse", value=name, times=99)
    with pytest.raises(error) as caught:
        download.fetch_all([file], QUICK)
    assert words in str(caught.value)
    assert len(hub.requests("hub")) == 1
    assert TOKEN not in str(caught.value)


def test_giving_up_names_the_last_fault_and_no_secret(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("html", times=99)
    with pytest.raises(NetworkFailed) as caught:
        download.fetch_all([file], QUICK)
    text = str(caught.value)
    assert "<!DOCTYPE html" in text
    assert "text/html" in text
    assert "very-secret" not in text + repr(caught.value.__cause__) + str(file)
    assert TOKEN not in text + repr(file)
    assert not file.target.exists()


def test_secrets_stay_out_of_what_is_printed(
    hub: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("cut", after=10)
    hub.misbehave("refuse-bytes", value="expired")
    hub.misbehave("gzip")
    download.fetch_all([file], QUICK)
    out, err = capfd.readouterr()
    assert "tries again" in err
    assert TOKEN not in out + err
    assert "very-secret" not in out + err


def test_words_of_a_server_cannot_steer_the_terminal(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("refuse", value="404", headers={"X-Error-Message": "gone\x1b[2J\x07"})
    with pytest.raises(NetworkFailed) as caught:
        download.fetch_all([file], QUICK)
    assert "gone?[2J?" in str(caught.value)


def test_retry_after_is_kept_to(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    hub.misbehave("refuse", value="429", headers={"Retry-After": "120"})
    with pytest.raises(NetworkFailed, match="given up") as caught:
        download.fetch_all([file], Options(backoff_s=0.001, patience_s=100))
    assert "come back in 120 s" in str(caught.value)


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after("7", 0) == 7
    assert retry_after("Wed, 21 Oct 2015 07:28:10 GMT", 1445412480) == 10
    assert retry_after("Wed, 21 Oct 2015 07:28:10 GMT", 1445412999) == 0
    assert retry_after("soon", 0) == retry_after(None, 0) == retry_after("", 0) == 0


def test_parallel_ranges_make_the_same_file(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SMALLEST_SPAN", 1 << 20)
    file = remote(hub, tmp_path, 5_000_001)
    hub.misbehave("cut", after=300_000, times=3)
    download.fetch_all([file], Options(ranges=3, backoff_s=0.001, buffer=64 << 10))
    assert right(file)
    assert len({request.start for request in hub.requests("bytes")}) >= 4
    assert hub.sent < file.size + 3 * (8 << 20)


def test_parallel_ranges_on_a_server_without_ranges(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SMALLEST_SPAN", 1 << 20)
    file = remote(hub, tmp_path, 3_000_000)
    hub.misbehave("ignore-range", times=99, only_ranges=True)
    download.fetch_all([file], Options(ranges=3, backoff_s=0.001))
    assert right(file)


def test_the_cap_holds_over_all_connections(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = download.Pace(1000)
    now = [100.0]
    monkeypatch.setattr("presets.download.time.monotonic", lambda: now[0])
    waits = [pace.spend(500), pace.spend(500), pace.spend(1000)]
    assert waits == [0.5, 1.0, 2.0]
    now[0] = 110.0
    assert pace.spend(100) == pytest.approx(0.1)


def test_two_processes_do_not_write_one_part(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    with Part(file.target, file.size, file.sha256), pytest.raises(HostLacks, match="another process"):
        download.fetch_all([file], QUICK)


def test_too_little_room_is_said_before_the_first_byte(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [remote(hub, tmp_path, 300_000, "a.gguf"), remote(hub, tmp_path, 300_001, "b.gguf")]
    usage = shutil.disk_usage(tmp_path)._replace(free=500_000)
    monkeypatch.setattr("presets.download.shutil.disk_usage", lambda _: usage)
    with pytest.raises(HostLacks, match="too little room") as caught:
        download.fetch_all(files, QUICK)
    assert "100001 bytes are missing" in str(caught.value)
    assert not hub.log


def test_no_right_to_write_is_one_clear_error(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = remote(hub, tmp_path / "file")
    with pytest.raises(HostLacks, match="cannot write"):
        download.fetch_all([file], QUICK)


def test_a_disk_that_fails_to_flush_stops_all_connections(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SMALLEST_SPAN", 40_000)
    monkeypatch.setattr(download, "FLUSH_EVERY_S", -1.0)
    hub.rate = 500_000

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    file = remote(hub, tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr("presets.download_part.os.fdatasync", fail)
        with pytest.raises(HostLacks, match="cannot write"):
            download.fetch_all([file], Options(ranges=3, backoff_s=0.001, buffer=4096))
    hub.rate = None
    download.fetch_all([file], QUICK)
    assert right(file)


def test_after_a_power_cut_only_flushed_bytes_count(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = remote(hub, tmp_path)
    data = hub.blobs[file.sha256].data
    with Part(file.target, file.size, file.sha256) as part:
        part.etag = file.sha256
        part.write(0, [data[:100_000]])
        part.flush()
        part.write(0, [data[100_000:150_000]])
    boot = tmp_path / "boot"
    boot.write_text("another boot")
    monkeypatch.setattr("presets.download_part.BOOT_ID", boot)
    download.fetch_all([file], QUICK)
    assert right(file)
    assert hub.requests("bytes")[0].start == 100_000


def test_an_unreadable_state_starts_again(hub: HubServer, tmp_path: Path) -> None:
    file = remote(hub, tmp_path)
    for text in ("", "{", "[]", '{"sha256": 1}', '{"sha256": "x", "bytes": 2, "spans": [{"start": "a"}]}'):
        keep_part(file, hub, 1000)
        (tmp_path / ".a.gguf.part.json").write_text(text)
        download.fetch_all([file], QUICK)
        assert right(file)
        file.target.unlink()


ANY_FAULT = [
    *PASSING,
    {"kind": "wrong-offset"},
    {"kind": "bare-206"},
    {"kind": "other-total"},
    {"kind": "flip"},
]
ANY_FAULT += [{"kind": "linked-size", "value": "3"}, {"kind": "refuse", "value": "404"}]


@pytest.mark.parametrize("seed", range(60))
def test_any_mixture_of_faults_ends_right_or_in_a_clear_error(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever was met, no wrong file is ever named, and a run on a good line ends right."""
    monkeypatch.setattr(download, "SMALLEST_SPAN", 40_000)
    dice = random.Random(seed)
    hub.linked = dice.random() < 0.7
    files = [
        remote(hub, tmp_path, dice.randrange(5, 400_000), f"{i}.gguf") for i in range(dice.choice((1, 3)))
    ]
    if dice.random() < 0.5:
        keep_part(files[0], hub, dice.randrange(files[0].size))
    for fault in dice.choices(ANY_FAULT, k=dice.randrange(7)):
        hub.misbehave(**fault)  # type: ignore[arg-type]
    options = Options(
        backoff_s=0.001, longest_wait_s=0.01, tries=3, ranges=dice.choice((1, 3)), files=2,
        buffer=dice.choice((4096, 65536)),
    )  # fmt: skip
    with contextlib.suppress(CheckFailed, NetworkFailed):
        download.fetch_all(files, options)
    for file in files:
        if file.target.exists():
            assert right_content(file)
    hub.faults.clear()
    try:
        download.fetch_all(files, options)
    except CheckFailed:  # what was altered on the way is found at the end and dropped
        download.fetch_all(files, options)
    assert all(right(file) for file in files)


def right_content(file: Remote) -> bool:
    """Whether a named file is what was pinned."""
    return hashlib.sha256(file.target.read_bytes()).hexdigest() == file.sha256
