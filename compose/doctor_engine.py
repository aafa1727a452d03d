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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from command import CommandFailed, have, run
from compose.doctor_facts import Distribution
from errors import HostLacks, NetworkFailed
from paths import home, replacing
from say import step

PID_FILE: Final = Path("/var/run/docker.pid")
START_S: Final = 60.0
STOP_S: Final = 60.0
PLUGINS: Final = ("docker-compose", "docker-buildx")
_REST: Final = {"git": "git ca-certificates", "mmdebstrap": "mmdebstrap"}
PACKAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "bookworm": {
        "engine": "docker.io iptables ca-certificates", "client": "docker.io",
        "compose": "docker-compose", "buildx": "docker-buildx", **_REST,
    },
    "debian": {
        "engine": "docker.io docker-cli iptables ca-certificates", "client": "docker-cli",
        "compose": "docker-compose", "buildx": "docker-buildx", **_REST,
    },
    "ubuntu": {
        "engine": "docker.io iptables ca-certificates", "client": "docker.io",
        "compose": "docker-compose-v2", "buildx": "docker-buildx", **_REST,
    },
    "docker-ce": {
        "engine": "docker-ce", "client": "docker-ce-cli",
        "compose": "docker-compose-plugin", "buildx": "docker-buildx-plugin", **_REST,
    },
    "fedora": {
        "engine": "moby-engine docker-cli iptables-nft ca-certificates", "client": "docker-cli",
        "compose": "docker-compose", "buildx": "docker-buildx", "git": "git",
    },
}  # fmt: skip
"""Package names by system and need. Debian 12 has no compose v2: it comes from trixie, see below."""


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


def family(distribution: Distribution, installed: Collection[str] = ()) -> str:
    """The row of PACKAGES for a system; Docker's own packages (docker-ce) are not mixed with others."""
    if "docker-ce" in installed or "docker-ce-cli" in installed:
        return "docker-ce"
    kin = (distribution.id, *distribution.like)
    if distribution.id == "debian" and distribution.codename == "bookworm":
        return "bookworm"
    return next((name for name in kin if name in PACKAGES), "debian")


def packages(row: str, needs: Collection[str]) -> list[str]:
    """The packages of a row of PACKAGES that serve the needs, each once."""
    words = [word for need, text in PACKAGES[row].items() if need in needs for word in text.split()]
    return list(dict.fromkeys(words))


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


def install(distribution: Distribution, needs: Collection[str]) -> None:
    """Install what serves the needs (keys of PACKAGES's rows) from the distribution, and name it.

    Raises:
        HostLacks: an unknown package manager, or it refused.
        NetworkFailed: the package lists could not be fetched.
    """
    wanted = packages(family(distribution, _installed()), needs)
    if have("apt-get") and distribution.codename == "bookworm" and set(PLUGINS) & set(wanted):
        _update()
        wanted = _plugins_for_bookworm(wanted)
    install_packages(debian=wanted, fedora=wanted)


def install_packages(*, debian: Sequence[str], fedora: Sequence[str]) -> None:
    """Install further packages by the distribution's manager, under the names they have there."""
    if have("apt-get"):
        _update()
        step("doctor", "installing " + ", ".join(debian))
        _as_root("apt-get", "install", "-y", "--no-install-recommends", *debian)
        step("doctor", "installed " + ", ".join(debian))
    elif have("dnf"):
        _as_root("dnf", "install", "-y", *fedora)
        step("doctor", "installed " + ", ".join(fedora))
    else:
        raise HostLacks("neither apt-get nor dnf is here", hint="install " + ", ".join(debian))


def _as_root(*words: str, hint: str = "") -> str:
    """Run a program as root, by sudo where we are not; its output goes to the doctor's log."""
    prefix = [] if os.geteuid() == 0 else ["sudo"]
    log = home() / "logs" / "doctor.log"
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        return run([*prefix, *words], env=env, log=log).out
    except CommandFailed as error:
        raise HostLacks(error.what, why=error.why, hint=hint or f"see {log}") from error


def _plugins_for_bookworm(wanted: Sequence[str]) -> list[str]:
    """Make trixie's plugins available; a trixie source that the user has is left as it is, only asked."""
    form = "$(REPO_URI)|$(ORIGIN)|$(CODENAME)|$(COMPONENT)|$(SIGNED_BY)"
    targets = run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    sources = parse_sources(targets.out)
    if any(source.codename == "trixie" for source in sources):
        return [f"{package}/trixie" if package in PLUGINS else package for package in wanted]
    _add_trixie(sources)
    return list(wanted)


def _update() -> None:
    try:
        _as_root("apt-get", "update", "-q")
    except HostLacks as error:
        raise NetworkFailed("apt-get update failed", why=error.why, hint="apt-get update") from error


def _installed() -> list[str]:
    if not have("dpkg-query"):
        return []
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


def _write_as_root(path: Path, text: str) -> None:
    if os.geteuid() == 0:
        with replacing(path) as temporary:
            temporary.write_text(text)
        return
    run(["sudo", "tee", path], stdin=text)


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def daemon() -> str | None:
    """The path of dockerd, also where a plain user's PATH has no sbin."""
    return shutil.which("dockerd", path=_path())


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
    program = daemon()
    if program is None:
        raise HostLacks("dockerd is not installed", hint="./inv doctor --install")
    _remove_stale_pid_file()
    log = home() / "logs" / "dockerd.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        start_of_log = output.tell()
        process = subprocess.Popen(
            [program],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "PATH": _path()},
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
