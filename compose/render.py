"""From a resolved preset to the files that run it. Pure: values in, text out.

Every literal `$` becomes `$$`, since compose replaces `$NAME` even in lists; every scalar is written
as a double-quoted YAML string, so that no YAML version reads a word as something else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from compose import flags
from compose.host import Device, Host
from errors import BadInput
from presets.schema import Preset, compact

TEMPLATES: Final = Path(__file__).resolve().parent / "template"
SLOWEST_LOAD: Final = 250_000_000
"""Bytes a second that a cold load is sure to reach (a slow NVMe behind page faults does 700 MB/s)."""
KEY_MOUNT: Final = "/run/secrets/api_key"
GUARD: Final = "/app/guard"
LABEL: Final = "io.haloforge."


class Image(Protocol):
    """What rendering reads of an image record."""

    @property
    def ref(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def help_text(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The model files as they are mounted: file by file, since some may be links to elsewhere.

    `mounts` pairs the real path on the host with the name below /model; `model` (the first shard) and
    `draft` are such names; `bytes` is the size of all.
    """

    model: str
    draft: str | None
    mounts: tuple[tuple[Path, str], ...]
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A deployment as text.

    `name` is unique for the content: the same input gives the same name, so a folder of that name can
    be kept and started again. `files` maps file names to text; `argv` is the engine's arguments as
    they must arrive in the container.
    """

    name: str
    preset: str
    project: str
    container: str
    folder: Path
    files: Mapping[str, str]
    argv: tuple[str, ...]
    url: str
    image: str
    start_seconds: int
    planned_bytes: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Everything a rendered file follows from.

    `plan` is the planner's JSON document (`total_bytes` and `per_slot_context` are read), `build` the
    upstream build whose options the engine takes, `server` the image's own entry point, which the memory
    guard starts.
    """

    preset: Preset
    image: Image
    weights: Weights
    plan: Mapping[str, Any]
    host: Host
    build: int
    server: Sequence[str]

    @property
    def planned(self) -> int:
        """Bytes that the plan promises."""
        return int(self.plan["total_bytes"])


def render(inputs: Inputs) -> Rendered:
    """Render the compose file of a deployment.

    Raises:
        BadInput: the engine of this image would refuse the command, or a key file cannot be used.
    """
    values = settle(inputs)
    return _named(values, inputs)


def settle(inputs: Inputs) -> dict[str, Any]:
    """The values that every target's template is filled with."""
    preset, image, host, weights = inputs.preset, inputs.image, inputs.host, inputs.weights
    argv = preset.arguments(
        inputs.build,
        model=inside(weights.model),
        draft=inside(weights.draft) if weights.draft else None,
        api_key_file=KEY_MOUNT if preset.api_key_file else None,
    )
    if image.help_text:  # an image that is not built yet has none
        flags.require(argv, flags.parse_help(image.help_text), image=image.ref, preset=preset.name)
    nodes = devices_for(preset.flavour, host)
    return {
        "preset_slug": slug(preset.name),
        "image": image.ref if "@sha256:" in image.ref else image.id,
        "entrypoint": _guarded(preset, inputs.planned, inputs.server),
        "command": argv,
        "environment": preset.variables(),
        "uid": host.uid,
        "gid": host.gid,
        "devices": [device.path for device in nodes],
        "groups": sorted({device.gid for device in nodes}),
        "seccomp": preset.seccomp,
        "selinux": host.selinux,
        "memlock": -1 if host.memlock is None else host.memlock,
        "shm_size": "1g" if preset.flavour != "cpu" else "",
        "memory_limit": preset.memory_limit,
        "bind": preset.bind,
        "port": preset.port,
        "mounts": [(str(source), inside(name)) for source, name in weights.mounts],
        "start_seconds": start_seconds(preset, weights.bytes),
        "restart": preset.restart,
        "labels": _labels(inputs),
    }


def inside(name: str) -> str:
    """The path of a model file in the container."""
    return f"/model/{name}"


def devices_for(flavour: str, host: Host) -> list[Device]:
    """The device nodes that a flavour uses: ROCm all, Vulkan the render nodes only, the CPU none."""
    if flavour == "cpu":
        return []
    return [device for device in host.devices if flavour == "rocm" or not device.path.endswith("kfd")]


def start_seconds(preset: Preset, size: int) -> int:
    """Seconds before a failed health probe counts: the preset's, else from the bytes to load."""
    return preset.start_seconds or 60 + size // SLOWEST_LOAD


