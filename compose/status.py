"""What runs now: health, memory against the plan, slots, speed, acceptance, restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import requests

import say
import web
from compose import container, diagnose, record
from compose.record import Deployment
from errors import BadInput

_DRM: Final = Path("/sys/class/drm")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes: what the plan promised, what the server's processes hold (anonymous and shared, without page
    cache), what they map of files, what all GPU users hold in GTT and VRAM, and what the host has left."""

    planned: int
    resident: int
    mapped: int
    gtt: int | None
    vram: int | None
    available: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """The running deployment as values; None is "the server does not say"."""

    name: str
    preset: str
    url: str
    container: str
    image: str
    state: str
    health: str
    ready: bool
    restarts: int
    started: str
    problem: str
    memory: Memory
    slots: int | None
    busy: int | None
    slot_context: int | None
    prompt_tokens_per_second: float | None
    tokens_per_second: float | None
    tokens: int | None
    acceptance: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def status() -> Status | None:
    """The status of the current deployment; None where nothing is deployed."""
    name = record.journal().current
    return None if name is None else of(record.load(name))


def of(deployment: Deployment) -> Status:
    """The status of one deployment."""
    now = container.state(deployment.container)
    door = _Door(deployment)
    metrics = parse_metrics(door.text("/metrics"))
    slots = door.json("/slots")
    busy = sum(bool(slot.get("is_processing")) for slot in slots) if isinstance(slots, list) else None
    return Status(
        name=deployment.name,
        preset=deployment.preset,
        url=deployment.url,
        container=deployment.container,
        image=deployment.image_ref,
        state=now.status if now else "gone",
        health=now.health if now else "",
        ready=door.ready(),
        restarts=now.restarts if now else 0,
        started=now.started if now else "",
        problem=problem(deployment, now),
        memory=_memory(deployment, now.pid if now else 0),
        slots=len(slots) if isinstance(slots, list) else None,
        busy=busy,
        slot_context=slots[0].get("n_ctx") if isinstance(slots, list) and slots else None,
        prompt_tokens_per_second=ratio(metrics, "prompt_tokens_total", "prompt_seconds_total"),
        tokens_per_second=ratio(metrics, "tokens_predicted_total", "tokens_predicted_seconds_total"),
        tokens=_whole(metrics.get("tokens_predicted_total")),
        acceptance=ratio(
            metrics, "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"
        ),
    )


def parse_metrics(text: str) -> dict[str, float]:
    """The llama-server metrics without labels, by name without their prefix."""
    found = re.findall(r"^llamacpp:(\w+) ([-+.eE0-9]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def ratio(metrics: Mapping[str, float], above: str, below: str) -> float | None:
    """One counter over another; None where nothing was counted."""
    divisor = metrics.get(below, 0.0)
    return metrics[above] / divisor if divisor and above in metrics else None


def lines(found: Status) -> Iterator[str]:
    """The status for people."""
    memory = found.memory
    health = f", health {found.health}" if found.health else ""
    answers = "answers" if found.ready else "does not answer"
    yield f"{found.name}: {found.state}{health}, {answers} at {found.url}"
    yield f"  preset {found.preset}, image {found.image}, container {found.container}"
    if found.started:
        yield f"  restarts {found.restarts}, started {found.started[:19].replace('T', ' ')} UTC"
    if found.problem:
        yield f"  problem: {found.problem}"
    gpu = (
        f", GPU (all users) GTT {say.size(memory.gtt)} VRAM {say.size(memory.vram or 0)}"
        if memory.gtt
        else ""
    )
    yield (
        f"  memory: planned {say.size(memory.planned)}, now {say.size(memory.resident)} resident and "
        f"{say.size(memory.mapped)} mapped{gpu}; host has {say.size(memory.available)} available"
    )
    if found.slots is not None:
        yield f"  slots: {found.busy} of {found.slots} busy, {found.slot_context} tokens each"
    if found.tokens is not None:
        prompt, answer = _rate(found.prompt_tokens_per_second), _rate(found.tokens_per_second)
        yield f"  speed: {prompt} prompt, {answer} answer"
    if found.acceptance is not None:
        yield f"  drafts kept: {found.acceptance:.0%}"


class _Door:
    """Short requests to a server that may be down."""

    def __init__(self, deployment: Deployment) -> None:
        self.url = deployment.url
        self.session = web.session(local=True)
        if key := record.api_key(deployment):
            self.session.headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> requests.Response | None:
        try:
            answer = self.session.get(self.url + path, timeout=3)
        except requests.RequestException:
            return None
        return answer if answer.ok else None

    def ready(self) -> bool:
        return self.get("/health") is not None

    def text(self, path: str) -> str:
        answer = self.get(path)
        return answer.text if answer is not None else ""

    def json(self, path: str) -> Any:
        answer = self.get(path)
        try:
            return answer.json() if answer is not None else None
        except ValueError:
            return None


def problem(deployment: Deployment, now: container.State | None) -> str:
    """Why it does not run, or why Docker calls it unhealthy although it answers."""
    if now is None:
        return "its container is gone; ./inv deploy makes a new one"
    if not now.running:
        log = container.log(deployment.container, tail=400)
        return diagnose.reason(
            diagnose.Ending(
                code=now.exit_code, oom_killed=now.oom_killed, log=log, guard_line=diagnose.guard_line(log)
            )
        )
    waiting = diagnose.guard_waits(container.log(deployment.container, tail=1))
    if waiting:
        return f"the memory guard holds the server back: {waiting}"
    if now.health == "unhealthy":
        code, said = now.probe
        return f"the health probe cannot run: {said}" if code < 0 else f"the health probe says: {said}"
    return ""


def _memory(deployment: Deployment, pid: int) -> Memory:
    sizes = [process_memory(each) for each in _family(pid)] if pid else []
    return Memory(
        planned=deployment.planned_bytes,
        resident=sum(resident for resident, _ in sizes),
        mapped=sum(mapped for _, mapped in sizes),
        gtt=gpu("mem_info_gtt_used"),
        vram=gpu("mem_info_vram_used"),
        available=available(),
    )


def process_memory(pid: int, proc: Path = Path("/proc")) -> tuple[int, int]:
    """Bytes that a process holds: anonymous plus shared, and mapped from files."""
    path = proc / str(pid) / "status"
    return _field(path, "RssAnon") + _field(path, "RssShmem"), _field(path, "RssFile")


def _family(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _field(path: Path, name: str) -> int:
    """A kB field of a /proc file, in bytes; 0 where it is not there."""
    try:
        text = path.read_text()
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def available() -> int:
    """Bytes that the host can give without swapping (MemAvailable)."""
    return _field(Path("/proc/meminfo"), "MemAvailable")


def gpu(name: str) -> int | None:
    """A memory counter of the amdgpu driver, summed over its cards; None without one."""
    values = [int(path.read_text()) for path in sorted(_DRM.glob(f"card*/device/{name}"))]
    return sum(values) if values else None


def _rate(value: float | None) -> str:
    return "no tokens yet" if value is None else f"{value:.1f} tokens/s"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def log(*, follow: bool, lines: int) -> Iterator[str]:
    """The last lines of the current deployment's log, or of the last one that failed to start."""
    name = record.journal().current
    if name is None:
        raise BadInput("nothing is deployed", hint="./inv deploy")
    deployment = record.load(name)
    if follow:
        yield from container.follow(deployment.container, tail=lines)
    else:
        yield from container.log(deployment.container, tail=lines)
