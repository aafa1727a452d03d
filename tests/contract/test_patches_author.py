"""Tending a series: new, refreshed and retired patches, with comments and order of series.yaml kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from errors import BadInput
from patches import author, diff, series, tree
from patches.states import State
from tests.contract.test_patches_tree import Upstream, git, text


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    monkeypatch.setenv("HALOFORGE_HOME", str(tmp_path / "home"))
    made = Upstream(tmp_path)
    made.patch("L1", {"src/f.c": text(l10="one")})
    commented = "# the order matters\n" + (made.folder / "series.yaml").read_text()
    (made.folder / "series.yaml").write_text(as_we_write_it(commented))
    return made


def as_we_write_it(dumped: str) -> str:
    """PyYAML puts list items at the margin and sorts keys; ours are indented and begin with the id."""
    head, _, body = dumped.partition("patches:\n")
    lines = [line[2:] for line in body.splitlines()]
    lines.sort(key=lambda line: (not line.startswith("id:"), not line.startswith("name:")))
    return head + "patches:\n  - " + "\n    ".join(lines) + "\n"


def text_of(upstream: Upstream) -> str:
    return (upstream.folder / "series.yaml").read_text()


def test_an_edit_becomes_a_numbered_patch(upstream: Upstream) -> None:
    engine = upstream.engine()
    place = author.begin(engine)
    assert (place / "src/f.c").read_text() == text(l10="one")
    (place / "src/g.c").write_text(text(l20="mine"))
    (place / "src/more.c").write_text("new\n")
    made = author.finish(engine, name="my-change", purpose="Cures: this", proved_by="tests/x.py::y")
    assert (made.id, made.file, made.purpose) == ("L2", "L2-my-change.patch", "Cures: this")
    assert (tree.patched(engine).path / "src/g.c").read_text() == text(l20="mine")
    assert [v.state for v in tree.status(engine)] == [State.APPLIES] * 2
    assert text_of(upstream).startswith("# the order matters\n")
    assert list(series.of(engine).results) == [engine.pin]
    assert not place.exists()


def test_the_cut_patch_is_accepted_by_git(upstream: Upstream) -> None:
    engine = upstream.engine()
    place = author.begin(engine)
    (place / "src/g.c").write_text(text(l20="mine").rstrip("\n"))
    (place / "run.sh").chmod(0o644)
    (place / "src/f.c").unlink()
    made = author.finish(engine, name="all-kinds", purpose="x", proved_by="x")
    git("checkout", "-q", upstream.base, cwd=upstream.repository)
    for file in ("L1.patch", made.file):
        git("apply", str(upstream.folder / file), cwd=upstream.repository)
    result = tree.patched(engine).path
    assert (upstream.repository / "src/g.c").read_bytes() == (result / "src/g.c").read_bytes()
    assert not (result / "src/f.c").exists()
    assert (result / "run.sh").stat().st_mode & 0o100 == 0


def test_repetitive_places_get_more_context(upstream: Upstream) -> None:
    body = "{\n  a\n  b\n  c\n  d\n}\n"
    base = upstream.commit({"src/r.c": "first\n" + body + "second\n" + body + "third\n"})
    engine = upstream.engine(base)
    (upstream.folder / "series.yaml").write_text("patches: []\n")
    place = author.begin(engine)
    (place / "src/r.c").write_text(
        "first\n" + body + "second\n" + body.replace("  b\n", "  b\n  x\n") + "third\n"
    )
    made = author.finish(engine, name="r", purpose="x", proved_by="x")
    assert tree.status(engine)[0].state is State.APPLIES
    assert "second" in (upstream.folder / made.file).read_text()


def test_nothing_begun_nothing_changed_and_bad_names(upstream: Upstream) -> None:
    engine = upstream.engine()
    with pytest.raises(BadInput, match="there is no edited tree"):
        author.finish(engine, name="x", purpose="x", proved_by="x")
    place = author.begin(engine)
    with pytest.raises(BadInput, match="is there already"):
        author.begin(engine)
    with pytest.raises(BadInput, match="nothing was changed"):
        author.finish(engine, name="x", purpose="x", proved_by="x")
    with pytest.raises(BadInput, match="is no name"):
        author.finish(engine, name="Not A Name", purpose="x", proved_by="x")
    (place / "blob").write_bytes(b"\0\1")
    with pytest.raises(BadInput, match="is not text"):
        author.finish(engine, name="x", purpose="x", proved_by="x")


def test_refresh_takes_an_edited_patch(upstream: Upstream) -> None:
    engine = upstream.engine()
    place = upstream.folder / "L1.patch"
    place.write_bytes(place.read_bytes().replace(b"+one", b"+uno"))
    done = author.refresh(engine)
    assert done[0].startswith("L1: sha256")
    assert (tree.patched(engine).path / "src/f.c").read_text() == text(l10="uno")
    assert author.refresh(engine) == []


def test_refresh_cuts_anew_what_has_moved(upstream: Upstream) -> None:
    git("checkout", "-q", upstream.base, cwd=upstream.repository)
    engine = upstream.engine(upstream.commit({"src/f.c": "above\n" * 5 + text()}))
    place = upstream.folder / "L1.patch"
    place.write_bytes(b"Description: keep me\n\n" + place.read_bytes())
    assert tree.status(engine)[0].offsets == (5,)
    assert author.refresh(engine) == ["L1: cut anew", "results: written anew"]
    assert tree.status(engine)[0].offsets == (0,)
    assert diff.parse(place.read_bytes(), "x").header.startswith("Description: keep me")


def test_drop_keeps_the_reason(upstream: Upstream) -> None:
    engine = upstream.engine()
    author.drop(engine, "L1", because="it is in: b12", evidence="read", verdict="upstream")
    data = series.of(engine)
    assert data.patches == ()
    assert [(d.id, d.because) for d in data.dropped] == [("L1", "it is in: b12")]
    assert not (upstream.folder / "L1.patch").exists()
    assert text_of(upstream).startswith("# the order matters\n")
    place = author.begin(engine)
    (place / "src/g.c").write_text(text(l3="x"))
    assert author.finish(engine, name="next", purpose="x", proved_by="x").id == "L2", "numbers are not reused"


@pytest.mark.parametrize("verdict", ["upstream", "gone"])
def test_drop_refuses(upstream: Upstream, verdict: str) -> None:
    before = text_of(upstream)
    with pytest.raises(BadInput):
        author.drop(
            upstream.engine(),
            "L9" if verdict == "upstream" else "L1",
            because="x",
            evidence="x",
            verdict=verdict,
        )
    assert text_of(upstream) == before
    assert (upstream.folder / "L1.patch").exists()


def test_the_real_series_can_be_written_and_reads_back_alike(tmp_path: Path) -> None:
    from patches import engines

    for name in engines.names():
        engine = engines.load(name)
        copy = tmp_path / name
        shutil.copytree(engine.folder, copy)
        before = series.read(copy)
        source = (copy / "series.yaml").read_text()
        for entry in before.patches:
            source = author.with_field(source, entry.id, "sha256", "a" * 64)
        (copy / "series.yaml").write_text(source)
        after = series.read(copy)
        assert [e.id for e in after.patches] == [e.id for e in before.patches]
        assert {e.sha256 for e in after.patches} == {"a" * 64}
        assert after.dropped == before.dropped
