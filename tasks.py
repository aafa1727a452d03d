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
