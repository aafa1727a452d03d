"""Rendering for a machine that is not this one: nothing is built, fetched or started.

A pipeline without a GPU, an image or 100 GB of weights can still write the files: names and sizes come from
the catalog, the plan from the model's header or outline. What could not be checked is said.
"""

from __future__ import annotations

import say
from compose import deploy, host, planning
from compose.render import Inputs, Weights
from images import base as bases
from images import flavours, records
from images.recipe import recipe
from images.records import ImageRecord
from patches import engines, tree
from patches.engines import Engine
from presets import catalog, models
from presets.planner import ask
from presets.schema import Preset


class NotBuilt:
    """The image that `./inv build` would make, known by its tag only."""

    def __init__(self, ref: str, identity: str) -> None:
        self.ref = ref
        self.id = ref
        self.digest = ""
        self.identity = identity
        self.help_text = ""


def inputs_for(preset: Preset) -> Inputs:
    """What rendering needs, from what is here and what the catalog says of the rest."""
    deploy.refuse_corrupting(preset)
    engine = engines.load(preset.engine)
    image = _image(preset, engine)
    if isinstance(image, ImageRecord):
        deploy.refuse_unsafe_slots(preset, image)
        server = deploy.entry_point(image)
    else:
        server = _server(preset)
    found = ask.judge(ask.of_preset(preset)[0])
    if found.exit_code:
        need, have = say.size(found.total_bytes), say.size(found.budget.budget_bytes)
        say.warn(f"{found.verdict} on this machine ({need} planned, {have} to give); on another it may fit")
    return Inputs(
        preset=preset,
        image=image,
        weights=weights(preset),
        plan=found.to_json(),
        host=host.facts(),
        build=planning.option_build(engine),
        server=server,
    )


def weights(preset: Preset) -> Weights:
    """The files of a preset as they will be mounted; says which are not here yet."""
    if preset.local:
        return planning.weights(planning.model_files(preset))
    model, _, head = models.chosen(preset)
    sets = models.sets_of(model, preset.quant, preset.head)
    files = [(folder / shard.name, shard.bytes or 0) for each, folder in sets for shard in each.shards]
    if missing := [file.name for file, _ in files if not file.exists()]:
        say.warn(f"not here yet: {', '.join(missing)}   (./inv models.fetch --preset {preset.name})")
    quant = catalog.quant(preset.model, preset.quant)
    return Weights(
        model=quant.shards[0].name,
        draft=head.shards[0].name if head else None,
        mounts=tuple((file.resolve(), file.name) for file, _ in files),
        bytes=sum(file.stat().st_size if file.exists() else size for file, size in files),
    )


def _image(preset: Preset, engine: Engine) -> ImageRecord | NotBuilt:
    identity = tree.identity(engine)
    found = records.find(preset.flavour, preset.engine, identity)
    if found is not None:
        return found
    flavour = flavours.load(preset.flavour)
    tag = recipe(flavour, bases.load(flavour.bases[0]), engine, identity).tag
    say.warn(f"{tag} is not built: its options are not checked   (./inv build --flavour {preset.flavour})")
    return NotBuilt(tag, identity)


def _server(preset: Preset) -> list[str]:
    device = flavours.load(preset.flavour).device
    return [*(["/app/require-device", device.kind] if device else []), "/app/llama-server"]
