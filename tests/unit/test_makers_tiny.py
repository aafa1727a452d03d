"""The makers of test models: same seed, same bytes; sound tokenizer; an acceptance that is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from tests.makers import tiny, tokenizer
from tests.makers.weights import Echo

MAKERS: dict[str, Callable[[Path], Path]] = {
    "dense": tiny.dense,
    "trunk": tiny.trunk,
    "head": tiny.head,
    "qwen35": tiny.qwen35,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_seed_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    first = MAKERS[kind](tmp_path / "first.gguf").read_bytes()
    assert MAKERS[kind](tmp_path / "second.gguf").read_bytes() == first
    assert len(first) < 16 * 2**20


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    first = tiny.dense(tmp_path / "first.gguf", seed=1).read_bytes()
    assert tiny.dense(tmp_path / "second.gguf", seed=2).read_bytes() != first


def test_a_separate_head_holds_its_own_block_only(tmp_path: Path) -> None:
    names = {tensor.name for tensor in gguf.GGUFReader(tiny.head(tmp_path / "head.gguf")).tensors}
    blocks = {name.split(".")[1] for name in names if name.startswith("blk.")}
    assert blocks == {"8"}
    assert {"token_embd.weight", "output.weight", "blk.8.nextn.eh_proj.weight"} <= names


def test_every_byte_has_one_letter() -> None:
    letters = tokenizer.byte_letters()
    assert len(letters) == len(set(letters)) == 256
    assert letters[ord("A")] == "A"
    assert letters[ord(" ")] == "Ġ"


def test_each_merge_joins_two_tokens_into_a_third() -> None:
    words = tokenizer.vocabulary(512)
    for merge in words.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(words.tokens)


def test_a_vocabulary_has_the_size_that_was_asked_for_or_is_refused() -> None:
    assert tokenizer.vocabulary(512).size == 512
    with pytest.raises(ValueError, match="too small"):
        tokenizer.vocabulary(260)


def test_the_body_is_printable() -> None:
    words = tokenizer.vocabulary(512)
    assert "".join(words.tokens[token] for token in words.body) == "".join(map(chr, range(0x21, 0x7F)))


def test_the_rule_is_one_cycle_over_the_body() -> None:
    words = tokenizer.vocabulary(512)
    after = Echo(words, 64, seed=5).successors()
    token, seen = words.body[0], set()
    while token not in seen:
        seen.add(token)
        token = int(after[token])
    assert seen == set(words.body)


@pytest.mark.parametrize("agreement", [0.0, 0.25, 0.7, 0.9, 1.0])
def test_a_head_errs_on_the_share_it_was_asked_to(agreement: float) -> None:
    words = tokenizer.vocabulary(512)
    echo = Echo(words, 64, seed=5)
    right, drafts = echo.successors(), echo.successors(agreement)
    agreed = sum(right[token] == drafts[token] for token in words.body)
    assert agreed / len(words.body) == pytest.approx(agreement, abs=1 / len(words.body))


def test_acceptance_rises_with_agreement_and_falls_with_longer_drafts() -> None:
    echo = Echo(tokenizer.vocabulary(512), 64, seed=5)
    assert echo.acceptance(1.0, 4) == 1.0
    assert echo.acceptance(0.0, 4) == 0.0
    assert echo.acceptance(0.5, 3) < echo.acceptance(0.7, 3) < echo.acceptance(0.9, 3)
    assert echo.acceptance(0.7, 4) < echo.acceptance(0.7, 1)
