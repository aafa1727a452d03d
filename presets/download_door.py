"""One request for one file: redirects followed by hand, the token kept at home, the answer distrusted.

The first answer of the Hub (a redirect) carries what the file is: `X-Linked-Size` and
`X-Linked-Etag` (its sha256) and `X-Repo-Commit`. The bytes come from another host, which must never
see the token (https://huggingface.co/docs/hub/en/models-downloading).
"""

from __future__ import annotations

import email.utils
import http.client
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import requests
import urllib3
from requests.auth import AuthBase

import web
from errors import HostLacks, NetworkFailed

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
REDIRECTS: Final = (301, 302, 303, 307, 308)
MAX_REDIRECTS: Final = 6
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that a later try may not meet again."""
LARGEST_ERROR_BODY: Final = 4096


class Passing(NetworkFailed):
    """A fault that a later try may not meet: cut line, stall, busy server, nonsense for an answer.

    `wait` is what the server asked for (Retry-After, seconds), 0 where it did not.
    """

    def __init__(self, what: str, *, why: str = "", wait: float = 0.0) -> None:
        super().__init__(what, why=why, hint="./inv models.fetch goes on where it stopped")
        self.wait = wait


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where the Hub is and who asks.

    Attributes:
        endpoint: base URL of the Hub; the token goes to this host alone.
        token: access token or None. Not shown in any text, log or `repr`.
        stall_s: seconds without a byte after which a connection counts as dead.
        offline: True refuses every request (HF_HUB_OFFLINE).
        made: makes a session; another one only in tests or for pip's certificates.
    """

    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = field(default=None, repr=False)
    stall_s: float = 30.0
    offline: bool = False
    made: Callable[[], requests.Session] = web.session

    @property
    def origin(self) -> tuple[str, str]:
        """Scheme and host with port of the endpoint."""
        parts = urlsplit(self.endpoint)
        return parts.scheme, parts.netloc

    def file_url(self, repo: str, revision: str, path: str) -> str:
        """The address of a file at a revision."""
        return f"{self.endpoint}/{repo}/resolve/{quote(revision, safe='')}/{quote(path)}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A body that is about to come, and what its headers said before the redirect and after it.

    Attributes:
        response: open response; read `response.raw`.
        status: 200 or 206.
        etag: identity of the content: the linked one, else the entity tag, without quotes.
        sha256: the linked etag where it is a sha256.
        linked_size: size in bytes that the first answer stated.
        commit: `X-Repo-Commit`.
        start, total: from Content-Range, or 0 and Content-Length; total None where neither is there.
        length: Content-Length, bytes of this body.
    """

    response: requests.Response
    status: int
    etag: str
    sha256: str | None
    linked_size: int | None
    commit: str | None
    start: int
    total: int | None
    length: int | None


def hub(environ: Mapping[str, str] = os.environ) -> Door:
    """The Hub as the usual variables name it: HF_ENDPOINT, HF_TOKEN, else the token file; HF_HUB_OFFLINE."""
    return Door(
        endpoint=(environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/"),
        token=_token(environ),
        offline=environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"),
    )


def hub_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the Hub's own client (HF_HOME)."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME") or Path.home()) / ".cache")
    return Path(environ.get("HF_HOME") or Path(cache) / "huggingface")


@contextmanager
def opened(door: Door, session: requests.Session, url: str, span: tuple[int, int | None]) -> Iterator[Answer]:
    """Ask for bytes `span[0]` up to but without `span[1]` (None: the end) of a file.

    Raises:
        Passing: worth another try.
        NetworkFailed: it is not; says what the server said.
    """
    response, hops = _follow(door, session, url, _range(span))
    with response:
        yield _examined(response, hops, span)


def read_some(answer: Answer, most: int) -> bytes:
    """What has come of a body, at most `most` bytes; b"" at its end.

    Raises:
        Passing: the line was cut before the announced length, or no byte came for `stall_s`.
    """
    try:
        return answer.response.raw.read1(most, decode_content=False)
    except urllib3.exceptions.ReadTimeoutError as error:
        raise Passing("the transfer stalled", why="no byte came within the time-out") from error
    except (urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
        raise Passing("the line was cut", why=reason(error)) from error


def listing(door: Door, session: requests.Session, repo: str, revision: str, folder: str) -> list[Any]:
    """The Hub's list of files in a folder of a repository at a revision, all pages of it."""
    path = f"/{quote(folder)}" if folder else ""
    url = f"{door.endpoint}/api/models/{repo}/tree/{quote(revision, safe='')}{path}"
    found: list[Any] = []
    seen = set()
    while url and url not in seen:
        seen.add(url)
        response, _ = _follow(door, session, url, {})
        with response:
            entries = _json(response)
            if not isinstance(entries, list):
                raise Passing("the Hub's file list is not a list", why=shown(url))
            found += entries
            following = response.links.get("next", {}).get("url", "")
        url = urljoin(url, following) if following else ""
    return found


