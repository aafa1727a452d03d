"""Asks the engine in an image what a start would take, before any weight is read, and keeps the answer."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import command
import paths
from compose.render import Weights, devices_for, inside
from errors import BadInput, HostLacks
from images.records import ImageRecord
from patches import engines
from presets import gguf
from presets.gguf import Header
from presets.planner import Question, log, projection
from presets.planner.terms import Device, Term, device
from presets.schema import Preset

PORT: Final = 18080
"""Inside a container without a network; nothing is ever served there."""
FORM: Final = 1
"""Raised when what is kept changes its form."""


class _Enough(Exception):
    """The engine has said what was asked."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What the engine would allocate: its terms, and whether the answer was kept from an earlier time."""

    terms: tuple[Term, ...]
    kept: bool


def project(
    image: ImageRecord,
    arguments: Sequence[str],
    weights: Weights,
    headers: Sequence[Header],
    target: Device,
    *,
    devices: Sequence[tuple[str, int]] = (),
) -> Projection:
    """The engine's own projection, cached by image, headers and arguments.

    Args:
        arguments: the server's, exactly as the preset renders them.
        weights: the files, mounted where the arguments expect them; hollow ones will do.
        headers: of model and draft, for the key of the cache.
        target: what the image computes on.
        devices: device nodes with their group ids, for a GPU.

    Raises:
        BadInput: the engine refused the arguments or the model; with its own words.
        HostLacks: Docker cannot be used.
    """
    kept = paths.home() / "projections" / f"{_key(image, arguments, headers)}.json"
    if kept.exists():
        terms = tuple(Term(**term) for term in json.loads(kept.read_text(encoding="utf-8")))
        return Projection(terms=terms, kept=True)
    terms = tuple(projection.terms(_ask(image, arguments, weights, devices), target))
    if not terms:
        raise BadInput(
            f"{image.ref} printed no projection", why="its fitting pass did not run", hint="./inv plan"
        )
    with paths.replacing(kept) as temporary:
        temporary.write_text(json.dumps([asdict(term) for term in terms]), encoding="utf-8")
    return Projection(terms=terms, kept=False)


def of_preset(preset: Preset) -> tuple[Question, Projection]:
    """Ask the image of a preset about the preset's files, or their hollow stand-ins.

    Raises:
        BadInput: there is no image, or no file to show it.
    """
    from compose import planning
    from images import records
    from patches import tree
    from presets.planner import ask, headers

    engine = engines.load(preset.engine)
    image = records.find(preset.flavour, engine, tree.patched(engine).identity)
    if image is None:
        raise BadInput(
            f"there is no {preset.flavour} image of {engine.name}",
            hint=f"./inv build --flavour {preset.flavour}",
        )
    model, draft = headers.located(preset)
    if model is None or (preset.head and draft is None):
        missing = f"heads/{preset.head}" if model else preset.quant
        raise BadInput(
            f"the engine needs the header of {preset.model}/{missing}",
            why="neither the file nor a hollow one is here",
            hint=f"./inv models.header {preset.model}/{missing}",
        )
    files = [*gguf.shard_paths(model), *([draft] if draft else [])]
    weights = Weights(
        model=model.name, draft=draft.name if draft else None, bytes=0,
        mounts=tuple((file.resolve(), file.name) for file in files),
    )  # fmt: skip
    asked, _origin = ask.of_preset(preset)
    headers_asked = [asked.header, *([asked.draft] if asked.draft else [])]
    return asked, of_files(preset, image, weights, headers_asked, build=planning.option_build(engine))


def of_files(
    preset: Preset, image: ImageRecord, weights: Weights, headers: Sequence[Header], *, build: int
) -> Projection:
    """Ask an image about files with a preset's exact arguments."""
    from compose import host

    draft = inside(weights.draft) if weights.draft else None
    arguments = preset.arguments(build, model=inside(weights.model), draft=draft)
    nodes = devices_for(preset.flavour, host.facts())
    return project(
        image, arguments, weights, headers, device(preset.flavour),
        devices=[(node.path, node.gid) for node in nodes],
    )  # fmt: skip


def _key(image: ImageRecord, arguments: Sequence[str], headers: Sequence[Header]) -> str:
    told = [FORM, image.digest, list(arguments), [_digest(header) for header in headers]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]


def _digest(header: Header) -> str:
    """What a header says, whatever file it is in."""
    keys = sorted((key, repr(value)) for key, value in header.metadata.items())
    tensors = [(tensor.name, tensor.shape, tensor.type) for tensor in header.tensors]
    return hashlib.sha256(repr((keys, tensors)).encode()).hexdigest()


def _ask(
    image: ImageRecord, arguments: Sequence[str], weights: Weights, devices: Sequence[tuple[str, int]]
) -> log.Logged:
    name = f"haloforge-projection-{os.getpid()}"
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        if projection.ENOUGH in line:
            raise _Enough

    argv = [*docker_run(name, image.id, weights, devices), *arguments, *projection.extra_arguments(PORT)]
    try:
        command.stream(argv, take)
    except _Enough:
        pass
    finally:
        command.run(["docker", "rm", "--force", name], check=False)
    found = log.parse("\n".join(lines))
    if not found.breakdowns:
        raise _refused(image, lines)
    return found


def docker_run(name: str, image: str, weights: Weights, devices: Sequence[tuple[str, int]] = ()) -> list[str]:
    """The command that starts a server without a network, rights or a writable disk."""
    argv = ["docker", "run", "--rm", "--name", name, "--network", "none", "--read-only", "--cap-drop", "ALL"]
    argv += ["--security-opt", "no-new-privileges", "--tmpfs", "/tmp"]  # noqa: S108 - of the container
    argv += ["--user", f"{os.getuid()}:{os.getgid()}"]
    for path, group in devices:
        argv += ["--device", path, "--group-add", str(group)]
    for source, target in weights.mounts:
        argv += ["--volume", f"{_mountable(source)}:{inside(target)}:ro"]
    return [*argv, image]


def _mountable(source: Path) -> Path:
    if ":" in str(source):
        raise BadInput(f"cannot mount {source}", why="Docker takes ':' for a separator", hint="move the file")
    return source


def _refused(image: ImageRecord, lines: Sequence[str]) -> BadInput | HostLacks:
    told = [line for line in lines if '"error"' in line or line.startswith("error") or "docker:" in line]
    words = "\n        ".join(_plain(line) for line in told[:4]) or "it printed nothing"
    if any(line.startswith("docker:") for line in told):
        return HostLacks("the engine could not be asked", why=words, hint="./inv doctor")
    return BadInput(f"{image.ref} refused to size this", why=words, hint="./inv plan; ./inv presets.show")


def _plain(line: str) -> str:
    """The message of a line that may be JSON."""
    try:
        value = json.loads(line)
    except ValueError:
        return line
    return str(value.get("msg", line)).strip() if isinstance(value, dict) else line
