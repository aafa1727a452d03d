"""The strict diff reader: what it refuses and why, and that a hunk lands in exactly one place."""

from __future__ import annotations

import pytest

from patches import diff

GOOD = b"""Description: an example

diff --git a/src/a.c b/src/a.c
index 1111111..2222222 100644
--- a/src/a.c
+++ b/src/a.c
@@ -1,5 +1,5 @@
 one
 two
-three
+THREE
 four
 five
"""
A = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def first(text: bytes = GOOD) -> diff.FilePatch:
    return diff.parse(text, "x.patch").files[0]


def swap(old: bytes, new: bytes, text: bytes = GOOD) -> bytes:
    assert text.count(old) >= 1
    return text.replace(old, new)


def test_reads_header_path_and_lines() -> None:
    patch = diff.parse(GOOD, "x.patch")
    assert patch.header.startswith("Description: an example")
    assert patch.files[0].path == "src/a.c"
    assert patch.files[0].hunks[0].before == (b"one\n", b"two\n", b"three\n", b"four\n", b"five\n")
    assert diff.rewrite(patch.files[0], A) == A.replace(b"three", b"THREE")


def test_the_reverse_gives_back_the_original() -> None:
    made = diff.rewrite(first(), A)
    assert isinstance(made, bytes)
    assert diff.rewrite(first().reversed(), made) == A


def test_digest_ignores_index_lines_header_and_signature_only() -> None:
    digest = diff.parse(GOOD, "x").digest
    assert diff.parse(swap(b"1111111..2222222", b"111111111..222222222"), "x").digest == digest
    assert diff.parse(swap(b"an example", b"another"), "x").digest == digest
    assert diff.parse(GOOD + b"-- \n2.39.5\n\n", "x").digest == digest
    assert diff.parse(swap(b"+THREE", b"+Three"), "x").digest != digest


TWO_FILES = GOOD + GOOD.split(b"\n\n")[1].replace(b"a.c", b"b.c")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"<!DOCTYPE html>\n<html>\n", "web page"),
        (b"\n<html lang='en'>\n", "web page"),
        (b"just words\n", "holds no diff"),
        (GOOD[:-1], "does not end with a newline"),
        (GOOD.replace(b"\n", b"\r\n"), "Windows line ends"),
        (GOOD[: GOOD.index(b" four")], "ends 2 lines early"),
        (GOOD[: GOOD.index(b"@@")], "without hunks"),
        (swap(b"-1,5 +1,5", b"-1,6 +1,6"), "ends 1 lines early"),
        (swap(b"-1,5 +1,5", b"-1,4 +1,4"), "text between or after the diffs"),
        (swap(b"@@ -1,5 +1,5 @@", b"@@ nonsense @@"), "cannot be read"),
        (swap(b"src/a.c", b"../a.c"), "leaves the tree"),
        (swap(b"src/a.c", b"/etc/a.c"), "leaves the tree"),
        (swap(b"src/a.c", b"src/../../a.c"), "leaves the tree"),
        (swap(b"src/a.c", b"src//a.c"), "not written plainly"),
        (swap(b"src/a.c", b".git/config"), "inside a .git folder"),
        (swap(b"src/a.c", b"src/.GIT/config"), "inside a .git folder"),
        (swap(b"+++ b/src/a.c", b"+++ b/src/z.c"), "it moves src/a.c to src/z.c"),
        (swap(b"index 1111111..2222222 100644", b"rename from x\nrename to y"), "renames or copies"),
        (swap(b"index 1111111..2222222 100644", b"GIT binary patch"), "binary file"),
        (b"diff --git a/x b/x\nBinary files a/x and b/x differ\n", "binary file"),
        (swap(b"index 1111111..2222222 100644", b"new file mode 120000"), "symbolic link"),
        (swap(b"index 1111111..2222222 100644", b"new file mode 160000"), "submodule"),
        (GOOD + GOOD, "text between or after the diffs"),
        (GOOD + GOOD.split(b"\n\n")[1], "changes src/a.c twice"),
        (GOOD + b"From 1234 Mon Sep 17 00:00:00 2001\nSubject: [PATCH 2/2]\n", "mailbox"),
        (swap(b"a/src/a.c\n+++", b"src/a.c\n+++"), "does not start with 'a/'"),
    ],
)  # fmt: skip
def test_refuses(text: bytes, reason: str) -> None:
    with pytest.raises(diff.BadPatch) as refusal:
        diff.parse(text, "x.patch")
    assert reason in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_a_hunk_without_context_is_refused() -> None:
    bare = b"--- a/f\n+++ b/f\n@@ -3 +3 @@\n-three\n+THREE\n"
    with pytest.raises(diff.BadPatch, match="no context lines"):
        diff.parse(bare, "x")


def test_a_cut_between_files_is_a_valid_patch_with_another_digest() -> None:
    """Nothing in the text shows such a cut, so the pinned digest has to."""
    assert len(diff.parse(TWO_FILES, "x").files) == 2
    assert diff.parse(GOOD, "x").digest != diff.parse(TWO_FILES, "x").digest


def test_prose_mail_headers_and_dep3_headers_are_accepted_above_the_diff() -> None:
    mail = b"From 0123 Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nSubject: [PATCH] x\n\n---\n a.c | 2 +-\n\n"
    assert first(mail + GOOD[GOOD.index(b"diff") :] + b"-- \n2.39.5\n\n") == first()


