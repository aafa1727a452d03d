"""The change from one deployment to the next, in a process of its own.

`deploy` starts it detached (`python -m compose.switch`), so that killing `deploy` cannot leave the box
with nothing running: the switch goes on to its end, which is the new one healthy and checked, or the old
one started again. The memory of a Strix Halo holds one large model, so the old one is stopped before the
new one starts; its container is kept until the new one has passed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import requests

import paths
import say
import web
from compose import container, diagnose, proof, record
from compose.record import Deployment, Journal, Switch
from errors import CheckFailed, HaloforgeError

POLL_SECONDS: Final = 0.1
WAIT_FOR_MEMORY_SECONDS: Final = 300
"""How long the guard may hold the start back until the old server's memory is free."""


class SwitchFailed(CheckFailed):
    """The new deployment did not come up; `what` and `why` are the reason, the old one runs again."""


def start(change: Switch, descriptor: int) -> Path:
    """Start the switch as a process that outlives its caller.

    Args:
        descriptor: the lock's, which the child inherits and so holds to its end.

    Returns:
        The file that the child writes: one JSON document when it has ended.
    """
    folder = record.root() / change.new
    result, log = folder / "switch.json", folder / "switch.log"
    result.unlink(missing_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "compose.switch", change.model_dump_json()],
            cwd=paths.ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, pass_fds=[descriptor],
            # A relative HALOFORGE_HOME means another folder in another working directory.
            env={**os.environ, "HALOFORGE_HOME": str(paths.home())},
        )  # fmt: skip
    _relay(log, process)
    return result


def _relay(log: Path, process: subprocess.Popen[bytes]) -> None:
    """Show what the child writes until it ends."""
    with log.open() as file:
        while True:
            ended = process.poll() is not None
            for line in file:
                sys.stderr.write(line)
            sys.stderr.flush()
            if ended:
                return
            time.sleep(POLL_SECONDS / 2)


def outcome(result: Path) -> dict[str, Any]:
    """What the child wrote; raises `SwitchFailed` with its reason where the new one did not come up."""
    try:
        said: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckFailed(
            "the switch was ended before it was done", why=f"{result} is not there",
            hint="./inv deploy goes on where it stopped",
        ) from error  # fmt: skip
    if not said["good"]:
        raise SwitchFailed(said["what"], why=said["why"], hint=said["hint"])
    return said


def main(words: str) -> int:
    """The child: make the switch and write its result."""
    change = Switch.model_validate_json(words)
    result = record.root() / change.new / "switch.json"
    try:
        said = {"good": True, **switch(change)}
    except HaloforgeError as error:
        said = {"good": False, "what": error.what, "why": error.why, "hint": error.hint}
    with paths.replacing(result) as temporary:
        temporary.write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if said["good"] else 1


def switch(change: Switch, *, check: Callable[[Deployment], None] | None = None) -> dict[str, Any]:
    """Stop the old, start and check the new; on any failure put the old one back.

    Args:
        check: what a good deployment must pass, by default smoke and the log's proofs.

    Raises:
        SwitchFailed: the new one did not come up or answered wrong.
    """
    before, old, new = record.journal(), change.old, change.new
    record.write_journal(before.model_copy(update={"switch": change}))
    deployment = record.load(new)
    try:
        if old is not None:
            _retire(old)
        seconds = bring_up(deployment)
        (check or verify)(deployment)
    except Exception as error:  # whatever it is, the old one must run again
        raise _back(old, deployment, error, before) from error
    record.write_journal(record.advanced(before, change))
    if old is not None and old != new:
        container.down(record.compose_file(old), record.load(old).project)
    return {"name": new, "seconds": seconds}


def _retire(name: str) -> None:
    deployment = record.load(name)
    now = container.state(deployment.container)
    if now is not None and now.running:
        say.step("up", f"stopping {name} (kept until the new one is good)")
        container.stop(deployment.container)


def bring_up(deployment: Deployment) -> float:
    """Start a deployment and wait until it is healthy; returns the seconds that took.

    Raises:
        CheckFailed: it crashed, or was not healthy in time; with the engine's own error.
    """
    began = time.monotonic()
    kills = host_kills()
    before = container.state(deployment.container)
    restarts = before.restarts if before is not None and before.running else 0
    container.up(record.compose_file(deployment.name), deployment.project)
    say.step("up", f"started {deployment.container}")
    wait_healthy(deployment, kills, restarts)
    seconds = time.monotonic() - began
    say.step("healthy", f"{deployment.url} answers after {seconds:.1f} s")
    return seconds


