"""A load generator for llama-server: many streamed requests at once, every token with its arrival time.

It speaks HTTP over asyncio's own sockets, because a general client spends more time per streamed chunk
than a fast server does. How fast it can be at all is measured by `bench.ceiling` against a stub; each
`Round` says how much processor time it took, so that a round in which the generator was the
bottleneck is seen.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from errors import BadInput

TIMEOUT_S: Final = 3600.0
"""Seconds for one whole request: long prompts on a busy server took the seed 678 s (SEED.md H6)."""

BUSY_SHARE: Final = 0.5
"""From this share of one core on, the generator may hold the server back: the round is marked."""


SHORT_S: Final = 0.5
"""Seconds below which a round is mostly connecting and says nothing about the share."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request.

    Args:
        name: who asks; found again in the answer.
        body: the JSON body without `stream`.
        chat: True for `/v1/chat/completions`, False for `/completion`.
    """

    name: str
    body: Mapping[str, Any]
    chat: bool = True

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/completion"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back for one `Ask`. Times are seconds from the moment the request was sent.

    Args:
        stamps: arrival of each token chunk, thinking included; the first one is the time to first token.
        tokens: tokens the server says it generated; 0 when it did not say.
        timings: the server's own `timings` block (prompt_n, cache_n, prompt_ms, predicted_n,
            predicted_ms, draft_n, draft_n_accepted), empty when the answer broke off.
        error: why there is no whole answer, or None.
    """

    name: str
    text: str = ""
    reasoning: str = ""
    finish: str = ""
    stamps: tuple[float, ...] = ()
    wall_s: float = 0.0
    timings: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token, or None when none came."""
        return self.stamps[0] if self.stamps else None

    @property
    def tokens(self) -> int:
        return int(self.timings.get("predicted_n", len(self.stamps)))

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, those taken from the cache included."""
        return int(self.timings.get("prompt_n", 0) + self.timings.get("cache_n", 0))

    @property
    def decode_rate(self) -> float | None:
        """Tokens/s of the generation: as the server timed it, else as the client saw it.

        The server's clock is the better one: a client that is scheduled late sees a burst.
        """
        timed = self.timings.get("predicted_per_second", 0.0)
        return timed if timed > 0 and self.tokens > 1 else self.seen_rate

    @property
    def seen_rate(self) -> float | None:
        """Tokens/s between the first and the last arrival; None below two."""
        if len(self.stamps) < 2 or self.stamps[-1] <= self.stamps[0]:
            return None
        return (self.tokens - 1) / (self.stamps[-1] - self.stamps[0])

    @property
    def acceptance(self) -> float | None:
        """Accepted share of the drafted tokens (0 to 1); None when nothing was drafted."""
        drafted = self.timings.get("draft_n", 0)
        return self.timings.get("draft_n_accepted", 0) / drafted if drafted else None


