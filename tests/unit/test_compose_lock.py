"""The lock for changing what runs: waited for aloud, for a bounded time."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from compose import deploy, record
from errors import HostLacks
from presets import schema
from tests.makers.rendering import inputs, rendered


@contextmanager
def left_to_a_child() -> Iterator[subprocess.Popen[bytes]]:
    """The lock as a killed `deploy` leaves it: only the process that it started holds it, to its end."""
    with record.lock() as descriptor:
        wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(wait, stdin=subprocess.PIPE, pass_fds=[descriptor])
    with child:
        try:
            yield child
        finally:
            child.kill()


def test_what_a_killed_deploy_left_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with left_to_a_child() as child:
        # The child ends while the lock is waited for, never before: so nothing here hangs on time.
        def end_it(_: float) -> None:
            child.kill()
            child.wait()

        monkeypatch.setattr("compose.record.time.sleep", end_it)
        with record.lock() as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    told = capsys.readouterr().err
    assert "another deploy, rollback or stop is at work here; waiting up to 120 s" in told
    assert "going on" in told


def test_it_is_not_waited_for_without_end(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        left_to_a_child(),
        pytest.raises(HostLacks, match="another deploy") as caught,
        record.lock(seconds=0.2),
    ):
        pass
    assert caught.value.exit_code == 3
    assert "./inv status" in caught.value.hint
    assert capsys.readouterr().err.count("wait") == 2  # the step's name and "waiting"


def test_two_of_one_program_wait_for_each_other() -> None:
    seen: list[str] = []

    def second() -> None:
        with record.lock(seconds=60):
            seen.append("second")

    with record.lock():
        other = threading.Thread(target=second)
        other.start()
        other.join(0.3)
        seen.append("first")
    other.join()
    assert seen == ["first", "second"]


def test_patience_is_as_long_as_the_starts_of_the_switch() -> None:
    assert record.patience() == 120
    demo = schema.load("demo")
    promise = deploy.promised(inputs(demo), rendered(demo))
    for name, seconds in (("old", 300), ("new", 700)):
        made = promise.model_copy(update={"name": name, "start_seconds": seconds})
        (record.root() / name).mkdir(parents=True)
        (record.root() / name / "deployment.json").write_text(made.model_dump_json())
    record.write_journal(record.Journal(current="old", switch=record.Switch(old="old", new="new")))
    assert record.patience() == 1020
    (record.root() / "old" / "deployment.json").unlink()
    assert record.patience() == 120
