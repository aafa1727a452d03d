"""A byte-level BPE tokenizer for test models: every byte has a token, and common words have one too.

The vocabulary is, in this order: 256 byte tokens, the pieces that spell `WORDS` from left to right,
unused padding, and five special tokens at the end. Nothing is learnt and nothing is random, so a
token id means the same in every model of one vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
WORDS = (
    " the", " and", " that", " this", " with", " answer", " question", " memory", " server", " model",
    " word", " one", " two", " three", " red", " green", " blue", " house", " river", " mountain",
    "user", "system", "assistant", "hello", "ing", "tion", "ment",
)  # fmt: skip
CHAT_TEMPLATE = """\
{%- if reasoning_effort is defined and reasoning_effort not in ["low", "medium", "xhigh"] -%}
{{ raise_exception("unexpected reasoning effort: only low, medium and xhigh exist") }}
{%- endif -%}
{%- for message in messages -%}
{{ "<|im_start|>" + message.role + "\\n" + message.content + "<|im_end|>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n" }}{%- endif -%}
"""
"""Plain turns, and an error for an effort that does not exist."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Token texts by id, their GGUF types, and the BPE merges in order of rank."""

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def end_of_text(self) -> int:
        """Id of the first special token."""
        return self.size - len(SPECIALS)

    @property
    def body(self) -> range:
        """Ids that a test model may emit: printable ASCII and the pieces, no control or special token."""
        return range(ord("!") - 33, ord("~") - 32)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary, by byte value.

    Printable Latin-1 bytes stand for themselves, the others are moved above U+0100 in order.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    moved = {byte: chr(0x100 + index) for index, byte in enumerate(hidden)}
    return [moved.get(byte, chr(byte)) for byte in range(256)]


def vocabulary(size: int) -> Vocabulary:
    """Make a vocabulary of exactly `size` tokens.

    Raises:
        ValueError: `size` is too small for the bytes, the word pieces and the special tokens.
    """
    letters = byte_letters()
    order = sorted(range(256), key=lambda byte: (letters[byte] > "\xff", byte))
    tokens, merges = [letters[byte] for byte in order], []
    for word in WORDS:
        spelled = [letters[byte] for byte in word.encode()]
        piece = spelled[0]
        for letter in spelled[1:]:
            if piece + letter not in tokens:
                tokens.append(piece + letter)
                merges.append(f"{piece} {letter}")
            piece += letter
    padding = size - len(tokens) - len(SPECIALS)
    if padding < 0:
        raise ValueError(f"a vocabulary of {size} tokens is too small, {size - padding} are needed")
    kinds = gguf.TokenType
    types = [kinds.NORMAL] * len(tokens) + [kinds.UNUSED] * padding
    tokens += [f"[unused{index}]" for index in range(padding)]
    types += [kinds.CONTROL if text.startswith("<|") else kinds.USER_DEFINED for text in SPECIALS]
    return Vocabulary(tokens=(*tokens, *SPECIALS), types=tuple(int(t) for t in types), merges=tuple(merges))


def write(writer: gguf.GGUFWriter, words: Vocabulary, *, pre: str) -> None:
    """Put the tokenizer keys and the chat template into a GGUF file."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(words.tokens))
    writer.add_token_types(list(words.types))
    writer.add_token_merges(list(words.merges))
    writer.add_bos_token_id(words.end_of_text)
    writer.add_eos_token_id(words.end_of_text + 2)
    writer.add_pad_token_id(words.end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
