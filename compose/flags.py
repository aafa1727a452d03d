"""What the engine in an image accepts, read from its own `--help`, and a check of a command against it.

llama-server stops at the first option it does not know, before any weight is read; a restart policy
then makes a loop of it. So a command is checked when it is rendered, and the option to use instead is
named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from errors import BadInput, nearest

REPLACED: Final = {
    "--draft": "--spec-draft-n-max",
    "--draft-n": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-n-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-n-min": "--spec-draft-n-min",
    "--draft-model": "--spec-draft-model",
    "-cpent": "--checkpoint-min-step",
    "--checkpoint-every-n-tokens": "--checkpoint-min-step",
    "--mmap": "--load-mode mmap",
    "--no-mmap": "--load-mode none",
    "--mlock": "--load-mode mlock",
    "--direct-io": "--load-mode dio",
    "-dio": "--load-mode dio",
    "--tensor-read-lazy": "--lazy-mode",
    "--lazy-mode": "--tensor-read-lazy",
    "-lzm": "--tensor-read-lazy",
    "--load-mode": "--no-mmap",
    "--reasoning": "--chat-template-kwargs '{\"enable_thinking\":false}'",
    "--reasoning-effort": '--chat-template-kwargs \'{"reasoning_effort":"medium"}\'',
    "--no-webui": "--no-ui",
    "--no-ui": "--no-webui",
}
"""Options that some builds dropped, renamed or never had, and what does their work in others."""

REPLACED_VALUES: Final = {
    ("--spec-type", "draft"): "draft-simple or draft-mtp",
    ("--spec-type", "mtp"): "draft-mtp",
    ("--spec-type", "ngram"): "ngram-mod",
}

LEAKING: Final = frozenset({"--api-key", "--hf-token", "-hft"})
"""Options whose value would stand in the command, where every user of Docker can read it."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """One option of the engine: all its spellings, whether a value follows, and which are allowed.

    `choices` is empty where any value goes; `several` means that they may be joined with commas.
    `removed` holds what the engine says of an option that it only lists to refuse it.
    """

    spellings: frozenset[str]
    takes_value: bool
    choices: frozenset[str]
    several: bool
    removed: str


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """All options of one engine build."""

    options: tuple[Known, ...]

    def find(self, word: str) -> Known | None:
        """The option that a word of a command names; `_` stands for `-`, as the engine reads it."""
        spelled = canonical(word)
        return next((known for known in self.options if spelled in known.spellings), None)

    @property
    def spellings(self) -> list[str]:
        """Every spelling that works."""
        return sorted(word for known in self.options if not known.removed for word in known.spellings)


def canonical(word: str) -> str:
    """An option as the engine looks it up: in long options `_` becomes `-`."""
    return word.replace("_", "-") if word.startswith("--") else word


@cache
def parse_help(text: str) -> Accepted:
    """Read the output of `llama-server --help`.

    Raises:
        BadInput: the text lists no options.
    """
    options = tuple(_known(block) for block in _blocks(text))
    if len(options) < 20:
        raise BadInput("the image's --help lists no options", why=f"{len(options)} found", hint="./inv build")
    return Accepted(options=options)


def check(arguments: Sequence[str], accepted: Accepted) -> list[str]:
    """The faults of a command: unknown or removed options, wrong values, options given twice."""
    return list(_faults(arguments, accepted))


def require(arguments: Sequence[str], accepted: Accepted, *, image: str, preset: str) -> None:
    """Refuse a command that the image's engine would refuse.

    Raises:
        BadInput: names each fault and what to write instead.
    """
    if faults := check(arguments, accepted):
        raise BadInput(
            f"preset {preset} does not suit the engine of {image}",
            why="\n        ".join(faults),
            hint="change the preset, or build an engine that knows these options",
        )


def _faults(arguments: Sequence[str], accepted: Accepted) -> Iterator[str]:
    seen: dict[frozenset[str], str] = {}
    words = iter(arguments)
    unknown_before = False
    for word in words:
        if unknown_before and not word.startswith("-"):
            continue  # most likely the value of the option that is not known
        if canonical(word) in LEAKING:
            yield f"{word} puts a secret into the command; use api_key_file"
        known = accepted.find(word)
        unknown_before = known is None
        if known is None:
            yield f"{word} is not an option of this engine{_instead(word, accepted)}"
            continue
        if known.removed:
            yield f"{word} was removed from this engine{_instead(word, accepted)}"
        elif known.spellings in seen:
            first = seen[known.spellings]
            yield f"{word} repeats {first}" if word != first else f"{word} is given twice"
        seen.setdefault(known.spellings, word)
        if known.takes_value:
            value = next(words, None)
            if value is None:
                yield f"{word} wants a value"
            elif not known.removed:
                yield from _value_faults(word, value, known)


def _value_faults(word: str, value: str, known: Known) -> Iterator[str]:
    for part in value.split(",") if known.several else [value]:
        if known.choices and part not in known.choices:
            long_name = max(known.spellings, key=len)
            instead = next(
                (
                    "use " + REPLACED_VALUES[name, part]
                    for name in known.spellings
                    if (name, part) in REPLACED_VALUES
                ),
                nearest(part, sorted(known.choices)),
            )
            shown = word if word == long_name else f"{word} ({long_name})"
            yield f"{shown} does not take {part!r}; {instead}"


def _instead(word: str, accepted: Accepted) -> str:
    """What to write instead: the known successor if this engine has it, else the nearest spelling."""
    if not word.startswith("-"):
        return " (a value without an option?)"
    successor = REPLACED.get(canonical(word), "")
    if successor and accepted.find(successor.split()[0]):
        return f"; use {successor}"
    return f"; {nearest(canonical(word), accepted.spellings)}" if len(word) > 3 else ""


def _blocks(text: str) -> Iterator[list[str]]:
    """The lines of each option: one that starts with a dash, and the indented ones that follow."""
    block: list[str] = []
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            if block:
                yield block
            block = [line]
        elif block and line.startswith(" "):
            block.append(line)
        elif block:
            yield block
            block = []
    if block:
        yield block


_SPELLING = re.compile(r"(--?[A-Za-z][A-Za-z0-9.-]*)(,\s*)?")


def _known(block: list[str]) -> Known:
    head, spellings, place = block[0], [], 0
    while found := _SPELLING.match(head, place):
        spellings.append(found[1])
        place = found.end()
        if not found[2]:
            break
    rest = head[place:]
    # A value's name follows after one space, the description after two or on the next line.
    value = re.match(r" (\S.*?)(?:\s{2,}|$)", rest)
    placeholder = value[1].strip() if value else ""
    description = " ".join(line.strip() for line in [rest[value.end() :] if value else rest, *block[1:]])
    choices, several = _choices(placeholder, description, block)
    removed = description if "argument has been removed" in description else ""
    return Known(
        spellings=frozenset(spellings),
        takes_value=bool(placeholder),
        choices=choices,
        several=several,
        removed=removed,
    )


def _choices(placeholder: str, description: str, block: list[str]) -> tuple[frozenset[str], bool]:
    if found := re.fullmatch(r"\[([a-z]+(?:\|[a-z]+)+)\]", placeholder):
        return frozenset(found[1].split("|")), False
    if found := re.fullmatch(r"\{([\w,-]+)\}", placeholder):
        return frozenset(found[1].split(",")), False
    if re.fullmatch(r"[a-z][\w-]+(,[a-z][\w-]+)+", placeholder):
        return frozenset(placeholder.split(",")), True
    if found := re.search(r"allowed values: ([\w, ]+?)(?: \(|$)", description):
        return frozenset(found[1].replace(" ", "").split(",")), False
    bullets = [found[1] for line in block if (found := re.match(r"\s+- ([\w+-]+):", line))]
    return frozenset(bullets) if placeholder == "MODE" else frozenset(), False
