"""API keys come from files, so that none is seen in a list of processes."""

from __future__ import annotations

from pathlib import Path

from errors import BadInput


def read(path: str | Path) -> str:
    """The key in a file, without the white space around it.

    Raises:
        BadInput: the file cannot be read, or is empty.
    """
    try:
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the key file {path}", why=str(error)) from error
    if not key:
        raise BadInput(f"the key file {path} is empty")
    return key
