"""The one door to other programs: an argument list in, text out, a typed failure."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import HaloforgeError, HostLacks


@dataclass(frozen=True, kw_only=True)
class Done:
    """A program that has ended: its arguments, return code and both outputs as text."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str


class CommandFailed(HaloforgeError):
    """A program returned something else than 0. `done` holds what it printed."""

    def __init__(self, done: Done, hint: str = "") -> None:
        tail = (done.err.strip() or done.out.strip() or "it printed nothing").splitlines()[-12:]
        super().__init__(
            f"{done.argv[0]} ended with {done.code}",
            why=f"{shlex.join(done.argv)}\n        " + "\n        ".join(tail),
            hint=hint,
        )
        self.done = done


def have(program: str) -> bool:
    """Whether a program is on PATH."""
    return shutil.which(program) is not None


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float | None = None,
    check: bool = True,
    hint: str = "",
    log: Path | None = None,
) -> Done:
    """Run a program to its end.

    Args:
        argv: program and arguments; nothing goes through a shell.
        env: added to this process's environment.
        timeout: seconds; None waits for ever.
        check: raise `CommandFailed` unless the program returns 0.
        hint: what to type next, for the error.
        log: appended with the quoted command and all it prints; `out` then holds both outputs.

    Raises:
        HostLacks: the program is not installed, or cannot be started.
        CommandFailed: it returned another code than 0, or ran out of time (code 124).
    """
    words = tuple(os.fspath(word) for word in argv)
    merged = {**os.environ, **(env or {})}
    try:
        if log is not None:
            return _checked(_run_logged(words, cwd, merged, timeout, log), check, hint)
        ended = subprocess.run(
            words, cwd=cwd, env=merged, input=stdin, timeout=timeout, capture_output=True,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as error:
        if cwd is not None and not cwd.is_dir():
            raise HostLacks(f"no folder {cwd}", why=f"needed to run {words[0]}", hint=hint) from error
        raise HostLacks(f"cannot start {words[0]}", why=str(error), hint=hint or "./inv doctor") from error
    except subprocess.TimeoutExpired as error:
        late = Done(argv=words, code=124, out=_text(error.stdout), err=f"no end within {timeout} s")
        return _checked(late, check, hint)
    return _checked(Done(argv=words, code=ended.returncode, out=ended.stdout, err=ended.stderr), check, hint)


def stream(
    argv: Sequence[str | os.PathLike[str]],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a program and hand over each line of its two outputs as it comes; returns its return code."""
    words = tuple(os.fspath(word) for word in argv)
    try:
        process = subprocess.Popen(
            words, cwd=cwd, env={**os.environ, **(env or {})}, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except (FileNotFoundError, PermissionError) as error:
        raise HostLacks(f"cannot start {words[0]}", why=str(error), hint="./inv doctor") from error
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                on_line(line.rstrip("\n"))
        except BaseException:
            process.kill()
            raise
    return process.returncode


def _run_logged(
    words: tuple[str, ...], cwd: Path | None, env: dict[str, str], timeout: float | None, log: Path
) -> Done:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+", encoding="utf-8", errors="replace") as file:
        file.write(f"$ {shlex.join(words)}\n")
        file.flush()
        start = file.tell()
        ended = subprocess.run(
            words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            timeout=timeout, check=False,
        )  # fmt: skip
        file.seek(start)
        return Done(argv=words, code=ended.returncode, out=file.read(), err="")


def _checked(done: Done, check: bool, hint: str) -> Done:
    if check and done.code != 0:
        raise CommandFailed(done, hint)
    return done


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
