"""What a host can lack, for real: a daemon, space, permission. One message, the right code each."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from paths import ROOT


def inv(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run([str(ROOT / "inv"), *words], **environment)


def run(argv: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300, env=env, cwd="/")


def on_small_disk(folder: Path, size: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `inv` with its generated folder on a tmpfs of that size, in a mount namespace of its own."""
    script = 'mount -t tmpfs -o size="$1" tmpfs "$2"; shift 2; exec "$@"'
    return run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", size, str(folder), str(ROOT / "inv"), *words],
        HALOFORGE_HOME=str(folder / "home"),
    )


def one_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "  next: " in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("task", ["deploy", "build"])
def test_no_daemon(tmp_path: Path, task: str) -> None:
    socket = f"unix://{tmp_path}/nobody.sock"
    words = ["--preset", "demo"] if task == "deploy" else []
    one_error(inv(task, *words, DOCKER_HOST=socket, HALOFORGE_HOME=str(tmp_path / "home")), "nobody.sock")


def test_doctor_without_a_daemon_says_so(tmp_path: Path) -> None:
    socket = f"unix://{tmp_path}/nobody.sock"
    done = inv("doctor", DOCKER_HOST=socket)
    assert done.returncode == 3
    assert "[docker-unreachable]" in done.stdout
    assert "Traceback" not in done.stderr


def test_install_does_not_start_a_daemon_beside_the_one_asked_for(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = inv("doctor", "--install", DOCKER_HOST=f"unix://{tmp_path}/nobody.sock", HALOFORGE_HOME=str(home))
    assert done.returncode == 3
    assert not (home / "engine.json").exists()


def test_doctor_sees_that_the_disk_is_full(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, "64m", "deploy", "--preset", "demo")
    one_error(done, "disk-full", "HALOFORGE_HOME")


def test_disk_gets_full_while_fetching(tmp_path: Path) -> None:
    one_error(on_small_disk(tmp_path, "8m", "fetch"), "space", "HALOFORGE_HOME")


def test_no_permission(tmp_path: Path) -> None:
    """Root without the right to pass over permissions stands for a plain user: it still finds Python."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o755)
    os.chown(locked, 65534, 65534)
    words = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", str(ROOT / "inv")]
    fetch = run([*words, "fetch"], HALOFORGE_HOME=str(locked / "home"))
    one_error(fetch, str(locked), "HALOFORGE_HOME")
    deploy = run([*words, "deploy", "--preset", "demo"], HALOFORGE_HOME=str(locked / "home"))
    one_error(deploy, "disk-readonly")


def test_read_only_home(tmp_path: Path) -> None:
    script = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"'
    words = ["unshare", "--mount", "sh", "-ec", script, "sh", str(tmp_path), str(ROOT / "inv")]
    fetch = run([*words, "fetch"], HALOFORGE_HOME=str(tmp_path / "home"))
    one_error(fetch, "read-only", "HALOFORGE_HOME")
    deploy = run([*words, "deploy", "--preset", "demo"], HALOFORGE_HOME=str(tmp_path / "home"))
    one_error(deploy, "disk-readonly")