def shown(url: str) -> str:
    """An address as it may be printed: no user, password or query (a signed link is a key)."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def reason(error: BaseException) -> str:
    """The innermost cause of a failed request in one line, without addresses that hold signatures."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    text = re.sub(r"\?\S+", "?…", str(error)).splitlines()
    return f"{type(error).__name__}: {plain(text[0])[:200]}" if text else type(error).__name__


class _Bearer(AuthBase):
    """Sends the token, or makes sure that nothing (such as .netrc) is sent."""

    def __init__(self, token: str | None) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def _follow(
    door: Door, session: requests.Session, url: str, headers: Mapping[str, str]
) -> tuple[requests.Response, list[Mapping[str, str]]]:
    """Ask, following redirects; returns the open final response and the headers of every redirect."""
    hops: list[Mapping[str, str]] = []
    for _ in range(MAX_REDIRECTS):
        response = _ask(door, session, url, headers)
        if response.status_code not in REDIRECTS:
            _refuse_errors(response, url)
            return response, hops
        target = urljoin(url, response.headers.get("Location", ""))
        hops.append(dict(response.headers))
        response.close()
        if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
            raise NetworkFailed("a redirect leaves https", why=f"{shown(url)} → {shown(target)}")
        url = target
    raise NetworkFailed(f"more than {MAX_REDIRECTS} redirects", why=shown(url))


def _ask(door: Door, session: requests.Session, url: str, headers: Mapping[str, str]) -> requests.Response:
    if door.offline:
        raise NetworkFailed(f"not asking for {shown(url)}", why="HF_HUB_OFFLINE is set", hint="unset it")
    parts = urlsplit(url)
    at_home = (parts.scheme, parts.netloc) == door.origin
    try:
        return session.get(
            url,
            headers={"Accept-Encoding": "identity", **headers},
            auth=_Bearer(door.token if at_home else None),
            stream=True,
            allow_redirects=False,
            timeout=(min(10.0, door.stall_s), door.stall_s),
        )
    except requests.exceptions.InvalidURL as error:
        raise NetworkFailed("not an address", why=shown(url)) from error
    except requests.exceptions.SSLError as error:
        raise NetworkFailed(
            f"{parts.netloc} has no certificate that this machine trusts",
            why=reason(error),
            hint="REQUESTS_CA_BUNDLE names another file of trusted certificates",
        ) from error
    except requests.RequestException as error:
        raise Passing(f"no answer from {parts.netloc.rpartition('@')[2]}", why=reason(error)) from error


def _refuse_errors(response: requests.Response, url: str) -> None:
    status = response.status_code
    if status in (200, 206, 416):
        return
    said = _said(response)
    response.close()
    if status in PASSING or (status == 403 and not response.headers.get("X-Error-Code") and "?" in url):
        wait = retry_after(response.headers.get("Retry-After"), time.time())
        raise Passing(f"{urlsplit(url).hostname} answered {status}", why=said, wait=wait)
    code = response.headers.get("X-Error-Code", "")
    hint = _HINTS.get(code) or _HINTS.get(str(status), "check the catalog's repository, revision and path")
    raise NetworkFailed(f"{shown(url)} answered {status} {code}".rstrip(), why=said, hint=hint)


_HINTS: Final = {
    "GatedRepo": "accept the licence on the model's page, then set HF_TOKEN to a token of that account",
    "RepoNotFound": "the repository is gone, renamed or private; if private, set HF_TOKEN",
    "RevisionNotFound": "the pinned revision is gone; ./inv models.lock compares the catalog with the Hub",
    "EntryNotFound": "the file is not in that revision; ./inv models.lock compares the catalog with the Hub",
    "401": "set HF_TOKEN to a valid token (the Hub answers 401 also for a name that does not exist)",
    "403": "the token may not read this repository; accept its licence on its page or use another token",
}


