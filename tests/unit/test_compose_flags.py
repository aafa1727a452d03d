"""A command is held against the image's own --help before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from compose import flags
from compose.flags import Accepted
from errors import BadInput
from presets import schema

HELP = (Path(__file__).parents[1] / "data" / "llama-server-b11434.help").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def b11434() -> Accepted:
    return flags.parse_help(HELP)


@pytest.mark.parametrize(
    ("word", "takes_value", "choices"),
    [
        ("-c", True, set()),
        ("--ctx_size", True, set()),
        ("--load-mode", True, {"auto", "none", "mmap", "mlock", "mmap+mlock", "dio"}),
        ("-lzm", True, {"auto", "on", "off"}),
        ("-fa", True, {"auto", "on", "off"}),
        ("--no-kv-unified", False, set()),
        ("-ctk", True, {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"}),
        ("--metrics", False, set()),
        ("--swa-full", False, set()),
        ("-no-kvu", False, set()),
    ],
)
def test_help_is_understood(b11434: Accepted, word: str, takes_value: bool, choices: set[str]) -> None:
    known = b11434.find(word)
    assert known is not None
    assert (known.takes_value, set(known.choices)) == (takes_value, choices)


def test_every_option_of_the_help_is_found(b11434: Accepted) -> None:
    first_words = [line.split()[0].rstrip(",") for line in HELP.splitlines() if line.startswith(("-", "--"))]
    first_words = [word for word in first_words if not word.startswith("-----")]
    assert len(first_words) > 250
    assert [word for word in first_words if b11434.find(word) is None] == []


@pytest.mark.parametrize("name", schema.names())
def test_every_shipped_preset_suits_its_engine(b11434: Accepted, name: str) -> None:
    preset = schema.load(name)
    arguments = preset.arguments(11434, model="/m.gguf", draft="/d.gguf" if preset.head else None)
    assert flags.check(arguments, b11434) == []


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--draft-max 3", "--draft-max was removed from this engine; use --spec-draft-n-max"),
        ("--draft-n-max 3", "--draft-n-max is not an option of this engine; use --spec-draft-n-max"),
        ("--draft-model m", "--draft-model is not an option of this engine; use --spec-draft-model"),
        ("--spec-type draft", "--spec-type does not take 'draft'; use draft-simple or draft-mtp"),
        ("-cpent 8", "-cpent is not an option of this engine; use --checkpoint-min-step"),
        ("--mmap", "--mmap is not an option of this engine; use --load-mode mmap"),
        ("--no-mmap", "--no-mmap is not an option of this engine; use --load-mode none"),
        ("--mlock", "--mlock is not an option of this engine; use --load-mode mlock"),
        ("--tensor-read-lazy on", "--tensor-read-lazy is not an option of this engine; use --lazy-mode"),
        ("--threds 3", "--threds is not an option of this engine; did you mean '--threads'?"),
        ("-ctk q9_9", "-ctk (--cache-type-k) does not take 'q9_9'; did you mean"),
        ("-fa", "-fa wants a value"),
        ("--api-key secret", "--api-key puts a secret into the command; use api_key_file"),
        ("stray", "stray is not an option of this engine (a value without an option?)"),
    ],
)
def test_faults_name_what_to_write_instead(b11434: Accepted, words: str, fault: str) -> None:
    found = flags.check(words.split(), b11434)
    assert len(found) == 1
    assert found[0].startswith(fault)


@pytest.mark.parametrize(
    "again",
    ["-c 1", "--ctx-size 1", "--ctx_size 1", "-kvu", "--no-kv-unified", "-ctxcp 1", "--swa-checkpoints 1"],
)
def test_extra_arguments_may_not_repeat_an_option_in_any_spelling(b11434: Accepted, again: str) -> None:
    preset = schema.load("demo")
    arguments = preset.arguments(11434, model="/m.gguf")
    assert any(
        "repeats" in fault or "twice" in fault for fault in flags.check([*arguments, *again.split()], b11434)
    )


def test_negative_values_are_not_options(b11434: Accepted) -> None:
    assert flags.check(["--seed", "-1", "--predict", "-1"], b11434) == []


def test_an_older_engine_gets_the_older_words() -> None:
    old = HELP.replace("-lzm,  --lazy-mode MODE      ", "--tensor-read-lazy MODE      ")
    found = flags.check(["--lazy-mode", "on"], flags.parse_help(old))
    assert found == ["--lazy-mode is not an option of this engine; use --tensor-read-lazy"]


def test_a_refusal_is_bad_input(b11434: Accepted) -> None:
    with pytest.raises(BadInput, match="does not suit the engine of some/image") as caught:
        flags.require(["--mmap"], b11434, image="some/image", preset="mine")
    assert caught.value.exit_code == 2
    with pytest.raises(BadInput, match="lists no options"):
        flags.parse_help("no help here")
