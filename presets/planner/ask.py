"""The planner's door for tasks: names and text in, a plan out. Reads files and this host."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from errors import BadInput
from patches import traits
from presets.planner import headers, host, log
from presets.planner.assess import Plan, Question, plan
from presets.planner.log import Logged
from presets.planner.options import Options, override
from presets.planner.terms import Budget, Term, device

if TYPE_CHECKING:
    from presets.schema import Preset


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asked a plan for; the fields are the options of `plan`."""

    preset: str = ""
    gguf: str = ""
    draft: str = ""
    settings: tuple[str, ...] = ()
    free_gib: float | None = None
    reserve_gib: float | None = None
    engine: str = ""
    flavour: str = ""

    @classmethod
    def of(
        cls,
        preset: str,
        gguf: str,
        draft: str,
        settings: Iterable[str],
        free: float | None,
        reserve: float | None,
        engine: str,
        flavour: str,
    ) -> Request:
        """A request from the words of a command line, where numbers may still be text.

        Raises:
            BadInput: an amount of memory that is not a number.
        """
        return cls(
            preset=preset, gguf=gguf, draft=draft, settings=tuple(settings), free_gib=_gib("--free", free),
            reserve_gib=_gib("--reserve", reserve), engine=engine, flavour=flavour,
        )  # fmt: skip


def _gib(name: str, value: float | str | None) -> float | None:
    try:
        return None if value in (None, "") else float(value)
    except ValueError:
        raise BadInput(f"{name} {value} is not a number of GiB", hint=f"{name} 106.5") from None


def question(request: Request) -> tuple[Question, str]:
    """Everything a plan needs, and where its headers come from.

    Raises:
        BadInput: a file, preset or setting that cannot be used.
        HostLacks: this host's memory cannot be read.
    """
    if request.preset and request.gguf:
        raise BadInput("--preset and --gguf exclude each other", hint="give one of them")
    if request.draft and not request.gguf:
        raise BadInput("--draft goes with --gguf", hint="a preset names its head itself: --set head=NAME")
    settings = pairs(request.settings)
    return _of_file(request, settings) if request.gguf else _of_preset(request, settings)


def answer(request: Request) -> tuple[Plan, str]:
    """The plan, and where its headers come from."""
    asked, origin = question(request)
    return judge(asked), origin


def judge(asked: Question, projection: Sequence[Term] = ()) -> Plan:
    """The plan of a question, with warnings and advice."""
    return plan(
        asked.header, asked.draft, asked.options, asked.traits, asked.device, asked.budget,
        preset=asked.preset, outlined=asked.outlined, projection=projection,
    )  # fmt: skip


def pairs(settings: Iterable[str]) -> dict[str, str]:
    """`key=value` words as a mapping.

    Raises:
        BadInput: a word without `=`, or a key given twice.
    """
    found: dict[str, str] = {}
    for word in settings:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadInput(f"--set {word} is not key=value", hint="--set ctx=32768")
        if key.strip() in found:
            raise BadInput(f"--set {key.strip()} is given twice", hint="keep one of them")
        found[key.strip()] = value.strip()
    return found


def _of_file(request: Request, settings: dict[str, str]) -> tuple[Question, str]:
    model = headers.path_of(request.gguf)
    found = headers.of_files(model, headers.path_of(request.draft) if request.draft else None)
    options = Options()
    if "spec_type" not in settings and "spec_types" not in settings and found.draft is not None:
        kind = (
            "draft-mtp"
            if found.draft.metadata.get(f"{found.draft.architecture}.nextn_predict_layers")
            else "draft-simple"
        )
        settings = {**settings, "spec_type": kind}
    asked = Question(
        header=found.header, draft=found.draft, options=override(options, settings),
        traits=traits.load(request.engine or "llama.cpp"), device=device(request.flavour or "rocm"),
        budget=host.budget(free_gib=request.free_gib, reserve_gib=request.reserve_gib),
        preset=model.name,
    )  # fmt: skip
    return asked, found.origin


def _of_preset(request: Request, settings: dict[str, str]) -> tuple[Question, str]:
    from presets import schema

    preset = schema.load(request.preset or "quality", settings)
    return of_preset(preset, request)


def of_preset(preset: Preset, request: Request | None = None) -> tuple[Question, str]:
    """The question that a preset asks, on this host or on the one that the request describes."""
    request = request or Request()
    found = headers.of_preset(preset)
    asked = Question(
        header=found.header, draft=found.draft, options=preset.options(),
        traits=traits.load(request.engine or preset.engine),
        device=device(request.flavour or preset.flavour),
        budget=host.budget(
            free_gib=request.free_gib,
            reserve_gib=preset.guard_gib if request.reserve_gib is None else request.reserve_gib,
            container_mib=preset.memory_limit_mib,
        ),
        preset=preset.name, outlined=found.outlined,
    )  # fmt: skip
    return asked, found.origin


def box(free_gib: float | str | None, reserve_gib: float | str | None) -> Budget:
    """The budget of this host, or of a machine with that much available."""
    return host.budget(free_gib=_gib("--free", free_gib), reserve_gib=_gib("--reserve", reserve_gib))


def log_of(name: str) -> Logged:
    """A server's log from a file, or from standard input for `-`.

    Raises:
        BadInput: it cannot be read.
    """
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInput(
            f"cannot read {name}", why=error.strerror or "", hint="./inv logs > server.log"
        ) from error
    return log.parse(text)
