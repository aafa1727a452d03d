"""Smoke: in seconds, whether a server is up, is the one that was asked for, and answers right.

A health check that says ok is not enough: on gfx1151 servers have been healthy while every request
killed them (llama.cpp #26038, #28433) or answered with another user's text (#25992).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from checks.client import Chat, Client, Refused, Unreachable
from checks.report import Outcome, Report, Result, repeat_command
from errors import BadInput, nearest

LOG_STEP_BYTES: Final = 64 * 1024
"""Allowed difference of an exact term: the log has two decimals of a MiB and one line per buffer."""

LOW_ACCEPTANCE: Final = 0.10
"""Below this share of kept drafts speculation costs more than it gives (llama.cpp #23636)."""

FEW_DRAFTS: Final = 40
"""With fewer drafted tokens than this the share says nothing."""

WATCH_S: Final = 6.0
"""How long a server that went away is watched for coming back."""

ROUND_TRIP: Final = "Grüße, naïve café \u2014 日本語 🙂\n\tdef f(x): return x  # ok\n"


@dataclass(frozen=True, kw_only=True)
class MemoryTerm:
    """One term of the plan beside what the engine logged, both in bytes.

    `certainty` is the plan's: exact, bounded (an upper bound) or measured.
    """

    name: str
    predicted: int
    logged: int
    certainty: str


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What the server was promised to be. A field of None promises nothing and is not checked.

    Args:
        alias: the model's name in /props.
        model_file: last part of the model's path.
        slot_context: context of one slot, in tokens.
        slots: number of slots.
        build: what build_info starts with, as in b11434.
        question: a user's question.
        answer: pattern that the answer must contain.
        drafting: whether speculation was asked for.
        min_acceptance: smallest share of kept drafts, from which on drafting counts as working.
        memory: the plan's terms beside the logged ones.
        restarts: asks how often the server was restarted so far, where something knows.
    """

    alias: str | None = None
    model_file: str | None = None
    slot_context: int | None = None
    slots: int | None = None
    build: str | None = None
    question: str = "What is the capital of France? Answer with one word."
    answer: str | None = None
    drafting: bool | None = None
    min_acceptance: float = LOW_ACCEPTANCE
    memory: tuple[MemoryTerm, ...] | None = None
    restarts: Callable[[], int] | None = None


class _Wrong(Exception):
    """A check's finding that something is not as promised, with the two outputs where there are two."""

    def __init__(self, detail: str, *, expected: str = "", got: str = "") -> None:
        super().__init__(detail)
        self.expected, self.got = expected, got


@dataclass(frozen=True, kw_only=True)
class _Check:
    proves: str
    body: Callable[[Client, Expectation], str]
    wanted: Callable[[Expectation], bool] = lambda expect: True
    upstream: str = ""


def run(
    url: str,
    *,
    key: str | None = None,
    expect: Expectation | None = None,
    only: Collection[str] = (),
    accept: Collection[str] = (),
    key_file: Path | None = None,
    timeout: float = 300.0,
) -> Report:
    """Check one server.

    Args:
        url: its root.
        key: API key, or None.
        expect: what it was promised to be; without it only what holds for every server is checked.
        only: ids to run; empty runs all that `expect` asks for.
        accept: ids whose skip is no failure.
        key_file: named in the command that repeats a failed check.
        timeout: seconds for one answer.

    Raises:
        BadInput: `only` or `accept` names a check that does not exist.
    """
    for name in {*only, *accept} - set(CHECKS):
        raise BadInput(f"there is no smoke check {name!r}", hint=nearest(name, list(CHECKS)))
    promised = expect or Expectation()
    client = Client(url, key=key, timeout=timeout)
    chosen = {
        name: check for name, check in CHECKS.items()
        if (name in only if only else check.wanted(promised))
    }  # fmt: skip
    results: list[Result] = []
    for name, check in chosen.items():
        repeat = repeat_command("smoke", url, only=name, key_file=key_file)
        results.append(_made(name, check, client, promised, repeat))
        if name == "health" and results[-1].outcome is not Outcome.PASSED:
            break
    return Report(name="smoke", target=url, results=tuple(results), accepted=frozenset(accept))


def _made(name: str, check: _Check, client: Client, expect: Expectation, repeat: str) -> Result:
    start, outcome, expected, got = time.monotonic(), Outcome.FAILED, "", ""
    try:
        detail, outcome = check.body(client, expect), Outcome.PASSED
    except _Wrong as wrong:
        detail, expected, got = str(wrong), wrong.expected, wrong.got
    except Refused as refused:
        detail = _explained(refused)
    except Unreachable as error:
        detail = _short(error) if name == "health" else f"{_short(error)}; {_watched(client, expect)}"
    except (KeyError, IndexError, TypeError, ValueError) as error:
        detail = f"the answer has not the form of a llama-server's: {type(error).__name__}: {error}"
    return Result(
        id=name, proves=check.proves, outcome=outcome, detail=detail, expected=expected, got=got,
        repeat=repeat, seconds=time.monotonic() - start, upstream=check.upstream,
    )  # fmt: skip


def _health(client: Client, expect: Expectation) -> str:
    reply = client.get("/health")
    if reply.status != 200 or reply.body != {"status": "ok"}:
        raise _Wrong(f"/health answered {reply.status}: {reply.message}")
    return "ok"


def _props(client: Client, expect: Expectation) -> str:
    props = client.ask("/props")
    seen: dict[str, Any] = {
        "alias": props.get("model_alias"),
        "model_file": Path(str(props.get("model_path", ""))).name,
        "slot_context": props["default_generation_settings"]["n_ctx"],
        "slots": props["total_slots"],
        "build": props["build_info"],
    }
    promised = {name: getattr(expect, name) for name in seen}
    promised = {name: value for name, value in promised.items() if value is not None}
    wrong = [name for name, value in promised.items() if not _same(name, value, seen[name])]
    if wrong:
        raise _Wrong(
            f"differs from what was promised: {', '.join(wrong)}",
            expected=_pairs(promised, wrong), got=_pairs(seen, wrong),
        )  # fmt: skip
    return _pairs(seen, seen)


def _same(name: str, promised: Any, seen: Any) -> bool:
    if name == "build":
        return re.match(rf"{re.escape(promised)}(?!\d)", str(seen)) is not None
    return bool(promised == seen)


def _pairs(values: Mapping[str, Any], names: Collection[str]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in names)


def _chat(client: Client, expect: Expectation) -> str:
    answer = client.chat(expect.question)
    _judge(answer, expect)
    counted = answer.timings
    return f"{_excerpt(answer.content)} ({counted.get('predicted_per_second', 0):.0f} tokens/s)"


def _stream(client: Client, expect: Expectation) -> str:
    answer = client.chat(expect.question, stream=True)
    if not answer.done:
        raise _Wrong("the stream broke off without its end mark", got=_excerpt(answer.content))
    if not answer.finish:
        raise _Wrong("no chunk says why the stream ended", got=_excerpt(answer.content))
    _judge(answer, expect)
    return f"{answer.chunks} chunks, ended with {answer.finish}"


def _judge(answer: Chat, expect: Expectation) -> None:
    if not answer.content.strip():
        thought = f"; it thought {len(answer.reasoning)} characters" if answer.reasoning else ""
        raise _Wrong(f"the answer is empty (it ended with {answer.finish or 'nothing'}{thought})")
    if expect.answer is not None and not re.search(expect.answer, answer.content, re.IGNORECASE):
        raise _Wrong("the answer is not the right one", expected=expect.answer, got=_excerpt(answer.content))


def _round_trip(client: Client, expect: Expectation) -> str:
    tokens = client.tokenize(ROUND_TRIP)
    # some tokenizers put a space before the first word of any text
    back = client.detokenize(tokens).removeprefix(" ")
    if back != ROUND_TRIP:
        raise _Wrong(
            "a text does not survive being tokenized and put together again", expected=ROUND_TRIP, got=back
        )
    return f"{len(ROUND_TRIP)} characters, {len(tokens)} tokens"


def _metrics(client: Client, expect: Expectation) -> str:
    before = client.metrics()
    client.complete("One, two, three", 4)
    after = client.metrics()
    names = ("prompt_tokens_total", "tokens_predicted_total")
    still = [name for name in names if after[name] <= before[name]]
    if still:
        raise _Wrong(f"a request does not move {', '.join(still)}")
    return ", ".join(f"{name} {after[name]:.0f}" for name in names)


def _draft(client: Client, expect: Expectation) -> str:
    answer = client.complete("Count: one two three four five six seven eight nine ten", 64)
    if expect.drafting is False:
        if answer.drafted:
            raise _Wrong(
                "the server drafts, which was not asked for", expected="0 drafts", got=str(answer.drafted)
            )
        return "no drafts, as promised"
    if not answer.drafted:
        raise _Wrong("speculation was asked for, but no token is drafted", expected="drafts", got="0 drafts")
    share = answer.accepted / answer.drafted
    text = f"{answer.accepted} of {answer.drafted} drafts kept ({share:.0%})"
    if share < expect.min_acceptance and answer.drafted >= FEW_DRAFTS:
        raise _Wrong(
            f"drafts are hardly ever right: {text}", expected=f"≥ {expect.min_acceptance:.0%}", got=text
        )
    return text


def _after(client: Client, expect: Expectation) -> str:
    client.complete("Still there", 2)
    if not client.healthy():
        raise _Wrong(f"the server is gone after it answered; {_watched(client, expect)}")
    restarts = expect.restarts() if expect.restarts else 0
    if restarts:
        raise _Wrong(f"the server was restarted {restarts} times")
    return "answers and is healthy after all of it"


def _memory(client: Client, expect: Expectation) -> str:
    terms = expect.memory or ()
    if not terms:
        raise _Wrong("the log names no buffer: start the server with -lv 4")
    wrong = [term for term in terms if not term_holds(term)]
    if wrong:
        raise _Wrong(
            "the engine took other memory than was promised: " + ", ".join(term.name for term in wrong),
            expected=", ".join(f"{term.name} {_mib(term.predicted)} ({term.certainty})" for term in wrong),
            got=", ".join(f"{term.name} {_mib(term.logged)}" for term in wrong),
        )
    total = sum(term.logged for term in terms)
    return f"{len(terms)} terms as promised, {_mib(total)} in all"


def term_holds(term: MemoryTerm) -> bool:
    """Whether a logged buffer keeps the plan's promise.

    An exact term may differ by the rounding of the log, a bounded one may only be smaller, a
    measured one may be off by a tenth.
    """
    over = term.logged - term.predicted
    if term.certainty == "exact":
        return abs(over) <= LOG_STEP_BYTES
    if term.certainty == "bounded":
        return over <= LOG_STEP_BYTES
    return abs(over) <= max(LOG_STEP_BYTES, term.predicted // 10)


def _watched(client: Client, expect: Expectation) -> str:
    """Watch a server that dropped a connection, and say whether and how often it came back."""
    end, starts, up = time.monotonic() + WATCH_S, 0, True
    while time.monotonic() < end and not (up and starts):
        now = client.healthy()
        starts += now and not up
        up = now
        time.sleep(0.1)
    known = f", restart count {expect.restarts()}" if expect.restarts else ""
    if starts:
        return f"it went away and was restarted ({starts} seen{known}): see ./inv logs"
    state = "it stays healthy and closes connections" if up else f"it did not come back in {WATCH_S:.0f} s"
    return f"{state}{known}: see ./inv logs"


def _explained(refused: Refused) -> str:
    hints = {401: "; give the key with --key-file", 501: "; start the server with --metrics"}
    return str(refused) + hints.get(refused.reply.status, "")


def _short(error: Exception) -> str:
    """The cause that lies deepest: requests wraps it several times over."""
    cause = re.search(r"\[Errno -?\d+\] ([\w ]+)|(Remote end closed connection)|(timed out)", str(error))
    words = next(filter(None, cause.groups())).lower() if cause else str(error)[:160]
    return f"the server did not answer: {words}"


def _excerpt(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 120 else flat[:117] + "..."


def _mib(number: int) -> str:
    return f"{number / 2**20:.2f} MiB"


CHECKS: Final[Mapping[str, _Check]] = {
    "health": _Check(proves="the server is up and has loaded its model", body=_health),
    "props": _Check(
        proves="it is the model, the build, the slots and the context that were asked for", body=_props
    ),
    "chat": _Check(
        proves="a real request is answered, and rightly", body=_chat,
        upstream="llama.cpp #26038, #28433: healthy, but every request kills it",
    ),
    "stream": _Check(proves="a streamed answer comes in pieces, whole, and is right as well", body=_stream),
    "tokenize": _Check(
        proves="the tokenizer gives back what it was given, other scripts too", body=_round_trip
    ),
    "metrics": _Check(proves="/metrics counts what the server does", body=_metrics),
    "draft": _Check(
        proves="speculation runs as asked for, and its drafts are of use", body=_draft,
        wanted=lambda expect: expect.drafting is not None,
        upstream="llama.cpp #23636: acceptance falls to nothing",
    ),
    "memory": _Check(
        proves="the engine took the memory that the plan promised", body=_memory,
        wanted=lambda expect: expect.memory is not None,
    ),
    "after": _Check(
        proves="it is still there after the requests", body=_after,
        upstream="llama.cpp #28433: a restart every 53 s",
    ),
}  # fmt: skip
"""The checks by id, in the order they run."""
