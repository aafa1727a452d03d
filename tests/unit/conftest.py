"""Unit tests see a home of their own and no Docker daemon."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("HALOFORGE_", "GGML_", "LLAMA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-daemon-in-unit-tests")