@dataclass(frozen=True, kw_only=True)
class Round:
    """Several requests that ran at once.

    Args:
        wall_s: from the first byte sent to the last one received.
        cpu_s: processor time the generator itself took in that while.
    """

    answers: tuple[Answer, ...]
    wall_s: float
    cpu_s: float

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(f"{answer.name}: {answer.error}" for answer in self.answers if answer.error)

    @property
    def generator_share(self) -> float:
        """Share of one core the generator took (0 to 1)."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


def fire(url: str, asks: Sequence[Ask], *, key: str | None = None, timeout_s: float = TIMEOUT_S) -> Round:
    """Send all requests at once and wait for all answers; a failed one becomes `Answer.error`.

    Raises:
        BadInput: the URL is not one of http or https.
    """
    place = _Place.of(url)
    return asyncio.run(_fire(place, asks, key, timeout_s))


async def _fire(place: _Place, asks: Sequence[Ask], key: str | None, timeout_s: float) -> Round:
    wall, cpu = time.perf_counter(), time.process_time()
    answers = await asyncio.gather(*(_ask(place, ask, key, timeout_s) for ask in asks))
    return Round(answers=tuple(answers), wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


@dataclass(frozen=True, kw_only=True)
class _Place:
    host: str
    port: int
    tls: bool
    prefix: str

    @classmethod
    def of(cls, url: str) -> _Place:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadInput(f"{url!r} is not a URL", why=str(error)) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(f"{url!r} is not a server's URL", hint="give one such as http://127.0.0.1:8080")
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname, port=port or (443 if tls else 80), tls=tls, prefix=parts.path.rstrip("/")
        )


async def _ask(place: _Place, ask: Ask, key: str | None, timeout_s: float) -> Answer:
    start = time.perf_counter()
    draft = _Draft(ask.name, start)
    error: str | None = None
    try:
        async with asyncio.timeout(timeout_s):
            async for event in _exchange(place, ask, key):
                draft.take(event)
        if not draft.ended:
            error = f"the stream ended after {len(draft.stamps)} chunks without a last one"
    except TimeoutError:
        error = f"no whole answer within {timeout_s:g} s"
    except (OSError, asyncio.IncompleteReadError, _Refused, ValueError) as problem:
        error = str(problem) or type(problem).__name__
    return draft.answer(error)


class _Refused(Exception):
    """The server answered with something else than a stream of events."""


class _Draft:
    """An answer that is still arriving."""

    def __init__(self, name: str, start: float) -> None:
        self.name, self.start = name, start
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.stamps: list[float] = []
        self.timings: dict[str, float] = {}
        self.finish = ""
        self.ended = False

    def take(self, event: bytes) -> None:
        now = time.perf_counter() - self.start
        if event == b"[DONE]":
            self.ended = True
            return
        value = json.loads(event)
        if "error" in value:
            raise _Refused(_error_text(value["error"]))
        self._chat(value, now) if "choices" in value else self._completion(value, now)
        if "timings" in value:
            self.timings = {k: float(v) for k, v in value["timings"].items() if isinstance(v, int | float)}

    def _chat(self, value: dict[str, Any], now: float) -> None:
        for choice in value["choices"]:
            delta = choice.get("delta", {})
            said, thought = delta.get("content") or "", delta.get("reasoning_content") or ""
            if said or thought or delta.get("tool_calls"):
                self.stamps.append(now)
            self.text.append(said)
            self.reasoning.append(thought)
            self.finish = choice.get("finish_reason") or self.finish

    def _completion(self, value: dict[str, Any], now: float) -> None:
        if value.get("content") or value.get("tokens"):
            self.stamps.append(now)
            self.text.append(value.get("content", ""))
        if value.get("stop"):
            self.ended, self.finish = True, value.get("stop_type", "")

    def answer(self, error: str | None) -> Answer:
        return Answer(
            name=self.name, text="".join(self.text), reasoning="".join(self.reasoning), finish=self.finish,
            stamps=tuple(self.stamps), wall_s=time.perf_counter() - self.start, timings=self.timings,
            error=error,
        )  # fmt: skip


async def _exchange(place: _Place, ask: Ask, key: str | None) -> AsyncIterator[bytes]:
    """Send one request and yield the payload of each server-sent event."""
    reader, writer = await asyncio.open_connection(
        place.host, place.port, ssl=place.tls or None, limit=1 << 22
    )
    try:
        writer.write(_request(place, ask, key))
        await writer.drain()
        status, headers = await _head(reader)
        body = _chunks(reader) if headers.get("transfer-encoding") == "chunked" else _plain(reader, headers)
        if status != 200:
            raise _Refused(f"HTTP {status}: " + _refusal(b"".join([part async for part in body])))
        async for event in _events(body):
            yield event
    finally:
        writer.close()


def _request(place: _Place, ask: Ask, key: str | None) -> bytes:
    body = json.dumps({**ask.body, "stream": True}).encode()
    host = f"[{place.host}]" if ":" in place.host else place.host
    lines = [
        f"POST {place.prefix}{ask.path} HTTP/1.1", f"Host: {host}:{place.port}", "User-Agent: haloforge",
        "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close",
    ]  # fmt: skip
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    block = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *rest = block.rstrip("\r\n").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise _Refused(f"not an HTTP answer: {first[:80]!r}")
    pairs = (line.partition(":") for line in rest)
    return int(words[1]), {name.strip().lower(): value.strip().lower() for name, _, value in pairs}


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        part = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield part[:-2]


async def _plain(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    left = int(headers["content-length"]) if "content-length" in headers else None
    while left != 0:
        part = await reader.read(min(left, 65536) if left is not None else 65536)
        if not part:
            if left:
                raise asyncio.IncompleteReadError(b"", left)
            return
        left = left - len(part) if left is not None else None
        yield part


async def _events(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut a body into server-sent events; a keep-alive comment is none."""
    rest = b""
    async for part in body:
        *whole, rest = (rest + part).split(b"\n\n")
        for block in whole:
            data = [line[5:].strip() for line in block.split(b"\n") if line.startswith((b"data:", b"error:"))]
            if data:
                yield b"\n".join(data)


def _refusal(body: bytes) -> str:
    try:
        value = json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace")
    return _error_text(value.get("error", value) if isinstance(value, dict) else value)


def _error_text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