def wait_healthy(deployment: Deployment, kills: int, restarts: int = 0) -> None:
    """Wait for /health; a crash is seen at once, whatever the restart policy does.

    Args:
        kills: what the host's OOM killer had counted before the start.
        restarts: how often it had been restarted before.
    """
    session = web.session(local=True)
    deadline = time.monotonic() + deployment.start_seconds
    held_until = time.monotonic() + WAIT_FOR_MEMORY_SECONDS
    while True:
        now = container.state(deployment.container)
        if now is None or now.ended_since(restarts):
            raise _ended(deployment, now, kills)
        if _healthy(session, deployment.url):
            return _probe(deployment, kills, restarts)
        if time.monotonic() > deadline:
            waiting = diagnose.guard_waits(container.log(deployment.container, tail=1))
            if not waiting or time.monotonic() > held_until:
                raise _late(deployment, waiting, now)
        time.sleep(POLL_SECONDS)


def _healthy(session: requests.Session, url: str) -> bool:
    try:
        answer = session.get(f"{url}/health", timeout=5)
    except requests.RequestException:
        return False
    return answer.status_code == 200


def _probe(deployment: Deployment, kills: int, restarts: int) -> None:
    """The server answers: the container's own probe must say so too, else Docker calls it unhealthy."""
    code, said = container.probe(deployment.container)
    if code == 0:
        return
    now = container.state(deployment.container)
    if now is None or now.ended_since(restarts):
        raise _ended(deployment, now, kills)
    if code == 128 + signal.SIGKILL:
        raise CheckFailed(
            "the container has no memory left for its own health probe",
            why="the probe was killed at the container's memory limit (cgroup)",
            hint="raise memory_limit, or lower cache_ram",
        )
    raise CheckFailed(
        "the server is up, but the health probe of its container fails",
        why=f"/app/health ended with {code}: {said or 'it printed nothing'}",
        hint="./inv build (the image lacks a working probe)",
    )


def _ended(deployment: Deployment, now: container.State | None, kills: int) -> CheckFailed:
    if now is None:
        return CheckFailed(f"{deployment.container} is gone", why="something removed it", hint="./inv deploy")
    log = container.log(deployment.container, tail=400)
    # A container that runs again has lost its exit code; the one before it is in the log only.
    ending = diagnose.Ending(
        code=-1 if now.running else now.exit_code, oom_killed=now.oom_killed, log=log,
        host_kills=host_kills() - kills, guard_line=diagnose.guard_line(log),
    )  # fmt: skip
    return CheckFailed(
        f"the engine of {deployment.name} ended while it was starting",
        why=diagnose.reason(ending),
        hint=f"the whole log: {keep_log(deployment)}",
    )


def _late(deployment: Deployment, waiting: str, now: container.State) -> CheckFailed:
    if waiting:
        return CheckFailed(
            "there is not enough free memory to start", why=f"the guard waits: {waiting}", hint="./inv plan"
        )
    log = container.log(deployment.container, tail=1)
    return CheckFailed(
        f"{deployment.name} was not healthy within {deployment.start_seconds} s",
        why=f"it is {now.status}; its log ends with: {log[-1].strip() if log else '(nothing)'}",
        hint=f"the whole log: {keep_log(deployment)}; more time: --set start_seconds=N",
    )


def verify(deployment: Deployment) -> None:
    """Smoke and the log's proofs.

    Raises:
        CheckFailed: names each check that failed.
    """
    from compose import expectation

    report = expectation.smoke(deployment)
    for result in report.failures:
        say.step("smoke", f"FAILED {result.id}: {result.detail}")
    wrong = list(proof.faults(deployment, container.log(deployment.container)))
    if report.failures or wrong:
        raise CheckFailed(
            f"{deployment.name} is up, but does not pass",
            why="; ".join([f"{result.id}: {result.detail}" for result in report.failures] + wrong),
            hint=f"the whole log: {keep_log(deployment)}",
        )
    say.step("smoke", f"{len(report.results)} checks passed")


def keep_log(deployment: Deployment) -> Path:
    """Keep the log of a deployment that failed, since its container will be removed."""
    path = record.root() / deployment.name / "failed.log"
    with paths.replacing(path) as temporary:
        temporary.write_text("\n".join(container.log(deployment.container)) + "\n", encoding="utf-8")
    return path


def _back(old: str | None, new: Deployment, error: Exception, before: Journal) -> SwitchFailed:
    """Remove the new one, start the old one again; the error to raise."""
    known = (
        error
        if isinstance(error, HaloforgeError)
        else CheckFailed("the switch broke off", why=f"{type(error).__name__}: {error}")
    )
    what, why = known.what, known.why
    container.down(record.compose_file(new.name), new.project)
    if old is None or old == new.name:
        record.write_journal(Journal(current=None if old is None else old, history=before.history))
        return SwitchFailed(what, why=why, hint=known.hint)
    try:
        bring_up(record.load(old))
    except HaloforgeError as second:
        why += f"\n        and {old} could not be started again: {second.what} ({second.why})"
    else:
        what += f"; {old} runs again"
        say.step("up", f"{old} runs again")
    record.write_journal(before.model_copy(update={"switch": None}))
    return SwitchFailed(what, why=why, hint=known.hint)


def host_kills() -> int:
    """How often the kernel's out-of-memory killer struck since boot."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
