"""Runs everything that proves the project: style, types, scripts, tests. Behind the task `test`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from command import have
from errors import HostLacks
from paths import ROOT
from say import step

LONG: Final = ("rocm_build", "faults")
TOOLS: Final = {
    "shellcheck": ("shellcheck", "ShellCheck"),
    "chromium|chromium-browser|google-chrome": ("chromium", "chromium"),
    "fc-list": ("fontconfig fonts-dejavu-core", "fontconfig dejavu-sans-fonts"),
}
"""Programs that tests run (any of the names between bars): their packages on Debian and on Fedora."""
SCRIPTS: Final = ("inv", ".ci/run")
SHELLCHECK: Final = ("shellcheck", "--shell", "sh", "--severity", "warning", "--exclude", "SC2034,SC1087")
"""SC2034: variables of a script that others source look unused; SC1087: sh has no arrays to mix up."""
PYTEST_CODES: Final = {0: 0, 1: 1, 2: 130, 3: 1, 4: 2, 5: 2}
"""pytest's exit codes in ours: 2 = interrupted, 3 = its own fault, 4 = usage, 5 = no test was chosen."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which tests to run.

    Args:
        unit: only tests/unit: seconds, no Docker.
        everything: also what takes an hour (LONG).
        gpu: also what needs a gfx1151.
        arguments: passed on to pytest.
    """

    unit: bool = False
    everything: bool = False
    gpu: bool = False
    arguments: Sequence[str] = ()

    def pytest(self) -> list[str]:
        """The command line of pytest."""
        left_out = self.left_out()
        marks = ["-m", " and ".join(f"not {mark}" for mark in left_out)] if left_out else []
        folder = ["tests/unit"] if self.unit else []
        return [sys.executable, "-m", "pytest", *marks, *folder, *self.arguments]

    def left_out(self) -> list[str]:
        """The marks whose tests do not run."""
        long = [] if self.everything else list(LONG)
        return [*([] if self.gpu else ["gpu"]), *long]


def missing_tools() -> list[str]:
    """Programs that tests need and this host lacks."""
    return [names for names in TOOLS if not any(have(name) for name in names.split("|"))]


def require_tools() -> None:
    """Refuse to run tests whose programs are missing.

    Raises:
        HostLacks: it names them.
    """
    missing = missing_tools()
    if missing:
        raise HostLacks(f"tests need {', '.join(missing)}", hint="./inv test --install")


def install_tools() -> None:
    """Install those programs from the distribution."""
    from compose import doctor_engine

    missing = missing_tools()
    if missing:
        debian, fedora = (" ".join(TOOLS[name][i] for name in missing).split() for i in (0, 1))
        doctor_engine.install_packages(debian=debian, fedora=fedora)


def run(choice: Choice) -> int:
    """Run all; every part runs even if one before it failed. Returns the first code that is not 0."""
    step("test", "not run: tests marked " + ", ".join(choice.left_out()))
    parts = [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy", "--no-error-summary", "."],
    ]
    codes = [_run([sys.executable, "-m", *part]) for part in parts]
    if not choice.unit:
        scripts = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("images/programs/*.sh"))
        codes.append(_run([*SHELLCHECK, *SCRIPTS, *scripts]))
    code = PYTEST_CODES.get(_run(choice.pytest()), 1)
    return code or max(codes)


def _run(argv: Sequence[str]) -> int:
    step("test", " ".join(argv).replace(sys.executable, "python"))
    try:
        return subprocess.run(argv, cwd=ROOT, check=False).returncode
    except FileNotFoundError as error:
        raise HostLacks(f"{argv[0]} is not installed", hint="./inv test --install") from error
