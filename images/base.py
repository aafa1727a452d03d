"""Base images: pulled by digest, or made from Debian's packages where no registry answers."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

import command
import documents
import paths
import say
from errors import BadInput, CheckFailed, HostLacks, NetworkFailed, nearest
from images import apt, daemon
from images.flavours import Data, describe

FILE: Final = Path(__file__).resolve().parent / "bases.yaml"
REPOSITORY: Final = "haloforge/base"
_MADE: Final = "io.haloforge.base"
"""The label of a base that was made here; it says from which suites."""
_LEFT_OUT: Final = ("/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*", "/usr/share/info/*")


class Registry(Data):
    """A tag, and the digest of what it stood for when it was pinned."""

    image: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]

    @property
    def pinned(self) -> str:
        """The reference that names the content: repository and digest, without the tag."""
        return f"{self.image.rsplit(':', 1)[0]}@{self.digest}"


class Debian(Data):
    """How the base is made from packages: suites of the archive, and the suite of the security archive."""

    suites: Annotated[tuple[str, ...], Field(min_length=1)]
    security: str = ""


class StandIn(Data):
    """An empty `library` in the place of one that `user` links to, with the functions `prefix*` it wants."""

    library: str
    user: str
    prefix: str


class Packages(Data):
    """What a flavour installs on a base.

    `build` and `run` are packages; `without` those that `run` depends on and that are left out; `leave_out`
    and `keep` patterns of files that are not unpacked, and of those among them that are after all.
    `refused_calls` matches the functions that the engine must not import because of the `stand_ins`.
    """

    build: tuple[str, ...]
    run: tuple[str, ...]
    without: tuple[str, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    refused_calls: str = ""
    leave_out: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


class Base(Data):
    """One base, as `bases.yaml` has it. `pins` are exact versions, `further` the suites they are in."""

    name: str
    summary: str
    registry: Registry | None = None
    debian: Debian | None = None
    further: tuple[str, ...] = ()
    pins: Mapping[str, str] = Field(default_factory=dict)
    packages: Mapping[str, Packages] = Field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class BaseImage:
    """A base that the engine has: the tag to build on, its id, and where it came from (for labels)."""

    tag: str
    id: str
    origin: str


def names() -> list[str]:
    """The names of all bases, in the order of the file."""
    return list(_document())


@cache
def _document() -> dict[str, Any]:
    document = documents.read(FILE)
    if not isinstance(document, dict) or set(document) != {"bases"}:
        raise BadInput(f"{FILE} needs the key bases, and no others")
    found: dict[str, Any] = document["bases"]
    return found


def load(name: str) -> Base:
    """The base of that name.

    Raises:
        BadInput: no such base, its file is wrong, or the base is known not to serve; says why.
    """
    if name not in names():
        raise BadInput(f"no base named {name!r}", why=nearest(name, names()), hint="./inv build --base NAME")
    base = parse(name, _document()[name])
    if base.refused:
        raise BadInput(f"the base {name} cannot be used", why=base.refused, hint="leave --base out")
    return base


def parse(name: str, document: object) -> Base:
    """Check one base's document."""
    if not isinstance(document, dict):
        raise BadInput(f"{FILE}: {name} is not a mapping")
    try:
        return Base.model_validate({"name": name, **document})
    except ValidationError as error:
        raise BadInput(f"{FILE}: {name} is wrong", why=describe(error)) from error


def ensure(base: Base) -> BaseImage:
    """The base image, from the engine's store, the registry, or made from packages; says which.

    Raises:
        NetworkFailed: neither the registry nor an archive of packages answers.
        CheckFailed: the registry's image is not the pinned one.
        HostLacks: mmdebstrap is needed and not installed, or the disk is full.
    """
    found = _stored(base)
    if found:
        return found
    reason = "no registry image is pinned for it"
    if base.registry:
        say.step("base", f"pulling {base.registry.pinned}")
        reason = daemon.pull(base.registry.pinned, lambda line: None)
        if not reason:
            return _pulled(base, base.registry)
        _refuse_mismatch(base.registry, reason)
    if base.debian is None:
        raise NetworkFailed(
            f"the base {base.name} cannot be had", why=reason, hint="try where a registry answers"
        )
    say.warn(f"base {base.name}: {reason}; making it from Debian packages instead")
    return _made(base, base.debian)


