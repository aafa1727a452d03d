"""The image's own files, held against the tools and rules that others read them with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import command
from images import recipe
from paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted((ROOT / "images" / "programs").glob("*.sh"))
DOCKERFILE = ROOT / "images" / "Dockerfile"


def tool(name: str) -> str:
    """A program of the development set, which stands beside the interpreter."""
    import sys

    return str(Path(sys.executable).parent / name)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    assert command.run([tool("hadolint"), DOCKERFILE], check=False, timeout=60).out == ""


def test_the_dockerfile_needs_no_frontend_from_a_registry() -> None:
    text = DOCKERFILE.read_text()
    assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE)
    assert not re.search(r"<<-?\s*['\"]?\w", text)
    assert not re.search(r"COPY[^\n]*--(link|exclude)|RUN[^\n]*--network", text)


def test_every_argument_of_the_dockerfile_is_given_and_no_other() -> None:
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE.read_text(), re.MULTILINE))
    from images import base, flavours
    from images.base import BaseImage
    from patches import engines

    flavour = flavours.load("cpu")
    made = recipe.recipe(flavour, base.load(flavour.bases[0]), engines.load(), "x")
    given = recipe.build_arguments(made, BaseImage(tag="t", id="i", origin="o"), epoch=0, ccache="c")
    assert declared == set(given)


def test_every_flavour_is_a_stage() -> None:
    from images import flavours

    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    assert set(flavours.names()) <= stages


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_short_and_is_shell(script: Path) -> None:
    assert len(script.read_text().splitlines()) < 40
    assert "|| true" not in script.read_text()
    command.run(["sh", "-n", script])


def test_the_workflows_are_what_github_reads() -> None:
    command.run(
        [tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", *WORKFLOWS], timeout=60
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_pins_its_actions_and_may_only_read_by_default(path: Path) -> None:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    assert document["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in document["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    assert all("timeout-minutes" in job for job in document["jobs"].values())
    # What comes from outside (a branch name, a user's name) must reach a script as a variable, not as text.
    scripts = [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]
    assert [text for text in scripts if "${{" in text] == []
