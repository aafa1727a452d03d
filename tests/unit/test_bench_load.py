"""What an answer's stream is made of, read from bytes cut at any place."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from bench import load
from errors import BadInput

CHAT: list[dict[str, Any]] = [
    {"choices": [{"delta": {"role": "assistant", "content": None}, "finish_reason": None, "index": 0}]},
    {"choices": [{"delta": {"reasoning_content": "hm"}, "finish_reason": None, "index": 0}]},
    {"choices": [{"delta": {"content": "Pa"}, "finish_reason": None, "index": 0}]},
    {"choices": [{"delta": {"content": "ris\n\nä"}, "finish_reason": None, "index": 0}]},
    {"choices": [{"delta": {}, "finish_reason": "stop", "index": 0}]},
    {
        "choices": [],
        "usage": {"completion_tokens": 3},
        "timings": {"prompt_n": 5, "cache_n": 2, "predicted_n": 3, "draft_n": 4, "draft_n_accepted": 3},
    },
]


def wire(events: Sequence[dict[str, Any]], *, chunked: bool = True, done: bool = True) -> bytes:
    """The answer of a server, headers included."""
    payloads = [json.dumps(event).encode() for event in events] + ([b"[DONE]"] if done else [])
    body = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if not chunked:
        return head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    parts = [body[at : at + 37] for at in range(0, len(body), 37)]
    framed = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def refusal(status: int, body: bytes) -> bytes:
    """An answer that is no stream."""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def answered(pieces: Sequence[bytes], *, chat: bool = True) -> load.Answer:
    """The answer read from a server that sends these pieces one by one and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def run() -> load.Answer:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            place = load._Place.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            return (await load._fire(place, [load.Ask(name="me", body={}, chat=chat)], None, 20.0)).answers[0]

    return asyncio.run(run())


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_an_answer_is_the_same_however_it_is_cut(chunked: bool, seed: int) -> None:
    whole, dice = wire(CHAT, chunked=chunked), random.Random(seed)
    cuts = sorted(dice.sample(range(1, len(whole)), 12))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    answer = answered(pieces)
    assert answer.error is None
    assert (answer.text, answer.reasoning, answer.finish) == ("Paris\n\nä", "hm", "stop")
    assert len(answer.stamps) == 3, "thinking counts as a first token, the role does not"
    assert (answer.tokens, answer.prompt_tokens, answer.acceptance) == (3, 7, 0.75)


def test_completions_end_with_their_last_event() -> None:
    events: list[dict[str, Any]] = [
        {"content": "a", "tokens": [1], "stop": False},
        {"content": "", "tokens": [2], "stop": False},
        {"content": "", "stop": True, "stop_type": "limit", "timings": {"predicted_n": 2}},
    ]
    answer = answered([wire(events, done=False)], chat=False)
    assert (answer.error, answer.text, answer.finish, len(answer.stamps)) == (None, "a", "limit", 2)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (wire(CHAT, done=False), "without a last one"),
        (wire(CHAT)[:-40], "bytes"),
        (wire(CHAT, chunked=False)[:-9], "bytes"),
        (wire([*CHAT[:3], {"error": {"code": 500, "message": "Context size."}}]), "Context size"),
        (refusal(400, b'{"error":{"message":"prompt too long"}}')[:-5], "bytes"),
        (refusal(401, b'{"error":{"message":"bad key"}}'), "HTTP 401: bad key"),
        (refusal(502, b"<html>proxy</html>"), "HTTP 502: <html>proxy"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not an HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\ndata: {no\n\n", ""),
        (b"", "bytes"),
    ],
)  # fmt: skip
def test_a_broken_answer_says_what_is_wrong(sent: bytes, told: str) -> None:
    answer = answered([sent])
    assert answer.error is not None
    assert told in answer.error


def test_keep_alive_comments_are_no_tokens() -> None:
    sent = wire(CHAT, chunked=False)
    head, _, body = sent.partition(b"\r\n\r\n")
    body = b": ping\n\n" + body
    head = b"HTTP/1.1 200 OK\r\nContent-Length: " + str(len(body)).encode()
    answer = answered([head + b"\r\n\r\n" + body])
    assert (answer.error, answer.text) == (None, "Paris\n\nä")


def test_nobody_listening_is_an_error_of_the_answer() -> None:
    done = load.fire("http://127.0.0.1:1", [load.Ask(name="a", body={}), load.Ask(name="b", body={})])
    assert len(done.errors) == 2
    assert done.tokens == 0


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:80", "http://", "http://x:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        load.fire(url, [])


def test_the_seen_rate_counts_from_the_first_token_to_the_last() -> None:
    answer = load.Answer(name="a", stamps=(1.0, 1.5, 2.0, 3.0), timings={"predicted_n": 5})
    assert answer.ttft_s == 1.0
    assert answer.seen_rate == pytest.approx(4 / 2.0), "five tokens in four chunks, four of them timed"
    assert answer.decode_rate == answer.seen_rate
    assert load.Answer(name="a", stamps=(1.0,)).decode_rate is None


def test_the_servers_clock_goes_before_the_clients() -> None:
    burst = load.Answer(
        name="a", stamps=(1.0, 1.001), timings={"predicted_n": 2, "predicted_per_second": 40.0}
    )
    assert burst.decode_rate == 40.0
