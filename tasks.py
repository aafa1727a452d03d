"""The Invoke namespace: typed parameters, docstring = help, one call into a room, print."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.tasks import task

from errors import HaloforgeError


def job(**options: Any) -> Callable[[Callable[..., int | None]], Any]:
    """An Invoke task whose user errors become one message and the exit code of their class."""

    def wrap(body: Callable[..., int | None]) -> Any:
        @functools.wraps(body)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                code = body(*args, **kwargs)
            except HaloforgeError as error:
                print(f"error: {error}", file=sys.stderr)
                sys.exit(error.exit_code)
            except KeyboardInterrupt:
                print("interrupted; run the same command again to go on", file=sys.stderr)
                sys.exit(130)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(141)
            if code:
                sys.exit(code)

        return task(**options)(guarded)

    return wrap


ns = Collection()


# --- patches ---
ENGINE_HELP = "engine: a folder of patches/ (default llama.cpp)"
WITHOUT_HELP = "leave this patch out; may be given several times"
ALSO_HELP = "switch this patch on that is off by default; may be given several times"


@job(help={"engine": ENGINE_HELP})
def fetch(_: Context, engine: str = "llama.cpp") -> None:
    """Fetch the pinned source tree of an engine from the first source that answers, and verify it."""
    from patches import engines
    from patches.fetch import fetch as fetch_tree

    print(fetch_tree(engines.load(engine)))


@job(
    iterable=["without", "also"],
    help={"engine": ENGINE_HELP, "without": WITHOUT_HELP, "also": ALSO_HELP},
)
def patch(
    _: Context,
    engine: str = "llama.cpp",
    without: list[str] | None = None,
    also: list[str] | None = None,
) -> None:
    """Apply an engine's series to its pristine tree, whole or not at all."""
    from patches import engines, tree

    print(tree.patched(engines.load(engine), without=without or (), also=also or ()).path)


@job(
    iterable=["without", "also"],
    help={
        "engine": ENGINE_HELP,
        "tree": "judge this folder instead of the pristine tree",
        "without": WITHOUT_HELP,
        "also": ALSO_HELP,
        "json": "print one JSON document",
    },
)
def patch_status(
    _: Context,
    engine: str = "llama.cpp",
    tree: str = "",
    without: list[str] | None = None,
    also: list[str] | None = None,
    json: bool = False,
) -> int:
    """Say of every patch whether it applies, is upstream, partly so, in conflict, or the tree is foreign."""
    from pathlib import Path

    import say
    from patches import engines, report
    from patches import tree as trees

    pin = engines.load(engine)
    verdicts = trees.status(pin, Path(tree) if tree else None, without=without or (), also=also or ())
    result = report.document(pin, verdicts)
    say.document(result) if json else print(report.table(pin, verdicts))
    return 0 if result["good"] else 1


patch_tasks = Collection("patch")
patch_tasks.add_task(patch, name="apply", default=True)
patch_tasks.add_task(patch_status, name="status")
ns.add_task(fetch)
ns.add_collection(patch_tasks)


# --- images ---
FLAVOUR_HELP = "flavour of the image: cpu, rocm or vulkan"


@job(
    help={
        "flavour": FLAVOUR_HELP,
        "engine": ENGINE_HELP,
        "cpu": "processor for the host part: generic or zen5 (default: the flavour's)",
        "base": "base image, by its name in images/bases.yaml (default: the flavour's first)",
        "jobs": "compile jobs (default: what processors and free memory allow)",
        "push": "push to this reference, HOST/NAME:TAG",
        "json": "print one JSON document",
    },
)
def build(
    _: Context,
    flavour: str = "cpu",
    engine: str = "llama.cpp",
    cpu: str = "",
    base: str = "",
    jobs: int = 0,
    push: str = "",
    json: bool = False,
) -> None:
    """Build the image of a flavour from the patched tree; does nothing if it is there."""
    import say
    from images import build as images_build
    from images import flavours
    from patches import engines, tree

    chosen = flavours.load(flavour, cpu=cpu)
    patched = tree.patched(engines.load(engine))
    record = images_build.build(chosen, patched, jobs=jobs or None, push=push or None, base=base)
    say.document(record.to_json()) if json else print(record.ref)


ns.add_task(build)


# --- checks ---
URL_HELP = "root of the server, as in http://127.0.0.1:8080"
KEY_FILE_HELP = "file that holds the API key"
ONLY_HELP = "run only this check; may be given several times"
ACCEPT_HELP = "do not count a skip of this check as a failure; may be given several times"
REPORT_HELP = {"json": "print one JSON document", "junit": "write JUnit XML to this file"}


def _shown(report: Any, json: bool, junit: str) -> int:
    """Print a report of checks, write its JUnit file, and give its exit code."""
    from pathlib import Path

    import say

    if junit:
        report.write_junit(Path(junit))
    say.document(report.to_json()) if json else print(report.table())
    return 0 if report.passed else 1


def _key(key_file: str) -> str | None:
    """The API key in a file, None where no file is named."""
    from checks.keys import read

    return read(key_file) if key_file else None


@job(
    iterable=["only", "accept"],
    help={
        "url": URL_HELP, "key-file": KEY_FILE_HELP, "only": ONLY_HELP, "accept": ACCEPT_HELP,
        "answer": "pattern that the chat answer must contain", **REPORT_HELP,
    },
)  # fmt: skip
def smoke(
    _: Context,
    url: str = "",
    key_file: str = "",
    answer: str = "",
    only: list[str] | None = None,
    accept: list[str] | None = None,
    json: bool = False,
    junit: str = "",
) -> int:
    """Check in seconds that a server is up, is what was asked for, and answers right."""
    from pathlib import Path

    from checks import smoke as checks_smoke
    from errors import BadInput

    if not url:
        raise BadInput("no server is named", hint="./inv smoke --url http://127.0.0.1:8080")
    report = checks_smoke.run(
        url,
        key=_key(key_file),
        expect=checks_smoke.Expectation(answer=answer or None),
        only=only or (),
        accept=accept or (),
        key_file=Path(key_file) if key_file else None,
    )
    return _shown(report, json, junit)


ns.add_task(smoke)
