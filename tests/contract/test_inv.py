"""The wrapper `inv`, run for real on a checkout of its own with a lock file of one package."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paths import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that holds the wrapper, a task file, and locks with nothing but Invoke in them."""
    root = tmp_path / "a checkout"
    root.mkdir()
    shutil.copy(ROOT / "inv", root)
    locked = re.search(r"^invoke==.*?(?=^\S)", (ROOT / "requirements.lock").read_text(), re.M | re.S)
    assert locked is not None
    for name in ("requirements.lock", "requirements-dev.lock"):
        (root / name).write_text(f"# {name}\n{locked[0]}")
    (root / "tasks.py").write_text("from invoke import task\n\n@task\ndef hello(c):\n    print('hello')\n")
    return root


def start(
    checkout: Path, *words: str, cwd: Path | None = None, path: str | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [checkout / "inv", *words], cwd=cwd or checkout, text=True, start_new_session=True,
        env={**os.environ, "PATH": path or os.environ["PATH"]},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def inv(
    checkout: Path, *words: str, cwd: Path | None = None, path: str | None = None
) -> tuple[int, str, str]:
    process = start(checkout, *words, cwd=cwd, path=path)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def without_uv(tmp_path: Path, *, broken_venv: bool = False) -> str:
    """A PATH whose python3 is this one and that has no uv, as on a fresh Debian.

    `broken_venv`: importing ensurepip fails there, as it does without the package python3-venv.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "readlink", "cksum", "flock", "rm"):
        (programs / name).symlink_to(shutil.which(name) or name)
    (programs / "apt-get").write_text("#!/bin/sh\necho apt-get must not run >&2\nexit 100\n")
    real = Path(sys.executable).resolve()
    refuse = 'case "$2" in *ensurepip*) exit 1 ;; esac\n' if broken_venv else ""
    base = programs / "python3.real"
    base.write_text(f'#!/bin/sh\n{refuse}exec {real} "$@"\n')
    (programs / "python3").write_text(
        f'#!/bin/sh\ncase "$2" in *version_info*) echo {base} ;; *) exec {base} "$@" ;; esac\n'
    )
    for script in ("apt-get", "python3", "python3.real"):
        (programs / script).chmod(0o755)
    return str(programs)


def test_makes_its_environment_once_and_runs_from_any_folder(checkout: Path, tmp_path: Path) -> None:
    first = inv(checkout, "hello", cwd=tmp_path)
    assert first[:2] == (0, "hello\n")
    assert "requirements.lock" in first[2]
    assert inv(checkout, "hello") == (0, "hello\n", "")

    link = tmp_path / "linked"
    link.symlink_to(checkout / "inv")
    ended = subprocess.run([link, "hello"], cwd="/", capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "hello\n")


def test_pip_serves_where_there_is_no_uv(checkout: Path, tmp_path: Path) -> None:
    path = without_uv(tmp_path)
    code, out, err = inv(checkout, "hello", path=path)
    assert (code, out) == (0, "hello\n"), err
    assert "pip makes" in err


def test_pip_goes_on_where_uv_fails_and_that_is_said(checkout: Path, tmp_path: Path) -> None:
    path = without_uv(tmp_path)
    broken = Path(path) / "uv"
    broken.write_text("#!/bin/sh\necho uv is broken >&2\nexit 127\n")
    broken.chmod(0o755)
    code, out, err = inv(checkout, "hello", path=path)
    assert (code, out) == (0, "hello\n"), err
    assert err.index("uv makes") < err.index("uv is broken") < err.index("pip makes")


def test_a_checkout_that_cannot_be_written_is_named(checkout: Path) -> None:
    script = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; exec "$1/inv" hello'
    words = ["unshare", "--mount", "sh", "-ec", script, "sh", str(checkout)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "cannot write to" in done.stderr
    assert not (checkout / ".venv").exists()


def test_names_the_package_that_brings_venv(checkout: Path, tmp_path: Path) -> None:
    code, out, err = inv(checkout, "hello", path=without_uv(tmp_path, broken_venv=True))
    assert (code, out) == (3, "")
    assert "python3-venv is not installed" in err
    assert "apt-get install" in err
    assert "must not run" not in err


def test_install_asks_apt_and_says_when_that_fails(checkout: Path, tmp_path: Path) -> None:
    code, _, err = inv(checkout, "hello", "--install", path=without_uv(tmp_path, broken_venv=True))
    assert code == 3
    assert "must not run" in err
    assert "cannot install python3-venv" in err


def test_a_changed_lock_is_installed(checkout: Path) -> None:
    assert inv(checkout, "hello")[0] == 0
    lock = checkout / "requirements.lock"
    lock.write_text(lock.read_text() + "\n# changed\n")
    assert "makes" in inv(checkout, "hello")[2]
    assert inv(checkout, "hello")[2] == ""


@pytest.mark.parametrize("seconds", [0.2, 0.8, 1.6])
def test_a_killed_creation_is_done_again(checkout: Path, seconds: float) -> None:
    process = start(checkout, "hello")
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert inv(checkout, "hello")[:2] == (0, "hello\n")


def test_concurrent_starts_make_one_environment(checkout: Path) -> None:
    processes = [start(checkout, "hello") for _ in range(3)]
    ended = [process.communicate(timeout=300) for process in processes]
    assert [out for out, _ in ended] == ["hello\n"] * 3
    assert sum("makes" in err for _, err in ended) == 1


def test_files_of_the_current_folder_do_not_shadow_ours(checkout: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "json.py").write_text("raise SystemExit('shadowed')\n")
    assert inv(checkout, "hello", cwd=hostile)[:2] == (0, "hello\n")
