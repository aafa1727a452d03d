"""What a long transfer shows where standard error is a file: lines, and none of a bar's leavings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from patches import fetch

MIB = 1 << 20


class Body(requests.Response):
    """Three pieces of 2 MiB."""

    def iter_content(self, chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[bytes]:
        yield from [b"a" * 2 * MIB, b"b" * 2 * MIB, b"c" * 2 * MIB]


def test_a_quick_transfer_leaves_nothing_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = list(fetch._chunks(Body(), 6 * MIB, "of/engine.tar.gz"))
    assert [piece[:1] for piece in pieces] == [b"a", b"b", b"c"]
    assert capsys.readouterr().err == ""


def test_a_slow_one_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch, "TELL_S", -1.0)
    assert len(b"".join(fetch._chunks(Body(), 6 * MIB, "of/engine.tar.gz"))) == 6 * MIB
    assert capsys.readouterr().err.splitlines() == [
        f"   fetch  engine.tar.gz: {got}.0 MiB of 6.0 MiB" for got in (2, 4, 6)
    ]
