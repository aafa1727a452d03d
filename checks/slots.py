"""Slots do not mix: nobody gets another's answer, and no load leaves lasting damage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from checks.arrangement import Arrangement
from checks.check import Check
from checks.client import Client, Completion
from checks.compare import longest_run, split
from checks.prompts import CODE_WORDS, sentences
from checks.room import ONE_SLOT, Claim, Room, Unmet, Wrong, agree, together

LOADED: Final = Arrangement(slots=4, unified=True, ubatch=128)
LENGTHS: Final = (14, 260, 25, 400, 33, 150, 18, 310)
"""Long and short prompts by turns, in tokens: short answers overtake long prompts."""

TOKENS: Final = 24
RUN: Final = 24
"""So many equal characters in a row are no text: the sign of lasting damage in llama.cpp #25992."""

FOREIGN: Final = "another's word"

TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "the weather of a city",
            "parameters": {
                "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
)  # fmt: skip


def classify(own: int, answer: Completion, references: Sequence[Completion], margin: float) -> str:
    """What is wrong with the answer to prompt `own`: empty, another's, repeats, other text; or nothing.

    An answer is another's when it begins as that prompt's reference does (SEED.md I).
    """
    right = references[own]
    left = split(right, answer.tokens)
    if left is None or (left.margin <= margin and len(answer.tokens) == len(right.tokens)):
        return ""
    if not answer.content.strip():
        return "empty"
    for index, other in enumerate(references):
        start = other.tokens[:8]
        if index != own and start != right.tokens[:8] and answer.tokens[:8] == start:
            return f"the answer of prompt {index + 1}"
    if longest_run(answer.content) >= min(RUN, len(answer.content)):
        return "repeats one character"
    return "other text"


def answers(room: Room) -> str:
    """Long and short prompts at once, three rounds and more; each answer against its own reference."""
    probes = room.prompts.mixed(500, LENGTHS)
    references = [room.reference(probe, TOKENS) for probe in probes]
    client = room.any(LOADED)
    found: Counter[str] = Counter()
    example: tuple[int, Completion] | None = None
    rounds = 3 if room.quick else 6
    for turn in range(rounds):
        order = [(index + 3 * turn) % len(probes) for index in range(len(probes))]
        got = together([partial(client.complete, probes[index], TOKENS) for index in order])
        for index, answer in zip(order, got, strict=True):
            if kind := classify(index, answer, references, room.tolerance.margin):
                found[kind] += 1
                example = example or (index, answer)
    total = rounds * len(probes)
    if example:
        index, answer = example
        kinds = ", ".join(f"{count}x {kind}" for kind, count in found.most_common())
        raise Wrong(
            f"{found.total()} of {total} answers are wrong: {kinds}",
            expected=references[index].content, got=answer.content,
        )  # fmt: skip
    return f"{total} answers in {rounds} rounds, each its own"


def identical(room: Room) -> str:
    """One prompt in all slots at once: one answer."""
    probe = room.prompts.tokens(520, 130)
    reference = room.reference(probe, TOKENS)
    client = room.any(LOADED)
    got = together([partial(client.complete, probe, TOKENS) for _ in range(8)])
    distinct = len({answer.tokens for answer in got})
    said = agree(
        [Claim(what="one of eight", reference=reference, got=answer) for answer in got], room.tolerance
    )
    return f"{said}; {distinct} distinct"


def alternating(room: Room) -> str:
    """Two prompts by turns on one slot, short and long, as a user would with the cache on."""
    probes = room.prompts.mixed(530, (110, 240))
    references = [room.reference(probe, TOKENS) for probe in probes]
    client = room.any(ONE_SLOT)
    claims = []
    for turn in range(3 if room.quick else 6):
        for index, probe in enumerate(probes):
            got = client.complete(probe, TOKENS, cache_prompt=True, id_slot=0)
            what = f"prompt {'AB'[index]}, turn {turn + 1}"
            claims.append(Claim(what=what, reference=references[index], got=got))
    return agree(claims, room.tolerance)


def lasting(room: Room) -> str:
    """A greedy anchor before and after a load of several dozen requests."""
    anchor, load = room.prompts.tokens(540, 20), room.prompts.mixed(541, (30, 200, 60, 90))
    reference = room.reference(anchor, TOKENS)
    right = [room.reference(probe, 40) for probe in load]
    client = room.any(LOADED)
    claims = [Claim(what="before the load", reference=reference, got=client.complete(anchor, TOKENS))]
    asked = 0
    for _ in range(6 if room.quick else 12):
        got = together([partial(client.complete, probe, 40) for probe in load])
        asked += len(got)
        for own, answer in zip(right, got, strict=True):
            if longest_run(answer.content) >= RUN > longest_run(own.content):
                raise Wrong(
                    f"after {asked} requests an answer is a run of one character",
                    expected=own.content, got=answer.content,
                )  # fmt: skip
        what = f"after {asked} requests"
        claims.append(Claim(what=what, reference=reference, got=client.complete(anchor, TOKENS)))
    return f"{agree(claims, room.tolerance)}, the last after {asked} requests"


