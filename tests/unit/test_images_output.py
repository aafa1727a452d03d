"""What BuildKit prints: progress read from it, and a failure told in one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from errors import BuildFailed, HaloforgeError, HostLacks, NetworkFailed
from images.failures import explain
from images.progress import Progress, Seen

LOG = Path("/tmp/build.log")

STARTING = "#12 [tools 3/3] RUN packages install ccache cmake g++ ninja-build"
COMPILING = "#13 61.02 [64/226] Building CXX object src/CMakeFiles/llama.dir/llama-vocab.cpp.o"


def test_steps_and_compiled_files_are_counted() -> None:
    seen = Seen()
    assert seen.take(STARTING)
    assert seen.step.startswith("tools 3/3 RUN packages install")
    assert not seen.take(STARTING)
    assert seen.take(COMPILING)
    assert (seen.compiled, seen.to_compile) == (64, 226)


def test_a_compiler_that_prints_brackets_is_not_progress() -> None:
    seen = Seen()
    assert not seen.take("#13 61.02 note: [with T = int]")
    assert not seen.take("#13 CACHED")
    assert seen.cached == 1


def test_every_line_is_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "build.log"
    with Progress(log=log) as progress:
        for line in (STARTING, "#13 0.1 something", COMPILING):
            progress.line(line)
    assert log.read_text().splitlines() == [STARTING, "#13 0.1 something", COMPILING]


def told(text: str, jobs: int = 8) -> HaloforgeError:
    return explain(text, log=LOG, jobs=jobs)


@pytest.mark.parametrize(
    "line",
    [
        "#13 400.1 c++: fatal error: Killed signal terminated program cc1plus",
        "#13 400.1 clang++: error: unable to execute command: Killed (signal 9)",
    ],
)
def test_a_killed_compiler_suggests_fewer_jobs(line: str) -> None:
    error = told(f"{COMPILING}\n{line}\nERROR: failed to solve: exit code: 1")
    assert isinstance(error, BuildFailed)
    assert error.hint == "./inv build --jobs 4"
    assert "Killed" in error.why
    assert "--jobs" not in told(line, jobs=1).hint


def test_a_full_disk_is_the_hosts_fault() -> None:
    error = told("#13 1.0 /out/x: error: No space left on device\nERROR: failed to solve")
    assert isinstance(error, HostLacks)
    assert "docker builder prune" in error.hint


def test_a_moved_archive_names_the_versions_it_has() -> None:
    error = told(
        "#7 2.0 haloforge: pinned hipcc=7.2.4-1, the archive has 7.3.0-1\n"
        "#7 2.0 haloforge: pinned librocblas5=7.2.4-1, the archive has 7.3.0-2\nERROR: failed"
    )
    assert isinstance(error, BuildFailed)
    assert "hipcc=7.2.4-1, the archive has 7.3.0-1" in error.why
    assert "librocblas5=7.2.4-1, the archive has 7.3.0-2" in error.why


def test_an_archive_that_does_not_answer_is_the_networks_fault() -> None:
    error = told(
        "#7 9.1 Err:1 http://archive trixie InRelease\n#7 9.1   Temporary failure resolving 'archive'"
    )
    assert isinstance(error, NetworkFailed)


def test_foreign_device_code_is_told_with_what_was_found() -> None:
    error = told(
        "#9 3.0 haloforge: device code in libggml-hip.so:\n#9 3.0       1 amdgcn-amd-amdhsa--gfx1100\n"
        "#9 3.0 haloforge: expected code for gfx1151 and for nothing else"
    )
    assert isinstance(error, BuildFailed)
    assert error.what == "expected code for gfx1151 and for nothing else"


def test_a_compile_error_shows_its_first_line() -> None:
    error = told(
        "#13 12.0 /src/src/llama.cpp:10:5: error: expected ';' before 'return'\n"
        "#13 12.0 ninja: build stopped: subcommand failed.\nERROR: failed to solve: exit code: 1"
    )
    assert isinstance(error, BuildFailed)
    assert "expected ';'" in error.why
    assert str(LOG) in error.hint


def test_a_daemon_that_went_away_is_the_hosts_fault() -> None:
    text = "ERROR: Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
    assert isinstance(told(text), HostLacks)


def test_an_empty_log_still_gives_an_error() -> None:
    assert told("").why == "it printed nothing"
