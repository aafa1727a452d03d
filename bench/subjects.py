"""What is measured, put together from what the user names: a preset, files, a server's URL."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.containers import Image
from bench.host import available_bytes
from bench.results import Identity, folder
from bench.servers import Files, Launcher, Program, Remote, refuse_other_model, served
from bench.sweep import Prediction, Subject
from compose import deploy, planning
from errors import BadInput
from images import records
from images.records import ImageRecord
from patches import engines
from patches.engines import Engine
from patches.traits import Traits
from presets import schema, strict_yaml
from presets.models import ModelFiles
from presets.planner import log, plan
from presets.planner.terms import Budget, device
from presets.schema import Preset

MIB: Final = 2**20
FILE_SETTINGS: Final[dict[str, Any]] = {
    "purpose": "files given on the command line", "flavour": "cpu", "ctx": 4096, "slots": 1, "batch": 2048,
    "ubatch": 512, "gpu_layers": "0", "load_mode": "mmap", "cache_ram": 256, "threads": 1, "guard_gib": 1,
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
        refuse_other_model(says, [named.served_name], url)
    identity = Identity(
        subject=preset or says.model, preset=preset, build=says.build, model=Path(says.path).name, url=url
    )
    return Subject(preset=None, files=None, launcher=None, identity=identity, url=server.url, key=key)


def file_preset(model: Path, *, draft: Path | None, overrides: Mapping[str, str] | None = None) -> Preset:
    """A preset for model files that no preset names.

    Raises:
        BadInput: a file is missing, or an override is no setting.
    """
    for file in (model, draft):
        if file is not None and not file.is_file():
            raise BadInput(f"no file {file}", hint="give the path of a GGUF file")
    values: dict[str, Any] = {**FILE_SETTINGS, "model": str(model)}
    if draft is not None:
        values |= {"spec_type": "draft-mtp", "head": str(draft)}
    given = {name: strict_yaml.Plain(value) for name, value in (overrides or {}).items()}
    return schema.parse({**values, **given}, name=model.stem)


def of_program(preset: Preset, directory: Path) -> Subject:
    """A preset on llama-server of a folder on this host."""
    engine = engines.load(preset.engine)
    launcher = host_program(directory, build=planning.option_build(engine))
    return _subject(preset, launcher, engine, Identity(subject=preset.name, engine=engine.name))


def of_image(preset: Preset, *, ref: str | None = None) -> Subject:
    """A preset on an image: the one named, else the one `deploy` would take, built where it is missing.

    Raises:
        BadInput: the image named is not there or not ours.
    """
    engine = engines.load(preset.engine)
    image = _named_image(ref) if ref else deploy.image_for(preset, engine)
    identity = Identity(
        subject=preset.name, image=image.ref, digest=image.digest, engine=image.engine, pin=image.pin,
        series=image.series_digest,
    )  # fmt: skip
    launcher = Image(ref=image.id, flavour=image.flavour, build=planning.option_build(engine))
    return _subject(preset, launcher, engine, identity)


def _named_image(ref: str) -> ImageRecord:
    found = records.of(ref)
    if found is None:
        raise BadInput(f"there is no image {ref}", hint="./inv images")
    return found


def _subject(preset: Preset, launcher: Launcher, engine: Engine, identity: Identity) -> Subject:
    found = planning.model_files(preset)
    identity = identity.model_copy(
        update={
            "preset": None if preset.local else preset.name, "model": found.model.name,
            "model_bytes": found.bytes, "draft": found.draft.name if found.draft else None,
        }
    )  # fmt: skip
    files = Files(model=found.model, draft=found.draft)
    return Subject(
        preset=preset, files=files, launcher=launcher, identity=identity, buffers=buffers,
        predict=partial(predicted, found, engine.traits),
    )  # fmt: skip


def predicted(files: ModelFiles, traits: Traits, preset: Preset) -> Prediction:
    """The planner's bytes under the names of `buffers`, target and draft together.

    A sum is as sure as the least sure of its terms.
    """
    draft = files.draft_header if preset.drafts else None
    budget = Budget(available_bytes=available_bytes())
    found = plan(files.header, draft, preset.options(), traits, device(preset.flavour), budget)
    sizes: dict[str, float] = {"total_bytes": float(found.total_bytes)}
    certainty: dict[str, str] = {}
    for term in found.terms:
        name = _BUFFER_OF.get((term.name, term.where))
        if name is not None:
            sizes[name] = sizes.get(name, 0.0) + term.bytes
            certainty[name] = max(certainty.get(name, "exact"), term.certainty, key=_SURE.index)
    return Prediction(sizes=sizes, certainty=certainty)


_SURE: Final = ("exact", "measured", "bounded")
_BUFFER_OF: Final = {
    ("weights_device", "device"): "weights_device_bytes", ("weights_host", "host"): "weights_host_bytes",
    ("ngram_table", "host"): "weights_host_bytes", ("draft_weights", "device"): "weights_device_bytes",
    ("draft_weights", "host"): "weights_host_bytes",
    **{(name, where): "kv_bytes" for name in ("kv_cache", "kv_cache_swa", "indexer_cache", "draft_kv_cache")
       for where in ("device", "host")},
    **{(name, where): "state_bytes" for name in ("recurrent_state", "draft_recurrent_state")
       for where in ("device", "host")},
    ("compute_device", "device"): "compute_device_bytes", ("compute_host", "host"): "compute_host_bytes",
    ("draft_compute", "device"): "compute_device_bytes", ("draft_compute", "host"): "compute_host_bytes",
}  # fmt: skip
"""Term and place of the planner -> line of the start-up log that it predicts."""


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
