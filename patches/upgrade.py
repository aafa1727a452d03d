"""Move an engine's pin: find the new one, see what becomes of each patch, write only when all is proved.

Nothing of the old pin is touched before `adopt`: the new tree lies beside the old one, the new
engine.yaml is a text in memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import command
import documents
import paths
import pypi
import say
from errors import BadInput, CheckFailed, NetworkFailed
from patches import engines, fetch, series
from patches.engines import Engine, GitSource, PypiSource
from patches.states import State, Verdict, judge


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A pin that may replace the present one: the engine it would be, and its engine.yaml as text."""

    engine: Engine
    text: str


def candidate(engine: Engine, to: str, *, commit: str = "") -> Candidate:
    """Find a tag or commit at the engine's sources.

    Args:
        to: an upstream tag (b11500) or a full commit.
        commit: what the tag names, where no git source answers; it is compared where one does.

    Raises:
        BadInput: not a tag of a build, or nobody says which commit it names.
        CheckFailed: the tag names another commit than was given.
        NetworkFailed: no source has it.
    """
    number = _build_number(to)
    found = _commit_of(engine, to)
    if found and commit and found != commit:
        raise CheckFailed(
            f"{to} does not name the commit you gave", why=f"it names {found}, you gave {commit}"
        )
    wanted = found or commit
    if not re.fullmatch(r"[0-9a-f]{40}", wanted):
        raise BadInput(
            f"nobody says which commit {to} names",
            why="no git source answered, and an archive does not say",
            hint=f"look it up and give it: ./inv patch.upgrade --to {to} --commit SHA",
        )
    text = _with_pin(engine, number=number, tag=to, commit=wanted)
    text = _with_archives(engine, text, number)
    path = engine.folder / "engine.yaml"
    return Candidate(engine=engines.parse(documents.parse(text, str(path)), path), text=text)


def examine(found: Candidate) -> list[Verdict]:
    """Fetch the new tree beside the old one and judge every patch that is on.

    Raises:
        NetworkFailed, CheckFailed, HostLacks: see `fetch.fetched`.
    """
    root = fetch.fetch(found.engine)
    items = series.load(series.chosen(series.of(found.engine)), found.engine.folder)
    return judge(found.engine, items, root)[0]


def needless(verdicts: Sequence[Verdict]) -> list[str]:
    """The patches that the new tree holds: they are left out of its build, and then to be dropped."""
    return [verdict.id for verdict in verdicts if verdict.state is State.UPSTREAM]


def in_the_way(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The patches that somebody has to look at before the new tree can be built."""
    return [verdict for verdict in verdicts if verdict.state not in (State.APPLIES, State.UPSTREAM)]


def adopt(found: Candidate) -> None:
    """Replace engine.yaml by the candidate's, with the digest of the new tree.

    The pristine and patched trees of the old pin stay.
    """
    there = fetch.fetched(found.engine)
    text = found.text.replace("tree: {}\n", f"tree:\n  {there.kind}: {there.digest}\n")
    with paths.replacing(found.engine.folder / "engine.yaml") as temporary:
        temporary.write_text(text, encoding="utf-8")
    engines.load.cache_clear()
    say.step("patch", f"{found.engine.name} is pinned to {found.engine.pin} now; look at its traits")


def changes(engine: Engine, found: Candidate) -> str:
    """What `adopt` would change in engine.yaml, as a diff for people."""
    import difflib

    old = (engine.folder / "engine.yaml").read_text(encoding="utf-8")
    lines = difflib.unified_diff(
        old.splitlines(), found.text.splitlines(), "engine.yaml now", "engine.yaml then", lineterm="", n=1
    )
    return "\n".join(lines)


def _build_number(to: str) -> int:
    match = re.fullmatch(r"b(\d+)", to)
    if not match:
        raise BadInput(
            f"{to!r} is not the tag of a build", why="tags of builds are b and a number, as b11500"
        )
    return int(match[1])


def _commit_of(engine: Engine, tag: str) -> str:
    """The commit that a tag names at the first git source that answers; nothing if none does."""
    for source in engine.sources:
        if not isinstance(source, GitSource):
            continue
        try:
            fetch.probe(source.url)
        except fetch.Unreachable as error:
            say.step("upgrade", f"{source.url} does not answer: {error.why}")
            continue
        ref = f"refs/tags/{tag}"
        listed = command.run(["git", "ls-remote", source.url, ref, f"{ref}^{{}}"], timeout=60).out
        names = {name: commit for commit, _, name in (line.partition("\t") for line in listed.splitlines())}
        if ref not in names:
            raise NetworkFailed(
                f"{source.url} has no tag {tag}", hint="git ls-remote --tags shows those it has"
            )
        return names.get(f"{ref}^{{}}", names[ref])
    return ""


def _with_pin(engine: Engine, *, number: int, tag: str, commit: str) -> str:
    """engine.yaml with the new pin; the digests of the old tree are taken out."""
    text = (engine.folder / "engine.yaml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^tree:\n(?:[ \t].*\n)+", "tree: {}\n", text)
    for field, value in (
        ("commit", commit),
        ("tag", tag),
        ("build_number", str(number)),
        ("reviewed", str(datetime.now(UTC).date())),
    ):
        text = re.sub(rf"(?m)^{field}: .*$", f"{field}: {value}", text)
    return text.replace(f"refs/tags/{engine.tag}", f"refs/tags/{tag}") if engine.tag else text


def _with_archives(engine: Engine, text: str, number: int) -> str:
    """The archive sources moved to the new build, with the checksum that the index states.

    A source without that build is taken out, aloud.
    """
    old = str(engine.build_number)
    for source in engine.sources:
        if isinstance(source, GitSource):
            continue
        if isinstance(source, PypiSource):
            file = source.file.replace(old, str(number))
            try:
                digest = pypi.find(source.project, file).sha256
            except NetworkFailed as error:
                say.step("upgrade", f"{file} is left out of the sources: {error.why}")
                digest = ""
            if digest and file != source.file:
                strip = source.strip.replace(old, str(number))
                text = text.replace(source.file, file).replace(source.sha256, digest)
                text = text.replace(source.strip, strip) if source.strip else text
                continue
        text = _without_source(text, source.sha256)
    return text


def _without_source(text: str, sha256: str) -> str:
    """Take out the list item that holds a checksum."""
    items = re.split(r"(?m)^(?=  - kind: )", text)
    kept = []
    for item in items:
        if sha256 in item:
            rest = re.search(r"(?m)^(?!    |  - ).*", item)
            kept.append(item[rest.start() :] if rest else "")
        else:
            kept.append(item)
    return "".join(kept)


def summary(verdicts: Sequence[Verdict]) -> str:
    """One line per patch: what becomes of it on the new tree."""
    words = {
        State.APPLIES: "still applies",
        State.UPSTREAM: "is upstream now: drop it",
        State.PARTIAL: "is upstream in part: look at it",
        State.CONFLICT: "conflicts: cut it anew",
        State.FOREIGN: "the tree is of another project",
    }
    return "\n".join(f"  {v.id} ({v.name}) {words[v.state]}" for v in verdicts)
