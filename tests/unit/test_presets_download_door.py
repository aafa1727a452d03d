"""Who is asked, with which token, and where a redirect may lead (no network)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import requests

from errors import HostLacks, NetworkFailed
from presets import download_door
from presets.download_door import Door, Passing, hub, reason, shown


def test_the_endpoint_and_token_come_from_the_usual_variables(tmp_path: Path) -> None:
    bare = {"HOME": str(tmp_path)}
    assert hub(bare).endpoint == download_door.DEFAULT_ENDPOINT
    assert hub(bare).token is None
    assert hub({**bare, "HF_ENDPOINT": "https://mirror.example/"}).endpoint == "https://mirror.example"
    assert hub({**bare, "HF_TOKEN": " hf_a\n"}).token == "hf_a"


def test_the_token_file_is_found_where_the_hubs_client_puts_it(tmp_path: Path) -> None:
    for environ, folder in (
        ({"HOME": str(tmp_path)}, tmp_path / ".cache/huggingface"),
        ({"HOME": "/none", "XDG_CACHE_HOME": str(tmp_path / "x")}, tmp_path / "x/huggingface"),
        ({"HOME": "/none", "HF_HOME": str(tmp_path / "hf")}, tmp_path / "hf"),
    ):
        folder.mkdir(parents=True)
        (folder / "token").write_text(f"hf_{folder.name}\n")
        assert hub(environ).token == f"hf_{folder.name}"
    (tmp_path / "other").write_text("hf_other")
    assert hub({"HOME": "/none", "HF_TOKEN_PATH": str(tmp_path / "other")}).token == "hf_other"


@pytest.mark.parametrize("token", ["hf_a b", "hf_ä", "hf_\x07"])
def test_what_cannot_be_a_token_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(HostLacks, match="not one") as caught:
        hub({"HOME": "/none", "HF_TOKEN": token})
    assert token not in str(caught.value)


def test_no_secret_in_what_is_shown() -> None:
    assert shown("https://user:pw@host:8/a/b?Signature=abc#f") == "https://host:8/a/b"
    assert "hf_a" not in repr(Door(token="hf_a"))
    inner = OSError("GET /blob?Signature=abc failed")
    outer = requests.ConnectionError("https://host/blob?Signature=abc")
    outer.__cause__ = inner
    assert reason(outer) == "OSError: GET /blob?… failed"


class Answers:
    """A session that gives prepared answers and keeps what it was asked."""

    def __init__(self, *answers: tuple[int, dict[str, str]]) -> None:
        self.answers = list(answers)
        self.asked: list[requests.PreparedRequest] = []

    def get(self, url: str, *, headers: dict[str, str], auth: Any, **_: Any) -> requests.Response:
        self.asked.append(requests.Request("GET", url, headers=headers, auth=auth).prepare())
        response = requests.Response()
        response.status_code, found = self.answers.pop(0)
        response.headers.update(found)
        response.raw = io.BytesIO()
        return response


def ask(session: Answers, door: Door, url: str = "https://hub.example/o/r") -> download_door.Answer:
    with download_door.opened(door, session, url, (0, None)) as answer:  # type: ignore[arg-type]
        return answer


HOME = Door(endpoint="https://hub.example", token="hf_a")


def test_a_renamed_repository_is_followed_with_the_token_and_another_host_without() -> None:
    session = Answers(
        (307, {"Location": "/new/name"}),
        (
            302,
            {"Location": "https://bytes.example/x", "X-Linked-Size": "5", "X-Linked-Etag": f'"{"a" * 64}"'},
        ),
        (200, {"Content-Length": "5", "ETag": '"other"'}),
    )
    answer = ask(session, HOME)
    assert [request.headers.get("Authorization") for request in session.asked] == [
        "Bearer hf_a",
        "Bearer hf_a",
        None,
    ]
    assert session.asked[1].url == "https://hub.example/new/name"
    assert (answer.sha256, answer.linked_size, answer.total) == ("a" * 64, 5, 5)


@pytest.mark.parametrize(
    "other", ["http://hub.example/x", "https://hub.example:8443/x", "https://hub.example.org/x"]
)
def test_scheme_port_and_host_all_count_as_another_place(other: str) -> None:
    door = Door(endpoint="http://hub.example", token="hf_a")
    start = "http://hub.example/o/r"
    session = Answers((302, {"Location": other}), (200, {"Content-Length": "5"}))
    ask(session, door, start)
    told = session.asked[1].headers.get("Authorization")
    assert told == ("Bearer hf_a" if other == "http://hub.example/x" else None)


def test_a_redirect_out_of_https_is_not_followed() -> None:
    session = Answers((302, {"Location": "http://bytes.example/x"}))
    with pytest.raises(NetworkFailed, match="leaves https"):
        ask(session, HOME)
    assert len(session.asked) == 1


def test_offline_asks_nobody() -> None:
    session = Answers()
    assert not hub({"HOME": "/none"}).offline
    with pytest.raises(NetworkFailed, match="HF_HUB_OFFLINE") as caught:
        ask(session, hub({"HOME": "/none", "HF_HUB_OFFLINE": "1"}))
    assert caught.value.exit_code == 5
    assert not session.asked


def test_a_circle_of_redirects_ends() -> None:
    session = Answers(*[(302, {"Location": "/again"})] * 20)
    with pytest.raises(NetworkFailed, match="redirects"):
        ask(session, HOME)


@pytest.mark.parametrize(
    ("span", "content_range", "good"),
    [
        ((10, None), "bytes 10-99/100", True),
        ((10, 50), "bytes 10-49/100", True),
        ((10, 50), "bytes 10-29/*", True),
        ((10, None), "bytes 9-99/100", False),
        ((10, None), "bytes 10-5/100", False),
        ((10, 50), "bytes 10-50/100", False),
        ((10, None), "bytes 10-/100", False),
        ((10, None), "10-99/100", False),
        ((10, None), "", False),
        ((10, None), "bytes */100", False),
    ],
)
def test_content_range_is_held_against_the_request(
    span: tuple[int, int | None], content_range: str, good: bool
) -> None:
    session: Any = Answers((206, {"Content-Range": content_range}))
    if not good:
        with pytest.raises(Passing), download_door.opened(HOME, session, "https://hub.example/f", span):
            pytest.fail("accepted")
        return
    with download_door.opened(HOME, session, "https://hub.example/f", span) as answer:
        assert answer.start == span[0]
