"""What is measured, put together from what the user names: a preset, files, a server's URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.results import Identity, folder
from bench.servers import Files, Launcher, Program, Remote, refuse_other_model, served
from bench.sweep import Subject
from errors import BadInput
from presets import schema
from presets.planner import log
from presets.schema import Preset

MIB: Final = 2**20
FILE_SETTINGS: Final[dict[str, Any]] = {
    "purpose": "files given on the command line", "model": "file", "quant": "file", "flavour": "cpu",
    "ctx": 4096, "slots": 1, "batch": 2048, "ubatch": 512, "gpu_layers": "0", "load_mode": "mmap",
    "cache_ram": 256, "threads": 1, "guard_gib": 1,
}  # fmt: skip
"""How bare files run: a small context on one thread, as suits the tiny models of the tests."""


def running(url: str, *, key: str | None = None, preset: str | None = None) -> Subject:
    """A server that runs already.

    Raises:
        BadInput: no llama-server answers there, or it serves another model than the preset's.
    """
    server = Remote(url=url.rstrip("/"), key=key)
    says = served(server)
    named = schema.load(preset) if preset else None
    if named is not None:
        refuse_other_model(says, [named.served_name, *_file_names(named)], url)
    identity = Identity(
        subject=preset or says.model, preset=preset, build=says.build, model=Path(says.path).name, url=url
    )
    return Subject(preset=None, files=None, launcher=None, identity=identity, url=server.url, key=key)


def from_files(
    model: Path, *, draft: Path | None, launcher: Launcher, overrides: Mapping[str, str] | None = None,
    identity: Identity | None = None,
) -> Subject:  # fmt: skip
    """Model files without a preset.

    Raises:
        BadInput: a file is missing, or an override is no setting.
    """
    for file in (model, draft):
        if file is not None and not file.is_file():
            raise BadInput(f"no file {file}", hint="give the path of a GGUF file")
    values = dict(FILE_SETTINGS) | dict(overrides or {})
    if draft is not None:
        values = {"spec_type": "draft-mtp", "head": "file"} | values
    preset = schema.parse(values, name=model.stem)
    return of_preset(preset, Files(model=model, draft=draft), launcher, identity=identity)


def of_preset(
    preset: Preset, files: Files, launcher: Launcher, *, identity: Identity | None = None
) -> Subject:
    """A preset with its files on a launcher."""
    found = identity or Identity(subject=preset.name)
    sizes = {"model": files.model.name, "model_bytes": files.model.stat().st_size}
    sizes |= {"draft": files.draft.name} if files.draft else {}
    named = found.model_copy(update=sizes)
    return Subject(preset=preset, files=files, launcher=launcher, identity=named, buffers=buffers)


def host_program(directory: Path, *, build: int) -> Program:
    """llama-server and llama-bench of a folder on this host.

    Raises:
        BadInput: the folder has no llama-server.
    """
    program = directory / "llama-server"
    if not program.is_file():
        raise BadInput(f"no llama-server in {directory}", hint="give the folder of an engine's programs")
    return Program(
        command=(str(program),), tools=directory, logs=folder() / "logs", build=build,
        environment={"LD_LIBRARY_PATH": str(directory)},
    )  # fmt: skip


def buffers(text: str) -> dict[str, float]:
    """What a start-up log says of memory, in bytes by name; what it does not say is left out."""
    found = log.totals(log.parse(text))
    named = {
        "weights_device_bytes": found.weights_device, "weights_host_bytes": found.weights_host,
        "kv_bytes": found.kv, "state_bytes": found.state, "compute_device_bytes": found.compute_device,
        "compute_host_bytes": found.compute_host,
    }  # fmt: skip
    return {name: size * MIB for name, size in named.items() if size is not None}


def _file_names(preset: Preset) -> list[str]:
    return []
