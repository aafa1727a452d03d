"""What smoke must find of a deployment, and its run."""

from __future__ import annotations

from checks import smoke as checks_smoke
from checks.report import Report
from checks.smoke import Expectation, MemoryTerm
from compose import container, record
from compose.record import Deployment


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


def memory(deployment: Deployment) -> tuple[MemoryTerm, ...] | None:
    """The plan's terms beside what the engine logged, for the terms that the log shows."""
    return None