def tag_of(base: Base) -> str:
    """The tag of a base: its name and a digest of everything that decides its content."""
    recipe = repr((base.registry, base.debian, _LEFT_OUT))
    return f"{REPOSITORY}:{base.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _stored(base: Base) -> BaseImage | None:
    tag = tag_of(base)
    found = daemon.inspect(tag)
    if found is None:
        return None
    if base.registry and any(
        entry.endswith(base.registry.digest) for entry in found.get("RepoDigests") or ()
    ):
        return BaseImage(tag=tag, id=found["Id"], origin=base.registry.pinned)
    labels = found["Config"].get("Labels") or {}
    return BaseImage(tag=tag, id=found["Id"], origin=labels.get(_MADE, base.name))


def _pulled(base: Base, registry: Registry) -> BaseImage:
    found = daemon.inspect(registry.pinned)
    if found is None or not any(entry.endswith(registry.digest) for entry in found["RepoDigests"]):
        raise CheckFailed(
            f"what came for {registry.pinned} is another image",
            why=f"the engine has {found['RepoDigests'] if found else 'nothing'}",
            hint=f"docker image rm {registry.pinned}, then try again",
        )
    daemon.docker("tag", found["Id"], tag_of(base))
    return BaseImage(tag=tag_of(base), id=found["Id"], origin=registry.pinned)


def _refuse_mismatch(registry: Registry, reason: str) -> None:
    """A registry that answers but has not what is pinned must not be worked around silently."""
    if re.search(
        r"manifest unknown|digest .*mismatch|failed (size )?validation|does not match",
        reason,
    ):
        raise CheckFailed(
            f"{registry.image} is not available with the pinned digest",
            why=f"{registry.digest}: {reason}",
            hint="./inv images.pin BASE, and look at what changed",
        )


def _made(base: Base, debian: Debian) -> BaseImage:
    if not command.have("mmdebstrap"):
        raise HostLacks(
            f"mmdebstrap is not installed, and the base {base.name} has to be made with it",
            hint="apt-get install mmdebstrap   (or ./inv doctor --install)",
        )
    archives = apt.archives()
    folder = paths.home() / "bases"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{base.name}.log"
    tar = folder / f".{base.name}.{os.getpid()}.tar"
    origin = f"made-from-{'+'.join(debian.suites)}"
    say.step("base", f"making {base.name} from {archives.main} (log: {log})")
    try:
        words = [
            *mmdebstrap_arguments(debian, archives),
            debian.suites[0],
            str(tar),
            *sources(debian, archives),
        ]
        command.run(["mmdebstrap", *words], log=log, timeout=1800, hint=f"see {log}")
        identity = daemon.import_root(tar, tag_of(base), ['CMD ["sh"]', f"LABEL {_MADE}={origin}"])
    finally:
        tar.unlink(missing_ok=True)
    return BaseImage(tag=tag_of(base), id=identity, origin=origin)


def sources(debian: Debian, archives: apt.Archives) -> list[str]:
    """The source lines of a base that is made: its suites, and the security suite if the host knows one."""
    lines = [f"deb {archives.main} {suite} main" for suite in debian.suites]
    if debian.security and archives.security:
        lines.append(f"deb {archives.security} {debian.security} main")
    return lines


def mmdebstrap_arguments(debian: Debian, archives: apt.Archives) -> Sequence[str]:
    """What mmdebstrap is told: a minimal system, in which documentation is left out but the licences."""
    mode = "root" if os.geteuid() == 0 else "unshare"
    words = [f"--mode={mode}", "--variant=minbase", "--include=ca-certificates"]
    words += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    words += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    words += [f"--aptopt={option}" for option in archives.options]
    # apt's own indexes would be 20 MB of every image built on this one
    words += ['--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin']
    return words
