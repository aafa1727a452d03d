"""What is refused by the catalog's sizes alone, before the network is asked for anything."""

from __future__ import annotations

import pytest

from compose import planning
from errors import DoesNotFit
from patches import engines
from presets import models_header, schema
from presets.planner import host
from presets.planner.terms import GIB, Budget

ENGINE = engines.load()


class Asked(Exception):
    """The network was asked."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object, **__: object) -> None:
        raise Asked

    monkeypatch.setattr(models_header, "of_preset", ask)


def give(monkeypatch: pytest.MonkeyPatch, gib: int) -> None:
    budget = Budget(available_bytes=gib * GIB, reserve_bytes=6 * GIB)
    monkeypatch.setattr(host, "budget", lambda **_: budget)


def test_what_is_hopeless_is_refused_without_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, 24)
    with pytest.raises(DoesNotFit, match="preset quality is too-big") as caught:
        planning.foresee(schema.load("quality", {"flavour": "cpu"}), ENGINE)
    assert caught.value.exit_code == 4
    assert "weights_host" in str(caught.value)
    assert "18.0 GiB to give" in caught.value.why


@pytest.mark.parametrize("gib", [96, 256])
def test_what_is_near_the_bound_is_left_to_the_real_headers(
    monkeypatch: pytest.MonkeyPatch, gib: int
) -> None:
    give(monkeypatch, gib)
    with pytest.raises(Asked):
        planning.foresee(schema.load("quality", {"flavour": "cpu"}), ENGINE)