def test_a_removed_line_that_looks_like_a_header_is_a_line() -> None:
    text = b"--- a/q.sql\n+++ b/q.sql\n@@ -1,3 +1,2 @@\n top\n--- a comment\n end\n"
    assert diff.rewrite(first(text), b"top\n-- a comment\nend\n") == b"top\nend\n"


def test_a_blank_context_line_that_lost_its_blank_is_accepted() -> None:
    text = b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n\n-two\n+TWO\n"
    assert diff.rewrite(first(text), b"one\n\ntwo\n") == b"one\n\nTWO\n"


def test_missing_final_newline_is_part_of_the_match() -> None:
    text = (
        b"--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n\\ No newline at end of file\n"
        b"+TWO\n\\ No newline at end of file\n"
    )
    assert diff.rewrite(first(text), b"one\ntwo") == b"one\nTWO"
    assert isinstance(diff.rewrite(first(text), b"one\ntwo\n"), diff.Misfit)


def test_crlf_tree_needs_a_crlf_patch() -> None:
    crlf = A.replace(b"\n", b"\r\n")
    assert isinstance(diff.rewrite(first(), crlf), diff.Misfit)
    marked = GOOD
    for line in (b" one", b" two", b"-three", b"+THREE", b" four", b" five"):
        marked = marked.replace(line + b"\n", line + b"\r\n")
    made = diff.rewrite(first(marked), crlf)
    assert made == crlf.replace(b"three", b"THREE")


def test_a_moved_hunk_fits_and_reports_its_offset() -> None:
    deep = swap(b"@@ -1,5 +1,5 @@", b"@@ -3,5 +3,5 @@")
    moved = b"new\n" * 9 + A
    assert diff.rewrite(first(deep), moved) == moved.replace(b"three", b"THREE")
    assert diff.offsets(first(deep), moved) == [7]


def test_a_hunk_cut_at_the_start_fits_only_at_the_start() -> None:
    assert isinstance(diff.rewrite(first(), b"new\n" + A), diff.Misfit)


def test_a_hunk_cut_at_the_end_fits_only_at_the_end() -> None:
    text = b"--- a/f\n+++ b/f\n@@ -5,3 +5,4 @@\n five\n six\n seven\n+eight\n"
    assert diff.rewrite(first(text), A) == A + b"eight\n"
    assert isinstance(diff.rewrite(first(text), A + b"nine\n"), diff.Misfit)


def test_repetitive_code_is_no_place_to_guess() -> None:
    """Tools that take the nearest place put this insertion into the wrong function, or in twice."""
    body = b"{\n  a();\n  b();\n}\n"
    text = b"--- a/f\n+++ b/f\n@@ -6,2 +6,3 @@\n   a();\n+  new();\n   b();\n"
    got = diff.rewrite(first(text), b"top\n" + body * 3)
    assert isinstance(got, diff.Misfit)
    assert "more than one place, at lines 3 and 7" in got.reason


def test_repeated_hunks_fit_when_their_order_leaves_one_way() -> None:
    text = (
        b"--- a/f\n+++ b/f\n"
        b"@@ -2,3 +2,3 @@\n a\n-b\n+B\n c\n"
        b"@@ -6,3 +6,3 @@\n a\n-b\n+B\n c\n"
    )  # fmt: skip
    two = b"0\na\nb\nc\n-\na\nb\nc\nend\n"
    assert diff.rewrite(first(text), two) == two.replace(b"b", b"B")
    assert isinstance(diff.rewrite(first(text), two + b"a\nb\nc\n"), diff.Misfit)


def test_a_conflict_names_hunk_and_nearest_lines() -> None:
    got = diff.rewrite(first(), A.replace(b"three", b"drei"))
    assert isinstance(got, diff.Misfit)
    assert (got.path, got.hunk) == ("src/a.c", 1)
    assert any("≠drei" in line for line in got.nearest)


NEW = b"diff --git a/n b/n\nnew file mode 100755\n--- /dev/null\n+++ b/n\n@@ -0,0 +1,2 @@\n+x\n+y\n"


def test_new_and_deleted_files() -> None:
    made = first(NEW)
    assert made.creates
    assert made.new_executable is True
    assert diff.rewrite(made, None) == b"x\ny\n"
    assert isinstance(diff.rewrite(made, b"x\ny\n"), diff.Misfit)
    assert diff.rewrite(made.reversed(), b"x\ny\n") is None
    assert isinstance(diff.rewrite(made.reversed(), b"x\ny\nz\n"), diff.Misfit)


def test_mode_only_and_empty_files() -> None:
    chmod = first(b"diff --git a/s b/s\nold mode 100644\nnew mode 100755\n")
    assert (chmod.old_executable, chmod.new_executable, chmod.hunks) == (False, True, ())
    assert diff.rewrite(chmod, b"#!/bin/sh\n") == b"#!/bin/sh\n"
    empty = first(b"diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n")
    assert diff.rewrite(empty, None) == b""


def test_a_lone_carriage_return_is_no_line_end() -> None:
    assert diff.split(b"a\rb\nc\n") == [b"a\rb\n", b"c\n"]
    assert diff.split(b"a\nb") == [b"a\n", b"b"]
    assert diff.split(b"") == []