def _said(response: requests.Response) -> str:
    """What an error answer says for people: the Hub's message header, its JSON, or the body's text."""
    header = response.headers.get("X-Error-Message")
    if header:
        return plain(header)[:300]
    try:
        body = response.raw.read(LARGEST_ERROR_BODY, decode_content=True)
    except (urllib3.exceptions.HTTPError, http.client.HTTPException):
        return response.reason or ""
    text = body.decode(errors="replace")
    found = re.search(r'"error"\s*:\s*"([^"]*)"', text)
    words = found[1] if found else re.sub(r"<[^>]*>|\s+", " ", text).strip()
    return plain(words)[:300] or response.reason or ""


def plain(text: str) -> str:
    """Text of a server as it may be printed: without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def retry_after(value: str | None, now: float) -> float:
    """Seconds that a Retry-After header asks to wait: a number, or a date against `now` (Unix time)."""
    if not value:
        return 0.0
    if re.fullmatch(r"\d+(\.\d+)?", value.strip()):
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except ValueError:
        return 0.0


def _examined(
    response: requests.Response, hops: list[Mapping[str, str]], span: tuple[int, int | None]
) -> Answer:
    """Hold the headers of a final answer against what was asked for."""
    headers = response.headers
    encoding = headers.get("Content-Encoding", "identity")
    if encoding not in ("", "identity"):
        raise Passing(
            f"the server sent the file {encoding}-encoded", why="identity was asked for; ranges mean nothing"
        )
    linked = next((hop for hop in hops if "X-Linked-Etag" in hop or "X-Linked-Size" in hop), headers)
    linked_etag = _bare_tag(linked.get("X-Linked-Etag"))
    start, total = _content_range(response, span)
    length = _number(headers.get("Content-Length"))
    if response.status_code == 200:
        total = length
    return Answer(
        response=response,
        status=response.status_code,
        etag=linked_etag or _bare_tag(headers.get("ETag")),
        sha256=linked_etag if re.fullmatch(r"[0-9a-f]{64}", linked_etag) else None,
        linked_size=_number(linked.get("X-Linked-Size")),
        commit=next(
            (plain(hop["X-Repo-Commit"]) for hop in [*hops, headers] if "X-Repo-Commit" in hop), None
        ),
        start=start,
        total=total,
        length=length,
    )


def _content_range(response: requests.Response, span: tuple[int, int | None]) -> tuple[int, int | None]:
    """First byte and total of a 206 answer; (0, total) of a 416 one; (0, None) otherwise."""
    text = response.headers.get("Content-Range", "")
    if response.status_code == 206:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", text.strip())
        if found is None:
            raise Passing("a 206 answer without a usable Content-Range", why=repr(text))
        first, last = int(found[1]), int(found[2])
        if first != span[0] or last < first or (span[1] is not None and last >= span[1]):
            wanted = f"{span[0]}-{'' if span[1] is None else span[1] - 1}"
            raise Passing("the server sent another range than asked for", why=f"{text}, wanted {wanted}")
        return first, _number(found[3])
    return 0, _number(text.rpartition("/")[2]) if response.status_code == 416 else None


def _range(span: tuple[int, int | None]) -> dict[str, str]:
    first, end = span
    if first == 0 and end is None:
        return {}
    return {"Range": f"bytes={first}-{'' if end is None else end - 1}"}


def _bare_tag(text: str | None) -> str:
    return plain(text or "").removeprefix("W/").strip('"')


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _json(response: requests.Response) -> Any:
    try:
        return response.json()
    except (ValueError, requests.RequestException) as error:
        raise Passing("the Hub's answer is not JSON", why=reason(error)) from error


def _token(environ: Mapping[str, str]) -> str | None:
    """HF_TOKEN, else the token file that the Hub's client writes; None where neither is."""
    direct = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if direct is None:
        file = Path(environ.get("HF_TOKEN_PATH") or hub_home(environ) / "token")
        try:
            direct = file.read_text(encoding="ascii") if file.is_file() else None
        except (OSError, UnicodeDecodeError) as error:
            raise HostLacks(f"cannot read the token file {file}", why=type(error).__name__) from error
    token = (direct or "").strip()
    if token and not re.fullmatch(r"[!-~]+", token):
        raise HostLacks("the Hub's token is not one", why="it holds blanks or other than ASCII characters")
    return token or None
