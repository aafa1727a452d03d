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
