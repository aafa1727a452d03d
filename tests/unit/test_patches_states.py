"""The state of each patch against a tree: every state by hand, then random edits against an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patches import cut, diff, engines, series
from patches.overlay import File, Overlay
from patches.states import State, Verdict, explain, judge

LANDMARK = "llama.h"


def engine(tmp_path: Path) -> engines.Engine:
    document = {
        "repository": "https://example.org/x", "commit": "0" * 40, "build_number": 1, "licence": "MIT",
        "reviewed": "2026-11-30", "landmarks": [LANDMARK], "traits": {},
        "sources": [{"kind": "git", "url": "https://example.org/x"}],
    }  # fmt: skip
    return engines.parse(document, tmp_path / "synthetic" / "engine.yaml")


def entry(name: str, patch: diff.Patch, **more: object) -> series.Entry:
    fields = {
        "id": name, "name": name, "file": f"{name}.patch", "sha256": patch.digest, "purpose": "x",
        "origin": "x", "forwarded": "no", "enabled": True, "why": "x", "dropped_when": {}, "proved_by": "x",
        "risk": "x", **more,
    }  # fmt: skip
    return series.Entry.model_validate(fields)


def loaded(name: str, text: bytes, **more: object) -> series.Loaded:
    patch = diff.parse(text, name)
    return series.Loaded(entry=entry(name, patch, **more), patch=patch, text=text)


def files(tree: dict[str, bytes]) -> dict[str, File | None]:
    return {name: File(content=content, executable=False) for name, content in tree.items()}


def made(name: str, old: dict[str, bytes], new: dict[str, bytes], **more: object) -> series.Loaded:
    return loaded(name, cut.tree_diff(files(old), files(new)), **more)


def write(root: Path, tree: dict[str, bytes]) -> Path:
    for name, content in {LANDMARK: b"", **tree}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def states(root: Path, *items: series.Loaded) -> list[Verdict]:
    return judge(engine(root), items, root)[0]


LINES = [f"line {n}\n".encode() for n in range(40)]


def text(**changes: bytes) -> bytes:
    """Forty lines; `l7=b"x"` changes line 7."""
    lines = list(LINES)
    for key, value in changes.items():
        lines[int(key[1:])] = value + b"\n"
    return b"".join(lines)


BASE = {"f.c": text()}
P1 = made("P1", BASE, {"f.c": text(l10=b"one")})
BOTH = made("B", BASE, {"f.c": text(l10=b"x", l30=b"y")})


def test_applies(tmp_path: Path) -> None:
    verdicts, overlay = judge(engine(tmp_path), [P1], write(tmp_path, BASE))
    assert [v.state for v in verdicts] == [State.APPLIES]
    assert overlay.file("f.c") == File(content=text(l10=b"one"), executable=False)
    assert (tmp_path / "f.c").read_bytes() == text(), "judging writes nothing"


def test_moved_lines_are_reported(tmp_path: Path) -> None:
    moved = states(write(tmp_path, {"f.c": b"new\n" * 5 + text()}), P1)[0]
    assert (moved.state, moved.offsets) == (State.APPLIES, (5,))


def test_upstream_whole(tmp_path: Path) -> None:
    assert states(write(tmp_path, {"f.c": text(l10=b"one", l1=b"else")}), P1)[0].state is State.UPSTREAM


def test_upstream_in_part(tmp_path: Path) -> None:
    verdict = states(write(tmp_path, {"f.c": text(l30=b"y")}), BOTH)[0]
    assert (verdict.state, verdict.held) == (State.PARTIAL, (("f.c", 2),))
    assert "in the tree already: f.c hunk 2" in explain(verdict)


def test_conflict_names_file_hunk_and_lines(tmp_path: Path) -> None:
    verdict = states(write(tmp_path, {"f.c": text(l10=b"x", l30=b"other")}), BOTH)[0]
    assert verdict.state is State.CONFLICT
    told = explain(verdict)
    assert "f.c, hunk 1" in told or "f.c, hunk 2" in told
    assert "line 29" in told or "line 11" in told


def test_a_renamed_file_is_a_conflict_that_names_the_new_place(tmp_path: Path) -> None:
    verdict = states(write(tmp_path, {"src/moved.c": text()}), P1)[0]
    assert verdict.state is State.CONFLICT
    assert verdict.misfits[0].reason == "the file does not exist; its lines now stand in src/moved.c"


def test_a_file_of_ours_that_upstream_has_otherwise(tmp_path: Path) -> None:
    new = made("N", BASE, {**BASE, "n.c": b"mine\n"})
    assert states(write(tmp_path, {**BASE, "n.c": b"theirs\n"}), new)[0].state is State.CONFLICT
    assert states(write(tmp_path, {**BASE, "n.c": b"mine\n"}), new)[0].state is State.UPSTREAM


def test_foreign_tree(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("another project")
    verdict = states(tmp_path, P1)[0]
    assert verdict.state is State.FOREIGN
    assert LANDMARK in explain(verdict)


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.c"
    outside.write_bytes(text())
    root = write(tmp_path / "tree", {"real/f.c": text()})
    (root / "f.c").symlink_to(outside)
    (root / "dir").symlink_to(root / "real")
    inner = made("D", {"dir/f.c": text()}, {"dir/f.c": text(l10=b"one")})
    for item in (P1, inner):
        verdict = states(root, item)[0]
        assert verdict.state is State.CONFLICT
        assert "symbolic link" in verdict.misfits[0].reason


def test_order_later_patches_stand_on_earlier_ones(tmp_path: Path) -> None:
    second = made("P2", {"f.c": text(l10=b"one")}, {"f.c": text(l10=b"two")})
    root = write(tmp_path, BASE)
    assert [v.state for v in states(root, P1, second)] == [State.APPLIES, State.APPLIES]
    assert [v.state for v in states(root, second, P1)] == [State.CONFLICT, State.APPLIES]


def test_two_patches_on_one_line_that_are_both_in(tmp_path: Path) -> None:
    """Taken alone the first is not in the tree: the second has rewritten its line."""
    second = made("P2", {"f.c": text(l10=b"one")}, {"f.c": text(l10=b"two")})
    third = made("P3", BASE, {"f.c": text(l25=b"three")})
    root = write(tmp_path, {"f.c": text(l10=b"two")})
    assert [v.state for v in states(root, P1, second, third)] == [
        State.UPSTREAM,
        State.UPSTREAM,
        State.APPLIES,
    ]


def test_an_insertion_does_not_apply_twice(tmp_path: Path) -> None:
    """With the nearest-place rule an insertion into repeated lines goes in again a few lines off."""
    body = [b"f {\n", b"  a\n", b"  b\n", b"}\n"]
    old = b"".join([b"1\n", b"2\n", *body, b"3\n", *body, b"4\n"])
    new = old.replace(b"3\nf {\n  a\n", b"3\nf {\n  a\n  new\n")
    item = made("I", {"f.c": old}, {"f.c": new})
    assert states(write(tmp_path / "a", {"f.c": old}), item)[0].state is State.APPLIES
    assert states(write(tmp_path / "b", {"f.c": new}), item)[0].state is State.UPSTREAM


def test_the_text_that_retires_a_patch_is_reported(tmp_path: Path) -> None:
    item = made("R", BASE, {"f.c": text(l10=b"one")}, dropped_when={"file": "f.c", "text": "line 33"})
    assert "line 33" in states(write(tmp_path, BASE), item)[0].retire


def test_modes(tmp_path: Path) -> None:
    chmod = loaded("M", b"diff --git a/s b/s\nold mode 100644\nnew mode 100755\n")
    root = write(tmp_path, {"s": b"#!/bin/sh\n"})
    assert states(root, chmod)[0].state is State.APPLIES
    (root / "s").chmod(0o755)
    assert states(root, chmod)[0].state is State.UPSTREAM


# --- random trees against an oracle -------------------------------------------------------------------

ALPHABET = [b"a", b"b", b"c", b"d", b"e", b"{", b"}"]
NAMES = ["f", "g", "h"]
lines = st.lists(st.sampled_from(ALPHABET), max_size=12)
content = st.builds(lambda ls, end: b"\n".join(ls) + (b"\n" if ls and end else b""), lines, st.booleans())
trees = st.dictionaries(st.sampled_from(NAMES), content, min_size=2)
edits = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["insert", "delete", "replace", "insert", "delete", "replace", "remove", "make"]),
        st.integers(0, 12),
        st.sampled_from(ALPHABET),
    ),
    min_size=1,
    max_size=3,
)
Tree = dict[str, bytes]


def edited(tree: Tree, changes: Iterable[tuple[str, str, int, bytes]]) -> Tree:
    """The tree after some changes of lines, some files removed and some made."""
    result = {name: value.splitlines(keepends=True) for name, value in tree.items()}
    for name, kind, at, what in changes:
        if kind == "remove":
            result.pop(name, None)
        elif kind == "make":
            result.setdefault(name, [what + b"\n"] * at)
        elif name in result:
            there = result[name]
            at = min(at, len(there))
            there[at : at + (kind != "insert")] = [] if kind == "delete" else [what + b"\n"]
    return {name: b"".join(value) for name, value in result.items()}


def by_hand(file: diff.FilePatch, text: bytes | None) -> list[bytes | None]:
    """All that comes out when the hunks are put at every combination of places, found by trial.

    None is a file that is not there.
    """
    if file.creates:
        return [b"".join(t for h in file.hunks for t in h.after)] if text is None else []
    if text is None:
        return []
    rows = text.splitlines(keepends=True)
    results: list[bytes | None] = []
    for way in product(range(len(rows) + 1), repeat=len(file.hunks)):
        ends = [0, *(at + len(h.before) for at, h in zip(way, file.hunks, strict=True))]
        if any(at < end for at, end in zip(way, ends, strict=False)):
            continue
        fits = all(
            rows[at : at + len(h.before)] == list(h.before)
            and (h.old_start > 1 or at == 0)
            and (h.lines[-1][0] == b" " or at + len(h.before) == len(rows))
            for at, h in zip(way, file.hunks, strict=True)
        )
        if fits:
            out, done = b"", 0
            for at, h in zip(way, file.hunks, strict=True):
                out += b"".join(rows[done:at]) + b"".join(h.after)
                done = at + len(h.before)
            results.append(out + b"".join(rows[done:]))
    if file.deletes:
        return [None for result in results if result == b""]
    return results


def goes(patch: Sequence[diff.FilePatch], tree: Tree) -> bool:
    """There is one way on, and from there one way back that leads to this very tree."""
    for file in patch:
        before = tree.get(file.path)
        there = by_hand(file, before)
        if len(there) != 1 or by_hand(file.reversed(), there[0]) != [before]:
            return False
    return True


def parts(file: diff.FilePatch) -> list[diff.FilePatch]:
    """The hunks of a file as patches of their own; a file that is made or deleted is one part."""
    if file.creates or file.deletes:
        return [file]
    return [replace(file, hunks=(hunk,)) for hunk in file.hunks]


def oracle(patch: diff.Patch, tree: Tree) -> State:
    if goes(patch.files, tree):
        return State.APPLIES
    if goes([file.reversed() for file in patch.files], tree):
        return State.UPSTREAM
    kinds = set()
    for part in (part for file in patch.files for part in parts(file)):
        if part.creates or part.deletes:
            kinds.add((goes([part.reversed()], tree), goes([part], tree)))
        else:
            there = tree.get(part.path)
            kinds.add((bool(by_hand(part.reversed(), there)), bool(by_hand(part, there))))
    return State.PARTIAL if kinds == {(True, False), (False, True)} else State.CONFLICT


SEEN: Counter[State] = Counter()


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,  # so that the next test can ask which states were reached
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    base=trees,
    change=edits,
    drift=edits | st.just([]),
    start=st.sampled_from(["base", "whole", "half"]),
    context=st.integers(1, 3),
)
def test_status_agrees_with_trial_by_hand(
    tmp_path_factory: pytest.TempPathFactory,
    base: Tree,
    change: list[tuple[str, str, int, bytes]],
    drift: list[tuple[str, str, int, bytes]],
    start: str,
    context: int,
) -> None:
    target = edited(base, change)
    patch_text = cut.tree_diff(files(base), files(target), context=context)
    try:
        item = loaded("X", patch_text)
    except diff.BadPatch:
        return  # nothing changed, or the change leaves no context
    half = {name: target.get(name, b"") if name == "f" else body for name, body in base.items()}
    tree = edited({"base": base, "whole": target, "half": half}[start], drift)
    root = write(tmp_path_factory.mktemp("tree"), tree)
    verdicts, overlay = judge(engine(root), [item], root)
    SEEN[verdicts[0].state] += 1
    assert verdicts[0].state is oracle(item.patch, tree)
    if verdicts[0].state is State.APPLIES:
        for file in item.patch.files:
            got = overlay.file(file.path)
            assert [got.content if got else None] == by_hand(file, tree.get(file.path))
    else:
        assert overlay.changed == {}, "a patch that does not apply leaves no trace"


def test_the_random_trees_reached_every_state() -> None:
    """Else the test above proves less than it says; it runs first."""
    reached = {state for state, count in SEEN.items() if count >= 3}
    assert reached == {State.APPLIES, State.UPSTREAM, State.CONFLICT, State.PARTIAL}, SEEN


@settings(max_examples=200, deadline=None)
@given(base=trees, change=edits, context=st.integers(0, 3))
def test_what_is_cut_applies_to_what_it_was_cut_from(
    base: Tree, change: list[tuple[str, str, int, bytes]], context: int
) -> None:
    target = edited(base, change)
    try:
        patch = diff.parse(cut.tree_diff(files(base), files(target), context=context), "x")
    except diff.BadPatch:
        return
    for file in patch.files:
        assert target.get(file.path) in by_hand(file, base.get(file.path))


def test_a_failed_patch_leaves_the_overlay_alone(tmp_path: Path) -> None:
    root = write(tmp_path, {"f.c": text(), "g.c": text()})
    item = made("T", {"f.c": text(), "g.c": text()}, {"f.c": text(l5=b"x"), "g.c": text(l5=b"x")})
    (root / "g.c").write_bytes(text(l5=b"other"))
    overlay = Overlay(root)
    assert overlay.apply(item.patch)
    assert overlay.changed == {}
