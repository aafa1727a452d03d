"""Reading pip's configuration and index pages (no network)."""

from __future__ import annotations

from pathlib import Path

import pytest

import pypi
from errors import NetworkFailed

CONFIG = """\
[global]
cert = /etc/bundle.pem
index-url = https://mirror.example/root/simple/
extra-index-url = file:///a/simple https://u:secret@second.example/simple
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose only pip configuration is `CONFIG`."""
    (tmp_path / "pip.conf").write_text(CONFIG)
    return {
        "HOME": str(tmp_path / "nobody"),
        "XDG_CONFIG_DIRS": str(tmp_path / "none"),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
    }


def test_indexes_come_from_the_configuration(environ: dict[str, str]) -> None:
    assert pypi.indexes(environ) == [
        "https://mirror.example/root/simple",
        "https://u:secret@second.example/simple",
    ]
    assert pypi.settings_of_pip(environ)["cert"] == "/etc/bundle.pem"


def test_environment_wins_and_the_default_is_pips_own(environ: dict[str, str]) -> None:
    assert pypi.indexes({**environ, "PIP_INDEX_URL": "https://other/simple"})[0] == "https://other/simple"
    assert pypi.indexes({"PIP_CONFIG_FILE": "/dev/null"}) == [pypi.DEFAULT_INDEX]


def test_session_trusts_what_pip_trusts(environ: dict[str, str]) -> None:
    with pytest.raises(OSError, match=r"/etc/bundle\.pem"):  # per request, so no environment variable wins
        pypi.session({**environ, "REQUESTS_CA_BUNDLE": ""}).get("https://127.0.0.1:9/")


def test_no_answer_says_which_index_and_no_password() -> None:
    dead = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://user:hunter2@127.0.0.1:9/simple"}
    with pytest.raises(NetworkFailed) as caught:
        pypi.find("my-thing", "b-1.whl", dead)
    assert "127.0.0.1:9" in str(caught.value)
    assert "hunter2" not in str(caught.value)
