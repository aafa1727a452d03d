"""A software bill of materials of an image, CycloneDX 1.6: its packages, the engine's pin, each patch.

Made from what the image itself holds (dpkg's records and our labels), so it needs no scanner, and the same
image always gives the same document.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyclonedx.model import Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Diff, Patch, PatchClassification, Pedigree
from cyclonedx.model.issue import IssueClassification, IssueType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from images import daemon
from images.recipe import LABEL
from images.records import ImageRecord

_STATUS: Final = "/var/lib/dpkg/status"
_RELEASE: Final = "/usr/lib/os-release"
_SPACE: Final = uuid.UUID("7b0a5a3e-53b4-5d0e-9f0a-2f6e0d5b8c11")


@dataclass(frozen=True, kw_only=True)
class Package:
    """One installed Debian package; `source` is the source package it was built from."""

    name: str
    version: str
    architecture: str
    source: str


def sbom(record: ImageRecord) -> str:
    """The document of an image that the engine has, as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        status, release = Path(folder) / "status", Path(folder) / "os-release"
        daemon.copy_out(record.id, _STATUS, status)
        daemon.copy_out(record.id, _RELEASE, release)
        return document(
            record,
            parse_status(status.read_text(encoding="utf-8")),
            distribution(release.read_text(encoding="utf-8")),
        )


def document(record: ImageRecord, packages: Sequence[Package], distro: tuple[str, str]) -> str:
    """The document from values.

    Args:
        distro: id and version of the distribution, e.g. `("debian", "13")`.
    """
    bom = Bom(serial_number=uuid.uuid5(_SPACE, record.id))
    bom.metadata.timestamp = record.created
    image = _image(record)
    bom.metadata.component = image
    parts = [_engine(record), *(_package(package, distro) for package in packages)]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(image, parts)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def parse_status(text: str) -> list[Package]:
    """The installed packages of a dpkg status file, by name."""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(_fields(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            found.append(
                Package(
                    name=fields["Package"],
                    version=fields["Version"],
                    architecture=fields["Architecture"],
                    source=fields.get("Source", fields["Package"]).split(" ")[0],
                )
            )
    return sorted(found, key=lambda package: package.name)


def _fields(paragraph: str) -> Iterator[tuple[str, str]]:
    for line in paragraph.splitlines():
        name, colon, value = line.partition(":")
        if colon and name and not name[0].isspace():
            yield name, value.strip()


def distribution(os_release: str) -> tuple[str, str]:
    """Id and version of an os-release file; testing and unstable have no version, so their codename."""
    fields = dict(line.partition("=")[::2] for line in os_release.splitlines())
    values = {name: value.strip('"') for name, value in fields.items()}
    return values.get("ID", "linux"), values.get("VERSION_ID") or values.get("VERSION_CODENAME", "")


def _image(record: ImageRecord) -> Component:
    name = record.tags[0].rpartition(":")[0] if record.tags else "haloforge/llama.cpp"
    labels = {
        "flavour": record.flavour,
        "cpu": record.cpu,
        "identity": record.identity,
        "recipe": record.recipe,
        "base": record.base,
    }
    return Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=record.digest,
        bom_ref=record.digest,
        purl=PackageURL(type="oci", name=name.rpartition("/")[2], version=record.digest),
        properties=[Property(name=LABEL + key, value=value) for key, value in labels.items()],
    )


def _engine(record: ImageRecord) -> Component:
    """llama.cpp at its commit; the patches are its pedigree, each with the digest of its diff."""
    return Component(
        type=ComponentType.APPLICATION,
        name=record.engine,
        version=record.revision,
        bom_ref=f"engine-{record.revision}",
        purl=PackageURL.from_string(f"pkg:github/ggml-org/llama.cpp@{record.revision}"),
        licenses=[DisjunctiveLicense(id="MIT")],
        pedigree=Pedigree(patches=[_patch(*patch) for patch in record.patches]),
        properties=[
            Property(name=LABEL + "series", value=record.series_digest),
            *(
                Property(name=f"{LABEL}patch:{name}", value=f"sha256:{digest}")
                for name, digest in record.patches
            ),
        ],
    )


def _patch(name: str, digest: str) -> Patch:
    """One patch of the series: what it cures by its id, and the digest of its diff as a URN."""
    return Patch(
        type=PatchClassification.UNOFFICIAL,
        diff=Diff(url=XsUri(f"urn:haloforge:patch:{name}:sha256:{digest}")),
        resolves=[IssueType(type=IssueClassification.DEFECT, id=name)],
    )


def _package(package: Package, distro: tuple[str, str]) -> Component:
    system, version = distro
    purl = PackageURL(
        type="deb",
        namespace=system,
        name=package.name,
        version=package.version,
        qualifiers={"arch": package.architecture, "distro": f"{system}-{version}"},
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=purl.to_string(),
        purl=purl,
        properties=[Property(name=LABEL + "source-package", value=package.source)],
    )
