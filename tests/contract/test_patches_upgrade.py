"""Moving a pin: what becomes of each patch on the new tree, and that a failure leaves all as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

import documents
from errors import BadInput, CheckFailed, NetworkFailed
from patches import engines, fetch, tree, upgrade
from patches.states import State
from tests.contract import package_server as web
from tests.contract.test_patches_fetch import server
from tests.contract.test_patches_tree import Upstream, git, text

__all__ = ["server"]

ENGINE = """\
# keep this comment
repository: https://example.org/x
commit: {commit}
tag: b100
build_number: 100
licence: MIT
reviewed: 2026-01-01
landmarks: [CMakeLists.txt]

sources:
  - kind: git
    url: {url}
    ref: refs/tags/b100
  - kind: pypi
    project: pkg
    file: pkg-100.0.0.tar.gz
    sha256: {digest}
    strip: pkg-100.0.0/tree

# of the tree
tree:
  git: {tree}

traits: {{}}
"""


class Pinned:
    """An engine on disk, pinned to b100 of a repository and of an index."""

    def __init__(self, upstream: Upstream, server: web.Server) -> None:
        self.upstream, self.server = upstream, server
        upstream.patch("P1", {"src/f.c": text(l10="one")})
        upstream.patch("P2", {"src/g.c": text(l10="two")})
        git("tag", "b100", upstream.base, cwd=upstream.repository)
        self.path = upstream.folder / "engine.yaml"
        digest = server.offer("pkg", "pkg-100.0.0.tar.gz", self.archive(100, {}))
        known = fetch.fetched(upstream.engine()).digest
        self.path.write_text(
            ENGINE.format(commit=upstream.base, url=upstream.repository.as_uri(), digest=digest, tree=known)
        )

    def archive(self, number: int, files: dict[str, str]) -> bytes:
        base = {"CMakeLists.txt": "project\n", "src/f.c": text(), "src/g.c": text(), **files}
        return web.archive({f"pkg-{number}.0.0/tree/{n}": body.encode() for n, body in base.items()})

    def release(self, number: int, files: dict[str, str]) -> str:
        """A tag in the repository with these changes on the base; returns its commit."""
        git("checkout", "-q", self.upstream.base, cwd=self.upstream.repository)
        commit = self.upstream.commit(files)
        git("tag", "-a", f"b{number}", "-m", "x", cwd=self.upstream.repository)
        return commit

    @property
    def engine(self) -> engines.Engine:
        return engines.parse(documents.read(self.path), self.path)


@pytest.fixture
def pinned(server: web.Server, tmp_path: Path) -> Pinned:
    return Pinned(Upstream(tmp_path), server)


def states(pinned: Pinned, to: str) -> dict[str, State]:
    return {v.id: v.state for v in upgrade.examine(upgrade.candidate(pinned.engine, to))}


def test_a_tag_becomes_a_pin_with_all_its_sources(pinned: Pinned) -> None:
    commit = pinned.release(101, {"src/f.c": "above\n" + text()})
    digest = pinned.server.offer("pkg", "pkg-101.0.0.tar.gz", pinned.archive(101, {}))
    found = upgrade.candidate(pinned.engine, "b101")
    assert (found.engine.commit, found.engine.build_number, found.engine.tag) == (commit, 101, "b101")
    first, second = found.engine.sources
    assert isinstance(first, engines.GitSource)
    assert isinstance(second, engines.PypiSource)
    assert first.ref == "refs/tags/b101"
    assert (second.file, second.sha256) == ("pkg-101.0.0.tar.gz", digest)
    assert second.strip == "pkg-101.0.0/tree"
    assert found.text.startswith("# keep this comment\n")


def test_each_patch_gets_its_word(pinned: Pinned) -> None:
    pinned.release(101, {"src/f.c": "above\n" + text()})
    pinned.release(102, {"src/f.c": text(l10="one")})
    pinned.release(103, {"src/f.c": text(l10="other")})
    assert states(pinned, "b101") == {"P1": State.APPLIES, "P2": State.APPLIES}
    assert states(pinned, "b102") == {"P1": State.UPSTREAM, "P2": State.APPLIES}
    assert states(pinned, "b103") == {"P1": State.CONFLICT, "P2": State.APPLIES}


def test_what_upstream_holds_is_left_out_and_the_rest_is_built(pinned: Pinned) -> None:
    pinned.release(102, {"src/f.c": text(l10="one")})
    found = upgrade.candidate(pinned.engine, "b102")
    verdicts = upgrade.examine(found)
    assert upgrade.needless(verdicts) == ["P1"]
    assert upgrade.in_the_way(verdicts) == []
    made = tree.patched(found.engine, without=upgrade.needless(verdicts))
    assert (made.path / "src/f.c").read_text() == text(l10="one")
    assert (made.path / "src/g.c").read_text() == text(l10="two")


def test_only_adopt_writes(pinned: Pinned) -> None:
    before = pinned.path.read_text()
    old = tree.patched(pinned.engine)
    commit = pinned.release(101, {"src/f.c": "above\n" + text()})
    found = upgrade.candidate(pinned.engine, "b101")
    upgrade.examine(found)
    tree.patched(found.engine)
    assert pinned.path.read_text() == before
    assert tree.patched(pinned.engine) == old, "the old pin's trees are still there"
    upgrade.adopt(found)
    assert pinned.engine.commit == commit
    assert pinned.engine.tree == {"git": fetch.fetched(pinned.engine).digest}
    assert "# keep this comment" in pinned.path.read_text()


def test_a_build_that_the_index_lacks_is_left_out_aloud(
    pinned: Pinned, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned.release(101, {})
    found = upgrade.candidate(pinned.engine, "b101")
    assert [source.kind for source in found.engine.sources] == ["git"]
    assert "pkg-101.0.0.tar.gz is left out" in capsys.readouterr().err


def test_an_unknown_tag_a_wrong_commit_and_a_branch(pinned: Pinned) -> None:
    pinned.release(101, {})
    before = pinned.path.read_text()
    with pytest.raises(NetworkFailed, match="has no tag b999"):
        upgrade.candidate(pinned.engine, "b999")
    with pytest.raises(CheckFailed, match="does not name the commit"):
        upgrade.candidate(pinned.engine, "b101", commit="a" * 40)
    with pytest.raises(BadInput, match="is not the tag of a build"):
        upgrade.candidate(pinned.engine, "main")
    assert pinned.path.read_text() == before


def test_without_git_the_commit_must_be_given(pinned: Pinned, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned.server.offer("pkg", "pkg-101.0.0.tar.gz", pinned.archive(101, {}))
    dead = pinned.path.read_text().replace(pinned.upstream.repository.as_uri(), f"{pinned.server.url}/no.git")
    pinned.path.write_text(dead)
    with pytest.raises(BadInput, match="nobody says which commit"):
        upgrade.candidate(pinned.engine, "b101")
    found = upgrade.candidate(pinned.engine, "b101", commit="ab" * 20)
    assert {v.state for v in upgrade.examine(found)} == {State.APPLIES}
