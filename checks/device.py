"""The GPU equals the CPU: two ways to compute the same model give the same perplexity.

Fluent text says nothing: on gfx1151 a perplexity of 1334 for 6.81 came with good speed and health
(nix-amd-ai #124). What is compared is the final perplexity of each run. The mean that
llama-perplexity prints for a base file is not used: it is kept there in 16 bits within a window.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import say
from checks.check import Check
from checks.launcher import Launcher, work_folder
from checks.prompts import sentences
from checks.room import ONE_SLOT, Room, Unmet, Wrong

Read = TypeVar("Read")

ALLOWED: Final = 0.01
"""Largest relative difference of two perplexities. Good GPU runs were 0.33 % off the CPU (PEERS.md 4)."""

TOP: Final = 0.97
"""Smallest share of places with the same likeliest token."""

Q8_TOP: Final = 0.90
"""The same for a q8_0 cache, whose rounding turns close decisions of random weights more often."""

KLD: Final = 0.02
"""Largest mean KL divergence in nats; a q8_0 cache has 0.0018 on the real model (PEERS.md 4)."""

WORDS: Final = 600
BASE: Final = (
    "-f", "{folder}/text", "-c", "256", "-b", "256", "--chunks", "16",
    "--kl-divergence-base", "{folder}/base",
)  # fmt: skip
"""The base file holds every logit of every second half: 16 chunks of 256 bound it to 1 GiB with a
vocabulary of 250,000."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """How one way to compute differs from the base.

    Args:
        perplexity: its own, final.
        mean: mean KL divergence, in nats.
        top: share of places with the same likeliest token, 0 to 1.
    """

    perplexity: float
    mean: float
    top: float


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to compute: its name and the arguments that choose it."""

    name: str
    arguments: tuple[str, ...]


CPU_WAYS: Final = (
    Way(name="as deployed", arguments=()),
    Way(name="weights as they are in the file", arguments=("--no-repack",)),
    Way(name="attention without the fused kernel", arguments=("-fa", "off")),
    Way(name="narrow passes", arguments=("-ub", "32")),
)
GPU_WAYS: Final = (
    Way(name="CPU", arguments=("-ngl", "0", "--no-op-offload")),
    Way(name="GPU", arguments=("-ngl", "99")),
    Way(name="both", arguments=("-ngl", "4")),
    Way(name="GPU, narrow passes", arguments=("-ngl", "99", "-ub", "64")),
)


def perplexity(room: Room) -> str:
    """A fixed text computed in several ways; the first one writes the base that the others meet."""
    launcher = _launcher(room)
    first, *others = GPU_WAYS if room.device else CPU_WAYS
    text = sentences(700, WORDS if room.quick else 3 * WORDS)
    with work_folder({"text": text}) as folder:
        right = _measured(launcher, folder, first.arguments, final_estimate)
        said = [f"{first.name} {right:.4f}"]
        for way in others:
            found = _measured(launcher, folder, ("--kl-divergence", *way.arguments), divergence)
            said.append(judge(first.name, right, way.name, found))
    return "; ".join(said)


def cached(room: Room) -> str:
    """The same with a q8_0 KV cache against an f16 one."""
    launcher = _launcher(room)
    with work_folder({"text": sentences(701, WORDS)}) as folder:
        right = _measured(launcher, folder, (), final_estimate)
        small = ("--kl-divergence", "-ctk", "q8_0", "-ctv", "q8_0")
        found = _measured(launcher, folder, small, divergence)
        return judge("f16 cache", right, "q8_0 cache", found, top=Q8_TOP)


def used(room: Room) -> str:
    """Whether the server computes where it should: its log names the device that holds its buffers."""
    room.server(ONE_SLOT)
    return judge_devices(buffers(room.log(ONE_SLOT)), room.device)


def buffers(log: str) -> list[str]:
    """Names of the devices that hold weights, in the order the log names them."""
    return re.findall(r"load_tensors:\s+(\S+) model buffer size", log)


