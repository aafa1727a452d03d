"""The shapes of real models, for hollow files. Sources: the hyper-parameter table of the cases, printed
headers, and the engine's own loaders for the tensors that each architecture demands.

Quantization is uniform where the publisher's mix is unknown; only the size of the weights depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.makers.hollow import Meta, Model

Tensor = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, kw_only=True)
class Mix:
    """The ggml types of a file: `body` for 2-d weights, `experts` for experts, `embed` for embeddings."""

    body: str = "q8_0"
    experts: str = "q4_K"
    embed: str = "q8_0"


MIX: Final = Mix()


def _norms(prefix: str, size: int, *names: str) -> list[Tensor]:
    return [(f"{prefix}{name}.weight", (size,), "f32") for name in names]


def _outer(width: int, vocabulary: int, *, tied: bool = False, mix: Mix = MIX) -> list[Tensor]:
    tensors = [("token_embd.weight", (width, vocabulary), mix.embed), *_norms("", width, "output_norm")]
    return tensors if tied else [*tensors, ("output.weight", (width, vocabulary), mix.embed)]


def _attention(p: str, width: int, q: int, k: int, v: int, o: int, mix: Mix = MIX) -> list[Tensor]:
    return [
        (f"{p}attn_q.weight", (width, q), mix.body),
        (f"{p}attn_k.weight", (width, k), mix.body),
        (f"{p}attn_v.weight", (width, v), mix.body),
        (f"{p}attn_output.weight", (o, width), mix.body),
    ]


def _feed(p: str, width: int, inner: int, mix: Mix = MIX, suffix: str = "") -> list[Tensor]:
    return [
        (f"{p}ffn_gate{suffix}.weight", (width, inner), mix.body),
        (f"{p}ffn_up{suffix}.weight", (width, inner), mix.body),
        (f"{p}ffn_down{suffix}.weight", (inner, width), mix.body),
    ]


def _experts(p: str, width: int, inner: int, count: int, mix: Mix = MIX, down: str = "") -> list[Tensor]:
    return [
        (f"{p}ffn_gate_inp.weight", (width, count), "f32"),
        (f"{p}ffn_gate_exps.weight", (width, inner, count), mix.experts),
        (f"{p}ffn_up_exps.weight", (width, inner, count), mix.experts),
        (f"{p}ffn_down_exps.weight", (inner, width, count), down or mix.experts),
    ]


def _keys(arch: str, **values: Meta) -> dict[str, Meta]:
    """Keys of an architecture; `__` in a name stands for the dot."""
    keys: dict[str, Meta] = {"general.architecture": arch, "general.name": f"hollow {arch}"}
    keys |= {f"{arch}.{name.replace('__', '.')}": value for name, value in values.items()}
    keys.setdefault(f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)
    return keys


def dense(
    arch: str,
    *,
    blocks: int,
    width: int,
    heads: int,
    kv_heads: int,
    head: int,
    inner: int,
    vocabulary: int,
    context: int,
    tied: bool = False,
    qk_norm: bool = False,
    bias: bool = False,
) -> Model:
    """A dense GQA model: llama, qwen2 (bias), qwen3 (qk_norm)."""
    keys = _keys(
        arch, block_count=blocks, context_length=context, embedding_length=width, feed_forward_length=inner,
        attention__head_count=heads, attention__head_count_kv=kv_heads, attention__key_length=head,
        attention__value_length=head, rope__dimension_count=head,
    )  # fmt: skip
    tensors = _outer(width, vocabulary, tied=tied)
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "ffn_norm")
        tensors += _attention(p, width, heads * head, kv_heads * head, kv_heads * head, heads * head)
        tensors += _norms(p, head, "attn_q_norm", "attn_k_norm") if qk_norm else []
        if bias:
            sizes = {"q": heads * head, "k": kv_heads * head, "v": kv_heads * head}
            tensors += [(f"{p}attn_{name}.bias", (size,), "f32") for name, size in sizes.items()]
        tensors += _feed(p, width, inner)
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Gated DeltaNet sizes under the engine's names."""

    conv: int = 4
    state: int = 128
    groups: int = 16
    rank: int = 32

    @property
    def inner(self) -> int:
        """Width of the values."""
        return self.state * self.rank

    @property
    def channels(self) -> int:
        """Channels of the convolution."""
        return 2 * self.state * self.groups + self.inner

    def keys(self) -> dict[str, Meta]:
        """The ssm keys, without their architecture."""
        return {
            "ssm__conv_kernel": self.conv, "ssm__inner_size": self.inner, "ssm__state_size": self.state,
            "ssm__time_step_rank": self.rank, "ssm__group_count": self.groups,
        }  # fmt: skip

    def tensors(self, p: str, width: int, *, joined: bool = False) -> list[Tensor]:
        """The tensors of a linear layer; `joined` has beta and alpha in one (qwen3next)."""
        pair: list[Tensor] = [
            (f"{p}ssm_beta.weight", (width, self.rank), "q8_0"),
            (f"{p}ssm_alpha.weight", (width, self.rank), "q8_0"),
        ]
        if joined:
            pair = [(f"{p}ssm_ba.weight", (width, 2 * self.rank), "q8_0")]
        return [
            (f"{p}attn_qkv.weight", (width, self.channels), "q8_0"),
            (f"{p}attn_gate.weight", (width, self.inner), "q8_0"),
            (f"{p}ssm_conv1d.weight", (self.conv, self.channels), "f32"),
            (f"{p}ssm_dt.bias", (self.rank,), "f32"),
            (f"{p}ssm_a", (self.rank,), "f32"),
            *pair,
            (f"{p}ssm_norm.weight", (self.state,), "f32"),
            (f"{p}ssm_out.weight", (self.inner, width), "q8_0"),
        ]


