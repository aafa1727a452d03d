"""The patch tasks as a user types them: what is printed where, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paths import ROOT


def inv(*words: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"HALOFORGE_HOME": str(home)} if home else {})}
    return subprocess.run(
        [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_fetch_and_patch_print_the_tree_and_nothing_else() -> None:
    for task in ("fetch", "patch"):
        done = inv(task)
        assert done.returncode == 0, done.stderr
        assert (Path(done.stdout.strip()) / "CMakeLists.txt").is_file()
        assert done.stdout.count("\n") == 1


def test_status_as_json_is_one_document() -> None:
    done = inv("patch.status", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["good"], found["engine"]) == (0, True, "llama.cpp")
    assert {patch["state"] for patch in found["patches"]} == {"applies"}
    assert [drop["id"] for drop in found["dropped"]] == ["0001", "0002", "0003", "0004", "0005"]


def test_status_of_a_patched_tree_says_that_all_is_in() -> None:
    tree = inv("patch").stdout.strip()
    done = inv("patch.status", "--tree", tree, "--json")
    assert done.returncode == 1
    assert {patch["state"] for patch in json.loads(done.stdout)["patches"]} == {"upstream"}


def test_status_of_something_else_says_foreign(tmp_path: Path) -> None:
    done = inv("patch.status", "--tree", str(tmp_path))
    assert done.returncode == 1
    assert "foreign" in done.stdout
    assert "include/llama.h: a tree of this engine has this file" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["fetch", "--engine", "lama.cpp"], 2, "did you mean 'llama.cpp'?"),
        (["patch", "--without", "L33"], 2, "did you mean 'L3'?"),
        (["patch", "--also", "P29030"], 2, "no checksum of it is known"),
        (["patch.status", "--tree", "/nonexistent"], 2, "there is no folder /nonexistent"),
        (["patch.new", "--name", "x"], 2, "--purpose and --proved-by"),
        (["patch.upgrade", "--to", "master"], 2, "is not the tag of a build"),
    ],
)
def test_a_users_mistake_is_one_message(words: list[str], code: int, told: str) -> None:
    done = inv(*words)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = inv("fetch", home=tmp_path / "file" / "home")
    assert done.returncode == 3, done.stderr
    assert "a part of the path is not a folder" in done.stderr
