"""For all tests: golden files, and a skip counts as a failure unless the test needs the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

GOLDEN = Path(__file__).parent / "golden"

# A busy machine is no fault of the code, so nothing is timed. A pipeline draws the same examples every time
# and so judges the change; by hand every run draws others.
hypothesis.settings.register_profile(
    "haloforge",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("haloforge")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes what is rendered now; read the difference before committing it."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """A function that compares a text with the golden file of that name."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing: run pytest with --update-golden and read it"
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}"

    return compare


def _count_as_failure(report: Any) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"skipped, which counts as a failure here: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that skips itself proves nothing; only `gpu` tests may, where there is no such GPU."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("gpu") is None:
        _count_as_failure(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips itself, as `importorskip` does."""
    report = yield
    if report.outcome == "skipped":
        _count_as_failure(report)
    return report
