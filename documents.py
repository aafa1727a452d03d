"""YAML files of ours, read strictly: safe types only, a key given twice is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from errors import BadInput


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a mapping with the same key twice (plain YAML keeps the last one)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise BadInput(
                    f"{node.start_mark.name}:{line}: the key {key!r} is given twice",
                    why=f"first on line {seen[key]}; only one of the two can be meant",
                    hint="remove one of them",
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def read(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        BadInput: the file is missing, not UTF-8, not YAML, or has a key twice; names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInput(f"cannot read {path}", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text", why=str(error)) from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Any:
    """As `read`, from a text; `name` stands for the file in messages."""
    loader = _Strict(text)
    loader.name = name
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise BadInput(f"{name} is not valid YAML", why=" ".join(str(error).split())) from error
    finally:
        loader.dispose()
