"""What smoke must find of a deployment, and its run."""

from __future__ import annotations

from dataclasses import dataclass

from checks import smoke as checks_smoke
from checks.report import Report
from checks.smoke import Expectation, MemoryTerm
from compose import container, record
from compose.record import Deployment
from presets.planner import compare, log
from presets.planner.terms import MIB, Term, Where


def smoke(deployment: Deployment) -> Report:
    """Run smoke against a deployment that is up."""
    return checks_smoke.run(
        deployment.url,
        key=record.api_key(deployment),
        key_file=record.key_file(deployment),
        expect=expected(deployment),
        timeout=max(60.0, deployment.start_seconds),
    )


def expected(deployment: Deployment) -> Expectation:
    """What the deployment was promised to be."""
    began = container.state(deployment.container)
    before = began.restarts if began else 0

    def restarts() -> int:
        now = container.state(deployment.container)
        return now.restarts - before if now else 0

    return Expectation(
        alias=deployment.alias,
        model_file=deployment.model_file,
        slot_context=deployment.slot_context,
        slots=deployment.slots,
        build=deployment.build,
        answer=deployment.answer,
        drafting=deployment.drafting,
        memory=memory(deployment),
        restarts=restarts,
    )


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The terms of a plan that was kept with a deployment."""

    terms: tuple[Term, ...]

    def bytes_on(self, where: Where) -> int:
        """The sum of the terms on one side."""
        return sum(term.bytes for term in self.terms if term.where == where)


def memory(deployment: Deployment) -> tuple[MemoryTerm, ...]:
    """The plan's terms beside what the engine logged, in the groups that a log tells apart; bytes."""
    terms = (Term(formula="", **term.model_dump()) for term in deployment.terms)
    logged = log.parse("\n".join(container.log(deployment.container)))
    return tuple(
        MemoryTerm(
            name=line.name,
            predicted=round(line.planned * MIB),
            logged=round(line.logged * MIB),
            certainty=line.certainty,
        )
        for line in compare.lines(Stored(terms=tuple(terms)), logged)
        if line.logged is not None
    )
