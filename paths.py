"""Where things are: the checkout, and the folders that hold what Haloforge makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent


def home() -> Path:
    """The folder for everything generated: `HALOFORGE_HOME`, else `.haloforge` in the checkout."""
    return Path(os.environ.get("HALOFORGE_HOME") or ROOT / ".haloforge").absolute()


def models() -> Path:
    """The folder for model files: `HALOFORGE_MODELS`, else `models` below `home()`."""
    return Path(os.environ.get("HALOFORGE_MODELS") or home() / "models").absolute()


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Write a file whole or not at all.

    Yields a temporary path beside `target`; when the block ends without an error it is flushed to
    disk and renamed over `target`, otherwise it is removed and `target` stays as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as done:
            os.fsync(done.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
