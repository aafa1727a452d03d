"""The contract: limits are named, errors are errors, and every way to ask gives the same answer."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Final

from checks.arrangement import Arrangement
from checks.check import Check
from checks.client import Client, Completion, Refused, Reply
from checks.room import ONE_SLOT, Claim, Room, Unmet, Wrong, agree, together

SCHEMA: Final = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}, "colour": {"enum": ["red", "green"]}},
    "required": ["ready", "colour"],
    "additionalProperties": False,
}
POOL: Final = Arrangement(slots=2, context=512, unified=True)


def too_long(room: Room) -> str:
    """A prompt that does not fit is refused with both numbers, and one that just fits is taken."""
    client = room.any(ONE_SLOT)
    context = int(client.ask("/props")["default_generation_settings"]["n_ctx"])
    reply = client.post("/completion", {"prompt": [65] * (context + 10), "n_predict": 1})
    error = reply.error
    if reply.status != 400 or error.get("n_ctx") != context or error.get("n_prompt_tokens") != context + 10:
        raise Wrong(
            "a prompt that is too long must be refused by name",
            expected=f"400 with n_ctx {context} and n_prompt_tokens {context + 10}", got=_told(reply),
        )  # fmt: skip
    return f"400, n_ctx {context}"


def overrun(room: Room) -> str:
    """Two generations that together exceed a unified pool: an error by name, or an answer that is right.

    llama-server ends all of them (CASES.md 46); what must not be is a wrong or a silently short answer.
    """
    probes = room.prompts.mixed(600, (200, 210))
    client = room.server(POOL)
    body = {"n_predict": 200, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
    replies = together(
        [partial(client.post, "/completion", {**body, "prompt": list(probe)}) for probe in probes]
    )
    named = [reply for reply in replies if reply.status == 500 and "ontext size" in reply.message]
    rest = [reply for reply in replies if reply not in named]
    if not named:
        raise Wrong(
            "820 tokens in a pool of 512 raise no error", expected="500, Context size", got=_told(rest[0])
        )
    if silent := [reply for reply in rest if reply.status != 200 or reply.body["tokens_predicted"] < 200]:
        raise Wrong("a generation ended without an error by name", got=_told(silent[0]))
    if not client.healthy():
        raise Wrong("the server is not healthy after its pool overran")
    return f"{len(named)} of 2 ended by name: {named[0].message}"


def crowd(room: Room) -> str:
    """As many requests at once as there are slots, each well within its share."""
    arrangement = Arrangement(slots=4, unified=True)
    slots, client = room.slots(arrangement), room.any(arrangement)
    body = {"n_predict": 8, "temperature": 0, "cache_prompt": False}
    jobs = [
        partial(client.post, "/completion", {**body, "prompt": f"number {index}"}) for index in range(slots)
    ]
    failed = [reply for reply in together(jobs) if reply.status != 200]
    if any("ontext size" in reply.message for reply in failed):
        raise Wrong(
            f"{len(failed)} of {slots} small requests ended because the slots' common pool overran:"
            " give -np and -c explicitly, or a split cache",
            expected="200", got=_told(failed[0]),
        )  # fmt: skip
    if failed:
        raise Wrong(f"{len(failed)} of {slots} small requests failed", expected="200", got=_told(failed[0]))
    return f"{slots} requests at once, all answered"


def key(room: Room) -> str:
    """Without the key, and with a wrong one, nothing but /health answers."""
    if room.launcher is None:
        if room.key is None:
            raise Unmet("the server has no key: give one with --key-file, or start servers with --image")
        return _locked(room.any(ONE_SLOT))
    with room.fresh(Arrangement(key=True)) as running:
        return _locked(running.client())


def _locked(client: Client) -> str:
    body: dict[str, Any] = {"prompt": "hello", "n_predict": 1}
    for header in (None, "Bearer wrong"):
        reply = client.post("/completion", body, headers={"Authorization": header})
        if reply.status != 401:
            raise Wrong("a request without the right key is answered", expected="401", got=_told(reply))
    if Client(client.url).get("/health").status != 200:
        raise Wrong("/health wants a key, so that no health check can work")
    client.ask("/completion", body)
    return "401 without it and with another, 200 with it"


def effort(room: Room) -> str:
    """A reasoning effort that the chat template does not know is an error, not a silent default."""
    client = room.any(ONE_SLOT)
    if "reasoning_effort" not in str(client.ask("/props").get("chat_template", "")):
        raise Unmet("the model's chat template knows no reasoning effort")
    reply = client.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4,
        "chat_template_kwargs": {"reasoning_effort": "enormous"},
    })  # fmt: skip
    if reply.status not in (400, 500) or "effort" not in reply.message:
        raise Wrong("an unknown effort must be named", expected="an error that names it", got=_told(reply))
    return f"{reply.status}: ...{reply.message.strip()[-60:]}"


def stream(room: Room) -> str:
    """The same greedy request in one piece and streamed."""
    probe = room.prompts.tokens(620, 40)
    reference = room.reference(probe, 32)
    client = room.any(ONE_SLOT)
    body = {
        "prompt": list(probe), "n_predict": 32, "temperature": 0, "seed": 1, "cache_prompt": False,
        "ignore_eos": True, "return_tokens": True, "stream": True,
    }  # fmt: skip
    events = [event for event in client.events("/completion", body) if event is not None]
    if not events or not events[-1].get("stop"):
        raise Wrong("the stream broke off", expected=reference.content)
    tokens = [int(token) for event in events for token in event.get("tokens", ())]
    content = "".join(event["content"] for event in events)
    got = Completion(
        content=content, tokens=tuple(tokens[:32]), steps=(), slot=0, stop=str(events[-1].get("stop_type"))
    )
    return agree([Claim(what="streamed", reference=reference, got=got)], room.tolerance)


def schema(room: Room) -> str:
    """An answer under a JSON schema parses and keeps to it, also for a model that would not by itself."""
    client = room.any(ONE_SLOT)
    body = {"prompt": "Is it ready?", "n_predict": 256, "temperature": 0, "json_schema": SCHEMA}
    said = str(client.ask("/completion", body)["content"])
    try:
        value = json.loads(said)
    except ValueError as error:
        raise Wrong(
            f"the answer is no JSON: {error}", expected=json.dumps(SCHEMA["properties"]), got=said
        ) from error
    good = isinstance(value, dict) and set(value) == {"ready", "colour"} and isinstance(value["ready"], bool)
    if not good or value["colour"] not in ("red", "green"):
        raise Wrong(
            "the answer does not keep to the schema", expected=json.dumps(SCHEMA["properties"]), got=said
        )
    return said.strip()[:60]


def bad_requests(room: Room) -> str:
    """Malformed requests are refused as such, and the server goes on."""
    client = room.any(ONE_SLOT)
    asked: list[tuple[str, dict[str, Any], int]] = [
        ("/completion", {"n_predict": 1}, 400),
        ("/completion", {"prompt": [2**30], "n_predict": 1}, 400),
        ("/v1/chat/completions", {"messages": "hello"}, 400),
        ("/no-such-path", {}, 404),
    ]
    for path, body, status in asked:
        reply = client.post(path, body)
        if reply.status != status or not reply.error:
            raise Wrong(
                f"{path} with {json.dumps(body)[:60]}", expected=f"{status} with a text", got=_told(reply)
            )
    try:
        client.complete("hello", 1)
    except Refused as refused:
        raise Wrong(f"after malformed requests: {refused}") from refused
    return f"{len(asked)} malformed requests refused by name"


def _told(reply: Reply) -> str:
    return f"{reply.status}: {reply.message[:200]}"


CHECKS: Final = (
    Check(
        id="contract.too-long",
        proves="a prompt that does not fit is refused with the context's size",
        rule="400 with n_ctx and n_prompt_tokens",
        body=too_long,
    ),
    Check(
        id="contract.crowd",
        proves="all slots can be used at once",
        rule="every one of as many small requests as there are slots is answered",
        body=crowd,
        upstream="llama.cpp #23652, #17300: -np left out gives slots that share one pool",
    ),
    Check(
        id="contract.overrun",
        starts=True,
        proves="generations that overrun a common pool end with an error by name",
        rule="at least one 500 that names the context, no short answer without an error, healthy afterwards",
        body=overrun,
        upstream="llama.cpp #23652: all running generations are aborted",
        quick=False,
    ),
    Check(
        id="contract.key",
        proves="nobody gets an answer without the key",
        rule="401 without and with a wrong key; /health needs none",
        body=key,
    ),
    Check(
        id="contract.effort",
        proves="an unknown reasoning effort is named",
        rule="an error whose text names the effort",
        body=effort,
        upstream="SEED.md J: only xhigh, medium and low exist",
    ),
    Check(
        id="contract.stream",
        proves="a streamed answer has the tokens of one in one piece",
        rule="greedy tokens equal the reference's, but where the reference was undecided",
        body=stream,
    ),
    Check(
        id="contract.schema",
        proves="a JSON schema binds the answer",
        rule="the answer parses and has the schema's fields, types and values",
        body=schema,
    ),
    Check(
        id="contract.malformed",
        proves="malformed requests are refused and do no harm",
        rule="400 or 404 with a text, and the next request is answered",
        body=bad_requests,
    ),
)
