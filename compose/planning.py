"""The files of a preset and the plan that they must pass before anything starts."""

from __future__ import annotations

import say
from compose import container, projection, record, status
from compose.render import Weights
from errors import BadInput, DoesNotFit
from images.records import ImageRecord
from patches.engines import Engine
from presets import models, models_header
from presets.models import ModelFiles
from presets.planner import headers, show
from presets.planner import host as planner_host
from presets.planner.assess import Plan, plan
from presets.planner.terms import Budget, Term, device
from presets.schema import Preset


def option_build(engine: Engine) -> int:
    """The upstream build whose options an engine takes; a fork counts builds of its own."""
    return getattr(engine.traits, "flags_as_of", None) or engine.build_number


def model_files(preset: Preset) -> ModelFiles:
    """The model and head of a preset, fetched and verified; of own files only the headers are checked."""
    found = models.ensure(preset)
    if not preset.local:
        say.step("models", f"{found.model.name}: {say.size(found.bytes)} here and verified")
    return found


def foresee(preset: Preset, engine: Engine, *, freed: int = 0) -> None:
    """Plan from remote headers, so that no image is built and no 100 GB are fetched for what cannot run.

    What is hopeless by the catalog's sizes alone is refused before the network is asked for anything.

    Raises:
        BadInput: the head does not fit the engine.
        DoesNotFit: as `gate`.
    """
    if preset.local:
        return
    models.chosen(preset)
    if not models.missing(preset):
        return
    refuse_hopeless(preset, engine, freed=freed)
    if (files := models_header.of_preset(preset)) is not None:
        say.step("models", f"headers of {say.size(files.bytes)} are here, the files are not yet")
        gate(preset, engine, files, freed=freed)


def refuse_hopeless(preset: Preset, engine: Engine, *, freed: int = 0) -> None:
    """Refuse a catalog model whose weights alone are more than there is to give.

    An outline knows weights by the files' sizes, so what is near the bound is left to the real headers.

    Raises:
        DoesNotFit: with the table.
    """
    if headers.outline(preset.model, 0) is None:
        return
    budget = _budget(preset, freed)
    outline = headers.of_preset(preset)
    found = plan(
        outline.header, outline.draft, preset.options(), engine.traits, device(preset.flavour), budget,
        preset=preset.name, outlined=outline.outlined,
    )  # fmt: skip
    if sum(term.bytes for term in found.terms if "weights" in term.name) > budget.budget_bytes:
        raise _too_big(preset, found)


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


def gate(
    preset: Preset, engine: Engine, files: ModelFiles, *, freed: int = 0, image: ImageRecord | None = None
) -> Plan:
    """The plan of a preset, against what the host has.

    Args:
        freed: bytes that come back when the running deployment is stopped.
        image: where the engine is here, it is asked for its own projection, and its figures count.

    Raises:
        DoesNotFit: it is too big, or its memory is not known; with the table.
    """
    budget = _budget(preset, freed)
    projected: tuple[Term, ...] = ()
    if image is not None:
        headers = [files.header, *([files.draft_header] if files.draft_header else [])]
        told = projection.of_files(preset, image, weights(files), headers, build=option_build(engine))
        projected = told.terms
        how = "kept from before" if told.kept else "asked just now"
        say.step("engine", f"its own projection has {len(projected)} terms, {how}")
    found = plan(
        files.header, files.draft_header, preset.options(), engine.traits, device(preset.flavour), budget,
        preset=preset.name, projection=projected,
    )  # fmt: skip
    for warning in found.warnings:
        say.warn(warning)
    if found.exit_code:
        raise _too_big(preset, found)
    say.step(
        "plan",
        f"{found.verdict}: {say.size(found.total_bytes)} of {say.size(budget.budget_bytes)}, "
        f"{found.per_slot_context} tokens a slot",
    )
    return found


def _budget(preset: Preset, freed: int) -> Budget:
    return planner_host.budget(
        reserve_gib=preset.guard_gib, container_mib=preset.memory_limit_mib, freed_bytes=freed
    )


def _too_big(preset: Preset, found: Plan) -> DoesNotFit:
    return DoesNotFit(
        f"preset {preset.name} is {found.verdict}\n{show.text(found, width=100)}",
        why=f"{say.size(found.total_bytes)} planned, {say.size(found.budget.budget_bytes)} to give",
        hint="; ".join(found.advice) or "./inv plan",
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
