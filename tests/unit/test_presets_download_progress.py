"""What is shown of a download, and what is asked for on the command line."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from errors import BadInput
from presets import download_progress, models_table
from presets.download_progress import Bars, Plain, Rate, Sight, duration, line, progress
from presets.models import Row, Verdict

FILES = [
    Sight(name="a", done=100 << 20, total=400 << 20),
    Sight(name="b", done=0, total=100 << 20),
    Sight(name="c", done=7, total=7),
]


def test_a_line_tells_done_rate_and_time_left() -> None:
    assert line(FILES, 1 << 20) == "100.0 MiB of 500.0 MiB (20 %), 1.0 MiB/s, 7 min left · a 25 %"
    assert line(FILES, 0) == "100.0 MiB of 500.0 MiB (20 %), 0 B/s · a 25 %"
    assert line([], 0) == "0 B of 0 B (100 %), 0 B/s"


def test_rate_is_over_the_last_seconds_and_never_negative() -> None:
    rate = Rate()
    assert [rate.at(0, 0), rate.at(2, 200), rate.at(4, 400)] == [0, 100, 100]
    assert rate.at(4 + download_progress.RATE_OVER_S, 400) == 0
    assert rate.at(100, 0) == 0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (89, "89 s"), (3000, "50 min"), (9000, "2 h 30 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_plain_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Plain(every_s=1000) as view:
        view.show(FILES)
        assert capsys.readouterr().err == ""
        view.last -= 2000
        view.show(FILES)
        view.show(FILES)
    assert capsys.readouterr().err.count("100.0 MiB of 500.0 MiB") == 1


def test_only_a_long_read_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"x" * 1000)

    def read(_: Path, on_bytes: Callable[[int], None]) -> str:
        on_bytes(400)
        on_bytes(600)
        return "sum"

    monkeypatch.setattr(download_progress, "progress", lambda: Plain(every_s=0))
    assert download_progress.watched(file, read) == "sum"
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(download_progress, "WORTH_WATCHING", 1000)
    monkeypatch.setattr(download_progress, "SHOW_EVERY_S", -1)
    assert download_progress.watched(file, read) == "sum"
    assert "m.gguf 40 %" in capsys.readouterr().err


def test_bars_are_for_terminals_only() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(progress(Terminal()), Bars)
    assert isinstance(progress(io.StringIO()), Plain)


def test_bars_follow_files() -> None:
    bars = Bars()
    bars.show(FILES)
    tasks = bars.bars.tasks
    assert [(task.description, task.completed, task.total) for task in tasks] == [
        ("all", (100 << 20) + 7, (500 << 20) + 7),
        ("a", 100 << 20, 400 << 20),
        ("b", 0, 100 << 20),
        ("c", 7, 7),
    ]


@pytest.mark.parametrize(
    ("words", "rate"),
    [("", None), ("64K", 65536), ("20M", 20 << 20), ("1.5g", 3 << 29), ("100000", 100000)],
)
def test_a_cap_is_read(words: str, rate: int | None) -> None:
    assert models_table.rate(words) == rate


@pytest.mark.parametrize("words", ["fast", "-1M", "10", "1T", "M", "20 M B"])
def test_a_bad_cap_is_refused(words: str) -> None:
    with pytest.raises(BadInput, match="--limit"):
        models_table.rate(words)


def test_the_table_names_what_is_here() -> None:
    row = Row(
        model="m", kind="quant", name="Q", licence="MIT", bytes=1 << 30, shards=3, here=0, damaged=0,
        kld=0.1, top1_percent=92.3, family=None,
    )  # fmt: skip
    states = [(0, 0, "-"), (2, 0, "2 of 3"), (3, 0, "whole"), (2, 1, "1 of 3 unverified")]
    for here, damaged, words in states:
        text = models_table.text([Row(**{**vars(row), "here": here, "damaged": damaged})])
        assert f"  {words} " in text
    assert "92.3 %" in text


def test_a_verdict_tells_the_speed() -> None:
    verdict = Verdict(path=Path("/x/a.gguf"), bytes=1 << 30, seconds=0.5, fault="")
    assert models_table.verdict_line(verdict) == "a.gguf: right (1.0 GiB at 2.0 GiB/s)"
    broken = Verdict(path=Path("/x/a.gguf"), bytes=1, seconds=0.0, fault="sha256 1, must be 2")
    assert "DAMAGED: sha256 1, must be 2" in models_table.verdict_line(broken)


@pytest.mark.parametrize(("files", "ranges"), [(0, 1), (1, 0), (-1, 1), (99, 1), (1, 99)])
def test_counts_that_cannot_be_meant_are_refused(files: int, ranges: int) -> None:
    with pytest.raises(BadInput, match="it wants 1 to"):
        models_table.options("", files, ranges)
    assert models_table.options("1M", 2, 3).ranges == 3
