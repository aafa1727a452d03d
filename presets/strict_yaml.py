"""YAML as people mean it: scalars keep their spelling until a setting says what type it wants.

PyYAML follows YAML 1.1, where `on` is true, `010` is 8, `1:30` is 90 and a repeated key silently
wins. Here an unquoted scalar stays text of the class `Plain`, the setting that owns it decides, and
whatever two YAML versions read differently is refused with the line it stands on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from errors import BadInput

LARGEST_FILE: Final = 256 * 1024
"""Bytes; a preset is a page of text, anything larger is another file."""
MOST_NODES: Final = 20_000
"""Nodes after anchors are followed, so that a few nested aliases cannot fill the memory."""
DEEPEST: Final = 64
"""Values inside values; an alias that holds itself has no end."""
HINT: Final = "mend the file; ./inv presets.schema says what a preset holds"


class Plain(str):
    """An unquoted scalar: its YAML type is not decided yet."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A mapping as written. `lines` gives the line (from 1) of each top-level key."""

    values: dict[str, Any]
    lines: dict[str, int]
    source: str


def read(path: Path) -> Document:
    """Read a file.

    Raises:
        BadInput: it cannot be read, is not UTF-8, or is not one strict YAML mapping.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise BadInput(f"{path} is too large", why=f"more than {LARGEST_FILE} bytes for a YAML file")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadInput(f"cannot read {path}", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8", why=str(error), hint="save it as UTF-8") from error
    return parse(text, source=str(path))


def parse(text: str, *, source: str = "<text>") -> Document:
    """Parse one YAML document whose root is a mapping with text keys (see the module's docstring)."""
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise BadInput(f"{source} is not valid YAML", why=_reason(error, text), hint=HINT) from error
    except RecursionError:
        raise BadInput(f"{source} cannot be used", why="it is nested too deep", hint=HINT) from None
    if len(nodes) > 1:
        raise BadInput(
            f"{source} holds {len(nodes)} YAML documents", why="one is expected", hint="remove `---`"
        )
    root = nodes[0] if nodes else None
    if root is None:
        raise BadInput(f"{source} is empty", why="a mapping of settings is expected", hint=HINT)
    if not isinstance(root, yaml.MappingNode):
        raise BadInput(
            f"{source} is not a mapping", why="`key: value` lines are expected at its top level", hint=HINT
        )
    reader = _Reader(source)
    values = reader.mapping(root)
    lines = {key.value: key.start_mark.line + 1 for key, _ in root.value if key.value != "<<"}
    return Document(
        values=values, lines={**dict.fromkeys(values, root.start_mark.line + 1), **lines}, source=source
    )


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.nodes = 0
        self.depth = 0

    def value(self, node: yaml.Node) -> Any:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise self.refuse(node, f"more than {MOST_NODES} values once its aliases are followed")
        if self.depth >= DEEPEST:
            raise self.refuse(node, f"values nested deeper than {DEEPEST}, or an alias that holds itself")
        self.depth += 1
        try:
            return self.plain(node)
        finally:
            self.depth -= 1

    def plain(self, node: yaml.Node) -> Any:
        """The value of a node as plain Python: text, lists and mappings."""
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item) for item in node.value]
        assert isinstance(node, yaml.MappingNode)
        return self.mapping(node)

    def scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if node.tag not in _IMPLICIT_TAGS:
            raise self.refuse(node, f"the tag {node.tag.replace('tag:yaml.org,2002:', '!!')} is not allowed")
        if node.style is not None:
            return text
        return None if text in ("", "~", "null", "Null", "NULL") else Plain(text)

    def mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.refuse(key, "a key must be a plain word")
            if key.value == "<<" and key.style is None:
                merged |= self.merge(item)
            elif key.value in own:
                raise self.refuse(key, f"the key {key.value!r} stands here a second time")
            else:
                own[key.value] = self.value(item)
        return {**merged, **own}

    def merge(self, node: yaml.Node) -> dict[str, Any]:
        """What `<<:` brings in; of several mappings the first one wins, as YAML says."""
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                raise self.refuse(part, "`<<` wants a mapping")
            merged = {**self.value(part), **merged}
        return merged

    def refuse(self, node: yaml.Node, why: str) -> BadInput:
        return BadInput(f"{self.source}, line {node.start_mark.line + 1}", why=why, hint=HINT)


_IMPLICIT_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge")
)


def _reason(error: yaml.YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return str(error).splitlines()[0]
    lines = text.splitlines()
    shown = lines[mark.line] if mark.line < len(lines) else ""
    if shown[mark.column : mark.column + 1] == "\t" or "\t" in shown[: len(shown) - len(shown.lstrip())]:
        return f"line {mark.line + 1} is indented with a tab; YAML wants spaces"
    return f"line {mark.line + 1}: {getattr(error, 'problem', error)}"
