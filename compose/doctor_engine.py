"""Installs a Docker engine from the distribution, starts it where no init system does, ends only its own.

The record of a daemon that we started is `engine.json` in the generated folder: its process id and the
time that process began, so that a recycled id is never taken for it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from command import have, run
from compose.doctor_facts import Distribution
from errors import HostLacks, NetworkFailed
from paths import home, replacing
from say import step

PID_FILE: Final = Path("/var/run/docker.pid")
START_S: Final = 60.0
STOP_S: Final = 60.0
PLUGINS: Final = ("docker-compose", "docker-buildx")
TOOLS: Final = ("iptables", "mmdebstrap", "ca-certificates", "git")


@dataclass(frozen=True, kw_only=True)
class Source:
    """One apt repository that the host uses: its base URI, codename and keyring ("" = apt's own)."""

    uri: str
    codename: str
    signed_by: str


def parse_sources(out: str) -> tuple[Source, ...]:
    """Lines URI|ORIGIN|CODENAME|COMPONENT|SIGNED_BY of `apt-get indextargets`; Debian's own main only."""
    found = []
    for line in out.splitlines():
        uri, origin, codename, component, key = (line.split("|") + [""] * 5)[:5]
        if origin == "Debian" and component == "main":
            found.append(Source(uri=uri, codename=codename, signed_by="" if key.startswith("$(") else key))
    return tuple(found)


def packages(distribution: Distribution, *, local_daemon: bool, installed: Sequence[str] = ()) -> list[str]:
    """The packages that bring engine, plugins and the tools the builds use.

    Args:
        local_daemon: False where DOCKER_HOST names a daemon elsewhere: then only client and plugins.
        installed: names already installed; Docker's own packages (docker-ce) are not mixed with Debian's.
    """
    if distribution.id == "fedora" or "fedora" in distribution.like:
        # mmdebstrap makes Debian base images where no registry answers; Fedora's users have one or none.
        engine = ["moby-engine"] if local_daemon else []
        return [
            *engine,
            "docker-cli",
            "docker-buildx",
            "docker-compose",
            "iptables-nft",
            "ca-certificates",
            "git",
        ]
    if any(name in installed for name in ("docker-ce", "docker-ce-cli")):
        return ["docker-buildx-plugin", "docker-compose-plugin", *TOOLS]
    if distribution.id == "ubuntu":
        return ["docker.io", "docker-buildx", "docker-compose-v2", *TOOLS]
    client = [] if distribution.codename == "bookworm" else ["docker-cli"]
    engine = ["docker.io"] if local_daemon or not client else []
    return [*engine, *client, *PLUGINS, *TOOLS]


def trixie_source(sources: Sequence[Source]) -> tuple[str, str]:
    """For Debian 12, which has no compose v2: a source of trixie beside the host's own, and its pin.

    The mirror and keyring are those of the host's bookworm source. Nothing but the two plugins may come
    from it; they need nothing newer than bookworm's libc.

    Raises:
        HostLacks: no source of bookworm to derive it from.
    """
    own = next((source for source in sources if source.codename == "bookworm"), None)
    if own is None:
        raise HostLacks(
            "apt has no source of Debian bookworm",
            why="the docker plugins are taken from the same mirror's trixie",
            hint="apt-get update, then run the same command again",
        )
    key = own.signed_by or "/usr/share/keyrings/debian-archive-keyring.gpg"
    source = f"Types: deb\nURIs: {own.uri}\nSuites: trixie\nComponents: main\nSigned-By: {key}\n"
    pin = (
        "Package: *\nPin: release n=trixie\nPin-Priority: -1\n\n"
        f"Package: {' '.join(PLUGINS)}\nPin: release n=trixie\nPin-Priority: 600\n"
    )
    return source, pin


def install(distribution: Distribution, *, local_daemon: bool = True) -> None:
    """Install what is missing from the distribution's own packages, and name it.

    Raises:
        HostLacks: an unknown package manager, or it refused.
        NetworkFailed: the package lists could not be fetched.
    """
    if have("apt-get"):
        _install_apt(distribution, local_daemon)
    elif have("dnf"):
        wanted = packages(distribution, local_daemon=local_daemon)
        _as_root("dnf", "install", "-y", *wanted)
        step("doctor", "installed " + ", ".join(wanted))
    else:
        raise HostLacks(
            f"{distribution.name} has neither apt-get nor dnf",
            why="packages cannot be installed here",
            hint="install a Docker engine with the buildx and compose plugins by its own package manager",
        )


def _as_root(*words: str, hint: str = "") -> str:
    """Run a program as root, by sudo where we are not; its output goes to the doctor's log."""
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    log = home() / "logs" / "doctor.log"
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    return run([*prefix, *words], env=env, log=log, hint=hint or f"see {log}").out


def _install_apt(distribution: Distribution, local_daemon: bool) -> None:
    before = _installed()
    wanted = [
        p for p in packages(distribution, local_daemon=local_daemon, installed=before) if p not in before
    ]
    if not wanted:
        return
    _update()
    targets = run(
        [
            "apt-get",
            "indextargets",
            "--format",
            "$(REPO_URI)|$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(SIGNED_BY)",
            "Created-By: Packages",
        ]
    )
    sources = parse_sources(targets.out)
    if distribution.codename == "bookworm" and distribution.id == "debian" and set(PLUGINS) & set(wanted):
        if any(source.codename == "trixie" for source in sources):
            wanted = [f"{package}/trixie" if package in PLUGINS else package for package in wanted]
        else:
            _add_trixie(sources)
    step("doctor", "installing " + ", ".join(wanted))
    # An init script may try to start the daemon here; whether it runs is looked at afterwards.
    _as_root("apt-get", "install", "-y", "--no-install-recommends", *wanted)
    step("doctor", "installed " + ", ".join(wanted))


def _update() -> None:
    try:
        _as_root("apt-get", "update", "-q")
    except Exception as error:
        raise NetworkFailed("apt-get update failed", why=str(error), hint="apt-get update") from error


def _installed() -> list[str]:
    done = run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package}\n"], check=False)
    return [line[3:].strip() for line in done.out.splitlines() if line.startswith("ii")]