def judge_devices(held: Sequence[str], wanted: str) -> str:
    """Say where the weights are.

    Raises:
        Wrong: they are elsewhere than on the wanted device, or the log names none.
    """
    if not held:
        raise Wrong("the log names no model buffer: start the server with -lv 4")
    names = ", ".join(dict.fromkeys(held))
    if wanted and not any(name.startswith(wanted) for name in held):
        raise Wrong(f"the weights are not on {wanted}", expected=wanted, got=names)
    if not wanted and not all(name.startswith("CPU") for name in held):
        raise Wrong("a CPU was expected", expected="CPU", got=names)
    return f"weights on {names}"


def final_estimate(output: str) -> float:
    """The final perplexity that llama-perplexity printed.

    Raises:
        Wrong: there is none.
    """
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", output)
    if not found:
        raise Wrong("llama-perplexity gave no final estimate", got=output[-300:])
    return float(found.group(1))


def divergence(output: str) -> Divergence:
    """What llama-perplexity --kl-divergence found.

    Raises:
        Wrong: a figure is missing.
    """
    figures = [
        re.search(pattern, output)
        for pattern in (r"Mean PPL\(Q\)\s*:\s*(\S+)", r"Mean\s+KLD:\s*(\S+)", r"Same top p:\s*(\S+)")
    ]
    found = [float(figure.group(1)) for figure in figures if figure]
    if len(found) != len(figures):
        raise Wrong("llama-perplexity gave no divergence", got=output[-300:])
    return Divergence(perplexity=found[0], mean=found[1], top=found[2] / 100)


def judge(base: str, right: float, name: str, found: Divergence, *, top: float = TOP) -> str:
    """Hold one way to compute against the base.

    Raises:
        Wrong: its perplexity, its likeliest tokens or its distributions are too far off.
    """
    off = abs(found.perplexity / right - 1)
    said = f"{name} {found.perplexity:.4f} (KLD {found.mean:.1e}, same top {found.top:.1%})"
    if not off <= ALLOWED or found.top < top or found.mean > KLD:
        raise Wrong(
            f"{name} is not {base}: perplexity off by {off:.2%} (allowed {ALLOWED:.0%}),"
            f" mean KLD {found.mean:.1e} (allowed {KLD}),"
            f" same top token {found.top:.1%} (at least {top:.0%})",
            expected=f"{base} {right:.4f}", got=said,
        )  # fmt: skip
    return said


def _measured(
    launcher: Launcher, folder: Path, arguments: tuple[str, ...], read: Callable[[str], Read]
) -> Read:
    """Run llama-perplexity and read its output.

    The engine does not flush its log when it ends (common/log.cpp says so), and on a busy machine the
    last lines, which hold the result, are lost at times: then it is run again, four times at most.
    """
    for _ in range(4):
        done = launcher.program("llama-perplexity", [*BASE, *arguments], folder)
        with suppress(Wrong):
            return read(done.out + done.err)
        say.warn("llama-perplexity ended without its result, which it loses at times; running it again")
    done = launcher.program("llama-perplexity", [*BASE, *arguments], folder)
    return read(done.out + done.err)


def _launcher(room: Room) -> Launcher:
    if room.launcher is None:
        raise Unmet("needs to start llama-perplexity: give --image or --programs with --model")
    return room.launcher


CHECKS: Final = (
    Check(
        id="device.used",
        starts=True,
        proves="the weights are on the device that was asked for",
        rule="the load log's model buffers are on the wanted device; a GPU flavour on the CPU fails",
        body=used,
        upstream="lemonade #1787: silent CPU fallback after an upgrade",
    ),
    Check(
        id="device.perplexity",
        starts=True,
        proves="every way to compute the model gives the same perplexity",
        rule="final perplexities within 1 %, the same likeliest token at 97 % of the places;"
        " a good GPU was 0.33 % off the CPU, a bad one 19,500 %",
        body=perplexity,
        upstream="nix-amd-ai #124, llama.cpp #27506, #28211",
    ),
    Check(
        id="device.cache",
        starts=True,
        proves="a q8_0 KV cache costs no more than its rounding",
        rule="final perplexities within 1 %, the same likeliest token at 90 % of the places",
        body=cached,
        quick=False,
    ),
)
