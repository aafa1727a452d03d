"""The files of a preset and the plan that they must pass before anything starts."""

from __future__ import annotations

from pathlib import Path

import say
from compose import container, record, status
from compose.render import Weights
from errors import BadInput
from patches.engines import Engine
from presets import gguf, models
from presets.models import ModelFiles
from presets.schema import Preset


def option_build(engine: Engine) -> int:
    """The upstream build whose options an engine takes; a fork counts builds of its own."""
    return getattr(engine.traits, "flags_as_of", None) or engine.build_number


def model_files(preset: Preset) -> ModelFiles:
    """The model and head of a preset, fetched and verified; local files are only read."""
    if not preset.local:
        found = models.ensure(preset)
        say.step("models", f"{found.model.name}: {say.size(found.bytes)} here and verified")
        return found
    model, draft = Path(preset.model), Path(preset.head) if preset.head else None
    header = gguf.read_set(model)
    draft_header = gguf.read_set(draft) if draft else None
    files = (*gguf.shard_paths(model), *([draft] if draft else []))
    say.step("models", f"{model.name}: a local file, its content is not verified")
    return ModelFiles(
        model=model,
        draft=draft,
        files=files,
        bytes=sum(file.stat().st_size for file in files),
        header=header,
        draft_header=draft_header,
    )


def weights(files: ModelFiles) -> Weights:
    """The files as they are mounted: real paths, names kept.

    Raises:
        BadInput: model and head have the same file name.
    """
    names = [file.name for file in files.files]
    if len(set(names)) < len(names):
        raise BadInput("model and head have the same file name", why=", ".join(names), hint="rename one")
    return Weights(
        model=files.model.name,
        draft=files.draft.name if files.draft else None,
        mounts=tuple((file.resolve(), file.name) for file in files.files),
        bytes=files.bytes,
    )


def freed_by_stopping(current: str | None) -> int:
    """Bytes that come back when the running deployment is stopped: what it holds now, at most its plan."""
    if current is None:
        return 0
    deployment = record.load(current)
    now = container.state(deployment.container)
    if now is None or not now.running:
        return 0
    memory = status.of(deployment).memory
    return min(deployment.planned_bytes, memory.resident + (memory.gtt or 0))
