"""What an image is made from, as values: CMake options, build arguments, labels, and the digest of it all."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from errors import BadInput, nearest
from images.base import Base, BaseImage, Packages
from images.flavours import Flavour
from patches.engines import Engine
from patches.tree import PatchedTree

FOLDER: Final = Path(__file__).resolve().parent
REPOSITORY: Final = "haloforge/llama.cpp"
LABEL: Final = "io.haloforge."
_OURS: Final = ("CMAKE_", "GPU_TARGETS")
_GIB: Final = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what is in an image.

    `cmake` are all options, engine's, flavour's and processor's; `digest` covers the tree, the options, the
    base's definition and the files of this room, so that another digest means another image.
    """

    flavour: Flavour
    base: Base
    packages: Packages
    engine: Engine
    identity: str
    cmake: Mapping[str, str]
    digest: str

    @property
    def tag(self) -> str:
        """The local tag, e.g. `haloforge/llama.cpp:cpu-b11434-1f0c9a3be77d`, then the planted faults."""
        _, fault, names = self.identity.partition("-fault-")
        return (
            f"{REPOSITORY}:{self.flavour.name}-b{self.engine.build_number}-{self.digest[:12]}{fault}{names}"
        )


def recipe(flavour: Flavour, base: Base, engine: Engine, identity: str) -> Recipe:
    """Put a recipe together.

    Raises:
        BadInput: the base has no packages for this flavour.
    """
    packages = base.packages.get(flavour.name)
    if packages is None:
        raise BadInput(
            f"the flavour {flavour.name} is not built on the base {base.name}",
            hint=f"bases of {flavour.name}: {', '.join(flavour.bases)}",
        )
    cmake = {**engine.cmake, **engine.cmake_pins, **flavour.cmake}
    parts = {
        "identity": identity,
        "flavour": flavour.model_dump(mode="json", exclude={"summary", "job_mib"}),
        "base": base.model_dump(mode="json", exclude={"summary", "packages"}),
        "packages": packages.model_dump(mode="json"),
        "cmake": cmake,
        "files": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files()},
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return Recipe(
        flavour=flavour,
        base=base,
        packages=packages,
        engine=engine,
        identity=identity,
        cmake=cmake,
        digest=digest,
    )


def files() -> list[tuple[str, Path]]:
    """The files of this room that go into an image: the Dockerfile and the programs, by name."""
    found = [FOLDER / "Dockerfile", *sorted((FOLDER / "programs").iterdir())]
    return [(path.name, path) for path in found if path.is_file()]


def unknown_options(cmake: Iterable[str], tree: Path) -> list[str]:
    """The options that the tree's CMake files never mention; CMake itself would ignore them silently."""
    wanted = {name for name in cmake if not name.startswith(_OURS[0])}
    for path in [*tree.rglob("CMakeLists.txt"), *tree.rglob("*.cmake")]:
        if not wanted:
            break
        wanted -= set(re.findall(r"[A-Z][A-Z0-9_]+", path.read_text(encoding="utf-8", errors="replace")))
    return sorted(wanted)


def check_options(made: Recipe, tree: Path) -> None:
    """Refuse options that the engine does not have.

    Raises:
        BadInput: names them, and the engine's nearest option of each.
    """
    unknown = unknown_options(made.cmake, tree)
    if not unknown:
        return
    known = sorted(_declared(tree))
    raise BadInput(
        f"the engine {made.engine.name} {made.engine.pin} has no CMake option {', '.join(unknown)}",
        why="; ".join(f"{name}: {nearest(name, known)}" for name in unknown),
        hint="correct images/flavours.yaml or the engine.yaml; CMake would have ignored it silently",
    )


def _declared(tree: Path) -> set[str]:
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in tree.rglob("CMakeLists.txt"))
    return {name for text in texts for name in re.findall(r"option\(\s*([A-Z][A-Z0-9_]+)", text)}


def jobs_for(flavour: Flavour, available: int, processors: int) -> int:
    """How many compile jobs fit: one per processor, and no more than the memory that is free allows.

    Args:
        available: MemAvailable in bytes, of which 1 GiB is left to the rest of the machine.
    """
    by_memory = (available - _GIB) // (flavour.job_mib << 20)
    return max(1, min(processors, by_memory))


def build_arguments(
    made: Recipe, base: BaseImage, *, epoch: int, ccache: str, fresh: str = ""
) -> dict[str, str]:
    """The Dockerfile's arguments; lists are words separated by blanks.

    Args:
        fresh: another word runs every step anew but the packages'. Not BuildKit's --no-cache: that of engine
            20.10 throws the compiler cache's mount away with it.
    """
    device = made.flavour.device
    return {
        "BASE": base.tag,
        "SUITES": " ".join(made.base.further),
        "PINS": " ".join(f"{name}={version}" for name, version in made.base.pins.items()),
        "BUILD_PACKAGES": " ".join(made.packages.build),
        "RUN_PACKAGES": " ".join(made.packages.run),
        "WITHOUT": " ".join(made.packages.without),
        "STAND_INS": " ".join(f"{s.library}:{s.user}:{s.prefix}" for s in made.packages.stand_ins),
        "REFUSED_CALLS": made.packages.refused_calls,
        "LEAVE_OUT": " ".join(made.packages.leave_out),
        "KEEP": " ".join(made.packages.keep),
        "CMAKE_OPTIONS": " ".join(f"-D{name}={value}" for name, value in sorted(made.cmake.items())),
        "TARGETS": " ".join(made.flavour.targets),
        "DEVICE_TARGET": device.target if device else "",
        "CCACHE": ccache,
        "SOURCE_DATE_EPOCH": str(epoch),
        "FRESH": fresh,
    }


def labels(made: Recipe, tree: PatchedTree, base: BaseImage, *, version: str) -> dict[str, str]:
    """OCI's labels and our own; they let a record be read back from any engine that has the image."""
    engine, flavour = made.engine, made.flavour
    return {
        "org.opencontainers.image.title": f"llama.cpp server ({flavour.name})",
        "org.opencontainers.image.description": flavour.summary,
        "org.opencontainers.image.version": engine.tag or f"b{engine.build_number}",
        "org.opencontainers.image.revision": engine.commit,
        "org.opencontainers.image.source": engine.repository,
        "org.opencontainers.image.licenses": engine.licence,
        "org.opencontainers.image.base.name": base.origin,
        LABEL + "version": version,
        LABEL + "engine": engine.name,
        LABEL + "pin": engine.pin,
        LABEL + "series": tree.series_digest,
        LABEL + "patches": json.dumps([list(patch) for patch in tree.patches]),
        LABEL + "identity": tree.identity,
        LABEL + "flavour": flavour.name,
        LABEL + "cpu": flavour.cpu,
        LABEL + "device": flavour.device.kind if flavour.device else "",
        LABEL + "stand-ins": " ".join(s.library for s in made.packages.stand_ins),
        LABEL + "recipe": made.digest,
    }
