"""A stand-in that answers as llama-server does, as fast as it can or at a set pace; it computes nothing.

It shows how much the load generator can take (`bench.ceiling`), and lets the tests plant what a real
server does only sometimes: a slow prompt, a set decode rate, death in the middle of an answer.
Start it with `python -m bench.stub`; it prints its URL on the first line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Final

CHUNK: Final = 64
"""Most tokens joined in one write when no pace is set."""


@dataclass(kw_only=True)
class Behaviour:
    """How the stand-in behaves.

    Args:
        rate: tokens/s per stream; 0 is as fast as it can.
        ttft_s: pause before the first token.
        die_after: end the process in the middle of this many-th answer; 0 never.
        model: the alias it reports.
        slots, ctx: what `/props` reports.
        claim: tokens/s that its timings state whatever the clock says; 0 states what passed.
        draft: accepted and drafted tokens reported per generated token, such as (0.6, 1.0); None for
            a server without speculation.
    """

    rate: float = 0.0
    ttft_s: float = 0.0
    claim: float = 0.0
    die_after: int = 0
    model: str = "stub"
    slots: int = 4
    ctx: int = 8192
    draft: tuple[float, float] | None = None
    answered: int = 0
    cached: dict[str, int] = field(default_factory=dict)


async def handle(behaviour: Behaviour, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one connection with one answer."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = next(
            (int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length:" in line), 0
        )
        body = json.loads(await reader.readexactly(length) or b"{}") if length else {}
        path = head.split(" ", 2)[1]
        if path in ("/v1/chat/completions", "/completion"):
            await _stream(behaviour, writer, body, chat=path != "/completion")
        else:
            _plain(writer, *_lookup(behaviour, path, body))
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


def _lookup(behaviour: Behaviour, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    match path:
        case "/health":
            return 200, {"status": "ok"}
        case "/props":
            return 200, {
                "default_generation_settings": {"n_ctx": behaviour.ctx},
                "total_slots": behaviour.slots,
                "model_alias": behaviour.model,
                "model_path": f"/models/{behaviour.model}.gguf",
                "build_info": "stub",
            }
        case "/v1/models":
            return 200, {"data": [{"id": behaviour.model, "meta": {"n_params": 0, "size": 0}}]}
        case "/tokenize":
            return 200, {"tokens": [len(word) for word in body.get("content", "").split()]}
    return 404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}


def _plain(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    body = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n".encode()
        + body
    )


async def _stream(
    behaviour: Behaviour, writer: asyncio.StreamWriter, body: dict[str, Any], *, chat: bool
) -> None:
    tokens = int(body.get("max_tokens") or body.get("n_predict") or 16)
    behaviour.answered += 1
    dies = behaviour.answered == behaviour.die_after
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\n\r\n"
    )
    await asyncio.sleep(behaviour.ttft_s)
    event = _chunk(_token(chat))
    begin = time.perf_counter()
    done = 0
    while done < tokens:
        if dies and done * 2 >= tokens:
            os._exit(139)
        count = 1 if behaviour.rate or dies else min(CHUNK, tokens - done)
        writer.write(event * count)
        done += count
        await writer.drain()
        if behaviour.rate:
            await asyncio.sleep(max(0.0, begin + done / behaviour.rate - time.perf_counter()))
    spent = tokens / behaviour.claim * 1000 if behaviour.claim else (time.perf_counter() - begin) * 1000
    for last in _last(behaviour, body, tokens, spent, chat):
        writer.write(_chunk(last))
    writer.write(b"0\r\n\r\n")


def _chunk(payload: bytes) -> bytes:
    event = b"data: " + payload + b"\n\n"
    return f"{len(event):x}\r\n".encode() + event + b"\r\n"


def _token(chat: bool) -> bytes:
    """One token as b11434 sends it, down to the fields that only cost time."""
    if chat:
        choice = {"finish_reason": None, "index": 0, "delta": {"content": " word"}}
        return json.dumps(
            {"choices": [choice], "created": 1790000000, "id": "chatcmpl-stub", "model": "stub",
             "system_fingerprint": "stub", "object": "chat.completion.chunk"}
        ).encode()  # fmt: skip
    return json.dumps(
        {"index": 0, "content": " word", "tokens": [1], "stop": False, "id_slot": -1, "tokens_predicted": 1,
         "tokens_evaluated": 1}
    ).encode()  # fmt: skip


def _last(
    behaviour: Behaviour, body: dict[str, Any], tokens: int, spent_ms: float, chat: bool
) -> tuple[bytes, ...]:
    prompt = body.get("prompt", body.get("messages", ""))
    prompt_n = len(prompt) if isinstance(prompt, list) and not chat else len(json.dumps(prompt).split())
    timings: dict[str, float] = {
        "cache_n": 0, "prompt_n": prompt_n, "prompt_ms": behaviour.ttft_s * 1000,
        "prompt_per_second": prompt_n / behaviour.ttft_s if behaviour.ttft_s else 0.0,
        "predicted_n": tokens, "predicted_ms": spent_ms,
        "predicted_per_second": tokens / spent_ms * 1000 if spent_ms else 0.0,
    }  # fmt: skip
    if behaviour.draft is not None:
        accepted, drafted = behaviour.draft
        timings |= {"draft_n": round(drafted * tokens), "draft_n_accepted": round(accepted * tokens)}
    if not chat:
        value = {"content": "", "stop": True, "stop_type": "limit", "timings": timings}
        return (json.dumps(value).encode(),)
    final = {"choices": [{"finish_reason": "length", "index": 0, "delta": {}}]}
    usage = {"choices": [], "usage": {"completion_tokens": tokens}, "timings": timings}
    return json.dumps(final).encode(), json.dumps(usage).encode(), b"[DONE]"


async def serve(behaviour: Behaviour, host: str, port: int) -> None:
    """Serve for ever; prints the URL first."""
    server = await asyncio.start_server(lambda r, w: handle(behaviour, r, w), host, port)
    print(f"http://{host}:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Command line; what llama-server would take and this does not is ignored, so that it can stand in."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name, kind, default in (
        ("rate", float, 0.0), ("ttft", float, 0.0), ("die-after", int, 0), ("alias", str, "stub"),
        ("port", int, 0), ("host", str, "127.0.0.1"), ("accept", float, -1.0), ("claim", float, 0.0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, default=default)
    given, _ = parser.parse_known_args()
    behaviour = Behaviour(
        rate=given.rate, ttft_s=given.ttft, claim=given.claim, die_after=given.die_after, model=given.alias,
        draft=(given.accept, 1.0) if given.accept >= 0 else None,
    )  # fmt: skip
    asyncio.run(serve(behaviour, given.host, given.port))


if __name__ == "__main__":
    main()
