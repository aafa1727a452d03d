"""Small models that really run: llama-server has each ready in half a second.

They do not speak. What they are good for: random weights make the next token depend on every
earlier one, so any fault in masks, positions, caches or states changes the output; and a draft head
that agrees with its trunk on a known share of tokens gives a known acceptance.

    python -m tests.makers.tiny dense OUT.gguf [--seed N]
    python -m tests.makers.tiny trunk OUT.gguf [--inert]
    python -m tests.makers.tiny head OUT.gguf [--agreement 0.7] [--dense]
    python -m tests.makers.tiny qwen35 OUT.gguf
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from tests.makers import tokenizer
from tests.makers.weights import Array, Draw, Echo, gguf_file

CONTEXT = 8192
"""Training context that the files name, in tokens."""


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Sizes of a model that mixes linear and full attention, under llama.cpp's names."""

    layers: int = 8
    width: int = 256
    vocabulary: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    interval: int = 4
    state: int = 64
    groups: int = 2
    state_heads: int = 4
    conv: int = 4

    @property
    def inner(self) -> int:
        """Width of the values of linear attention."""
        return self.state * self.state_heads

    @property
    def conv_width(self) -> int:
        """Channels of the convolution: queries, keys and values of linear attention."""
        return 2 * self.state * self.groups + self.inner

    def full(self, layer: int) -> bool:
        """Whether a layer has full attention; those past the trunk (the draft head) have."""
        return layer >= self.layers or (layer + 1) % self.interval == 0


@dataclass(frozen=True, kw_only=True)
class Qwen4Exp(Hybrid):
    """Sizes of a small qwen4exp: hyper-connections, experts, block indexer, n-gram embeddings."""

    streams: int = 4
    rank: int = 16
    experts: int = 4
    expert_width: int = 64
    index_heads: int = 16
    index_size: int = 64
    top_k: int = 64
    ratio: int = 4
    ngram: int = 3
    ngram_heads: int = 8
    ngram_rows: int = 101
    ngram_layer: int = 1
    ngram_conv: int = 4

    @property
    def wide(self) -> int:
        """Width of all residual streams side by side."""
        return self.streams * self.width

    @property
    def tables(self) -> int:
        """Number of n-gram hash tables, whose rows together fill one embedding."""
        return (self.ngram - 1) * self.ngram_heads


def dense(path: Path, *, seed: int = 1, layers: int = 4, vocabulary: int = 512) -> Path:
    """Write a dense qwen3 model: full attention and nothing else. About 2 MB."""
    width, heads, kv_heads, head_size, inner = 128, 4, 2, 64, 256
    words = tokenizer.vocabulary(vocabulary)
    with gguf_file(path, "qwen3") as writer:
        writer.add_name("tiny dense")
        _common_keys(writer, layers, width, heads, kv_heads, head_size)
        writer.add_feed_forward_length(inner)
        tokenizer.write(writer, words, pre="qwen2")
        draw, echo = Draw(writer, seed), Echo(words, width, seed)
        draw.put("token_embd.weight", echo.embedding)
        draw.norm("output_norm.weight", width)
        draw.put("output.weight", echo.output(peak=0, noise=2.5, seed=seed))
        for layer in range(layers):
            name = f"blk.{layer}."
            draw.norm(name + "attn_norm.weight", width)
            draw.norm(name + "ffn_norm.weight", width)
            _attention(draw, name, width, heads, kv_heads, head_size, gated=False)
            draw.normal(name + "ffn_gate.weight", width, inner)
            draw.normal(name + "ffn_up.weight", width, inner)
            draw.normal(name + "ffn_down.weight", inner, width)
    return path


def qwen35(path: Path, *, seed: int = 1, sizes: Hybrid | None = None) -> Path:
    """Write a qwen35 model with its draft head inside; the draft context there is a plain KV cache.

    The head reads the hidden state as well as the token, so its drafts depend on all that came before.
    """
    size = sizes or Hybrid(width=128)
    words = tokenizer.vocabulary(size.vocabulary)
    with gguf_file(path, "qwen35") as writer:
        writer.add_name("tiny qwen35")
        _common_keys(writer, size.layers + 1, size.width, size.heads, size.kv_heads, size.head_size)
        _hybrid_keys(writer, size)
        writer.add_feed_forward_length(size.width)
        writer.add_uint32("qwen35.nextn_predict_layers", 1)
        tokenizer.write(writer, words, pre="qwen35")
        draw, echo = Draw(writer, seed), Echo(words, size.width, seed)
        draw.put("token_embd.weight", echo.embedding)
        draw.norm("output_norm.weight", size.width)
        draw.put("output.weight", echo.output(peak=20, noise=3.5, seed=seed))
        for layer in range(size.layers + 1):
            _qwen35_layer(draw, size, layer)
    return path


