"""What `docker compose config` gives back equals what was meant, for every trap. Needs no daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from check_jsonschema.builtin_schemas import get_builtin_schema  # type: ignore[import-untyped]
from jsonschema import Draft7Validator

import command
from presets import schema
from tests.makers.rendering import rendered

TRAPS: Mapping[str, Mapping[str, Any]] = {
    "dollars": {"chat_template_kwargs": {"note": "cost $5 ${X} $NAME $$ $} ${1} $1"}},
    "quotes": {"chat_template_kwargs": {"preserve_thinking": True, "a": 'it\'s "x" y', "back\\slash": "\\n"}},
    "letters": {"chat_template_kwargs": {"grüße": "日本語 🙂 \u2028 \x85"}, "alias": "Größe 7"},
    "spaces": {"alias": "a name with  spaces"},
    "words": {"alias": "yes", "extra_args": ["--seed", "-1", "--tags", "on,off,~,null,1e5,010"]},
    "yaml": {"alias": "- &a *b !c #d: [e] {f} | > % @ `g`"},
    "variables": {"environment": {"A": "$B ${C} $$", "D": "no", "E": "08080", "F": ""}},
}


def config(path: Path) -> dict[str, Any]:
    done = command.run(["docker", "compose", "--file", path, "config", "--format", "json"])
    assert "variable is not set" not in done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def undoubled(words: list[str]) -> list[str]:
    """`config` prints a file that can be read again: it doubles each `$` once more."""
    return [word.replace("$$", "$") for word in words]


@pytest.mark.parametrize("trap", TRAPS)
def test_compose_reads_what_was_meant(trap: str, tmp_path: Path) -> None:
    minimal = {"purpose": "p", "flavour": "cpu", "model": "m", "quant": "q", "ctx": "4096"}
    made = rendered(schema.parse({**minimal, **TRAPS[trap]}, name="trap"))
    path = tmp_path / "compose.yaml"
    path.write_text(made.files["compose.yaml"], encoding="utf-8")
    service = config(path)["services"]["llama-server"]
    assert undoubled(service["command"]) == list(made.argv)
    wanted = TRAPS[trap].get("environment", {})
    assert dict(zip(wanted, undoubled(list(service.get("environment", {}).values())), strict=True)) == wanted


@pytest.mark.parametrize("name", schema.names())
def test_rendered_files_are_valid_compose_files(name: str, tmp_path: Path) -> None:
    import yaml

    text = rendered(schema.load(name)).files["compose.yaml"]
    Draft7Validator(get_builtin_schema("vendor.compose-spec")).validate(yaml.safe_load(text))
    path = tmp_path / "compose.yaml"
    path.write_text(text, encoding="utf-8")
    found = config(path)
    assert found["name"] == rendered(schema.load(name)).project
    assert found["services"]["llama-server"]["restart"] == "on-failure:3"
