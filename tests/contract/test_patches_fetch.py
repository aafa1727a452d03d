"""Fetching a pin: from a real git repository and a real local index, with their faults."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tarfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paths
from errors import CheckFailed, HaloforgeError, HostLacks, NetworkFailed
from patches import engines, fetch, manifest, unpack
from tests.contract import package_server as web

FILES = {
    "pkg-1.0/tree/CMakeLists.txt": b"project\n",
    "pkg-1.0/tree/src/a.c": b"int a;\n" * 2000,
    "pkg-1.0/tree/run.sh": b"#!/bin/sh\n",
    "pkg-1.0/setup.py": b"not part of the tree\n",
}
ARCHIVE = web.archive(FILES)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[web.Server]:
    made = web.Server()
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{made.url}/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_CERT", "PIP_EXTRA_INDEX_URL", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with made.running():
        yield made


def pin(folder: Path, *sources: dict[str, Any], commit: str = "a" * 40, **more: Any) -> engines.Engine:
    document = {
        "repository": "https://example.org/x", "commit": commit, "build_number": 7, "licence": "MIT",
        "reviewed": "2026-11-30", "traits": {}, "landmarks": ["CMakeLists.txt"], "sources": list(sources),
        **more,
    }  # fmt: skip
    return engines.parse(document, folder / "demo" / "engine.yaml")


def from_index(sha256: str) -> dict[str, Any]:
    return {
        "kind": "pypi", "project": "pkg", "file": "pkg-1.0.tar.gz", "sha256": sha256, "strip": "pkg-1.0/tree",
    }  # fmt: skip


def git(*words: str, cwd: Path) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *words], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """A repository with a tag v1 and one commit after it; returns it and the commit of v1."""
    place = tmp_path / "upstream"
    (place / "src").mkdir(parents=True)
    git("init", "-q", cwd=place)
    (place / "CMakeLists.txt").write_text("project\n")
    (place / "src/a.c").write_text("int a;\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    git("add", ".", cwd=place)
    git("commit", "-q", "-m", "one", cwd=place)
    git("tag", "-a", "v1", "-m", "v1", cwd=place)
    commit = git("rev-parse", "HEAD", cwd=place)
    (place / "src/a.c").write_text("int b;\n")
    git("commit", "-q", "-a", "-m", "two", cwd=place)
    return place, commit


@pytest.mark.parametrize("form", ["json", "html"])
def test_from_the_index(server: web.Server, tmp_path: Path, form: str) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE, form=form)
    engine = pin(tmp_path, from_index(digest))
    tree = fetch.fetch(engine)
    assert sorted(p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()) == [
        "CMakeLists.txt",
        "run.sh",
        "src/a.c",
    ]
    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tree / "src/a.c").stat().st_mode & 0o777 == 0o644


def test_a_second_fetch_asks_nobody(server: web.Server, tmp_path: Path) -> None:
    engine = pin(tmp_path, from_index(server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)))
    first = fetch.fetched(engine)
    server.asked.clear()
    assert fetch.fetched(engine) == first
    assert server.asked == []


def test_the_first_source_that_answers_is_taken_aloud(
    server: web.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    server.routes["/direct.tar.gz"] = web.content(ARCHIVE)
    gone = {"kind": "archive", "url": f"{server.url}/gone.tar.gz", "sha256": digest, "strip": "pkg-1.0/tree"}
    direct = {**gone, "url": f"{server.url}/direct.tar.gz"}
    fetch.fetch(pin(tmp_path, gone, direct, from_index(digest)))
    said = capsys.readouterr().err
    assert "gone.tar.gz does not answer: 404" in said
    assert "direct.tar.gz: 3 files, verified" in said
    assert not any(path.startswith("/simple") for path in server.asked)


def test_a_port_where_nobody_listens_is_passed_over(server: web.Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}/x.git"
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    assert fetch.fetch(pin(tmp_path, {"kind": "git", "url": dead}, from_index(digest))).is_dir()


def test_a_wrong_checksum_stops_everything(server: web.Server, tmp_path: Path) -> None:
    """Another source might be right, but one that gives other bytes than pinned is to be looked at."""
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    wrong = {"kind": "archive", "url": f"{server.url}/files/pkg-1.0.tar.gz", "sha256": "0" * 64}
    with pytest.raises(CheckFailed, match="is not the pinned file") as refusal:
        fetch.fetch(pin(tmp_path, wrong, from_index(digest)))
    assert refusal.value.exit_code == 1
    assert digest in refusal.value.why
    assert left_in(paths.home() / "sources") == []


def test_a_cut_connection_is_no_checksum_fault(server: web.Server, tmp_path: Path) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    server.routes["/files/pkg-1.0.tar.gz"] = web.cut(ARCHIVE, len(ARCHIVE) // 2)
    with pytest.raises(NetworkFailed) as refusal:
        fetch.fetch(pin(tmp_path, from_index(digest)))
    assert refusal.value.exit_code == 5
    assert left_in(paths.home() / "sources") == []


def test_a_transfer_that_is_cut_once_is_begun_again(
    server: web.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    answers = iter([web.cut(ARCHIVE, 100), web.content(ARCHIVE)])
    server.routes["/files/pkg-1.0.tar.gz"] = lambda request: next(answers)(request)
    assert fetch.fetch(pin(tmp_path, from_index(digest))).is_dir()
    assert "2 more tries" in capsys.readouterr().err


def test_inside_a_git_hook(
    server: web.Server, tmp_path: Path, repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook runs with GIT_DIR and GIT_INDEX_FILE set to its own repository, which must not be touched."""
    place, commit = repository
    for name, value in {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index", "GIT_WORK_TREE": "."}.items():
        monkeypatch.setenv(name, str(tmp_path / "outer" / value))
    engine = pin(tmp_path, {"kind": "git", "url": place.as_uri(), "ref": "refs/tags/v1"}, commit=commit)
    assert (fetch.fetch(engine) / "src/a.c").read_text() == "int a;\n"
    assert not (tmp_path / "outer").exists()


def test_nobody_answers_says_of_each_why(server: web.Server, tmp_path: Path) -> None:
    gone = {"kind": "archive", "url": f"{server.url}/gone", "sha256": "0" * 64}
    with pytest.raises(NetworkFailed) as refusal:
        fetch.fetch(pin(tmp_path, gone, from_index("0" * 64)))
    assert "/gone: 404" in refusal.value.why
    assert "the package index (pkg): " in refusal.value.why


def test_an_index_without_the_file(server: web.Server, tmp_path: Path) -> None:
    server.offer("pkg", "pkg-2.0.tar.gz", ARCHIVE)
    with pytest.raises(NetworkFailed, match="no source of demo"):
        fetch.fetch(pin(tmp_path, from_index("0" * 64)))


@pytest.mark.parametrize("ref", ["", "refs/tags/v1"])
def test_from_git_by_commit_and_by_tag(
    server: web.Server, tmp_path: Path, repository: tuple[Path, str], ref: str
) -> None:
    place, commit = repository
    git("config", "uploadpack.allowAnySHA1InWant", "true", cwd=place)
    engine = pin(tmp_path, {"kind": "git", "url": place.as_uri(), "ref": ref}, commit=commit)
    tree = fetch.fetch(engine)
    assert (tree / "src/a.c").read_text() == "int a;\n"
    assert os.access(tree / "run.sh", os.X_OK)
    assert not (tree / ".git").exists(), "a .git would make the build take its number and commit from it"


def test_git_and_archive_give_one_digest(
    server: web.Server, tmp_path: Path, repository: tuple[Path, str]
) -> None:
    place, commit = repository
    by_git = fetch.fetched(
        pin(tmp_path, {"kind": "git", "url": place.as_uri(), "ref": "refs/tags/v1"}, commit=commit)
    )
    names = git("ls-tree", "-r", "--name-only", commit, cwd=place).split()
    body = web.archive(
        {f"pkg-1.0/tree/{n}": git("show", f"{commit}:{n}", cwd=place).encode() + b"\n" for n in names}
    )
    digest = server.offer("pkg", "pkg-1.0.tar.gz", body)
    assert fetch.fetched(pin(tmp_path, from_index(digest), commit="b" * 40)).digest == by_git.digest


def test_a_moved_tag_stops_everything(
    server: web.Server, tmp_path: Path, repository: tuple[Path, str]
) -> None:
    place, commit = repository
    git("tag", "-f", "v1", cwd=place)
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    source = {"kind": "git", "url": place.as_uri(), "ref": "refs/tags/v1"}
    with pytest.raises(CheckFailed, match="is not the pinned commit"):
        fetch.fetch(pin(tmp_path, source, from_index(digest), commit=commit))


def test_a_commit_that_is_gone_is_never_replaced_by_the_branch(
    server: web.Server, tmp_path: Path, repository: tuple[Path, str]
) -> None:
    place, _ = repository
    with pytest.raises(NetworkFailed) as refusal:
        fetch.fetch(pin(tmp_path, {"kind": "git", "url": place.as_uri()}, commit="c" * 40))
    assert "c" * 40 in str(refusal.value)


def test_git_settings_of_the_user_change_nothing(
    server: web.Server, tmp_path: Path, repository: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, commit = repository
    engine = pin(tmp_path, {"kind": "git", "url": place.as_uri(), "ref": "refs/tags/v1"}, commit=commit)
    before = fetch.fetched(engine).digest
    config = tmp_path / "gitconfig"
    config.write_text(f"[core]\n\tautocrlf = true\n\tattributesFile = {tmp_path}/attributes\n")
    (tmp_path / "attributes").write_text("*.c text eol=crlf\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "second"))
    assert fetch.fetched(engine).digest == before


def test_without_git_the_next_source_is_asked(
    server: web.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    monkeypatch.setenv("PATH", str(tmp_path))
    fetch.fetch(pin(tmp_path, {"kind": "git", "url": "https://example.org/x"}, from_index(digest)))
    assert "git is not installed" in capsys.readouterr().err


def test_a_killed_fetch_is_done_again(server: web.Server, tmp_path: Path) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    engine = pin(tmp_path, from_index(digest))
    reached, go = threading.Event(), threading.Event()
    server.routes["/files/pkg-1.0.tar.gz"] = web.stall(ARCHIVE, len(ARCHIVE) // 2, reached, go)
    script = textwrap.dedent("""
        import json, pathlib, sys
        from patches import engines, fetch
        document = json.loads(sys.argv[1])
        fetch.fetch(engines.parse(document, pathlib.Path(sys.argv[2])))
    """)
    document = engine.model_dump_json(exclude={"name", "folder"})
    child = subprocess.Popen(
        [sys.executable, "-c", script, document, str(tmp_path / "demo/engine.yaml")],
        cwd=paths.ROOT,
        stderr=subprocess.DEVNULL,
    )
    assert reached.wait(30)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    go.set()
    assert not fetch.folder(engine).exists(), "what was begun must not look like what is done"
    assert left_in(paths.home() / "sources") != []
    server.routes["/files/pkg-1.0.tar.gz"] = web.content(ARCHIVE)
    assert (fetch.fetch(engine) / "src/a.c").read_bytes() == FILES["pkg-1.0/tree/src/a.c"]
    assert left_in(paths.home() / "sources") == [fetch.folder(engine).name]


def test_two_fetches_at_once_load_once(server: web.Server, tmp_path: Path) -> None:
    engine = pin(tmp_path, from_index(server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)))
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch.fetch(engine))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [fetch.folder(engine) / "tree"] * 4
    assert server.asked.count("/files/pkg-1.0.tar.gz") == 1


def test_a_pristine_tree_that_was_edited_is_refused(server: web.Server, tmp_path: Path) -> None:
    engine = pin(tmp_path, from_index(server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)))
    tree = fetch.fetch(engine)
    (tree / "src/a.c").write_text("int evil;\n")
    with pytest.raises(CheckFailed, match="was changed after it was fetched") as refusal:
        fetch.fetch(engine)
    assert "src/a.c" in refusal.value.why


def test_a_copied_home_is_good(server: web.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = pin(tmp_path, from_index(server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)))
    before = fetch.fetched(engine)
    subprocess.run(["cp", "-r", str(tmp_path / "home"), str(tmp_path / "moved")], check=True)
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "moved"))
    server.asked.clear()
    assert fetch.fetched(engine).digest == before.digest
    assert server.asked == []