def trunk(
    path: Path, *, seed: int = 1, inert: bool = False, head: bool = False, sizes: Qwen4Exp | None = None
) -> Path:
    """Write a qwen4exp trunk.

    Args:
        path: the GGUF file.
        seed: trunk and head of one seed share the rule for the next token.
        inert: the blocks add nothing, so every token follows the rule and a head's acceptance is
            exactly its agreement; otherwise the blocks overrule it on a part of the tokens.
        head: put the draft head into the same file.
        sizes: other sizes than the default.
    """
    size = sizes or Qwen4Exp()
    words = tokenizer.vocabulary(size.vocabulary)
    with gguf_file(path, "qwen4exp") as writer:
        writer.add_name("tiny qwen4exp")
        _qwen4exp_keys(writer, size, head=head)
        _ngram_keys(writer, size, words.end_of_text)
        tokenizer.write(writer, words, pre="qwen35")
        draw, echo = Draw(writer, seed), Echo(words, size.width, seed)
        draw.put("token_embd.weight", echo.embedding)
        peak, noise = (24.0, 0.0) if inert else (28.0, 5.0)
        draw.put("output.weight", echo.output(peak=peak, noise=noise, seed=seed))
        _mixer(draw, "output_hc_", size)
        rows = size.tables * size.ngram_rows
        draw.normal("per_layer_token_embd.weight", size.width // size.tables, -(-rows // 128) * 128, gain=4)
        for layer in range(size.layers + head):
            _qwen4exp_layer(draw, size, layer, writes=0.0 if inert else 1.0)
            if layer == size.ngram_layer:
                _ngram(draw, f"blk.{layer}.", size, writes=0.0 if inert else 1.0)
        if head:
            _head_tensors(draw, f"blk.{size.layers}.", size, hidden=0.3)
    return path


def head(
    path: Path,
    *,
    seed: int = 1,
    agreement: float = 1.0,
    hidden: float = 0.0,
    dense: bool = False,
    sizes: Qwen4Exp | None = None,
) -> Path:
    """Write the separate draft head (MTP) of a qwen4exp trunk.

    Args:
        path: the GGUF file.
        seed: that of the trunk.
        agreement: share of the tokens, 0 to 1, on which the head follows the trunk's rule.
        hidden: how much the trunk's hidden state and the head's own block weigh against the token;
            0 makes the draft a function of the last token alone.
        dense: give the head's layer the compress ratio 0, that is plain attention without an indexer.
        sizes: those of the trunk.
    """
    size = sizes or Qwen4Exp()
    words = tokenizer.vocabulary(size.vocabulary)
    with gguf_file(path, "qwen4exp") as writer:
        writer.add_name("tiny qwen4exp head")
        _qwen4exp_keys(writer, size, head=True, dense_head=dense)
        tokenizer.write(writer, words, pre="qwen35")
        draw, echo = Draw(writer, seed + 1), Echo(words, size.width, seed)
        draw.put("token_embd.weight", echo.embedding)
        noise = 4.0 * hidden
        draw.put("output.weight", echo.output(peak=24, noise=noise, agreement=agreement, seed=seed))
        _qwen4exp_layer(draw, size, size.layers, writes=hidden)
        _head_tensors(draw, f"blk.{size.layers}.", size, hidden=hidden)
    return path


def _common_keys(
    writer: gguf.GGUFWriter, blocks: int, width: int, heads: int, kv_heads: int, head_size: int
) -> None:
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_block_count(blocks)
    writer.add_embedding_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)


def _hybrid_keys(writer: gguf.GGUFWriter, size: Hybrid) -> None:
    writer.add_rope_dimension_count(size.head_size)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(size.conv)
    writer.add_ssm_inner_size(size.inner)
    writer.add_ssm_state_size(size.state)
    writer.add_ssm_time_step_rank(size.state_heads)
    writer.add_ssm_group_count(size.groups)
    writer.add_uint32(f"{writer.arch}.full_attention_interval", size.interval)


