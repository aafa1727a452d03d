"""What the command line says is to be checked, and how a check is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks import keys, subject
from checks.arrangement import Arrangement
from checks.launcher import HostLauncher, ImageLauncher, Model, last_errors, model_arguments
from checks.prompts import Prompts
from checks.subject import Subject
from errors import BadInput
from tests import faults


def test_exactly_one_subject_is_needed() -> None:
    for given in (Subject(), Subject(url="http://x", image="y", model="m")):
        with pytest.raises(BadInput, match="exactly one"):
            given.launcher()


def test_servers_are_started_only_with_a_model_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="only with a model"):
        Subject(image="x").launcher()
    with pytest.raises(BadInput, match="no model file"):
        Subject(image="x", model=str(tmp_path / "none.gguf")).launcher()


def test_programs_must_hold_a_server(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    with pytest.raises(BadInput, match="no llama-server"):
        Subject(programs=str(tmp_path), model=str(model)).launcher()
    (tmp_path / "llama-server").touch()
    assert isinstance(Subject(programs=str(tmp_path), model=str(model)).launcher(), HostLauncher)
    assert isinstance(Subject(image="x", model=str(model)).launcher(), ImageLauncher)


def test_an_unknown_check_is_refused_before_anything_starts() -> None:
    with pytest.raises(BadInput, match="no check"):
        subject.run(Subject(url="http://127.0.0.1:1"), only=["rows.nothing"])


def test_the_words_of_a_subject_name_it_again() -> None:
    given = Subject(image="i:1", model="m", draft="d", quick=True, keep=1)
    assert given.words() == ["--image", "i:1", "--model", "m", "--draft", "d", "--quick", "--keep", "1"]


def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    (tmp_path / "empty").write_text("\n")
    assert keys.read(tmp_path / "key") == "secret"
    for name in ("empty", "missing"):
        with pytest.raises(BadInput):
            keys.read(tmp_path / name)


def test_an_arrangement_is_written_as_arguments() -> None:
    words = Arrangement(slots=4, unified=True, drafting=True, cache_type="q8_0").arguments()
    assert words[:4] == ["-np", "4", "-c", "4096"]
    assert "-kvu" in words
    assert words[words.index("-ctk") + 1] == "q8_0"
    assert words[words.index("--spec-type") + 1] == "draft-mtp"


def test_a_head_is_loaded_only_where_it_is_to_draft() -> None:
    model = Model(path=Path("/m/a.gguf"), draft=Path("/m/b.gguf"))
    assert model_arguments(model, Arrangement(), str) == ["-m", "/m/a.gguf"]
    assert model_arguments(model, Arrangement(drafting=True), str)[2:] == ["-md", "/m/b.gguf"]


def test_the_engines_own_error_lines_are_quoted() -> None:
    log = "0.1 I fine\n0.2 E srv load_model: failed\n0.3 I bye\n"
    assert last_errors(log) == "0.2 E srv load_model: failed"
    assert last_errors("only this\n") == "only this"


def test_prompts_have_the_length_that_was_asked_for() -> None:
    prompts = Prompts(lambda text: list(text.encode()))
    assert [len(prompts.tokens(7, length)) for length in (5, 200, 3000)] == [5, 200, 3000]
    assert prompts.tokens(7, 200) == prompts.tokens(7, 3000)[:200]
    assert len({prompt[:12] for prompt in prompts.mixed(40, [50, 50, 50])}) == 3


def test_every_planted_fault_names_a_check_that_exists() -> None:
    from checks import suite

    ids = {check.id for check in suite.CHECKS}
    known = faults.known()
    assert len(known) >= 16
    assert {fault.caught_by for fault in known} <= ids


def test_a_fault_that_one_run_missed_is_not_caught() -> None:
    fault = faults.Fault(id="x", purpose="y", caught_by="rows.strangers")
    good = faults.Row(fault=fault, failed=(("rows.strangers", "cut.pieces"), ("rows.strangers",)))
    bad = faults.Row(fault=fault, failed=(("rows.strangers",), ("cut.pieces",)))
    assert (good.good, bad.good) == (True, False)
    table = faults.Table(rows=(good, bad), clean_passed=1, clean_runs=1)
    assert not table.good
    assert "| x | y | rows.strangers | 1 of 2 |" in table.text()
