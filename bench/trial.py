"""Old engine against new, before a pin is moved: both are built, checked and measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import say
from bench import run
from bench.compare import Comparison, compare
from checks import suite
from checks.launcher import ImageLauncher, Model
from checks.report import Outcome, Report
from checks.room import Room
from errors import BuildFailed, CheckFailed
from images import build, flavours
from images.records import ImageRecord
from patches import engines, states, tree, upgrade
from presets import models, schema


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The suite on both images, and the speed of the new one against the old."""

    old: Report
    new: Report
    speed: Comparison

    @property
    def worse(self) -> list[str]:
        """Checks that the old engine passes and the new one does not."""
        after = {result.id: result.outcome for result in self.new.results}
        return [
            result.id
            for result in self.old.results
            if result.outcome is Outcome.PASSED and after.get(result.id) is not Outcome.PASSED
        ]

    def lines(self) -> list[str]:
        """What was found, for people."""
        passed = [sum(r.outcome is Outcome.PASSED for r in side.results) for side in (self.old, self.new)]
        return [
            f"checks passed: {passed[0]} before, {passed[1]} now, of {len(self.old.results)}",
            *(f"worse now: {name}" for name in self.worse),
            *self.speed.lines(),
        ]


def move(
    name: str, to: str, *, commit: str = "", preset: str = "demo", rounds: int = 7, dry: bool = False
) -> None:
    """Move an engine's pin if every patch has its place, no check is worse and nothing is slower.

    Args:
        name: the engine. to, commit: see `upgrade.candidate`.
        preset: the model that is checked and measured.
        dry: stop after the patches were judged.

    Raises:
        BuildFailed: a patch conflicts. CheckFailed: a check is worse, or the new engine is slower.
        Whatever it is, engine.yaml then is as it was.
    """
    present = engines.load(name)
    found = upgrade.candidate(present, to, commit=commit)
    print(upgrade.changes(present, found))
    verdicts = upgrade.examine(found)
    print(upgrade.summary(verdicts))
    _stop_on_conflicts(found, verdicts)
    if dry:
        return
    without = upgrade.needless(verdicts)
    old = build.build(flavours.load("cpu"), tree.patched(present))
    new = build.build(flavours.load("cpu"), tree.patched(found.engine, without=without))
    outcome = tried(old, new, preset=preset, rounds=rounds)
    print("\n".join(outcome.lines()))
    _stop_on_worse(outcome)
    upgrade.adopt(found)
    for patch in without:
        say.step("upgrade", f"now: ./inv patch.drop {patch} --because ... --evidence ...")


def tried(old: ImageRecord, new: ImageRecord, *, preset: str, rounds: int) -> Trial:
    """Run the quick suite on both images, then measure them in turn."""
    files = models.ensure(schema.load(preset))
    model = Model(path=files.model.resolve(), draft=files.draft.resolve() if files.draft else None)
    reports = [_checked(image, model) for image in (old, new)]
    base = run.Choice(preset=preset)
    sides = run.compared(*(run.side(f"image:{image.ref}", base) for image in (old, new)))
    return Trial(old=reports[0], new=reports[1], speed=compare(*sides, rounds=rounds, quick=True))


def _checked(image: ImageRecord, model: Model) -> Report:
    with Room(launcher=ImageLauncher(image.id, model), quick=True) as room:
        return suite.run(
            room,
            target=image.ref,
            on_result=lambda result: say.step("check", f"{result.id}: {result.outcome}"),
        )


def _stop_on_conflicts(found: upgrade.Candidate, verdicts: Sequence[states.Verdict]) -> None:
    wrong = upgrade.in_the_way(verdicts)
    if wrong:
        raise BuildFailed(
            f"{len(wrong)} patches have no place in {found.engine.pin}; nothing was changed",
            why="\n        ".join("\n".join(states.explain(verdict) for verdict in wrong).splitlines()),
            hint="cut them anew against the new tree, or drop them",
        )


def _stop_on_worse(outcome: Trial) -> None:
    if outcome.worse or outcome.speed.regressions:
        reasons = [*outcome.worse, *(f"{name} is slower" for name in outcome.speed.regressions)]
        raise CheckFailed("the new engine is worse; the pin stays as it was", why=", ".join(reasons))
