"""Where this host gets Debian packages from, so that a base made here uses the same archive."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import command
from errors import HostLacks

MIRROR: Final = "HALOFORGE_DEBIAN_MIRROR"
"""Variable with the address of a Debian archive; its security archive is the same with `-security` behind."""
_SUITES: Final = frozenset(
    {"bookworm", "trixie", "forky", "duke", "sid", "stable", "testing", "unstable", "oldstable"}
)
_PASSED_ON: Final = ("Acquire::Check-Valid-Until", "Acquire::Check-Date")


@dataclass(frozen=True, kw_only=True)
class Archives:
    """Addresses of the Debian archive and its security archive, and apt options of the host that must follow.

    A host that does not check the dates of the archive's indexes (a mirror that is frozen, a clock that is
    ahead) needs the same inside the base.
    """

    main: str
    security: str
    options: tuple[str, ...]


def archives(root: Path = Path("/etc/apt")) -> Archives:
    """The archives that HALOFORGE_DEBIAN_MIRROR names, else the host's own.

    Raises:
        HostLacks: there is no such variable, and the host is no Debian.
    """
    if mirror := os.environ.get(MIRROR, "").rstrip("/"):
        return Archives(main=mirror, security=f"{mirror}-security", options=_options())
    found = list(_entries(root))
    main = next((uri for uri, suite in found if suite in _SUITES), "")
    security = next((uri for uri, suite in found if _is_security(suite)), "")
    if not main:
        raise HostLacks(
            "this host names no Debian archive to make a base image from",
            why=f"no such entry in {root}/sources.list or {root}/sources.list.d",
            hint=f"let the host reach the registry, or set {MIRROR} to a Debian mirror",
        )
    return Archives(main=main, security=security, options=_options())


def _is_security(suite: str) -> bool:
    return suite.endswith("-security") and suite.removesuffix("-security") in _SUITES


def _entries(root: Path) -> Iterator[tuple[str, str]]:
    """All (URI, suite) pairs of the binary sources with the component main, in apt's order."""
    files = [root / "sources.list", *sorted((root / "sources.list.d").glob("*"))]
    for file in files:
        if file.suffix == ".sources":
            yield from parse_deb822(_text(file))
        elif file.suffix == ".list":
            yield from parse_one_line(_text(file))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def parse_one_line(text: str) -> Iterator[tuple[str, str]]:
    """(URI, suite) of each `deb [options] URI SUITE COMPONENT...` line that has the component main."""
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)", line)
        if match and "main" in match[3].split("#")[0].split():
            yield match[1].rstrip("/"), match[2]


def parse_deb822(text: str) -> Iterator[tuple[str, str]]:
    """(URI, suite) of each enabled paragraph of a `.sources` file with the component main."""
    for paragraph in re.split(r"\n\s*\n", text):
        fields = _fields(paragraph)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        if "main" in fields.get("components", "").split():
            for suite in fields.get("suites", "").split():
                for uri in fields.get("uris", "").split():
                    yield uri.rstrip("/"), suite


def _fields(paragraph: str) -> dict[str, str]:
    """The fields of one paragraph, names in lower case; comments dropped, continuation lines joined."""
    fields: dict[str, str] = {}
    name = ""
    for line in paragraph.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line[0] in " \t":
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        else:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _options() -> tuple[str, ...]:
    if not command.have("apt-config"):
        return ()
    dump = command.run(["apt-config", "dump", *_PASSED_ON], check=False).out
    return parse_options(dump)


def parse_options(dump: str) -> tuple[str, ...]:
    """Of `apt-config dump`, the date checks that are switched off, as apt options."""
    found = dict(re.findall(r'^(\S+) "([^"]*)";', dump, re.MULTILINE))
    off = [name for name in _PASSED_ON if found.get(name, "").lower() in ("false", "0", "no")]
    return tuple(f'{name} "false"' for name in off)
