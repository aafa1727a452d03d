"""What the bench tasks do: from what the user names to measured points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import paths
import say
from bench import cache, load_time, mtp, slots, subjects, sweep, ubatch
from bench.results import Point, folder
from bench.sweep import Step, Subject, duration
from errors import BadInput
from presets import schema

Steps = Callable[..., list[Step]]

SWEEPS: Final[Mapping[str, Steps]] = {
    "ubatch": ubatch.steps,
    "slots": slots.steps,
    "cache": cache.steps,
    "mtp": mtp.steps,
    "load": load_time.steps,
}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What the user named; `pick` turns it into a subject.

    Args:
        url: a running server; `preset` then only says which model must be behind it.
        gguf, draft: bare model files instead of a preset.
        image: reference of an image of ours; empty takes the one that `deploy` would.
        program: folder with llama-server of this host, instead of an image.
        overrides: settings as text.
    """

    url: str = ""
    key: str | None = None
    preset: str = ""
    gguf: str = ""
    draft: str = ""
    image: str = ""
    program: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)


def pick(choice: Choice, *, default: str = "demo") -> Subject:
    """The subject of a choice.

    Raises:
        BadInput: the choice contradicts itself, or names something that is not there.
    """
    if choice.url:
        _refuse_with_url(choice)
        return subjects.running(choice.url, key=choice.key, preset=choice.preset or None)
    if choice.gguf:
        if choice.preset:
            raise BadInput("both a preset and a model file are named", hint="leave --preset or --gguf out")
        draft = Path(choice.draft) if choice.draft else None
        preset = subjects.file_preset(Path(choice.gguf), draft=draft, overrides=choice.overrides)
    else:
        if choice.draft:
            raise BadInput("a draft head without a model", hint="--gguf MODEL --draft HEAD, or --preset NAME")
        preset = schema.load(choice.preset or default, dict(choice.overrides))
    if choice.program:
        return subjects.of_program(preset, Path(choice.program))
    return subjects.of_image(preset, ref=choice.image or None)


def _refuse_with_url(choice: Choice) -> None:
    named = [name for name in ("gguf", "draft", "image", "program") if getattr(choice, name)]
    if named or choice.overrides:
        what = f"--{named[0]}" if named else "--set"
        raise BadInput(
            f"{what} cannot be used with --url", why="the server runs already", hint="leave one of them out"
        )


def measure(
    name: str, subject: Subject, *, quick: bool = False, again: bool = False, **options: Any
) -> list[Point]:
    """Run one sweep; see `sweep.run` for what a failing point does."""
    steps = SWEEPS[name](subject, quick=quick, **options)
    return sweep.run(name, steps, subject, quick=quick, again=again)


def everything(
    subject: Subject, pair: Subject | None, *, quick: bool = False, again: bool = False
) -> dict[str, list[Point]]:
    """All sweeps; cache and MTP on `pair` where the subject has no head, as they show nothing without one.

    Args:
        pair: a model with a recurrent state and a head; None leaves those two out, aloud.
    """
    import time

    begin = time.monotonic()
    drafting = subject if subject.preset is not None and subject.preset.drafts else pair
    plan: list[tuple[str, Subject | None]] = [
        ("ubatch", subject), ("slots", subject), ("load", subject), ("cache", drafting), ("mtp", drafting),
    ]  # fmt: skip
    found = {}
    for name, one in plan:
        if one is None:
            say.warn(
                f"{name} is left out: {subject.identity.subject} has no draft head; name --gguf and --draft"
            )
            continue
        options = {"synthetic": 0.7} if name == "mtp" and one is pair else {}
        found[name] = measure(name, one, quick=quick, again=again, **options)
    say.step("bench", f"all sweeps took {duration(time.monotonic() - begin)}")
    return found


def compared(a: Choice, b: Choice) -> tuple[Subject, Subject]:
    """Two choices as subjects that can be told apart in the stored results."""
    first, second = pick(a), pick(b)
    if first.identity == second.identity:
        second = replace(
            second,
            identity=second.identity.model_copy(update={"subject": f"{second.identity.subject} again"}),
        )
    return first, second


def side(text: str, base: Choice) -> Choice:
    """`A` or `B` of a comparison: `image:REF`, `program:DIR`, `url:URL` or `preset:NAME`; else a preset.

    Raises:
        BadInput: the word before the colon is none of these.
    """
    kind, colon, rest = text.partition(":")
    if not colon:
        return replace(base, preset=text)
    if kind in ("http", "https"):
        return replace(base, url=text)
    if kind not in ("image", "program", "url", "preset"):
        raise BadInput(
            f"{text!r} is nothing to compare",
            why=f"{kind!r} is no kind",
            hint="image:REF, preset:NAME or a URL",
        )
    match kind:
        case "image":
            return replace(base, image=rest)
        case "program":
            return replace(base, program=rest)
        case "url":
            return replace(base, url=rest)
    return replace(base, preset=rest)


def overrides(texts: Sequence[str]) -> dict[str, str]:
    """Settings given as KEY=VALUE.

    Raises:
        BadInput: one without `=`.
    """
    return {key.replace("-", "_"): value for key, value in _pairs(texts, "--set")}


def heads(texts: Sequence[str]) -> dict[str, Path]:
    """Heads given as NAME=FILE.

    Raises:
        BadInput: one without `=`, or whose file is missing.
    """
    found = {name: Path(file) for name, file in _pairs(texts, "--head")}
    for file in found.values():
        if not file.is_file():
            raise BadInput(f"there is no head {file}", hint="--head NAME=FILE")
    return found


def _pairs(texts: Sequence[str], option: str) -> list[tuple[str, str]]:
    parts = [text.partition("=") for text in texts]
    if wrong := [key for key, equals, _ in parts if not equals]:
        raise BadInput(f"{option} {wrong[0]} has no value", hint=f"{option} {wrong[0]}=VALUE")
    return [(key.strip(), value) for key, _, value in parts]


def pair(base: Choice, trunk: str, head: str) -> Subject | None:
    """The pair for cache and MTP: the one named, else a tiny one made here; None where that cannot be.

    A pair always runs on the image or program of `base`.
    """
    if trunk:
        return pick(replace(base, preset="", gguf=trunk, draft=head, overrides={}))
    made = _tiny_pair()
    return made and pick(replace(base, preset="", gguf=str(made[0]), draft=str(made[1]), overrides={}))


def _tiny_pair() -> tuple[Path, Path] | None:
    """A tiny qwen4exp trunk and head by the tests' makers, which are not part of an installation."""
    import importlib.util

    if importlib.util.find_spec("gguf") is None or importlib.util.find_spec("tests.makers.tiny") is None:
        return None
    maker = importlib.import_module("tests.makers.tiny")
    place = folder() / "pair"
    trunk, head = place / "tiny-qwen4exp.gguf", place / "tiny-qwen4exp-mtp.gguf"
    for path, make in ((trunk, maker.trunk), (head, maker.head)):
        if not path.is_file():
            with paths.replacing(path) as temporary:
                make(temporary)
    return trunk, head


def exit_code(points: Sequence[Point]) -> int:
    """1 when a point failed, else 0."""
    return 1 if sweep.failed(points) else 0
