"""What is kept of deployments: a folder each, and one small journal that says which of them runs.

    deployments/NAME/compose.yaml      what `docker compose` starts
    deployments/NAME/deployment.json   what was promised, for smoke, status and rollback
    deployments/NAME/api_key           the secret, readable by the engine's user only
    deployments/current                a link to the folder that runs
    deployments/journal.json           current, history, and a switch that is under way

The journal is replaced whole by a rename, so a kill at any moment leaves the old or the new one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

import paths
import say
from errors import BadInput, HaloforgeError, HostLacks

KEEP: Final = 5
"""How many earlier deployments can be rolled back to."""
PATIENCE_SECONDS: Final = 120.0
"""How long to wait for another deploy, rollback or stop; a switch may take longer, see `patience`."""
POLL_SECONDS: Final = 0.1


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Promise(_Data):
    """One term of the plan: bytes, where, and how sure they are."""

    name: str
    bytes: int
    where: Literal["device", "host"] = "host"
    certainty: Literal["exact", "bounded", "measured"]


class Deployment(_Data):
    """What a deployment promised. Sizes in bytes, `slot_context` in tokens, `start_seconds` in seconds."""

    name: str
    preset: str
    project: str
    container: str
    url: str
    bind: str
    port: int
    image: str
    image_ref: str
    engine: str
    identity: str
    flavour: str
    build: str
    alias: str
    model_file: str
    slots: int
    slot_context: int
    drafting: bool
    load_mode: str
    lazy_mode: str
    has_table: bool
    answer: str | None
    guard_gib: float
    start_seconds: int
    planned_bytes: int
    terms: tuple[Promise, ...]
    argv: tuple[str, ...]
    has_key: bool


class Switch(_Data):
    """A change from one deployment to another that has begun; `back` when it is a rollback."""

    old: str | None
    new: str
    back: bool = False


class Journal(_Data):
    """Which deployment runs, which ones came before (oldest first), and a switch under way."""

    current: str | None = None
    history: tuple[str, ...] = ()
    switch: Switch | None = None


def advanced(before: Journal, switch: Switch) -> Journal:
    """The journal after a good switch.

    The old deployment joins the history, once, at its end. After a rollback it does not: the one that was
    left is no way back, so that a second rollback goes further.
    """
    kept = [name for name in before.history if name != switch.new]
    if switch.old is not None and switch.old != switch.new:
        kept = [name for name in kept if name != switch.old] + ([] if switch.back else [switch.old])
    return Journal(current=switch.new, history=tuple(kept[-KEEP:]))


def root() -> Path:
    """The folder of all deployments of this HALOFORGE_HOME."""
    return paths.home() / "deployments"


def journal() -> Journal:
    """The journal; an empty one where nothing was deployed yet."""
    path = root() / "journal.json"
    try:
        return Journal.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Journal()
    except (OSError, ValidationError) as error:
        raise BadInput(
            f"cannot read {path}",
            why=_short(error),
            hint="./inv stop, then remove it; deploy writes a new one",
        ) from error


def write_journal(new: Journal) -> None:
    """Replace the journal, then point `current` at what runs."""
    with paths.replacing(root() / "journal.json") as temporary:
        temporary.write_text(new.model_dump_json(indent=2) + "\n", encoding="utf-8")
    link, next_link = root() / "current", root() / f".current.{os.getpid()}"
    if new.current is None:
        link.unlink(missing_ok=True)
        return
    next_link.unlink(missing_ok=True)
    next_link.symlink_to(new.current)
    next_link.replace(link)


def load(name: str) -> Deployment:
    """A deployment by name.

    Raises:
        BadInput: its folder is gone or damaged.
    """
    path = root() / name / "deployment.json"
    try:
        return Deployment.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        raise BadInput(
            f"deployment {name} cannot be read",
            why=_short(error),
            hint=f"docker ps; {path.parent} may be removed",
        ) from error


def compose_file(name: str) -> Path:
    """The compose file of a deployment."""
    return root() / name / "compose.yaml"


def key_file(deployment: Deployment) -> Path | None:
    """The file with the API keys of a deployment, where it has any."""
    return root() / deployment.name / "api_key" if deployment.has_key else None


def api_key(deployment: Deployment) -> str | None:
    """The first API key of a deployment, or None where it needs none."""
    path = key_file(deployment)
    if path is None:
        return None
    keys = [line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    return keys[0]


def _short(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first, *more = error.errors()
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" + (f" (and {len(more)} more)" if more else "")


@contextmanager
def lock(*, seconds: float | None = None) -> Iterator[int]:
    """Hold the one lock for changing what runs; yields its descriptor, to be handed to a child.

    A `deploy` that was killed leaves a switch that goes on to its end, so the lock is waited for, aloud.

    Args:
        seconds: how long to wait; left out, as long as `patience` says.

    Raises:
        HostLacks: another deploy, rollback or stop is still at work after that time.
    """
    try:
        root().mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root() / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise HostLacks(f"cannot write to {root()}", why=str(error), hint="set HALOFORGE_HOME") from error
    try:
        if not _taken(descriptor):
            _wait(descriptor, seconds)
        yield descriptor
    finally:
        with suppress(OSError):
            os.close(descriptor)


def patience() -> float:
    """Seconds to wait for the lock.

    A switch starts the new deployment and, where that fails, the old one again; 20 s are for the rest.
    """
    try:
        change = journal().switch
        names = [] if change is None else [name for name in (change.new, change.old) if name is not None]
        starts = sum(load(name).start_seconds for name in names)
    except HaloforgeError:  # a damaged record is told of once the lock is held
        return PATIENCE_SECONDS
    return max(PATIENCE_SECONDS, 20.0 + starts)


def _taken(descriptor: int) -> bool:
    """Whether the lock could be taken at once."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait(descriptor: int, seconds: float | None) -> None:
    """Wait for the lock; what the other run is at is looked up again, its switch may begin meanwhile."""
    began = time.monotonic()
    longest = patience() if seconds is None else seconds
    say.step("wait", f"another deploy, rollback or stop is at work here; waiting up to {longest:.0f} s")
    while not _taken(descriptor):
        if seconds is None:
            longest = max(longest, patience())
        if time.monotonic() - began > longest:
            raise HostLacks(
                "another deploy, rollback or stop is at work here",
                why=f"it holds {root() / '.lock'} since more than {longest:.0f} s",
                hint="wait for it, then the same command again; ./inv status shows what runs",
            )
        time.sleep(POLL_SECONDS)
    say.step("wait", f"it is done after {time.monotonic() - began:.1f} s; going on")
