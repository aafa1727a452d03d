"""From a preset to a server that is proven to answer right, doing only what is missing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paths
import say
from compose import container, doctor, flags, host, planning, ports, record, render, switch
from compose.record import Deployment, Journal, Promise, Switch
from compose.render import Rendered
from errors import BadInput, CheckFailed, HostLacks
from images import build as builder
from images import daemon, flavours
from images.records import ImageRecord
from patches import engines, tree
from patches.engines import Engine
from presets.schema import Preset


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What `deploy` ended with: the deployment, and whether anything had to be changed."""

    deployment: Deployment
    changed: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"changed": self.changed, **self.deployment.model_dump()}


def deploy(preset: Preset, *, install: bool = False, jobs: int | None = None) -> Deployed:
    """Do what is missing, in order: doctor, fetch, patch, build, models, plan, render, up, healthy, smoke.

    Args:
        install: let doctor install what the host lacks and start the daemon.
        jobs: compile jobs of the build.

    Raises:
        HaloforgeError: the step that failed says what, why and what next; what ran before runs on.
    """
    refuse_corrupting(preset)
    doctor.gate(preset.flavour, install_missing=install)
    with record.lock() as descriptor:
        recover()
        check_port(preset)
        rendered, deployment = prepare(preset, jobs=jobs)
        current = record.journal().current
        if current == rendered.name and is_up(deployment):
            say.step("up", f"{rendered.name} is up and healthy at {rendered.url}; nothing to do")
            return Deployed(deployment=deployment, changed=False)
        write(rendered, deployment, preset)
        check_port(preset)
        old = current if current != rendered.name else None
        switch.outcome(switch.start(Switch(old=old, new=rendered.name), descriptor))
        prune()
    return Deployed(deployment=deployment, changed=True)


def refuse_corrupting(preset: Preset) -> None:
    """Refuse environment variables that corrupt results on this hardware."""
    wrong = [found for found in doctor.corrupting(preset.environment) if found.severity == "error"]
    if wrong:
        raise BadInput(
            f"preset {preset.name}: its environment corrupts results",
            why="; ".join(f"{found.what}: {found.why}" for found in wrong),
            hint=wrong[0].fix,
        )


def inputs_for(preset: Preset, *, jobs: int | None = None) -> render.Inputs:
    """Everything before rendering: engine, image, models and a plan that fits. Nothing is started."""
    engine = engines.load(preset.engine)
    freed = planning.freed_by_stopping(record.journal().current)
    planning.foresee(preset, engine, freed=freed)
    image = image_for(preset, engine, jobs=jobs)
    refuse_unsafe_slots(preset, image)
    refuse_unknown_options(preset, image, engine)
    files = planning.model_files(preset)
    plan = planning.gate(preset, engine, files, freed=freed, image=image)
    return render.Inputs(
        preset=preset,
        image=image,
        weights=planning.weights(files),
        plan=plan.to_json(),
        host=host.facts(),
        build=planning.option_build(engine),
        server=entry_point(image),
    )


def prepare(preset: Preset, *, jobs: int | None = None) -> tuple[Rendered, Deployment]:
    """What is to run: the rendered files and the record of what they promise."""
    inputs = inputs_for(preset, jobs=jobs)
    rendered = render.render(inputs)
    say.step("render", f"{rendered.name} for {rendered.url}")
    for warning in rendered.warnings:
        say.warn(warning)
    return rendered, promised(inputs, rendered)


def image_for(preset: Preset, engine: Engine, *, jobs: int | None = None) -> ImageRecord:
    """The image of a preset: fetch, patch and build what is missing."""
    return builder.build(flavours.load(preset.flavour), tree.patched(engine), jobs=jobs)


def refuse_unsafe_slots(preset: Preset, image: ImageRecord) -> None:
    """MTP with three or more slots mixes up recurrent snapshots on an engine without our patch L3.

    EngramHalo has a history of its own here: it is warned of, since the seed's measurements were made so.
    """
    if preset.engine == "engramhalo":
        if preset.uses_mtp and preset.slots >= 3:
            say.warn(
                "MTP with several slots was never validated on EngramHalo: 2 of 8 long answers were clean"
            )
        return
    if preset.uses_mtp and preset.slots >= 3 and not any(name.startswith("L3") for name, _ in image.patches):
        raise BadInput(
            f"preset {preset.name}: MTP with {preset.slots} slots gives wrong text on {image.ref}",
            why="its patch series lacks L3 (rs-snapshots-follow-cell): snapshots do not follow their cell",
            hint="use --set slots=2, or an engine whose series has L3 (./inv patch.status)",
        )


def refuse_unknown_options(preset: Preset, image: ImageRecord, engine: Engine) -> None:
    """Options that this image's engine does not take, found before the engine is asked for anything."""
    draft = "DRAFT" if preset.drafts else None
    words = preset.arguments(planning.option_build(engine), model="MODEL", draft=draft)
    flags.require(words, flags.parse_help(image.help_text), image=image.ref, preset=preset.name)


def entry_point(image: ImageRecord) -> list[str]:
    """What the image starts by itself."""
    found = daemon.inspect(image.id) or {}
    words = (found.get("Config") or {}).get("Entrypoint") or []
    if not words:
        raise BadInput(f"{image.ref} has no entry point", hint="./inv build")
    return [str(word) for word in words]


