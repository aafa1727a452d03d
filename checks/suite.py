"""The correctness suite: all checks, run against one server or one engine that it may start.

A check that cannot be made counts as a failure unless its skip was accepted beforehand, by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from checks import cache, contract, cutting, device, rows, slots, speculation
from checks.check import Check
from checks.client import Refused, Unreachable
from checks.report import Outcome, Report, Result
from checks.room import Room, Unmet, Wrong
from errors import BadInput, HaloforgeError, nearest

CHECKS: Final[tuple[Check, ...]] = (
    *contract.CHECKS, *rows.CHECKS, *cutting.CHECKS, *cache.CHECKS, *slots.CHECKS, *speculation.CHECKS,
    *device.CHECKS,
)  # fmt: skip
"""All checks, in the order they run."""

STARTING: Final = "starting"
"""Names, like a group, the checks that need to start servers of their own."""


def run(
    room: Room,
    *,
    target: str,
    only: Collection[str] = (),
    accept: Collection[str] = (),
    repeat: Callable[[str], str] = lambda check: f"./inv check --only {check}",
    on_result: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Run the suite.

    Args:
        room: the servers to check, and whether to be quick.
        target: what is checked, for the report.
        only: ids or groups to run; empty runs all, or those of the quick run. Without a launcher it
            leaves out the checks that need to start servers, and the report names them.
        accept: ids or groups whose skip is no failure; `STARTING` stands for all that need to start
            servers, which a server that runs already cannot do.
        repeat: gives the one command that repeats a check.
        on_result: called after each check, for progress.

    Raises:
        BadInput: a name in `only` or `accept` is no check and no group.
    """
    wanted = select(only) if only else [check for check in CHECKS if check.quick or not room.quick]
    chosen = [check for check in wanted if only or room.launcher or not check.starts]
    results = []
    for check in chosen:
        results.append(_made(room, check, repeat(check.id)))
        on_result(results[-1])
    accepted = frozenset(check.id for check in select(accept))
    left_out = tuple(check.id for check in wanted if check not in chosen)
    return Report(
        name="check", target=target, results=tuple(results), accepted=accepted, left_out=left_out
    )  # fmt: skip


def select(names: Collection[str]) -> list[Check]:
    """The checks with these ids, in these groups, or of the kind `STARTING`, in the suite's order.

    Raises:
        BadInput: a name is none of these.
    """
    known = {STARTING, *(check.id for check in CHECKS), *(check.group for check in CHECKS)}
    for name in names:
        if name not in known:
            raise BadInput(f"there is no check {name!r}", hint=nearest(name, sorted(known)))
    return [
        check
        for check in CHECKS
        if check.id in names or check.group in names or (check.starts and STARTING in names)
    ]


def listed() -> list[dict[str, str | bool]]:
    """The checks as plain values, in the order they run."""
    return [
        {
            "id": check.id, "proves": check.proves, "rule": check.rule, "upstream": check.upstream,
            "quick": check.quick, "starts_servers": check.starts,
        }
        for check in CHECKS
    ]  # fmt: skip


def listed_text() -> str:
    """The checks for people: four lines each."""
    blocks = []
    for check in CHECKS:
        marks = [word for word, on in (("quick", check.quick), ("starts servers", check.starts)) if on]
        lines = [f"{check.id}  ({', '.join(marks) or 'full run only'})", f"  proves: {check.proves}"]
        lines += [f"  passes: {check.rule}"]
        lines += [f"  caught: {check.upstream}"] if check.upstream else []
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def _made(room: Room, check: Check, repeat: str) -> Result:
    start, outcome, expected, got = time.monotonic(), Outcome.FAILED, "", ""
    try:
        detail, outcome = check.body(room), Outcome.PASSED
    except Wrong as wrong:
        detail, expected, got = str(wrong), wrong.expected, wrong.got
    except Unmet as unmet:
        detail, outcome = str(unmet), Outcome.SKIPPED
    except (Refused, HaloforgeError) as error:
        detail = str(error)
    except Unreachable as error:
        detail = f"the server dropped the connection or did not answer: {error}"
    except (KeyError, IndexError, TypeError, ValueError) as error:
        detail = f"an answer has not the form of a llama-server's: {type(error).__name__}: {error}"
    return Result(
        id=check.id, proves=check.proves, outcome=outcome, detail=detail, expected=expected, got=got,
        repeat=repeat, seconds=time.monotonic() - start, upstream=check.upstream,
    )  # fmt: skip
