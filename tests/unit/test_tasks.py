"""The flags of all tasks: one spelling each, the same everywhere."""

from __future__ import annotations

from invoke.collection import Collection

import tasks


def flags(collection: Collection = tasks.ns) -> dict[str, list[str]]:
    """Every task by its full name, with the flags that it takes."""
    return {str(context.name): list(context.flags) for context in collection.to_contexts()}


def test_no_task_has_short_flags_that_mean_something_else_elsewhere() -> None:
    short = {name: found for name, every in flags().items() if (found := [f for f in every if f[1] != "-"])}
    assert short == {"bench.compare": ["-a", "-b"]}  # the two sides, each with its whole name


def test_json_and_jobs_are_spelled_out() -> None:
    found = flags()
    assert {"--json", "--jobs"} <= set(found["build"]) & set(found["deploy"])
    assert len(found) > 40