def promised(inputs: render.Inputs, rendered: Rendered) -> Deployment:
    """The record of what this deployment promises."""
    preset, image, plan = inputs.preset, inputs.image, inputs.plan
    terms = tuple(Promise.model_validate(term) for term in plan["terms"])
    return Deployment(
        name=rendered.name,
        preset=preset.name,
        project=rendered.project,
        container=rendered.container,
        url=rendered.url,
        bind=preset.bind,
        port=preset.port,
        image=rendered.image,
        image_ref=image.ref,
        engine=preset.engine,
        identity=image.identity,
        flavour=preset.flavour,
        build=f"b{engines.load(preset.engine).build_number}",
        alias=preset.served_name,
        model_file=inputs.weights.model,
        slots=preset.slots,
        slot_context=plan["per_slot_context"],
        drafting=bool(preset.spec_type),
        load_mode=preset.load_mode,
        lazy_mode=preset.lazy_mode,
        has_table=any(term.name == "ngram_table" for term in terms),
        answer=preset.answer,
        guard_gib=preset.guard_gib,
        start_seconds=rendered.start_seconds,
        planned_bytes=rendered.planned_bytes,
        terms=terms,
        argv=rendered.argv,
        has_key=preset.api_key_file is not None,
    )


def write(rendered: Rendered, deployment: Deployment, preset: Preset) -> None:
    """Write the folder of a deployment, the secret first and readable by the engine's user only."""
    try:
        if preset.api_key_file is not None:
            write_secret(rendered.folder / "api_key", render.read_keys(preset))
        texts = {**rendered.files, "deployment.json": deployment.model_dump_json(indent=2) + "\n"}
        for name, text in texts.items():
            with paths.replacing(rendered.folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HostLacks(
            f"cannot write {rendered.folder}", why=error.strerror or str(error), hint="set HALOFORGE_HOME"
        ) from error


def write_secret(path: Path, text: str) -> None:
    """Write a file that only the engine's user may read (root hands it over, others run as themselves)."""
    facts = host.facts()
    with paths.replacing(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
        if facts.uid == host.IMAGE_UID:
            host.give(temporary, facts.uid, facts.gid)
        temporary.chmod(0o400)


def is_up(deployment: Deployment) -> bool:
    """Whether a deployment runs and answers."""
    now = container.state(deployment.container)
    return now is not None and now.running and ports.answers_health(deployment.url)


def check_port(preset: Preset) -> None:
    """The port must be free, or held by the deployment that is about to be replaced.

    Raises:
        HostLacks: says who has it, and whether it answers like a llama-server.
    """
    current = record.journal().current
    own = record.load(current).container if current else ""
    containers = container.publishing(preset.port)
    if own and own in containers:
        return
    who = f"container {containers[0]}" if containers else ports.holder(preset.port, preset.bind)
    if who is None:
        return
    what = "which answers /health like a llama-server" if ports.answers_health(render.url_of(preset)) else ""
    raise HostLacks(
        f"port {preset.port} on {preset.bind} is taken",
        why=f"by {who}{', ' + what if what else ''}",
        hint=f"end it, or choose another port: --set port={preset.port + 1}",
    )


def recover() -> None:
    """Finish a switch that was itself killed: keep the new one if it is up and passes, else the old one.

    The lock is held, so no switch is at work any more.
    """
    journal = record.journal()
    if journal.switch is None:
        return
    new, old = journal.switch.new, journal.switch.old
    say.step("recover", f"the switch to {new} was cut short; finishing it")
    deployment = record.load(new)
    if is_up(deployment) and passes(deployment):
        record.write_journal(record.advanced(journal, journal.switch))
        if old is not None:
            container.down(record.compose_file(old), record.load(old).project)
        return
    container.down(record.compose_file(new), deployment.project)
    if old is not None:
        switch.bring_up(record.load(old))
    record.write_journal(Journal(current=old, history=journal.history))


def passes(deployment: Deployment) -> bool:
    """Whether a deployment that is up passes smoke; says why not."""
    try:
        switch.verify(deployment)
    except CheckFailed as error:
        say.warn(f"{error.what}: {error.why}")
        return False
    return True


def rollback() -> Deployment:
    """Go back to the deployment before the current one; again goes on to the one before that.

    Raises:
        BadInput: there is none.
        SwitchFailed: it did not come up; the current one runs again.
    """
    with record.lock() as descriptor:
        recover()
        journal = record.journal()
        if not journal.history:
            raise BadInput("there is no earlier deployment to go back to", hint="./inv status")
        target = journal.history[-1]
        say.step("rollback", f"from {journal.current or 'nothing'} to {target}")
        switch.outcome(switch.start(Switch(old=journal.current, new=target, back=True), descriptor))
        return record.load(target)


def stop(*, engine: bool = False) -> str | None:
    """Stop what runs and remove its container; with `engine` also a daemon that Haloforge started."""
    with record.lock():
        journal = record.journal()
        for name in {journal.current, journal.switch.new if journal.switch else None} - {None}:
            assert name is not None
            began = time.monotonic()
            container.down(record.compose_file(name), record.load(name).project)
            say.step("stop", f"{name} stopped in {time.monotonic() - began:.1f} s")
        if journal.current:
            kept = [name for name in journal.history if name != journal.current]
            record.write_journal(Journal(current=None, history=(*kept, journal.current)[-record.KEEP :]))
        else:
            record.write_journal(Journal(history=journal.history))
    if engine:
        ended = doctor.stop_engine()
        say.step(
            "stop",
            "ended the Docker daemon" if ended else "the Docker daemon was not started by us; left alone",
        )
    return journal.current


def prune() -> None:
    """Remove the folders of deployments that no rollback can reach any more."""
    import shutil

    journal = record.journal()
    kept = {journal.current, *journal.history}
    for folder in record.root().iterdir():
        if folder.is_dir() and not folder.is_symlink() and folder.name not in kept:
            shutil.rmtree(folder)
