"""For whoever tends a series: cut a new patch, re-cut the old ones, retire one.

series.yaml is changed as text, entry by entry, so that comments and order stay; what comes out is read
back and checked before it replaces the file.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import documents
import paths
import say
from errors import BadInput
from patches import cut, diff, fetch, manifest, series, tree
from patches.engines import Engine
from patches.overlay import Overlay

MOST_CONTEXT: Final = 12
"""Lines of context that a new patch gets at most, to fit in exactly one place."""


# --- new ----------------------------------------------------------------------------------------------


def begin(engine: Engine) -> Path:
    """A copy of the patched tree to edit; `finish` makes a patch of what differs.

    Raises:
        BadInput: there is one already.
    """
    place = _edit_folder(engine)
    if place.exists():
        raise BadInput(
            f"{place} is there already",
            why="an edit was begun and not finished",
            hint=f"./inv patch.new --name NAME --purpose TEXT --proved-by TEST, or rm -r {place}",
        )
    made = tree.patched(engine)
    with tree.whole(place) as work:
        tree.copy(made.path, work / "tree")
    return place / "tree"


def finish(engine: Engine, *, name: str, purpose: str, proved_by: str) -> series.Entry:
    """Make a patch of the edited copy, number it, add it to the end of the series, remove the copy.

    Raises:
        BadInput: nothing was begun or changed, something else than text changed, or the change fits in
            more than one place even with much context.
    """
    place, base = _edit_folder(engine) / "tree", tree.patched(engine)
    if not place.is_dir():
        raise BadInput("there is no edited tree", hint=f"./inv patch.new --engine {engine.name} begins one")
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise BadInput(f"{name!r} is no name for a patch", why="use small letters, digits and hyphens")
    changed = manifest.differences(manifest.scan(base.path), manifest.scan(place))
    if not changed:
        raise BadInput(f"nothing was changed in {place}")
    body = _cut_to_fit(base.path, place, changed)
    number = _next_id(series.of(engine))
    file = f"{number}-{name}.patch"
    header = (
        f"Description: {purpose}\nOrigin: vendor, Haloforge\nForwarded: no\n"
        f"Last-Update: {datetime.now(UTC).date()}\n\n"
    )
    text = header.encode() + body
    with paths.replacing(engine.folder / file) as temporary:
        temporary.write_bytes(text)
    fields = {
        "id": number, "name": name, "file": file, "sha256": diff.parse(text, file).digest, "purpose": purpose,
        "origin": "ours", "forwarded": '"no"', "enabled": "true", "why": purpose, "dropped_when": "{}",
        "proved_by": proved_by, "risk": "not judged yet",
    }  # fmt: skip
    _rewrite(engine, with_entry(_text(engine), "patches", fields))
    shutil.rmtree(place.parent)
    _record_result(engine)
    return next(entry for entry in series.of(engine).patches if entry.id == number)


def _cut_to_fit(base: Path, edited: Path, changed: list[str]) -> bytes:
    before, after = cut.changed_files(base, edited, changed)
    for context in range(cut.CONTEXT, MOST_CONTEXT + 1):
        body = cut.tree_diff(before, after, context=context)
        misfits = Overlay(base).apply(diff.parse(body, "the new patch"))
        if not misfits:
            return body
    first = misfits[0]
    raise BadInput(f"the change in {first.path} does not fit in exactly one place", why=first.reason)


def _edit_folder(engine: Engine) -> Path:
    return paths.home() / "edit" / engine.name


def _next_id(data: series.Series) -> str:
    ids = [entry.id for entry in data.patches] + [entry.id for entry in data.dropped]
    taken = [int(m[1]) for known in ids if (m := re.fullmatch(r"L(\d+)", known))]
    return f"L{max(taken, default=0) + 1}"


# --- refresh ------------------------------------------------------------------------------------------


def refresh(engine: Engine, ids: Sequence[str] = ()) -> list[str]:
    """Take the patch files as they are now: re-cut those that have moved, write digests and the result.

    Args:
        ids: which patches; all with a file of ours if none is named.

    Returns:
        What was changed, a line each.

    Raises:
        BadInput: an unknown id, or a file that is no acceptable patch.
        BuildFailed: the series does not apply; digests are written, the result is not.
    """
    data, done = series.of(engine), []
    data.only(ids)
    for entry in data.patches:
        if entry.file and (not ids or entry.id in ids):
            done += _take(engine, entry)
    done += _recut_moved(engine, ids)
    if _record_result(engine):
        done.append("results: written anew")
    return done


def _take(engine: Engine, entry: series.Entry) -> list[str]:
    """Write the digest of a patch file as it is."""
    path = engine.folder / entry.file
    try:
        found = diff.parse(path.read_bytes(), entry.file).digest
    except OSError as error:
        raise BadInput(f"cannot read {path}", why=error.strerror or "") from error
    if found == entry.sha256:
        return []
    _rewrite(engine, with_field(_text(engine), entry.id, "sha256", found))
    return [f"{entry.id}: sha256 {found[:12]}"]


def _recut_moved(engine: Engine, ids: Sequence[str]) -> list[str]:
    """Cut the patches anew that are on and whose hunks stand elsewhere by now; their headers stay."""
    done = []
    overlay = Overlay(fetch.fetch(engine))
    for item in series.load(series.chosen(series.of(engine)), engine.folder):
        before = overlay.copy()
        if overlay.apply(item.patch):
            break  # tree.patched says what does not fit
        names = [file.path for file in item.patch.files]
        moved = any(n for file in item.patch.files if not file.creates for n in _offsets(file, before))
        if not moved or not item.entry.file or (ids and item.entry.id not in ids):
            continue
        body = cut.tree_diff({n: before.file(n) for n in names}, {n: overlay.file(n) for n in names})
        text = (item.patch.header + "\n").encode() + body
        with paths.replacing(engine.folder / item.entry.file) as temporary:
            temporary.write_bytes(text)
        found = diff.parse(text, item.entry.file).digest
        _rewrite(engine, with_field(_text(engine), item.entry.id, "sha256", found))
        done.append(f"{item.entry.id}: cut anew")
    return done


def _offsets(file: diff.FilePatch, overlay: Overlay) -> list[int]:
    there = overlay.file(file.path)
    return diff.offsets(file, there.content) if there else []


def _record_result(engine: Engine) -> bool:
    """Apply the default selection and record the digest of what it touches."""
    before = series.of(engine).results.get(engine.pin)
    _rewrite(engine, without_result(_text(engine), engine.pin))  # tree.patched compares with what is there
    made = tree.patched(engine)
    items = series.load(series.chosen(series.of(engine)), engine.folder)
    found = tree.touched_digest(made.path, items)
    _rewrite(engine, with_result(_text(engine), engine.pin, found))
    return found != before


# --- drop ---------------------------------------------------------------------------------------------


def drop(engine: Engine, name: str, *, because: str, evidence: str, verdict: str) -> None:
    """Move an entry to the dropped ones and delete its file.

    Raises:
        BadInput: an unknown id, a patch that others need, or an unknown verdict.
    """
    data = series.of(engine)
    entry = data.only([name]).patches[0]
    needing = [other.id for other in data.patches if name in other.needs]
    if needing:
        raise BadInput(f"patch {name} cannot be dropped", why=f"{needing[0]} needs it")
    text = without_entry(_text(engine), name)
    fields = {
        "id": name, "purpose": entry.purpose, "verdict": verdict, "because": because, "evidence": evidence,
    }  # fmt: skip
    _rewrite(engine, with_entry(text, "dropped", fields))
    if entry.file:
        (engine.folder / entry.file).unlink()
    _record_result(engine)


# --- series.yaml as text ------------------------------------------------------------------------------


def with_field(text: str, name: str, field: str, value: str) -> str:
    """Set a field of an entry; it is added behind `name:` if it is not there."""
    start, end = _block(text, name)
    block = text[start:end]
    line = f"    {field}: {value}\n"
    if re.search(rf"(?m)^    {field}: ", block):
        block = re.sub(rf"(?m)^    {field}: .*\n", line, block, count=1)
    else:
        block = re.sub(r"(?m)^(    name: .*\n)", rf"\1{line}", block, count=1)
    return text[:start] + block + text[end:]


def without_entry(text: str, name: str) -> str:
    """Take an entry out."""
    start, end = _block(text, name)
    return text[:start] + text[end:]


def with_entry(text: str, section: str, fields: dict[str, str]) -> str:
    """Add an entry to the end of a section, which is made if it is missing."""
    lines = [f"    {key}: {_scalar(value)}\n" for key, value in fields.items()]
    block = "  - " + "".join(lines)[4:]
    found = re.search(rf"(?m)^{section}:[ \t]*(\[\])?\n((?:[ \t].*\n|\n)*)", text)
    if not found:
        return text.rstrip("\n") + f"\n\n{section}:\n{block}"
    body = found[2].rstrip("\n")
    tail = found[2][len(body) :] if body else ""
    kept = body + "\n" if body else ""
    return text[: found.start()] + f"{section}:\n{kept}{block}{tail[1:]}" + text[found.end() :]


def without_result(text: str, pin: str) -> str:
    """Take the result of a pin out; the section stays."""
    return re.sub(rf"(?m)^  {re.escape(pin)}: .*\n", "", text)


def with_result(text: str, pin: str, digest: str) -> str:
    """Add the result of a pin to its section, which is made at the end if it is missing."""
    line = f"  {pin}: {digest}\n"
    if re.search(r"(?m)^results:", text):
        return re.sub(r"(?m)^(results:.*\n)", rf"\g<1>{line}", text, count=1)
    return text.rstrip("\n") + "\n\nresults:\n" + line


def _scalar(value: str) -> str:
    """A value as YAML: plain where that reads back as the same text, else quoted."""
    if value in ("true", "{}", '"no"'):
        return value
    try:
        plain = documents.parse(f"x: {value}\n", "x") == {"x": value}
    except BadInput:
        plain = False
    return value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _block(text: str, name: str) -> tuple[int, int]:
    start = re.search(rf"""(?m)^  - id: ["']?{re.escape(name)}["']?[ \t]*\n""", text)
    if not start:
        raise BadInput(f"series.yaml has no entry that begins with '  - id: {name}'")
    rest = re.compile(r"(?m)^(?:  - |\S)").search(text, start.end())
    end = rest.start() if rest else len(text)
    return start.start(), start.start() + len(text[start.start() : end].rstrip("\n")) + 1


def _text(engine: Engine) -> str:
    path = engine.folder / "series.yaml"
    return path.read_text(encoding="utf-8") if path.exists() else "patches:\n"


def _rewrite(engine: Engine, text: str) -> None:
    """Replace series.yaml by a text that reads back well."""
    path = engine.folder / "series.yaml"
    series.parse(documents.parse(text, str(path)), path)
    with paths.replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    say.step("patch", f"{path.parent.name}/series.yaml written")
