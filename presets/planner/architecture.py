"""What a model's keys say about its memory: which layer keeps what, by the rules of the engine's loaders.

Everything comes from the header's own keys. Only where the engine itself has a rule built in for an
architecture (a sliding-window pattern that no key states, which layers are recurrent) is the architecture's
name asked; those tables are below. An architecture that is in none of them is taken as known only if it has
the plain attention keys, and never when it shows keys of a kind of memory this module does not size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from errors import BadInput
from presets.gguf import ArrayStub, Header


@dataclass(frozen=True, kw_only=True)
class Window:
    """The sliding-window rule of an architecture: `period` layers hold one dense one.

    `dense_first`: the dense layer is the first of a period. `size` overrides the key, `fixed` means always.
    `disabled`: the engine reads the key and turns the window off.
    """

    period: int = 0
    dense_first: bool = False
    size: int = 0
    fixed: bool = False
    disabled: bool = False


WINDOWS: Final = {
    "afmoe": Window(period=4),
    "cohere2": Window(period=4),
    "cohere2moe": Window(period=4, dense_first=True),
    "exaone-moe": Window(period=4, size=128),
    "exaone4": Window(period=4, size=4096),
    "gemma2": Window(period=2, size=4096),
    "gemma3": Window(period=6),
    "gemma3n": Window(period=5),
    "gemma4": Window(),
    "gpt-oss": Window(period=2),
    "granite_swa": Window(),
    "laguna": Window(period=4, dense_first=True),
    "llama4": Window(period=4, size=8192, fixed=True),
    "maple": Window(),
    "mellum": Window(period=4),
    "mimo2": Window(),
    "muse-glimmer": Window(period=4),
    "olmo2": Window(period=4),
    "phi3": Window(disabled=True),
    "phimoe": Window(disabled=True),
    "plamo3": Window(period=8),
    "smallthinker": Window(period=4, dense_first=True, size=4096, fixed=True),
    "spark2_5": Window(),
    "step35": Window(),
}
"""Architectures with a sliding window (load_arch_hparams of each, b11434). A pattern key beats `period`."""

INTERVAL_HYBRIDS: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
"""Hybrids whose every n-th layer has attention unless `attention.recurrent_layers` says otherwise."""
ZERO_HEAD_HYBRIDS: Final = (
    "jamba",
    "plamo2",
    "granitehybrid",
    "lfm2",
    "lfm2moe",
    "bailingmoe3",
    "kimi-linear",
)
"""Hybrids whose layers without KV heads are recurrent."""
BOTH_HYBRIDS: Final = ("falcon-h1",)
"""Hybrids whose every layer keeps a KV cache and a state."""
FEED_HYBRIDS: Final = ("nemotron_h", "nemotron_h_moe")
"""Hybrids with layers of feed-forward alone: recurrent if neither KV heads nor a feed-forward."""
RECURRENT: Final = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
CACHELESS: Final = (
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert",
    "modern-bert", "gemma-embedding", "dream", "llada", "llada-moe", "rnd1",
)  # fmt: skip
UNSIZED: Final = (
    "deepseek4", "dflash", "dots3note", "glm5-next", "hy_v4", "kimi-k3", "minimax-m3", "eagle3",
    "gemma4-assistant", "graniteswitch", "t5", "t5encoder", "clip", "wavtokenizer-dec", "nanbeige", "clef",
    "hrm_text", "qwen3tts", "pockettts",
)  # fmt: skip
"""Architectures with a kind of memory of their own that no rule here covers."""
PLAIN: Final = (
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom",
    "chameleon", "chatglm", "codeshell", "cogvlm", "command-r", "dbrx", "deci", "deepseek", "deepseek2",
    "deepseek2-ocr", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4",
    "glm4moe", "gpt2", "gptneox", "granite", "granitemoe", "grok", "grovemoe", "hunyuan-dense",
    "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais", "jais2", "llama", "llama-embed",
    "maincoder", "minicpm", "minicpm3", "minimax-m2", "mistral3", "mistral4", "mpt", "nemotron", "olmo",
    "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2", "plamo", "plm", "qwen", "qwen2",
    "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss",
    "smollm3", "stablelm", "starcoder", "starcoder2", "talkie", "xverse",
)  # fmt: skip
"""Architectures that keep a plain KV cache (or an MLA one, which their keys show)."""
INDEXED: Final = ("deepseek32", "glm-dsa", "qwen4exp")
"""Architectures with a cache of indexer keys beside the KV cache."""
SHARED_KV: Final = {"gemma3n": 20}
"""Layers from the start that own a KV cache; the rest share theirs."""
MTP_FILTERED: Final = (
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy_v3", "mimo2",
    "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "qwen4exp", "step35",
)  # fmt: skip
"""Architectures with an MTP graph: the draft context keeps the extra blocks alone (create_memory)."""
MTP_NEVER_LOADED: Final = ("bailingmoe2", "exaone-moe", "exaone4", "glm4")
"""Architectures whose extra blocks the engine always leaves in the file."""
MTP_PLAIN: Final = tuple(name for name in MTP_FILTERED if name != "qwen4exp")
"""Architectures whose MTP context is a plain KV cache, copied whole into every checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer keeps: elements per cell of K and V, floats of state per sequence.

    A layer that shares another's cache has `k` and `v` 0. `extra` marks a block for multi-token prediction.
    """

    k: int = 0
    v: int = 0
    windowed: bool = False
    indexed: bool = False
    recurrent: bool = False
    ple: bool = False
    extra: bool = False


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model as far as its memory goes. Sizes in elements; `state_*` are floats per sequence and layer."""

    name: str
    layers: tuple[Layer, ...]
    extra: int
    trained: int
    width: int
    wide: int
    vocabulary: int
    feed: int
    expert_feed: int
    expert_used: int
    shared_feed: int
    heads: int
    head_size: int
    head_size_swa: int
    inner: int
    conv_channels: int
    window: int
    index_size: int
    index_pool: int
    index_top_k: int
    streams: int
    state_r: int
    state_s: int
    state_p: int
    mla: bool
    trunk: bool
    known: bool
    why_unknown: str

    @property
    def recurrent(self) -> bool:
        """Whether any layer keeps a recurrent state."""
        return any(layer.recurrent for layer in self.layers)

    @property
    def windowed(self) -> bool:
        """Whether any layer has a sliding window."""
        return any(layer.windowed for layer in self.layers)

    @property
    def mtp(self) -> bool:
        """Whether the file carries a block for multi-token prediction that the engine can use."""
        return self.extra > 0 and self.name in MTP_FILTERED


