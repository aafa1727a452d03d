"""Why an engine ended: from its exit code, its own log and what the kernel counted. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_PREFIX = re.compile(r"^(?:\d+\.)+\d+ ([A-Z]) ")
_ALLOCATION = re.compile(
    r"failed to allocate|unable to allocate|cudaMalloc failed|hipMalloc failed|out of memory|"
    r"cannot allocate memory|bad_alloc|alloc_tensor_range",
    re.IGNORECASE,
)
_BUFFER = re.compile(r"failed to allocate (\S+) buffer of size (\d+)")
_KV = re.compile(r"(\S+) KV buffer size = +([\d.]+) MiB")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a container ended.

    `code` is -1 where it runs again and its code is lost; `host_kills` is how often the kernel's OOM killer
    struck meanwhile.
    """

    code: int
    oom_killed: bool
    log: Sequence[str]
    host_kills: int = 0
    guard_line: str = ""


def reason(ending: Ending) -> str:
    """One line that says why, in the engine's own words where it has any."""
    allocation = _allocation(ending.log)
    if ending.guard_line:
        return f"the memory guard stopped it: {ending.guard_line}"
    if allocation:
        return f"out of memory while allocating ({_how(ending.code)}): {allocation}"
    if ending.oom_killed:
        return "killed at its container's memory limit (cgroup): raise memory_limit or lower cache_ram"
    if ending.code == 137:
        if ending.host_kills:
            return "killed by the host's out-of-memory killer: the host ran out of memory"
        return "killed from outside (SIGKILL)"
    last = last_error(ending.log)
    return f"{_how(ending.code)}: {last}" if last else f"{_how(ending.code)}, and its log names no error"


def last_error(log: Sequence[str]) -> str:
    """The engine's own error: the first telling line of its last run of error lines.

    llama-server says the cause first ("failed to open GGUF file ...") and then repeats, level by level,
    that loading failed; the cause is what helps.
    """
    run: list[str] = []
    after = 0
    for line in reversed(log):
        if _is_error(line):
            run.insert(0, line)
            after = 0
        elif run:
            after += 1
            if after > LARGEST_GAP:
                break
    telling = [line for line in run if not _ECHO.search(line)]
    return _bare((telling or run or [""])[0])


LARGEST_GAP = 4
"""Lines without an error that may stand inside one run of error lines."""
_ECHO = re.compile(
    r"failed to load model|exiting due to|error loading model: (?!.*(?:key not found|unknown))|"
    r"failed to load draft model$|failed to create.context|cleaning up before exit",
    re.IGNORECASE,
)


def _is_error(line: str) -> bool:
    level = _PREFIX.match(line)
    if level:
        return level[1] == "E"
    return bool(
        re.match(r"\s*(error\b|llama_server: error|terminate called|\S+: error while loading shared)", line)
    )


def _bare(line: str) -> str:
    return _PREFIX.sub("", line).strip()


def _allocation(log: Sequence[str]) -> str:
    lines = [line for line in log if _ALLOCATION.search(line)]
    if not lines:
        return ""
    for line in lines:
        if found := _BUFFER.search(line):
            return f"{found[1]} buffer of {int(found[2]) / 2**20:.0f} MiB{_largest_kv(log)}"
    return _bare(lines[-1]) + _largest_kv(log)


def _largest_kv(log: Sequence[str]) -> str:
    sizes = [float(found[2]) for line in log if (found := _KV.search(line))]
    return f" (KV cache {max(sizes):.0f} MiB)" if sizes else ""


def _how(code: int) -> str:
    signals = {132: "illegal instruction", 134: "aborted", 135: "bus error", 136: "floating point error"}
    signals |= {139: "crashed (segmentation fault)", 137: "killed", 143: "terminated"}
    if code < 0:
        return "it ended and was started again"
    return f"{signals[code]}, exit code {code}" if code in signals else f"exit code {code}"


def guard_waits(log: Sequence[str]) -> str:
    """What the guard waits for, if it holds the server back: its line is then the last of the log."""
    words = "haloforge-guard: waiting for memory: "
    return log[-1].split(words, 1)[1].strip() if log and words in log[-1] else ""


def guard_line(log: Sequence[str]) -> str:
    """What the memory guard said when it stopped the server, or nothing."""
    words = "haloforge-guard: stopped the server: "
    return next((line.split(words, 1)[1].strip() for line in reversed(log) if words in line), "")
