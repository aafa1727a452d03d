"""Quadlet and Kubernetes files: golden, valid, and their words arrive as they were meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from compose import targets
from errors import BadInput
from presets import schema
from tests.contract.test_compose_config import TRAPS
from tests.makers.rendering import inputs

KUBERNETES = "1.33"


def preset(**settings: Any) -> schema.Preset:
    minimal = {"purpose": "p", "flavour": "cpu", "model": "m", "quant": "q", "ctx": "4096"}
    return schema.parse({**minimal, **settings}, name="trap")


@pytest.mark.parametrize("target", ["quadlet", "kubernetes"])
@pytest.mark.parametrize("name", ["demo", "quality"])
def test_targets_are_as_they_were_reviewed(
    target: str, name: str, golden: Callable[[str, str], None]
) -> None:
    for file, text in targets.maker(target)(inputs(schema.load(name), size=10**11)).items():
        golden(f"{target}/{file}", text)


@pytest.mark.parametrize("name", schema.names())
def test_kubernetes_takes_every_preset(name: str) -> None:
    (text,) = targets.kubernetes(inputs(schema.load(name))).values()
    documents = list(yaml.safe_load_all(text))
    assert [document["kind"] for document in documents] == ["Deployment", "Service", "PersistentVolumeClaim"]
    for document in documents:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    pod = documents[0]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert server["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    gpus = server["resources"].get("limits", {}).get("amd.com/gpu")
    assert gpus == (None if name == "demo" else 1)


def test_kubernetes_takes_keys_and_limits(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("s3cret\n")
    (text,) = targets.kubernetes(inputs(preset(api_key_file=str(keys), memory_limit="12g"))).values()
    deployment, *_ = yaml.safe_load_all(text)
    kubernetes_validate.validate(deployment, KUBERNETES, strict=True)
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    assert server["resources"]["limits"] == {"memory": "12Gi"}
    assert "s3cret" not in str(server["args"])
    assert server["args"][server["args"].index("--api-key-file") + 1] == "/run/secrets/api_key"


@pytest.mark.parametrize("trap", TRAPS)
def test_kubernetes_words_arrive(trap: str) -> None:
    made = inputs(preset(**TRAPS[trap]))
    (text,) = targets.kubernetes(made).values()
    deployment, *_ = yaml.safe_load_all(text)
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    wanted = made.preset.arguments(11434, model="/model/model.gguf")
    assert [expanded(word) for word in server["args"]] == wanted
    variables = {item["name"]: expanded(item["value"]) for item in server.get("env", [])}
    assert variables == made.preset.variables()


def expanded(word: str) -> str:
    """Kubernetes' expansion without variables: `$$` is `$`, `$(NAME)` would be a reference."""
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", word)
    return word.replace("$$", "$")


@pytest.mark.parametrize("trap", TRAPS)
def test_quadlet_words_arrive(trap: str) -> None:
    made = inputs(preset(**TRAPS[trap]))
    (text,) = targets.quadlet(made).values()
    line = next(line for line in text.split("\n") if line.startswith("Exec="))
    assert systemd_words(line.removeprefix("Exec=")) == made.preset.arguments(
        11434, model="/model/model.gguf"
    )


def systemd_words(line: str) -> list[str]:
    """systemd.service(5), command lines: double quotes, C escapes, `%%` and `$$`."""
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    assert " ".join(f'"{word}"' for word in quoted) == line
    return [
        re.sub(r"\\(.)", r"\1", word).replace("%%", "%").replace("$$", "$") for word in quoted
    ]  # fmt: skip


def test_an_unknown_target_names_the_near_one() -> None:
    with pytest.raises(BadInput, match="did you mean 'quadlet'"):
        targets.maker("quadlets")
