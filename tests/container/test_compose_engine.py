"""The doctor and a real Docker daemon: started without an init system, killed, started again, ended.

The daemon runs beside the machine's own, in namespaces of its own, with empty /run and /var/lib/docker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paths import ROOT

ALONE = 'mount -t tmpfs tmpfs /run; mkdir /run/lock; mount -t tmpfs tmpfs /var/lib/docker; "$@"; exit $?'
"""No exec at the end: the shell stays as process 1 and takes in orphans, as an init does."""


def alone(home: Path, body: str) -> dict[str, Any]:
    """Run Python on a machine that has Docker installed but nothing running; `found` is what it reports."""
    head = "import json\nfrom compose import doctor, doctor_engine as engine\nfound = {}\n"
    script = f"{head}{body}\nprint(json.dumps(found))"
    words = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "sh", "-ec", ALONE, "sh"]
    environment = {k: v for k, v in os.environ.items() if k != "DOCKER_HOST"}
    done = subprocess.run(
        [*words, sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=180, env={**environment, "HALOFORGE_HOME": str(home), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "said": done.stderr}


def test_a_daemon_is_started_and_ended(tmp_path: Path) -> None:
    found = alone(
        tmp_path,
        """
found["before"] = engine.answers()
engine.start()
found["started"] = engine.answers()
found["own"] = engine.own_daemon() is not None
found["ended"] = doctor.stop_engine()
found["after"] = engine.answers()
found["again"] = doctor.stop_engine()
""",
    )
    said = found.pop("said")
    assert found == {
        "before": False, "started": True, "own": True, "ended": True, "after": False, "again": False,
    }  # fmt: skip
    assert "started the Docker daemon (pid" in said
    assert "stop --engine" in said


def test_a_killed_daemon_is_started_again_by_the_gate(tmp_path: Path) -> None:
    found = alone(
        tmp_path,
        """
import os, signal, time
engine.start()
pid = engine.own_daemon()
os.kill(pid, signal.SIGKILL)
while engine.own_daemon() is not None and not engine._is_zombie(pid):
    time.sleep(0.1)
found["left"] = engine.PID_FILE.exists()
found["dead"] = not engine.answers()
doctor.gate("cpu")
found["back"] = engine.answers() and engine.own_daemon() != pid
doctor.stop_engine()
""",
    )
    assert (found["left"], found["dead"], found["back"]) == (True, True, True)
    assert "left behind by a daemon that is gone" in found["said"]


def test_what_we_did_not_start_is_not_ended(tmp_path: Path) -> None:
    found = alone(
        tmp_path,
        """
import subprocess, time
foreign = subprocess.Popen(["dockerd"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not engine.answers():
    time.sleep(0.2)
engine.start()
found["ended"] = doctor.stop_engine()
found["runs"] = engine.answers()
foreign.terminate()
foreign.wait()
""",
    )
    assert (found["ended"], found["runs"]) == (False, True)


def test_a_recycled_process_id_is_not_taken_for_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compose import doctor_engine

    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path))
    with subprocess.Popen(["sleep", "60"]) as other:
        (tmp_path / "engine.json").write_text(json.dumps({"pid": other.pid, "began": 1}))
        assert doctor_engine.stop() is False
        assert other.poll() is None
        other.kill()


def test_a_daemon_that_cannot_start_says_why(tmp_path: Path) -> None:
    found = alone(
        tmp_path,
        """
from errors import HostLacks
from pathlib import Path
Path("/etc/docker").mkdir(exist_ok=True)
import subprocess
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/etc/docker"], check=True)
Path("/etc/docker/daemon.json").write_text(json.dumps({"no-such-option": 1}))
try:
    engine.start()
except HostLacks as error:
    found["error"] = str(error)
""",
    )
    assert "does not start" in found["error"]
    assert "no-such-option" in found["error"]