def test_a_tree_digest_on_record_is_compared(server: web.Server, tmp_path: Path) -> None:
    digest = server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)
    with pytest.raises(CheckFailed, match="is not the one on record"):
        fetch.fetch(pin(tmp_path, from_index(digest), tree={"pypi": "0" * 64}))


def test_a_full_disk_is_the_hosts_matter(
    server: web.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/full gives ENOSPC on every write, as a full disk does."""
    engine = pin(tmp_path, from_index(server.offer("pkg", "pkg-1.0.tar.gz", ARCHIVE)))
    real = fetch.download

    def onto_a_full_disk(http: Any, url: str, target: Path, sha256: str, what: str) -> None:
        target.symlink_to("/dev/full")
        real(http, url, target, sha256, what)

    monkeypatch.setattr(fetch, "download", onto_a_full_disk)
    with pytest.raises(HostLacks) as refusal:
        fetch.fetch(engine)
    assert (refusal.value.exit_code, refusal.value.why) == (3, "the disk is full")


def test_a_home_below_a_file(server: web.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "file/home"))
    with pytest.raises(HostLacks):
        fetch.fetch(pin(tmp_path, from_index("0" * 64)))


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "t/a"
    return info


def plain(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = 1
    return info


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([plain("t/../../x")], "leaves the tree"),
        ([plain("/etc/x")], "leaves the tree"),
        ([link("t/l", "../../outside")], "leaves the tree"),
        ([link("t/l", "/etc")], "leaves the tree"),
        ([link("t/l", "d"), plain("t/l/x")], "through a symbolic link"),
        ([plain("t/a")], "two members named"),
        ([special("t/h", tarfile.LNKTYPE)], "no file, folder or symbolic link"),
        ([special("t/h", tarfile.FIFOTYPE)], "no file, folder or symbolic link"),
    ],
)
def test_hostile_archives(tmp_path: Path, members: list[tarfile.TarInfo], reason: str) -> None:
    place = tmp_path / "x.tar.gz"
    place.write_bytes(web.archive({"t/a": b"a", "t/d/b": b"b"}, *members))
    with pytest.raises(HaloforgeError) as refusal:
        unpack.unpack(place, tmp_path / "out", strip="t")
    assert reason in str(refusal.value)
    assert not (tmp_path / "x").exists()


def test_a_damaged_archive_and_one_without_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "x.tar.gz"
    place.write_bytes(ARCHIVE[: len(ARCHIVE) // 2])
    with pytest.raises(CheckFailed, match="cannot be unpacked"):
        unpack.unpack(place, tmp_path / "one", strip="pkg-1.0/tree")
    place.write_bytes(ARCHIVE)
    with pytest.raises(CheckFailed, match="holds no file below elsewhere"):
        unpack.unpack(place, tmp_path / "two", strip="elsewhere")


def test_links_inside_the_tree_are_kept(tmp_path: Path) -> None:
    place = tmp_path / "x.tar.gz"
    place.write_bytes(web.archive({"t/a": b"a", "t/d/b": b"b"}, link("t/d/l", "../a")))
    assert unpack.unpack(place, tmp_path / "out", strip="t") == 3
    assert (tmp_path / "out/d/l").read_bytes() == b"a"
    assert manifest.scan(tmp_path / "out")["d/l"].mode == "120000"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))