def hybrid(
    arch: str,
    *,
    blocks: int,
    width: int,
    heads: int,
    kv_heads: int,
    linear: Linear,
    vocabulary: int,
    context: int = 262144,
    head: int = 256,
    inner: int = 0,
    experts: tuple[int, int, int, int] = (0, 0, 0, 0),
    nextn: int = 0,
    per_layer_heads: bool = False,
) -> Model:
    """qwen3next, qwen35 and qwen35moe: three linear layers, then one of full attention.

    `experts` is (count, used, width of one, width of the shared one).
    """
    every = range(blocks + nextn)
    full = [block >= blocks or (block + 1) % 4 == 0 for block in every]
    kv: Meta = [kv_heads if own else 0 for own in full] if per_layer_heads else kv_heads
    count, used, expert, shared = experts
    keys = _keys(
        arch, block_count=blocks + nextn, context_length=context, embedding_length=width,
        attention__head_count=heads, attention__head_count_kv=kv, attention__key_length=head,
        attention__value_length=head, rope__dimension_count=64, rope__dimension_sections=[11, 11, 10, 0],
        full_attention_interval=4, rope__freq_base=1e7, **linear.keys(),
    )  # fmt: skip
    more: dict[str, Meta] = {"feed_forward_length": inner} if inner else {}
    if count:
        more |= {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": expert}
        more |= {"expert_shared_feed_forward_length": shared}
    if nextn:
        more["nextn_predict_layers"] = nextn
    keys |= {f"{arch}.{name}": value for name, value in more.items()}
    tensors = _outer(width, vocabulary)
    for block in every:
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "post_attention_norm")
        if full[block]:
            tensors += _attention(p, width, heads * head * 2, kv_heads * head, kv_heads * head, heads * head)
            tensors += _norms(p, head, "attn_q_norm", "attn_k_norm")
        else:
            tensors += linear.tensors(p, width, joined=arch == "qwen3next")
        tensors += _hybrid_feed(p, width, inner, experts)
        if block >= blocks:
            tensors.append((f"{p}nextn.eh_proj.weight", (2 * width, width), "q8_0"))
            tensors += _norms(p, width, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def _hybrid_feed(p: str, width: int, inner: int, experts: tuple[int, int, int, int]) -> list[Tensor]:
    count, _, expert, shared = experts
    if not count:
        return _feed(p, width, inner)
    gate: Tensor = (f"{p}ffn_gate_inp_shexp.weight", (width,), "f32")
    return [*_experts(p, width, expert, count), gate, *_feed(p, width, shared, suffix="_shexp")]


def moe(
    arch: str,
    *,
    blocks: int,
    width: int,
    heads: int,
    kv_heads: int,
    head: int,
    experts: tuple[int, int, int],
    vocabulary: int,
    context: int,
) -> Model:
    """qwen3moe: GQA with routed experts in every layer; `experts` is (count, used, width of one)."""
    count, used, expert = experts
    keys = _keys(
        arch, block_count=blocks, context_length=context, embedding_length=width, feed_forward_length=expert,
        attention__head_count=heads, attention__head_count_kv=kv_heads, attention__key_length=head,
        attention__value_length=head, expert_count=count, expert_used_count=used,
        expert_feed_forward_length=expert,
    )  # fmt: skip
    tensors = _outer(width, vocabulary)
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "ffn_norm")
        tensors += _attention(p, width, heads * head, kv_heads * head, kv_heads * head, heads * head)
        tensors += _norms(p, head, "attn_q_norm", "attn_k_norm") + _experts(p, width, expert, count)
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def gpt_oss(blocks: int = 36, count: int = 128) -> Model:
    """gpt-oss-120b: window 128 on every other layer, no pattern key; attention sinks, biases everywhere."""
    width, heads, kv_heads, head, vocabulary = 2880, 64, 8, 64, 201088
    keys = _keys(
        "gpt-oss", block_count=blocks, context_length=131072, embedding_length=width,
        feed_forward_length=width, attention__head_count=heads, attention__head_count_kv=kv_heads,
        attention__key_length=head, attention__value_length=head, attention__sliding_window=128,
        expert_count=count, expert_used_count=4, expert_feed_forward_length=width,
        rope__dimension_count=head,
    )  # fmt: skip
    tensors = _outer(width, vocabulary)
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "post_attention_norm") + _norms(p, heads, "attn_sinks")
        tensors += _attention(p, width, heads * head, kv_heads * head, kv_heads * head, heads * head)
        tensors += _experts(p, width, width, count, Mix(experts="mxfp4"))
        sizes = {"attn_q": 4096, "attn_k": 512, "attn_v": 512, "attn_output": width, "ffn_gate_inp": count}
        tensors += [(f"{p}{name}.bias", (size,), "f32") for name, size in sizes.items()]
        for name in ("gate", "up", "down"):
            tensors.append((f"{p}ffn_{name}_exps.bias", (width, count), "f32"))
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def gemma3(blocks: int = 18, width: int = 640, heads: int = 4, period: int | None = None) -> Model:
    """Gemma-3-270m: window 512, a global layer every sixth, tied embeddings."""
    head, inner, vocabulary = 256, 2048, 262144
    keys = _keys(
        "gemma3", block_count=blocks, context_length=32768, embedding_length=width,
        feed_forward_length=inner, attention__head_count=heads, attention__head_count_kv=1,
        attention__key_length=head, attention__value_length=head, attention__sliding_window=512,
    )  # fmt: skip
    if period:
        keys["gemma3.attention.sliding_window_pattern"] = period
    tensors = _outer(width, vocabulary, tied=True)
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
        tensors += _attention(p, width, heads * head, head, head, heads * head)
        tensors += _norms(p, head, "attn_q_norm", "attn_k_norm") + _feed(p, width, inner)
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def gemma4(blocks: int = 48, shared: int = 0) -> Model:
    """Gemma-4-12B: one global layer in six with one KV head of 512, eight of 256 under the window of 1024.

    `shared` layers at the end use the KV of earlier ones.
    """
    width, heads, inner, vocabulary = 3840, 16, 15360, 262144
    swa = [block % 6 != 5 for block in range(blocks)]
    keys = _keys(
        "gemma4", block_count=blocks, context_length=262144, embedding_length=width,
        feed_forward_length=inner, attention__head_count=heads,
        attention__head_count_kv=[8 if own else 1 for own in swa], attention__key_length=512,
        attention__value_length=512, attention__key_length_swa=256, attention__value_length_swa=256,
        attention__sliding_window=1024, attention__sliding_window_pattern=swa,
        embedding_length_per_layer_input=0, attention__shared_kv_layers=shared,
        rope__dimension_count=512, rope__dimension_count_swa=256,
    )  # fmt: skip
    tensors = [*_outer(width, vocabulary, tied=True), ("rope_freqs.weight", (256,), "f32")]
    for block in range(blocks):
        p, head, kv = f"blk.{block}.", 256 if swa[block] else 512, 8 if swa[block] else 1
        tensors += _norms(p, width, "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
        tensors += _attention(p, width, heads * head, kv * head, kv * head, heads * head)
        tensors += _norms(p, head, "attn_q_norm", "attn_k_norm") + _feed(p, width, inner)
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def glm4moe(blocks: int = 46, count: int = 128) -> Model:
    """GLM-4.5-Air with its extra block for multi-token prediction."""
    width, heads, kv_heads, head, inner, expert, vocabulary = 4096, 96, 8, 128, 10944, 1408, 151552
    keys = _keys(
        "glm4moe", block_count=blocks + 1, context_length=131072, embedding_length=width,
        feed_forward_length=inner, attention__head_count=heads, attention__head_count_kv=kv_heads,
        attention__key_length=head, attention__value_length=head, expert_count=count, expert_used_count=8,
        expert_feed_forward_length=expert, expert_shared_count=1, leading_dense_block_count=1,
        nextn_predict_layers=1, rope__dimension_count=64,
    )  # fmt: skip
    tensors = _outer(width, vocabulary)
    for block in range(blocks + 1):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "post_attention_norm")
        tensors += _attention(p, width, heads * head, kv_heads * head, kv_heads * head, heads * head)
        if block == 0:
            tensors += _feed(p, width, inner)
            continue
        tensors += _experts(p, width, expert, count, Mix(experts="q8_0"))
        tensors += [(f"{p}exp_probs_b.bias", (count,), "f32"), *_feed(p, width, expert, suffix="_shexp")]
        if block >= blocks:
            tensors.append((f"{p}nextn.eh_proj.weight", (2 * width, width), "q8_0"))
            tensors += _norms(p, width, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def mla(blocks: int = 27, count: int = 64) -> Model:
    """DeepSeek-V2-Lite: multi-head latent attention, whose cache is one K row of 576 and no V."""
    width, heads, rank, rope, nope, value, vocabulary = 2048, 16, 512, 64, 128, 128, 102400
    keys = _keys(
        "deepseek2", block_count=blocks, context_length=163840, embedding_length=width,
        feed_forward_length=10944, attention__head_count=heads, attention__head_count_kv=1,
        attention__key_length=rank + rope, attention__value_length=rank,
        attention__key_length_mla=nope + rope, attention__value_length_mla=value,
        attention__kv_lora_rank=rank, rope__dimension_count=rope,
        expert_count=count, expert_used_count=6, expert_feed_forward_length=1408, expert_shared_count=2,
        leading_dense_block_count=1, vocab_size=vocabulary, expert_weights_scale=1.0,
    )  # fmt: skip
    tensors = _outer(width, vocabulary)
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "ffn_norm") + _norms(p, rank, "attn_kv_a_norm")
        tensors += [
            (f"{p}attn_q.weight", (width, heads * (nope + rope)), "q8_0"),
            (f"{p}attn_kv_a_mqa.weight", (width, rank + rope), "q8_0"),
            (f"{p}attn_k_b.weight", (nope, rank, heads), "q8_0"),
            (f"{p}attn_v_b.weight", (rank, value, heads), "q8_0"),
            (f"{p}attn_output.weight", (heads * value, width), "q8_0"),
        ]
        if block == 0:
            tensors += _feed(p, width, 10944)
            continue
        tensors += _experts(p, width, 1408, count, Mix(experts="q8_0"))
        tensors += _feed(p, width, 2 * 1408, suffix="_shexp")
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def lfm2(blocks: int = 16) -> Model:
    """LFM2-1.2B: short convolutions, six layers of attention; per-layer KV heads say which."""
    width, heads, kv_heads, head, inner, vocabulary = 2048, 32, 8, 64, 8192, 65536
    full = {2, 5, 8, 10, 12, 14}
    keys = _keys(
        "lfm2", block_count=blocks, context_length=128000, embedding_length=width, feed_forward_length=inner,
        attention__head_count=heads, shortconv__l_cache=3, vocab_size=vocabulary,
        attention__head_count_kv=[kv_heads if block in full else 0 for block in range(blocks)],
    )  # fmt: skip
    tensors: list[Tensor] = [
        ("token_embd.weight", (width, vocabulary), "q8_0"),
        *_norms("", width, "token_embd_norm"),
    ]
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "ffn_norm")
        if block in full:
            tensors += _attention(p, width, width, kv_heads * head, kv_heads * head, width)
            tensors += _norms(p, head, "attn_q_norm", "attn_k_norm")
        else:
            tensors += [
                (f"{p}shortconv.conv.weight", (3, width), "f32"),
                (f"{p}shortconv.in_proj.weight", (width, 3 * width), "q8_0"),
                (f"{p}shortconv.out_proj.weight", (width, width), "q8_0"),
            ]
        tensors += _feed(p, width, inner)
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


