"""What each of our patches cures, as an experiment on a running engine: each returns what was seen.

The same experiments run on an image of the patched tree, where all must be well, and on one without our
patches, where each must show its fault; else the experiment proves nothing.
"""

from __future__ import annotations

import math
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from checks.arrangement import Arrangement
from checks.launcher import Launcher, Model, Running
from errors import CheckFailed
from tests.makers import tiny

SIZES: Final = tiny.Qwen4Exp(top_k=4096, experts=2)
"""Both experts and all blocks are always chosen: no choice may hang on the last bit of a sum."""

SEED: Final = 3
DRAFTING: Final = Arrangement(batch=512, ubatch=64, context=2048, checkpoints=0, drafting=True)
FINISHED: Final = re.compile(r"draft acceptance = ")
CANDIDATE: Final = re.compile(r"draft candidate +(\d+), pos +(\d+): +(\d+) \( *([\d.]+)\)")


def models(folder: Path) -> dict[str, Model]:
    """A trunk with three heads: a plain one, one whose block is dense, one that weighs the hidden state."""
    trunk = tiny.trunk(folder / "trunk.gguf", seed=SEED, sizes=SIZES)
    heads = {
        "plain": tiny.head(folder / "plain.gguf", seed=SEED, agreement=0.6, sizes=SIZES),
        "dense": tiny.head(folder / "dense.gguf", seed=SEED, agreement=0.6, dense=True, sizes=SIZES),
        "hidden": tiny.head(folder / "hidden.gguf", seed=SEED, agreement=0.6, hidden=0.5, sizes=SIZES),
    }
    return {name: Model(path=trunk, draft=head) for name, head in heads.items()}


def wrong_answers(launcher: Launcher, *, rounds: int, drafting: bool = True) -> tuple[int, int]:
    """L3. Four unified slots that draft, against one slot that does not: (wrong answers, all answers).

    Prompts and answers of mixed length keep the slots out of step, so that batches hold only some of
    them. Stops at the first round with a wrong answer.
    """
    draw = random.Random(5)
    jobs = [(tokens(draw, draw.choice([8, 30, 90, 200])), draw.choice([10, 25, 40, 70])) for _ in range(24)]
    alone = replace(DRAFTING, drafting=False)
    expected = [answer for (answer,) in asked(launcher, alone, [[job] for job in jobs])]
    four = replace(DRAFTING, slots=4, unified=True, context=4096, drafting=drafting)
    running = launcher.start(four)
    wrong = count = 0
    try:
        client = running.client()
        with ThreadPoolExecutor(4) as pool:
            for _ in range(rounds):
                order = draw.sample(range(len(jobs)), len(jobs))
                got = list(pool.map(lambda i: client.complete(*jobs[i]).tokens, order))
                wrong += sum(answer != expected[i] for i, answer in zip(order, got, strict=True))
                count += len(order)
                if wrong:
                    break
    finally:
        launcher.stop(running)
    return wrong, count


def starts(launcher: Launcher) -> str:
    """L1. Start with a dense head and draft with it; returns what went wrong, or nothing."""
    try:
        running = launcher.start(DRAFTING)
    except CheckFailed as error:
        return error.why
    try:
        answer = running.client().complete(tokens(random.Random(1), 20), 30)
        return "" if answer.drafted else "nothing was drafted"
    finally:
        launcher.stop(running)


def candidates_of_one_request(launcher: Launcher) -> list[list[tuple[str, ...]]]:
    """L2. The draft candidates of request B in the sequence B, A, B, B: three lists."""
    draw = random.Random(1)
    other, same = (tokens(draw, 60), 60), (tokens(draw, 40), 60)
    running = launcher.start(replace(DRAFTING, extra=("-lv", "5")))
    try:
        client, lists, seen = running.client(), [], 0
        for answered, job in enumerate((same, other, same, same), start=1):
            client.complete(*job)
            found = CANDIDATE.findall(log_of(running, answered))
            if job is same:
                lists.append(found[seen:])
            seen = len(found)
        return lists
    finally:
        launcher.stop(running)


def log_of(running: Running, answered: int, patience_s: float = 60) -> str:
    """The log up to the end of that many requests: the answer arrives before Docker has the last lines."""
    end = time.monotonic() + patience_s
    while len(FINISHED.findall(log := running.log())) < answered:
        if time.monotonic() > end:
            raise CheckFailed(f"the log does not show the end of request {answered}", why=log[-400:])
        time.sleep(0.1)
    return log


def checkpoint_of_another_prompt(launcher: Launcher) -> float:
    """L4. The error of the first token's distribution where the slot's first text was another one.

    A prompt of five tokens leaves a checkpoint of one token; the next prompt begins differently; the
    third shares its first half. Total variation, 0 to 1, against the same prompt without any cache.
    """
    draw = random.Random(7)
    short, other = tokens(draw, 5), tokens(draw, 100)
    third = other[:8] + tokens(draw, 30)
    running = launcher.start(replace(DRAFTING, drafting=False, checkpoints=32))
    try:
        client = running.client()
        for prompt in (short, other):
            client.complete(prompt, 1, cache_prompt=True)
        got, want = (
            client.complete(third, 1, probs=SIZES.vocabulary, cache_prompt=cached).steps[0].top
            for cached in (True, False)
        )
        return 0.5 * sum(abs(math.exp(got[t]) - math.exp(want[t])) for t in want)
    finally:
        launcher.stop(running)


def tokens(draw: random.Random, count: int) -> list[int]:
    """Random ordinary tokens."""
    return [draw.randrange(3, SIZES.vocabulary - 12) for _ in range(count)]


def asked(
    launcher: Launcher, arrangement: Arrangement, groups: list[list[tuple[list[int], int]]]
) -> list[list[tuple[int, ...]]]:
    """The answers to groups of jobs, asked one after the other on one server."""
    running = launcher.start(arrangement)
    try:
        client = running.client()
        return [[client.complete(*job).tokens for job in group] for group in groups]
    finally:
        launcher.stop(running)