def yaml_text(value: Any, *, escape_dollar: bool = True) -> str:
    """One YAML scalar. Text becomes a double-quoted string that every YAML version reads the same."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    plain = str(value).replace("$", "$$") if escape_dollar else str(value)
    quoted = json.dumps(plain, ensure_ascii=False)
    # JSON leaves these as they are; YAML 1.1 takes some for line breaks and refuses the others.
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", quoted
    )


def systemd_text(value: Any) -> str:
    """One word of a systemd unit: quoted, with `%` and `$` doubled, as systemd and podman read it."""
    quoted = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{quoted}"'


def _named(values: dict[str, Any], inputs: Inputs) -> Rendered:
    """Give the deployment a name that follows from its content, and write the file with it."""
    preset, host = inputs.preset, inputs.host
    template = (TEMPLATES / "compose.yaml.j2").read_text(encoding="utf-8")
    # The same image may have several tags; which one it was found by changes nothing.
    told = {**values, "labels": {k: v for k, v in values["labels"].items() if k != f"{LABEL}image"}}
    content = compact([told, _key_digest(preset), template])
    name = f"{slug(preset.name)}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"
    project = f"haloforge-{home_id(host.home)}-{name}"
    folder = host.home / "deployments" / name
    final = {
        **values,
        "project": project,
        "container": project,
        "labels": {**values["labels"], f"{LABEL}home": str(host.home), f"{LABEL}deployment": name},
        "api_key_file": str(folder / "api_key") if preset.api_key_file else None,
    }
    return Rendered(
        name=name,
        preset=preset.name,
        project=project,
        container=project,
        folder=folder,
        files={"compose.yaml": fill("compose.yaml.j2", final)},
        argv=tuple(values["command"]),
        url=url_of(preset),
        image=values["image"],
        start_seconds=values["start_seconds"],
        planned_bytes=inputs.planned,
        warnings=(*preset.warnings(), *_memlock_warnings(preset, host)),
    )


def url_of(preset: Preset) -> str:
    """Where this host reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(  # noqa: S104
        preset.bind, f"[{preset.bind}]" if ":" in preset.bind else preset.bind
    )
    return f"http://{host}:{preset.port}"


def home_id(home: Path) -> str:
    """A short name for a HALOFORGE_HOME, so that two of them on one machine do not collide."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:6]


def slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    if not slug:
        raise BadInput(f"preset {name!r} has no letter or digit in its name", hint="rename its file")
    return slug


def _key_digest(preset: Preset) -> str:
    """A digest of the API keys, so that changed keys make a new deployment."""
    if preset.api_key_file is None:
        return ""
    return hashlib.sha256(read_keys(preset).encode()).hexdigest()


def read_keys(preset: Preset) -> str:
    """The text of the preset's key file.

    Raises:
        BadInput: it cannot be read, or holds no key that the engine would take.
    """
    path = Path(preset.api_key_file or "").expanduser()
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"preset {preset.name}: cannot read api_key_file {path}", why=str(error)) from error
    keys = [line for line in content.splitlines() if line and not line.startswith("#")]
    if not keys or any(key != key.strip() for key in keys):
        raise BadInput(
            f"preset {preset.name}: {path} holds no usable key",
            why="one key a line is wanted, without spaces around it; lines that start with # are comments",
        )
    return content


def _memlock_warnings(preset: Preset, host: Host) -> list[str]:
    """What to say where the daemon may not lift the limit of memory that may be locked."""
    if host.memlock is None or (preset.flavour == "cpu" and "mlock" not in preset.load_mode):
        return []
    return [
        f"memory that may be locked is limited to {host.memlock} bytes: the Docker daemon may not raise it; "
        "pinned GPU memory can fail (systemctl edit docker: LimitMEMLOCK=infinity)"
    ]


def _guarded(preset: Preset, planned: int, server: Sequence[str]) -> list[str]:
    """The entry point with the memory guard before it; empty (the image's own) where it is switched off."""
    if not preset.guard_gib:
        return []
    below = int(preset.guard_gib * 1024)
    above = below + -(-planned // 2**20)
    return [GUARD, "--stop-below-mib", str(below), "--start-above-mib", str(above), "--", *server]


def _labels(inputs: Inputs) -> dict[str, str]:
    preset, image = inputs.preset, inputs.image
    return {
        f"{LABEL}preset": preset.name,
        f"{LABEL}engine": preset.engine,
        f"{LABEL}flavour": preset.flavour,
        f"{LABEL}image": image.ref,
        f"{LABEL}image.digest": image.digest,
        f"{LABEL}plan.bytes": str(inputs.planned),
        f"{LABEL}plan.slot-context": str(inputs.plan["per_slot_context"]),
        f"{LABEL}guard.gib": f"{preset.guard_gib:g}",
    }


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template; a value that it names and that is missing is an error."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - YAML, and every value goes through `yaml`
        keep_trailing_newline=True,
    )
    made.filters["compose"] = yaml_text
    made.filters["yaml"] = functools.partial(yaml_text, escape_dollar=False)
    made.filters["systemd"] = systemd_text
    return made