def granite(blocks: int = 40) -> Model:
    """Granite-4.0-H-Micro: Mamba-2 with four layers of attention."""
    width, heads, kv_heads, head, inner, vocabulary = 2048, 32, 8, 64, 8192, 100352
    conv, state, rank, groups = 4, 128, 64, 1
    full = {5, 15, 25, 35}
    keys = _keys(
        "granitehybrid", block_count=blocks, context_length=131072, embedding_length=width,
        feed_forward_length=inner, attention__head_count=heads, vocab_size=vocabulary,
        attention__head_count_kv=[kv_heads if block in full else 0 for block in range(blocks)],
        ssm__conv_kernel=conv, ssm__inner_size=2 * width, ssm__state_size=state, ssm__time_step_rank=rank,
        ssm__group_count=groups, residual_scale=0.22, embedding_scale=12.0, attention__scale=0.015,
        logit_scale=8.0,
    )  # fmt: skip
    channels = 2 * width + 2 * groups * state
    tensors = _outer(width, vocabulary, tied=True)
    for block in range(blocks):
        p = f"blk.{block}."
        tensors += _norms(p, width, "attn_norm", "ffn_norm")
        if block in full:
            tensors += _attention(p, width, heads * head, kv_heads * head, kv_heads * head, heads * head)
        else:
            tensors += [
                (f"{p}ssm_in.weight", (width, 2 * width + channels + rank), "q8_0"),
                (f"{p}ssm_conv1d.weight", (conv, channels), "f32"),
                (f"{p}ssm_conv1d.bias", (channels,), "f32"),
                (f"{p}ssm_dt.bias", (rank,), "f32"),
                (f"{p}ssm_a", (1, rank), "f32"),
                (f"{p}ssm_d", (1, rank), "f32"),
                (f"{p}ssm_norm.weight", (2 * width // groups, groups), "f32"),
                (f"{p}ssm_out.weight", (2 * width, width), "q8_0"),
            ]
        tensors += _feed(p, width, inner)
    return Model(metadata=keys, tensors=tensors, vocabulary=vocabulary)


@dataclass(frozen=True, kw_only=True)
class Qwen4Exp:
    """Qwen3.8-Flash-Next: linear and sparse attention, hyper-connections, an n-gram table on layer 1.

    The mix approximates UD-Q4_K_XL. `rows` and `dims` give the table its true 28,800,138,240 bytes.
    """

    blocks: int = 48
    width: int = 2560
    vocabulary: int = 248320
    heads: int = 24
    kv_heads: int = 2
    head: int = 256
    experts: int = 512
    expert: int = 640
    streams: int = 4
    rank: int = 320
    index_heads: int = 4
    index: int = 128
    rows: int = 320_001_536
    dims: int = 160
    ngram: int = 3
    ngram_heads: int = 8
    linear: Linear = Linear(rank=48)

    def full(self, block: int) -> bool:
        """Whether a layer has full attention."""
        return block >= self.blocks or (block + 1) % 4 == 0

    def keys(self, nextn: int, table: bool) -> dict[str, Meta]:
        """All keys; a head alone has no table."""
        every = range(self.blocks + nextn)
        keys = _keys(
            "qwen4exp", block_count=len(every), context_length=262144, embedding_length=self.width,
            attention__head_count=self.heads, attention__head_count_kv=self.kv_heads,
            attention__key_length=self.head, attention__value_length=self.head, rope__dimension_count=64,
            rope__dimension_sections=[11, 11, 10, 0], rope__freq_base=1e7, expert_count=self.experts,
            expert_used_count=10, expert_feed_forward_length=self.expert,
            expert_shared_feed_forward_length=self.expert, hyper_connection__count=self.streams,
            hyper_connection__low_rank=self.rank, attention__indexer__head_count=self.index_heads,
            attention__indexer__key_length=self.index, attention__indexer__top_k=2048,
            attention__compress_ratios=[4 if self.full(block) else 0 for block in every],
            full_attention_interval=4, **self.linear.keys(),
        )  # fmt: skip
        if nextn:
            keys["qwen4exp.nextn_predict_layers"] = nextn
        return keys | (self._table_keys() if table else {})

    def _table_keys(self) -> dict[str, Meta]:
        count = (self.ngram - 1) * self.ngram_heads
        share = self.rows // count // 16 * 16
        more: dict[str, Meta] = {
            "ple.layers": [1], "ple.ngram_size": self.ngram, "ple.heads_per_ngram": self.ngram_heads,
            "ple.conv_kernel": 4, "ple.eos_token_id": self.vocabulary - 1,
            "embedding_length_per_layer_input": self.dims,
            "ple.layer_multipliers": [23768741896345, 11400714819323, 7046029254387],
            "ple.head_offsets": [number * share for number in range(count)],
            "ple.head_vocab_sizes": [share] * count,
        }  # fmt: skip
        return {f"qwen4exp.{name}": value for name, value in more.items()}

    def block(self, number: int, table: bool) -> list[Tensor]:
        """The tensors of one layer."""
        p, wide = f"blk.{number}.", self.width * self.streams
        tensors: list[Tensor] = []
        for place in ("attn", "ffn"):
            tensors += [
                (f"{p}hc_{place}_norm.weight", (wide,), "f32"),
                (f"{p}hc_{place}_down.weight", (wide, self.rank), "q8_0"),
                (f"{p}hc_{place}_up.weight", (self.rank, wide), "q8_0"),
                (f"{p}hc_{place}_inject.weight", (wide, self.streams), "q8_0"),
            ]
        tensors += self._attention(p) if self.full(number) else self.linear.tensors(p, self.width)
        if table and number == 1:
            tensors += [
                (f"{p}ple_key.weight", (self.width, wide), "q8_0"),
                (f"{p}ple_value.weight", (self.width,) * 2, "q8_0"),
            ]
            tensors += _norms(p, wide, "ple_norm_key", "ple_norm_query", "ple_norm_conv")
            tensors.append((f"{p}ple_conv1d.weight", (4, wide), "f32"))
        tensors += _experts(p, self.width, self.expert, self.experts, down="q5_1")
        gate: Tensor = (f"{p}ffn_gate_inp_shexp.weight", (self.width,), "f32")
        return [*tensors, gate, *_feed(p, self.width, self.expert, suffix="_shexp")]

    def _attention(self, p: str) -> list[Tensor]:
        wide, kv = self.heads * self.head, self.kv_heads * self.head
        return [
            *_attention(p, self.width, 2 * wide, kv, kv, wide),
            *_norms(p, self.head, "attn_q_norm", "attn_k_norm"),
            (f"{p}indexer.q_proj.weight", (self.width, self.index_heads * self.index), "q8_0"),
            (f"{p}indexer.k_proj.weight", (self.width, self.index), "q8_0"),
            *_norms(p, self.index, "indexer.q_norm", "indexer.k_norm"),
        ]

    def _nextn(self, p: str) -> list[Tensor]:
        wide = self.width * self.streams
        return [
            (f"{p}nextn.eh_proj.weight", (2 * self.width, self.width), "q8_0"),
            *_norms(p, self.width, "nextn.enorm"),
            *_norms(p, wide, "nextn.hnorm", "nextn.hc_head_norm"),
            (f"{p}nextn.hc_head_down.weight", (wide, self.rank), "q8_0"),
            (f"{p}nextn.hc_head_up.weight", (self.rank, wide), "q8_0"),
        ]

    def _ends(self) -> list[Tensor]:
        return [
            (name, (self.width, self.vocabulary), "q8_0") for name in ("token_embd.weight", "output.weight")
        ]

    def trunk(self, *, embedded: bool = False) -> Model:
        """The model without its head, or with the head in the same file."""
        wide = self.width * self.streams
        tensors = [
            *self._ends(),
            *_norms("", wide, "output_hc_norm"),
            ("output_hc_down.weight", (wide, self.rank), "q8_0"),
            ("output_hc_up.weight", (self.rank, wide), "q8_0"),
            ("per_layer_token_embd.weight", (self.dims, self.rows), "iq4_nl"),
        ]
        for number in range(self.blocks + embedded):
            tensors += self.block(number, table=True)
        tensors += self._nextn(f"blk.{self.blocks}.") if embedded else []
        return Model(metadata=self.keys(int(embedded), True), tensors=tensors, vocabulary=self.vocabulary)

    def head_file(self) -> Model:
        """The MTP head as a file of its own."""
        block = self.block(self.blocks, table=False)
        tensors = [*self._ends(), *block, *self._nextn(f"blk.{self.blocks}.")]
        return Model(metadata=self.keys(1, False), tensors=tensors, vocabulary=self.vocabulary)


def _qwen35(nextn: int) -> Model:
    return hybrid(
        "qwen35", blocks=64, width=5120, heads=24, kv_heads=4, linear=Linear(rank=48), inner=17408,
        vocabulary=248320, nextn=nextn,
    )  # fmt: skip


def _qwen35moe(nextn: int, per_layer_heads: bool = False) -> Model:
    return hybrid(
        "qwen35moe", blocks=40, width=2048, heads=16, kv_heads=2, linear=Linear(rank=32),
        experts=(256, 8, 512, 512), vocabulary=248320, nextn=nextn, per_layer_heads=per_layer_heads,
    )  # fmt: skip


def _qwen3next() -> Model:
    return hybrid(
        "qwen3next", blocks=48, width=2048, heads=16, kv_heads=2, linear=Linear(rank=32),
        experts=(512, 10, 512, 512), vocabulary=151936,
    )  # fmt: skip


def _dense(arch: str, sizes: Sequence[int], *, context: int, **more: bool) -> Model:
    blocks, width, heads, kv_heads, head, inner, vocabulary = sizes
    return dense(
        arch, blocks=blocks, width=width, heads=heads, kv_heads=kv_heads, head=head, inner=inner,
        vocabulary=vocabulary, context=context, **more,
    )  # fmt: skip


MODELS: Final[dict[str, Callable[[], Model]]] = {
    "llama-70b": lambda: _dense("llama", (80, 8192, 64, 8, 128, 28672, 128256), context=131072),
    "qwen2-32b": lambda: _dense("qwen2", (64, 5120, 40, 8, 128, 27648, 152064), context=131072, bias=True),
    "qwen3-32b": lambda: _dense("qwen3", (64, 5120, 64, 8, 128, 25600, 151936), context=40960, qk_norm=True),
    "qwen3-8b": lambda: _dense("qwen3", (36, 4096, 32, 8, 128, 12288, 151936), context=40960, qk_norm=True),
    "qwen3-0.6b": lambda: _dense(
        "qwen3", (28, 1024, 16, 8, 128, 3072, 151936), context=40960, qk_norm=True, tied=True
    ),
    "qwen3-30b-a3b": lambda: moe(
        "qwen3moe",
        blocks=48,
        width=2048,
        heads=32,
        kv_heads=4,
        head=128,
        experts=(128, 8, 768),
        vocabulary=151936,
        context=262144,
    ),
    "qwen3next-80b": _qwen3next,
    "qwen35-27b": lambda: _qwen35(0),
    "qwen35-27b-mtp": lambda: _qwen35(1),
    "qwen35moe-35b": lambda: _qwen35moe(0),
    "qwen35moe-35b-mtp": lambda: _qwen35moe(1),
    "qwen35moe-35b-array": lambda: _qwen35moe(0, per_layer_heads=True),
    "gpt-oss-120b": gpt_oss,
    "gemma3-270m": gemma3,
    "gemma4-12b": gemma4,
    "gemma4-shared": lambda: gemma4(shared=12),
    "glm45-air": glm4moe,
    "deepseek2-lite": mla,
    "lfm2-1.2b": lfm2,
    "granite-h-micro": granite,
    "qwen4exp": Qwen4Exp().trunk,
    "qwen4exp-mtp": lambda: Qwen4Exp().trunk(embedded=True),
    "qwen4exp-head": Qwen4Exp().head_file,
}
"""Every model that the planner is compared with the engine on."""