def _add_trixie(sources: Sequence[Source]) -> None:
    source, pin = trixie_source(sources)
    _write_as_root(Path("/etc/apt/sources.list.d/haloforge-trixie.sources"), source)
    _write_as_root(Path("/etc/apt/preferences.d/haloforge-trixie"), pin)
    step(
        "doctor",
        "added a source of Debian trixie, pinned so that only docker-compose and docker-buildx come from it",
    )
    _update()


def _write_as_root(path: Path, text: str) -> None:
    if os.geteuid() == 0:
        with replacing(path) as temporary:
            temporary.write_text(text)
        return
    run(["sudo", "tee", path], stdin=text)


def answers() -> bool:
    """Whether a Docker daemon answers the client's version question."""
    if not have("docker"):
        return False
    return run(["docker", "version", "--format", "{{.Server.Version}}"], check=False, timeout=30).code == 0


def start() -> None:
    """Start the daemon: by systemd where it is the init, else by hand with a log and a record.

    Raises:
        HostLacks: it cannot be started; the text holds the end of its log.
    """
    if answers():
        return
    if Path("/run/systemd/system").is_dir():
        _as_root("systemctl", "enable", "--now", "docker", hint="journalctl -u docker")
        step("doctor", "started Docker by systemd")
        return
    if os.geteuid() != 0:
        raise HostLacks(
            "the Docker daemon does not run", why="only root can start it", hint="sudo ./inv doctor --install"
        )
    _start_by_hand()


def _start_by_hand() -> None:
    daemon = shutil.which("dockerd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if daemon is None:
        raise HostLacks("dockerd is not installed", hint="./inv doctor --install")
    _remove_stale_pid_file()
    log = home() / "logs" / "dockerd.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    with log.open("ab") as output:
        start_of_log = output.tell()
        process = subprocess.Popen(
            [daemon],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PATH": path},
            cwd="/",
        )
    _record(process.pid)
    until = time.monotonic() + START_S
    while not answers():
        if process.poll() is not None or time.monotonic() > until:
            raise HostLacks(
                "the Docker daemon does not start", why=_tail(log, start_of_log), hint=f"see {log}"
            )
        time.sleep(0.2)
    step("doctor", f"started the Docker daemon (pid {process.pid}, log {log}); ./inv stop --engine ends it")


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n        ".join(lines[-6:]) or "it printed nothing"


def _remove_stale_pid_file() -> None:
    """After a kill -9 the file stays, and dockerd refuses to start while the id in it is anyone's."""
    try:
        pid = int(PID_FILE.read_text())
    except (FileNotFoundError, ValueError):
        return
    if _name(pid) != "dockerd":
        PID_FILE.unlink()
        step("doctor", f"removed {PID_FILE}, left behind by a daemon that is gone")


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _began(pid: int) -> int | None:
    """When a process began, in clock ticks since boot (field 22 of its stat); None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _record_file() -> Path:
    return home() / "engine.json"


def _record(pid: int) -> None:
    with replacing(_record_file()) as temporary:
        temporary.write_text(json.dumps({"pid": pid, "began": _began(pid)}))


def started_before() -> bool:
    """Whether an earlier run of ours started the daemon by hand here, running or not."""
    return _record_file().exists()


def own_daemon() -> int | None:
    """The process id of a running daemon that we started, or None."""
    try:
        record = json.loads(_record_file().read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    pid = int(record["pid"])
    return pid if record["began"] is not None and _began(pid) == record["began"] else None


def stop() -> bool:
    """End the daemon if we started it; True if there was one to end.

    Raises:
        HostLacks: it does not end within a minute.
    """
    pid = own_daemon()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        until = time.monotonic() + STOP_S
        while own_daemon() is not None and not _is_zombie(pid):
            if time.monotonic() > until:
                raise HostLacks(
                    f"the Docker daemon (pid {pid}) does not end",
                    why=f"SIGTERM had no effect for {STOP_S:.0f} s",
                    hint=f"kill -9 {pid}",
                )
            time.sleep(0.2)
    _record_file().unlink(missing_ok=True)
    return pid is not None


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