def code_words(room: Room) -> str:
    """Each user has a word of his own and filler of his own; nobody may see another's word.

    Only prompts that the model answers rightly when it is asked alone are judged under load.
    """
    rounds = 3 if room.quick else 6
    users = [
        (CODE_WORDS[user % len(CODE_WORDS)], 10 * user, (20, 250, 40, 150)[user % 4])
        for user in range(4 * rounds)
    ]
    client = room.any(LOADED)
    tried = [_judge_word(user[0], _say_word(client, *user)) for user in users[:2]]
    if all(tried) and FOREIGN not in tried:
        raise Unmet(f"the model does not give its own word back to a user alone ({tried[0]})")
    alone = [(user, _say_word(client, *user)) for user in users]
    for (word, _, _), said in alone:
        if _judge_word(word, said) == FOREIGN:
            raise Wrong("another's word comes back even to a user alone", expected=word, got=said)
    able = [user for user, said in alone if not _judge_word(user[0], said)]
    if len(able) < len(users) / 2:
        raise Unmet(f"alone, the model gives only {len(able)} of {len(users)} users their own word back")
    found: Counter[str] = Counter()
    got = ""
    for start in range(0, len(able), 4):
        part = able[start : start + 4]
        jobs = [partial(_say_word, client, *user) for user in part]
        for (word, _, _), said in zip(part, together(jobs), strict=True):
            if kind := _judge_word(word, said):
                found[kind] += 1
                got = got or f"{word}: {said}"
    if found:
        raise Wrong(f"{found.total()} of {len(able)} answers are wrong: {dict(found)}", got=got)
    return f"{len(able)} users got their own word back"


def _say_word(client: Client, word: str, seed: int, size: int) -> str:
    filler = sentences(seed, size)
    text = f"The code word is {word}. {filler}\nReply with exactly: {word}"
    answer = client.chat(text, tokens=1024)
    return f"{answer.content} {answer.reasoning}"


def _judge_word(word: str, said: str) -> str:
    if any(other in said for other in CODE_WORDS if other != word):
        return FOREIGN
    if not said.strip():
        return "empty"
    return "" if word in said else "own word missing"


def tools(room: Room) -> str:
    """The same forced tool call five times and more on a server that was asked nothing yet.

    The first calls after a cold start were the broken ones (CASES.md 52).
    """
    caps = room.any(ONE_SLOT).ask("/props").get("chat_template_caps", {})
    if not caps.get("supports_tool_calls", True):
        raise Unmet("the model's chat template knows no tool calls")
    if room.launcher is None:
        return _call_tools(room.any(ONE_SLOT))
    with room.fresh(Arrangement(slots=2)) as running:
        return _call_tools(running.client())


def _call_tools(client: Client) -> str:
    calls = 5
    for number in range(calls):
        chat = client.chat(
            "What is the weather in Paris?", tokens=200, tools=list(TOOLS), tool_choice="required"
        )
        if problem := _judge_call(chat.tool_calls):
            raise Wrong(
                f"tool call {number + 1} of {calls} is broken: {problem}",
                expected='weather({"city": "Paris" or "Rome"})', got=json.dumps(list(chat.tool_calls)),
            )  # fmt: skip
    return f"{calls} tool calls, all well formed"


def _judge_call(calls: Sequence[Mapping[str, object]]) -> str:
    if not calls:
        return "no call at all"
    function = calls[0].get("function")
    if not isinstance(function, dict) or function.get("name") != "weather":
        return "another function's name"
    try:
        arguments = json.loads(function.get("arguments", ""))
    except ValueError as error:
        return f"its arguments are no JSON ({error})"
    return "" if arguments.get("city") in ("Paris", "Rome") else f"arguments {arguments}"


UPSTREAM: Final = "llama.cpp #25992: another request's answer, word for word"

CHECKS: Final = (
    Check(
        id="slots.answers",
        proves="every prompt gets its own answer while long and short ones run at once",
        rule="greedy tokens equal the reference's, but where the reference was undecided",
        body=answers,
        upstream=UPSTREAM,
    ),
    Check(
        id="slots.identical",
        proves="one prompt in eight requests at once has one answer",
        rule="greedy tokens equal the reference's, but where the reference was undecided",
        body=identical,
        upstream="llama.cpp #28537",
    ),
    Check(
        id="slots.alternating",
        proves="two prompts by turns on one slot do not bleed into one another",
        rule="greedy tokens equal the reference's, but where the reference was undecided",
        body=alternating,
        upstream="ollama #17847: answer B describes A",
    ),
    Check(
        id="slots.lasting",
        proves="a server answers after a load as it did before",
        rule="the anchor's greedy tokens stay the same, and no answer is a run of one character",
        body=lasting,
        upstream="llama.cpp #25992: slashes until restart",
    ),
    Check(
        id="slots.words",
        proves="each user gets his own code word back under load",
        rule="the own word is there, no other user's word is, and nothing is empty",
        body=code_words,
        upstream=UPSTREAM,
    ),
    Check(
        id="slots.tools",
        proves="tool calls are well formed from the first one on",
        rule="five calls in a row parse and keep to the schema",
        body=tools,
        upstream="llama.cpp #26543: the first calls after a cold start are broken",
    ),
)
