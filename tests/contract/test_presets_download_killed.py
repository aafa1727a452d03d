"""SIGKILL at any moment, and a disk that fills up: the next run ends right and fetches little again."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from paths import ROOT
from presets import download
from presets.download import Options
from tests.contract.hub_server import HubServer
from tests.contract.test_presets_download import QUICK, REPO, REVISION, door, model_bytes, remote_of, right

KILLS = int(os.environ.get("HALOFORGE_KILLS", "50"))
SIZES = {"a.gguf": 2_500_000, "b.gguf": 1_200_003, "c.gguf": 3_000_000}
BUFFER = 128 << 10
RATE = 40_000_000
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["presets.download", "tests.contract.test_presets_download"])


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(rate=RATE) as server:
        for name, size in SIZES.items():
            server.add(REPO, REVISION, name, model_bytes(size, seed=size))
        yield server


def client(hub: HubServer, folder: Path, ranges: int) -> BaseProcess:
    """A process of its own that fetches the set."""
    jobs = [
        (f"{hub.url}/{REPO}/resolve/{REVISION}/{name}", str(folder / name), content.size, content.sha256)
        for name, content in hub.files[REPO, REVISION].items()
    ]
    process = PROCESSES.Process(target=run_client, args=(hub.url, jobs, ranges), daemon=True)
    process.start()
    return process


def run_client(endpoint: str, jobs: list[tuple[str, str, int, str]], ranges: int) -> None:
    """The body of the client process; its messages are of no use here."""
    import web
    from presets.download_door import Door

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    download.SMALLEST_SPAN = 1 << 19  # type: ignore[misc]
    home = Door(endpoint=endpoint, made=lambda: web.session(local=True))
    files = [
        download.Remote(url=url, target=Path(target), size=size, sha256=sha256, door=home)
        for url, target, size, sha256 in jobs
    ]
    download.fetch_all(files, Options(backoff_s=0.001, buffer=BUFFER, ranges=ranges))


def counted(folder: Path) -> dict[str, int]:
    """Bytes of each file that count as here: of a finished one all, of a part what its state says."""
    found = {name: size for name, size in SIZES.items() if (folder / name).exists()}
    for name in SIZES.keys() - found.keys():
        state = folder / f".{name}.part.json"
        spans = json.loads(state.read_text())["spans"] if state.exists() else []
        found[name] = sum(span["done"] for span in spans)
    return found


@pytest.mark.parametrize("ranges", [1, 3])
def test_killed_at_random_points_the_rerun_ends_right(hub: HubServer, tmp_path: Path, ranges: int) -> None:
    dice = random.Random(ranges)
    total = sum(SIZES.values())
    in_the_middle = 0
    for turn in range(KILLS if ranges == 1 else KILLS // 5):
        folder = tmp_path / str(turn)
        limit = dice.randrange(total)
        hub.forget()
        process = client(hub, folder, ranges)
        hub.on_sent = lambda sent, limit=limit, process=process: (  # type: ignore[misc]
            process.kill() if sent >= limit else None
        )
        process.join()
        hub.on_sent = lambda _: None

        before = counted(folder)
        in_the_middle += 0 < sum(before.values()) < total
        if ranges == 1:
            for name in SIZES:
                part = folder / f".{name}.part"
                written = part.stat().st_size if part.exists() else before[name]
                assert written - before[name] <= BUFFER

        hub.forget()
        process = client(hub, folder, ranges)
        process.join(60)
        assert process.exitcode == 0
        for name, content in hub.files[REPO, REVISION].items():
            assert right(remote_of(hub, content, folder, name))
            if ranges == 1:
                asked = [r for r in hub.requests("bytes") if r.path.endswith(content.sha256)]
                starts = [request.start for request in asked]
                assert starts == ([before[name]] if before[name] < content.size else [])
        assert hub.sent == total - sum(before.values())
    assert in_the_middle >= KILLS // 10


def test_killed_again_and_again_it_still_ends(hub: HubServer, tmp_path: Path) -> None:
    dice = random.Random(3)
    for _ in range(12):
        limit = hub.sent + dice.randrange(1_500_000)
        process = client(hub, tmp_path, 1)
        hub.on_sent = lambda sent, limit=limit, process=process: (  # type: ignore[misc]
            process.kill() if sent >= limit else None
        )
        process.join(60)
    hub.on_sent = lambda _: None
    files = [
        remote_of(hub, content, tmp_path, name)
        for name, content in hub.files[REPO, REVISION].items()
        if not (tmp_path / name).exists()
    ]
    download.fetch_all(files, QUICK)
    for name, content in hub.files[REPO, REVISION].items():
        assert right(remote_of(hub, content, tmp_path, name))


FULL_DISK = """
import json, sys
from pathlib import Path
import web
from errors import HaloforgeError
from presets import download
from presets.download_door import Door

home = Door(endpoint=sys.argv[1], made=lambda: web.session(local=True))
url, folder, size, sha256 = sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
file = download.Remote(url=url, target=folder / "c.gguf", size=size, sha256=sha256, door=home)
options = download.Options(buffer=64 << 10, backoff_s=0.001)
try:
    download.fetch_all([file], options)
except HaloforgeError as error:
    print("first", error.exit_code, error)
if sys.argv[6] == "late":
    download.check_space = lambda *_: None
    try:
        download.fetch_all([file], options)
    except HaloforgeError as error:
        print("late", error.exit_code, error)
    print("kept", sum(s["done"] for s in json.loads((folder / ".c.gguf.part.json").read_text())["spans"]))
    (folder / "ballast").unlink()
    download.fetch_all([file], options)
    print("whole", (folder / "c.gguf").stat().st_size)
"""


def in_small_file_system(script: list[str], folder: Path, size: str) -> subprocess.CompletedProcess[str]:
    """Run a program where `folder` is a file system of its own and of a few MiB."""
    setup = f'mount -t tmpfs -o size={size} none "{folder}" && head -c 2000000 /dev/zero > "{folder}/ballast"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return subprocess.run(
        [*unshare, "sh", "-c", f'{setup} && exec "$@"', "sh", *script],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
    )  # fmt: skip


def test_a_full_disk_is_said_and_survived(hub: HubServer, tmp_path: Path) -> None:
    probe = in_small_file_system(["true"], tmp_path, "4m")
    if probe.returncode != 0:
        pytest.skip(f"no private mounts here: {probe.stderr.strip()}")
    content = hub.files[REPO, REVISION]["c.gguf"]
    url = door(hub).file_url(REPO, REVISION, "c.gguf")
    words = [sys.executable, "-c", FULL_DISK, hub.url, url, str(tmp_path), str(content.size), content.sha256]
    ended = in_small_file_system([*words, "late"], tmp_path, "4m")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("first 3 ")
    assert "too little room" in lines[0]
    late = next(line for line in lines if line.startswith("late"))
    assert late.startswith("late 3 cannot write")
    kept = int(next(line for line in lines if line.startswith("kept")).split()[1])
    assert 0 < kept < content.size
    assert lines[-1] == f"whole {content.size}"