def _qwen4exp_keys(writer: gguf.GGUFWriter, size: Qwen4Exp, *, head: bool, dense_head: bool = False) -> None:
    blocks = size.layers + head
    _common_keys(writer, blocks, size.width, size.heads, size.kv_heads, size.head_size)
    _hybrid_keys(writer, size)
    ratios = [size.ratio if size.full(layer) else 0 for layer in range(blocks)]
    if dense_head:
        ratios[size.layers] = 0
    writer.add_array("qwen4exp.attention.compress_ratios", ratios)
    writer.add_expert_count(size.experts)
    writer.add_expert_used_count(size.experts)
    for key, value in {
        "expert_feed_forward_length": size.expert_width,
        "expert_shared_feed_forward_length": size.expert_width,
        "hyper_connection.count": size.streams,
        "hyper_connection.low_rank": size.rank,
        "attention.indexer.head_count": size.index_heads,
        "attention.indexer.key_length": size.index_size,
        "attention.indexer.top_k": size.top_k,
    }.items():
        writer.add_uint32(f"qwen4exp.{key}", value)
    if head:
        writer.add_uint32("qwen4exp.nextn_predict_layers", 1)


def _ngram_keys(writer: gguf.GGUFWriter, size: Qwen4Exp, end_of_text: int) -> None:
    def wide(key: str, values: Sequence[int]) -> None:
        kind = gguf.GGUFValueType
        writer.add_key_value(f"qwen4exp.ple.{key}", list(values), kind.ARRAY, kind.UINT64)

    writer.add_array("qwen4exp.ple.layers", [size.ngram_layer])
    writer.add_uint32("qwen4exp.ple.ngram_size", size.ngram)
    writer.add_uint32("qwen4exp.ple.heads_per_ngram", size.ngram_heads)
    writer.add_uint32("qwen4exp.ple.conv_kernel", size.ngram_conv)
    writer.add_uint32("qwen4exp.ple.eos_token_id", end_of_text)
    writer.add_uint32("qwen4exp.embedding_length_per_layer_input", size.width // size.tables)
    wide("layer_multipliers", [0x9E3779B97F4A7C15 >> (3 * power + 4) | 1 for power in range(size.ngram)])
    wide("head_offsets", [table * size.ngram_rows for table in range(size.tables)])
    wide("head_vocab_sizes", [size.ngram_rows] * size.tables)


def _attention(
    draw: Draw, name: str, width: int, heads: int, kv_heads: int, head_size: int, *, gated: bool,
    writes: float = 1.0,
) -> None:  # fmt: skip
    """Full attention; a gated one has query and gate side by side, head by head."""
    draw.normal(name + "attn_q.weight", width, heads * head_size * (2 if gated else 1))
    draw.normal(name + "attn_k.weight", width, kv_heads * head_size)
    draw.normal(name + "attn_v.weight", width, kv_heads * head_size)
    draw.normal(name + "attn_output.weight", heads * head_size, width, gain=2 * writes)
    # sharper than a norm of one would make them, so that single cells matter
    draw.uniform(name + "attn_q_norm.weight", head_size, low=1.5, high=2.0)
    draw.uniform(name + "attn_k_norm.weight", head_size, low=0.8, high=1.2)


def _linear_attention(draw: Draw, name: str, size: Hybrid, *, writes: float) -> None:
    draw.normal(name + "attn_qkv.weight", size.width, size.conv_width)
    draw.normal(name + "attn_gate.weight", size.width, size.inner)
    draw.normal(name + "ssm_conv1d.weight", size.conv, size.conv_width, half=False)
    draw.normal(name + "ssm_beta.weight", size.width, size.state_heads)
    draw.normal(name + "ssm_alpha.weight", size.width, size.state_heads)
    draw.uniform(name + "ssm_dt.bias", size.state_heads, low=-1, high=1)
    # minus the rate at which the state fades: slow, so that early tokens still count much later
    draw.uniform(name + "ssm_a", size.state_heads, low=-0.06, high=-0.002)
    draw.norm(name + "ssm_norm.weight", size.state)
    draw.normal(name + "ssm_out.weight", size.inner, size.width, gain=writes)


def _qwen35_layer(draw: Draw, size: Hybrid, layer: int) -> None:
    name = f"blk.{layer}."
    draw.norm(name + "attn_norm.weight", size.width)
    draw.norm(name + "post_attention_norm.weight", size.width)
    if size.full(layer):
        _attention(draw, name, size.width, size.heads, size.kv_heads, size.head_size, gated=True)
    else:
        _linear_attention(draw, name, size, writes=1.0)
    draw.normal(name + "ffn_gate.weight", size.width, size.width)
    draw.normal(name + "ffn_up.weight", size.width, size.width)
    draw.normal(name + "ffn_down.weight", size.width, size.width, gain=0.5)
    if layer == size.layers:
        draw.put(name + "nextn.eh_proj.weight", _projection(size, hidden=0.3))
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            draw.norm(name + f"nextn.{norm}.weight", size.width)


def _mixer(draw: Draw, name: str, size: Qwen4Exp, *, inject: bool = False) -> None:
    """A hyper-connection: norm, low-rank gate, and where a block follows its scatter weights."""
    draw.norm(name + "norm.weight", size.wide)
    draw.normal(name + "down.weight", size.wide, size.rank)
    draw.normal(name + "up.weight", size.rank, size.wide, gain=0.5)
    if inject:
        draw.normal(name + "inject.weight", size.wide, size.streams)


def _qwen4exp_layer(draw: Draw, size: Qwen4Exp, layer: int, *, writes: float) -> None:
    name = f"blk.{layer}."
    for block in ("attn", "ffn"):
        _mixer(draw, f"{name}hc_{block}_", size, inject=True)
    if size.full(layer):
        _attention(
            draw, name, size.width, size.heads, size.kv_heads, size.head_size, gated=True, writes=writes
        )
        draw.normal(name + "indexer.q_proj.weight", size.width, size.index_heads * size.index_size)
        draw.normal(name + "indexer.k_proj.weight", size.width, size.index_size)
        draw.norm(name + "indexer.q_norm.weight", size.index_size)
        draw.norm(name + "indexer.k_norm.weight", size.index_size)
    else:
        _linear_attention(draw, name, size, writes=writes)
    _experts(draw, name, size, writes=writes)


def _experts(draw: Draw, name: str, size: Qwen4Exp, *, writes: float) -> None:
    """All experts are always used: a router that chooses would turn rounding into another output."""
    draw.normal(name + "ffn_gate_inp.weight", size.width, size.experts, half=False)
    draw.normal(name + "ffn_gate_exps.weight", size.width, size.expert_width, size.experts)
    draw.normal(name + "ffn_up_exps.weight", size.width, size.expert_width, size.experts)
    draw.normal(name + "ffn_down_exps.weight", size.expert_width, size.width, size.experts, gain=0.5 * writes)
    draw.normal(name + "ffn_gate_inp_shexp.weight", size.width, half=False)
    draw.normal(name + "ffn_gate_shexp.weight", size.width, size.expert_width)
    draw.normal(name + "ffn_up_shexp.weight", size.width, size.expert_width)
    draw.normal(name + "ffn_down_shexp.weight", size.expert_width, size.width, gain=0.5 * writes)


def _ngram(draw: Draw, name: str, size: Qwen4Exp, *, writes: float) -> None:
    draw.normal(name + "ple_key.weight", size.width, size.wide)
    draw.normal(name + "ple_value.weight", size.width, size.width, gain=writes)
    for norm in ("key", "query", "conv"):
        draw.norm(f"{name}ple_norm_{norm}.weight", size.wide)
    draw.normal(name + "ple_conv1d.weight", size.ngram_conv, size.wide, gain=writes, half=False)


def _head_tensors(draw: Draw, name: str, size: Qwen4Exp, *, hidden: float) -> None:
    draw.put(name + "nextn.eh_proj.weight", _projection(size, hidden=hidden))
    draw.norm(name + "nextn.enorm.weight", size.width)
    draw.norm(name + "nextn.hnorm.weight", size.wide)
    _mixer(draw, name + "nextn.hc_head_", size)


def _projection(size: Hybrid, *, hidden: float) -> Array:
    """A head's projection: passes the token on unchanged, plus `hidden` times a mix of the hidden state."""
    rng = np.random.default_rng(size.width)
    mix = rng.standard_normal((size.width, size.width)) * (hidden / np.sqrt(size.width))
    return np.hstack([np.eye(size.width), mix]).astype(np.float32)


def main() -> None:
    """Make one model from the command line."""
    parser = argparse.ArgumentParser(description="make a small test model")
    parser.add_argument("kind", choices=["dense", "trunk", "head", "qwen35"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inert", action="store_true", help="trunk: blocks that add nothing")
    parser.add_argument("--agreement", type=float, default=1.0, help="head: share of right drafts")
    parser.add_argument("--hidden", type=float, default=0.0, help="head: weight of the hidden state")
    parser.add_argument("--dense", action="store_true", help="head: plain attention, no indexer")
    given = parser.parse_args()
    if given.kind == "trunk":
        trunk(given.out, seed=given.seed, inert=given.inert)
    elif given.kind == "head":
        head(given.out, seed=given.seed, agreement=given.agreement, hidden=given.hidden, dense=given.dense)
    elif given.kind == "dense":
        dense(given.out, seed=given.seed)
    else:
        qwen35(given.out, seed=given.seed)


if __name__ == "__main__":
    main()