def describe(header: Header) -> Architecture:
    """Read a header's keys.

    Raises:
        BadInput: a key that the engine demands is missing or has the wrong kind.
    """
    return _Reader(header).architecture()


class _Reader:
    """Reads keys of one header under the architecture's prefix."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.name = header.architecture
        if not self.name:
            raise BadInput(
                "the header names no architecture",
                why="general.architecture is missing",
                hint="a model file is needed; shards after the first, vocabularies and adapters are none",
            )
        self.blocks = self.number("block_count")
        extra = self.number("nextn_predict_layers", 0)
        if not 0 < self.blocks <= 512 or not 0 <= extra <= self.blocks:
            raise self.wrong("block_count", f"{self.blocks} blocks, {extra} of them extra")
        self.extra = extra
        self.trunk_blocks = self.blocks - extra

    def wrong(self, key: str, why: str) -> BadInput:
        return BadInput(f"the header's {self.name}.{key} cannot be used", why=why, hint="./inv models.verify")

    def value(self, key: str) -> object:
        return self.header.metadata.get(f"{self.name}.{key}")

    def number(self, key: str, default: int | None = None) -> int:
        value = self.value(key)
        if value is None and default is not None:
            return default
        if isinstance(value, tuple) and value:
            value = max(value, key=lambda item: item if isinstance(item, (int, float)) else 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(
                key, "it is missing" if value is None else f"it is {value!r}, not a whole number"
            )
        return value

    def each(self, key: str, default: int = 0) -> list[int]:
        """A number for every block, from a scalar or an array (get_key_or_arr)."""
        value = self.value(key)
        if isinstance(value, ArrayStub):
            raise self.wrong(key, f"it has {value.length} entries")
        if not isinstance(value, tuple):
            return [self.number(key, default)] * self.blocks
        numbers = [int(item) for item in value if isinstance(item, (int, float))]
        if len(numbers) < self.trunk_blocks:
            raise self.wrong(key, f"{len(numbers)} entries for {self.blocks} blocks")
        return (numbers + [numbers[-1]] * self.blocks)[: self.blocks]

    def architecture(self) -> Architecture:
        heads = self.each("attention.head_count")
        width = self.number("embedding_length")
        why = self.unknown()
        state_r, state_s, state_p = self.state(max(heads, default=0), width)
        streams = self.number("hyper_connection.count", 1)
        return Architecture(
            name=self.name,
            layers=tuple(self.layers(heads, width)),
            extra=self.extra,
            trained=self.number("context_length"),
            width=width,
            wide=self.number("embedding_length_out", 0) or streams * width,
            vocabulary=self.vocabulary(),
            feed=self.number("feed_forward_length", 0),
            expert_feed=self.number("expert_feed_forward_length", 0),
            expert_used=self.number("expert_used_count", 0),
            shared_feed=self.number("expert_shared_feed_forward_length", 0)
            or self.number("expert_shared_count", 0) * self.number("expert_feed_forward_length", 0),
            heads=max(heads, default=0),
            head_size=self.head_size(heads, width),
            head_size_swa=self.number("attention.key_length_swa", self.head_size(heads, width)),
            inner=self.number("ssm.inner_size", 0),
            conv_channels=self.number("ssm.inner_size", 0)
            + 2 * self.number("ssm.group_count", 0) * self.number("ssm.state_size", 0),
            window=self.window_size(),
            index_size=self.number("attention.indexer.key_length", 0),
            index_pool=max(self.each("attention.compress_ratios"), default=0),
            index_top_k=self.number("attention.indexer.top_k", 0),
            streams=streams,
            state_r=state_r,
            state_s=state_s,
            state_p=state_p,
            mla=self.mla(),
            trunk="blk.0.attn_norm.weight" in self.header.by_name
            or "blk.0.hc_attn_norm.weight" in self.header.by_name
            or self.extra == 0,
            known=not why,
            why_unknown=why,
        )

    def unknown(self) -> str:
        known = {*WINDOWS, *INTERVAL_HYBRIDS, *ZERO_HEAD_HYBRIDS, *BOTH_HYBRIDS, *FEED_HYBRIDS}
        known |= {*RECURRENT, *CACHELESS, *PLAIN, *INDEXED}
        if self.name in UNSIZED:
            return f"{self.name} has a kind of memory that the planner has no rule for"
        if self.name not in known:
            return f"the planner has never been compared with the engine on {self.name}"
        return ""

    def mla(self) -> bool:
        return bool(
            self.number("attention.key_length_mla", 0) and self.number("attention.value_length_mla", 0)
        )

    def vocabulary(self) -> int:
        listed = self.header.length("tokenizer.ggml.tokens")
        embedding = self.header.by_name.get("token_embd.weight")
        if listed or (size := self.number("vocab_size", 0)):
            return listed or size
        return embedding.shape[-1] if embedding else 0

    def window_size(self) -> int:
        rule = WINDOWS.get(self.name)
        if self.name in ("lfm2",):
            return self.number("attention.sliding_window", 0)
        if rule is None or rule.disabled:
            return 0
        stated = self.number("attention.sliding_window", -1)
        if rule.fixed:
            return 0 if stated == 0 or (stated < 0 and self.name != "llama4") else rule.size
        return stated if stated >= 0 else rule.size

    def windows(self) -> list[bool]:
        """Which blocks have a sliding window; extra blocks have none unless a pattern says so."""
        if not self.window_size():
            return [False] * self.blocks
        pattern = self.value("attention.sliding_window_pattern")
        if isinstance(pattern, tuple):
            return ([bool(item) for item in pattern] + [False] * self.blocks)[: self.blocks]
        if self.name == "lfm2":
            return [not recurrent for recurrent in self.recurrent()]
        if self.name == "exaone4" and self.trunk_blocks != 64:
            return [False] * self.blocks
        rule = WINDOWS[self.name]
        period = self.number("attention.sliding_window_pattern", rule.period)
        dense = 0 if rule.dense_first else period - 1
        own = [period == 0 or block % period != dense for block in range(self.trunk_blocks)]
        return own + [False] * self.extra

    def recurrent(self) -> list[bool]:
        """Which blocks keep a recurrent state."""
        if self.name in RECURRENT or self.name in BOTH_HYBRIDS:
            return [True] * self.blocks
        stated = self.value("attention.recurrent_layers")
        if self.name in INTERVAL_HYBRIDS:
            if isinstance(stated, tuple):
                return [bool(flag) for flag in self.each("attention.recurrent_layers")]
            interval = self.number("full_attention_interval", INTERVAL_HYBRIDS[self.name]) or 1
            return [b < self.trunk_blocks and (b + 1) % interval != 0 for b in range(self.blocks)]
        kv, feed = self.kv_heads(), self.each("feed_forward_length")
        inside = [block < self.trunk_blocks for block in range(self.blocks)]
        if self.name in ZERO_HEAD_HYBRIDS:
            return [own and not heads for own, heads in zip(inside, kv, strict=True)]
        if self.name in FEED_HYBRIDS:
            return [own and not h and not f for own, h, f in zip(inside, kv, feed, strict=True)]
        return [False] * self.blocks

    def kv_heads(self) -> list[int]:
        if self.value("attention.head_count_kv") is None:
            return self.each("attention.head_count")
        return self.each("attention.head_count_kv")

    def owned(self) -> int:
        """Blocks from the start that own their KV cache (n_layer_kv_from_start)."""
        if self.name in SHARED_KV:
            return SHARED_KV[self.name]
        if self.name == "gemma4":
            return self.blocks - self.number("attention.shared_kv_layers", 0)
        return self.blocks

    def head_size(self, heads: list[int], width: int) -> int:
        return self.number("attention.key_length", width // max(max(heads, default=0), 1))

    def head_sizes(self, heads: list[int], width: int) -> tuple[int, int, int, int]:
        """Elements per head: K and V, then K and V under a window."""
        own = width // heads[0] if heads and heads[0] else 0
        k, v = self.number("attention.key_length", own), self.number("attention.value_length", own)
        swa = self.number("attention.key_length_swa", k), self.number("attention.value_length_swa", v)
        return (k, v, *swa)

    def layers(self, heads: list[int], width: int) -> list[Layer]:
        k, v, k_swa, v_swa = self.head_sizes(heads, width)
        kv, windows, recurrent, owned = self.kv_heads(), self.windows(), self.recurrent(), self.owned()
        feed, ple = self.each("feed_forward_length"), self.value("ple.layers")
        indexed, mla = self.indexed(), self.mla()
        layers = []
        for b in range(self.blocks):
            cached = self.cached(b, recurrent[b], kv[b], feed[b]) and b < owned
            layers.append(
                Layer(
                    k=(k_swa if windows[b] else k) * kv[b] * cached,
                    v=0 if mla else (v_swa if windows[b] else v) * kv[b] * cached,
                    windowed=windows[b],
                    indexed=indexed[b] and cached,
                    recurrent=recurrent[b],
                    ple=isinstance(ple, tuple) and b in ple,
                    extra=b >= self.trunk_blocks,
                )
            )
        return layers

    def cached(self, block: int, recurrent: bool, kv_heads: int, feed: int) -> bool:
        """Whether a block has a KV cache at all."""
        if self.name in CACHELESS or self.name in RECURRENT:
            return False
        if self.name in BOTH_HYBRIDS:
            return True
        if self.name in FEED_HYBRIDS and block < self.trunk_blocks:
            return not recurrent and feed == 0
        return not recurrent

    def indexed(self) -> list[bool]:
        if self.name not in INDEXED or not self.number("attention.indexer.key_length", 0):
            return [False] * self.blocks
        types = self.value("attention.indexer.types")
        if self.name == "glm-dsa" and isinstance(types, tuple):
            return ([bool(t) for t in types] + [False] * self.blocks)[: self.blocks]
        if self.name == "qwen4exp":
            return [not recurrent for recurrent in self.recurrent()]
        return [block < self.trunk_blocks for block in range(self.blocks)]

    def state(self, heads: int, width: int) -> tuple[int, int, int]:
        """Floats of R, S and P per sequence and layer (llama_hparams n_embd_r, n_embd_s, ple_conv_state)."""
        if size := self.number("wkv.head_size", 0):
            return self.number("token_shift_count", 2) * width, width * size, 0
        if cache := self.number("shortconv.l_cache", 0):
            return width * (cache - 1), 0, 0
        conv, inner = self.number("ssm.conv_kernel", 0), self.number("ssm.inner_size", 0)
        if size := self.number("kda.head_dim", 0):
            return 3 * (conv - 1 if conv else 3) * heads * size, size * size * heads, 0
        if self.name == "minimax-01":
            size = self.number("attention.key_length", width // max(heads, 1))
            return 0, size * size * heads, 0
        state, groups = self.number("ssm.state_size", 0), self.number("ssm.group_count", 0)
        return max(conv - 1, 0) * (inner + 2 * groups * state), state * inner, self.ple_state(width)

    def ple_state(self, width: int) -> int:
        if not isinstance(self.value("ple.layers"), tuple):
            return 0
        kernel, order = self.number("ple.conv_kernel", 0), self.number("ple.ngram_size", 0)
        return max(kernel - 1, 0) * order * self.number("hyper_connection.count", 1) * width
