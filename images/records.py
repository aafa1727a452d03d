"""What images there are. The engine's store is the truth: every image carries its record in its labels."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import paths
from errors import BadInput
from images import base as bases
from images import daemon, flavours
from images.flavours import Flavour
from images.recipe import LABEL, REPOSITORY, recipe
from patches import engines
from patches.engines import Engine

HELP_PATH: Final = "/app/llama-server.help"


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """One image of ours that the container engine has.

    Attributes:
        ref: what to name it by: our own tag if the image was built here, else `repository@digest`.
        digest: the image id of one built here, else the repository's digest; both `sha256:...`.
        identity: pin and series of the tree it was compiled from; a planted fault shows here.
        patches: (id, digest) of each patch.
        size: bytes, as the engine counts the image's layers.
        created: when it was built.
        help_text: what its own `llama-server --help` prints.
    """

    ref: str
    digest: str
    id: str
    tags: tuple[str, ...]
    flavour: str
    cpu: str
    device: str
    engine: str
    pin: str
    revision: str
    series_digest: str
    identity: str
    recipe: str
    base: str
    patches: tuple[tuple[str, str], ...]
    size: int
    created: datetime
    help_text: str

    def to_json(self) -> dict[str, Any]:
        """For `images --json`; without the help text, which is long."""
        fields = asdict(self)
        del fields["help_text"]
        return {**fields, "created": self.created.isoformat()}


def find(flavour: str | Flavour, engine: str | Engine, identity: str) -> ImageRecord | None:
    """The newest image made from today's recipe of this flavour, engine and tree, or None."""
    chosen = flavours.load(flavour) if isinstance(flavour, str) else flavour
    pinned = engines.load(engine) if isinstance(engine, str) else engine
    for name in chosen.bases:
        made = recipe(chosen, bases.load(name), pinned, identity)
        found = daemon.labelled({LABEL + "recipe": made.digest})
        if found:
            return of(found[0])
    return None


def all_images() -> list[ImageRecord]:
    """Every image of ours, newest first."""
    found = (of(image) for image in daemon.labelled({LABEL + "recipe": ""}))
    return sorted((record for record in found if record), key=lambda record: record.created, reverse=True)


all = all_images


def of(ref: str) -> ImageRecord | None:
    """The record of an image (tag, digest or id), or None if it is not there.

    Raises:
        BadInput: it is there and is not one of ours.
    """
    found = daemon.inspect(ref)
    return None if found is None else parse(found, _help(found["Id"]))


def chosen(ref: str) -> ImageRecord:
    """The image of that name, or without one the newest of ours.

    Raises:
        BadInput: there is no such image.
    """
    record = of(ref) if ref else next(iter(all_images()), None)
    if record is None:
        raise BadInput(
            f"no image {ref}" if ref else "no image of ours is here", hint="./inv images, or ./inv build"
        )
    return record


def parse(found: dict[str, Any], help_text: str) -> ImageRecord:
    """Read a record from what `docker image inspect` says.

    Raises:
        BadInput: the image lacks our labels.
    """
    given = found["Config"].get("Labels") or {}
    if LABEL + "recipe" not in given:
        raise BadInput(f"{_name(found)} was not built by Haloforge", hint="./inv images")
    local = next((tag for tag in found.get("RepoTags") or [] if tag.startswith(f"{REPOSITORY}:")), "")
    digests = [] if local else found.get("RepoDigests") or []
    own = {name.removeprefix(LABEL): value for name, value in given.items() if name.startswith(LABEL)}
    return ImageRecord(
        ref=local or (digests[0] if digests else _name(found)),
        digest=digests[0].partition("@")[2] if digests else found["Id"],
        id=found["Id"],
        tags=tuple(found.get("RepoTags") or ()),
        flavour=own["flavour"],
        cpu=own["cpu"],
        device=own["device"],
        engine=own["engine"],
        pin=own["pin"],
        revision=given.get("org.opencontainers.image.revision", ""),
        series_digest=own["series"],
        identity=own["identity"],
        recipe=own["recipe"],
        base=given.get("org.opencontainers.image.base.name", ""),
        patches=tuple((str(name), str(digest)) for name, digest in json.loads(own["patches"])),
        size=int(found["Size"]),
        created=_time(found["Created"]),
        help_text=help_text,
    )


def _name(found: dict[str, Any]) -> str:
    tags = found.get("RepoTags") or [found["Id"]]
    return str(tags[0])


def _time(text: str) -> datetime:
    """RFC 3339 with nanoseconds, of which Python keeps the microseconds."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{(rest + '000000')[:6]}").replace(tzinfo=UTC)


def _help(identity: str) -> str:
    """The image's help text, copied out once and kept beside the other generated things."""
    kept = help_file(identity)
    if not kept.is_file():
        with paths.replacing(kept) as temporary:
            daemon.copy_out(identity, HELP_PATH, temporary)
    return kept.read_text(encoding="utf-8")


def help_file(identity: str) -> Path:
    """Where the help text of an image is kept."""
    return paths.home() / "images" / f"{identity.removeprefix('sha256:')[:16]}.help"
