"""Compute and output buffers: what the worst-case graph of one ubatch needs at its peak.

ggml reserves one buffer for the graph of `ubatch` tokens over a full cache. Its size is the largest sum of
tensors alive at once, and the candidates for that moment are few: the feed-forward (or the experts), linear
attention, sparse attention, the logits. Formulas were fitted to b11434's own projection on hollow models
(`tests/data/engine.json`, 0.01 MiB resolution) and are held against it by tests: at most 5 % over and 1 %
under where the certainty is `measured`; `bounded` is an upper bound. On a GPU the same
graph is split: the input layer and one copy of the masks are on the host, the rest on the device, where flash
attention copies quantized caches. That is held against the same configurations on a stub device that has
HIP's rules (`tests/data/engine_gpu.json`), and against ROCm logs of gfx1151 where there are any.

All candidates are in floats (4 B) per token of the ubatch, unless they say bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from patches.traits import Traits
from presets.planner import caches
from presets.planner.architecture import Architecture
from presets.planner.options import Options, Shape, pad
from presets.planner.terms import GFX1151, MIB, Certainty, Device, Term

FLOAT: Final = 4
MASK: Final = 2
"""Bytes of a mask entry with flash attention (f16)."""
SMALL_BYTES_PER_TOKEN: Final = 48
"""Positions, token and output ids, cache indices."""
ROTATED: Final = ("q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
LINEAR: Final = ("qwen3next", "qwen35", "qwen35moe", "qwen4exp")
"""Gated DeltaNet: state in, state out, and the projections of one layer."""
COMPARED: Final = (
    "llama", "qwen2", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gpt-oss", "gemma3", "gemma4",
    "glm4moe", "deepseek2", "lfm2", "qwen4exp",
)  # fmt: skip
"""Architectures whose formula was fitted to the engine's own figures."""


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """A compute buffer in bytes, how sure, and why."""

    device: int
    host: int
    certainty: Certainty
    formula: str


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The fullest moment: its bytes without the masks, its name, and whether the formula is known to fit."""

    bytes: int
    name: str
    fits: bool


def target(arch: Architecture, sizes: Shape, options: Options, traits: Traits, device: Device) -> list[Term]:
    """The compute terms of the main context."""
    found = buffer(arch, sizes, options, traits, device)
    return _terms(found, "compute_device", "compute_host")


def _terms(found: Buffer, on_device: str, on_host: str) -> list[Term]:
    sure, text = found.certainty, found.formula
    terms = [
        Term(name=on_device, bytes=found.device, where="device", certainty=sure, formula=text),
        Term(name=on_host, bytes=found.host, where="host", certainty=sure, formula=text),
    ]
    return [term for term in terms if term.bytes]


def draft(arch: Architecture, sizes: Shape, options: Options, traits: Traits, device: Device) -> list[Term]:
    """The compute terms of the draft context."""
    own = Options(
        cache_type_k=options.draft_cache_type_k, cache_type_v=options.draft_cache_type_v,
        flash_attn=options.flash_attn,
    )  # fmt: skip
    if options.uses_mtp:
        found = mtp_buffer(arch, sizes, own, traits, device)
    else:
        found = buffer(arch, sizes, own, traits, device)
    return _terms(found, "draft_compute", "draft_compute")


def buffer(arch: Architecture, sizes: Shape, options: Options, traits: Traits, device: Device) -> Buffer:
    """The compute buffer of a whole model, split by where it lies."""
    if device.kind != "cpu" and (fit := traits.compute.get(arch.name)):
        scale = sizes.ubatch / fit.at_ubatch
        mib = (fit.base_mib + fit.per_cell_mib * sizes.cells) * scale
        host = int(max(fit.host_mib, 1) * scale * MIB) + masks(arch, sizes, options, traits)
        return Buffer(device=int(mib * MIB), host=host, certainty="measured", formula=fit.source)
    tokens = pad(sizes.ubatch, sizes.slots)
    top = peak(arch, sizes, options, tokens)
    shared = masks(arch, sizes, options, traits)
    if device.kind == "cpu":
        total = top.bytes + shared + SMALL_BYTES_PER_TOKEN * tokens + rotations(arch, options)
        formula = f"{top.name} + masks; {tokens} tokens"
        return Buffer(device=0, host=total, certainty="measured" if top.fits else "bounded", formula=formula)
    split = _sparse_on_gpu if arch.streams > 1 and arch.index_pool else _on_gpu
    return split(arch, sizes, options, traits, top, shared)


def _on_gpu(
    arch: Architecture, sizes: Shape, options: Options, traits: Traits, top: Peak, shared: int
) -> Buffer:
    """The same graph split in two: the input layer and one copy of the masks stay on the host."""
    tokens = pad(sizes.ubatch, sizes.slots)
    row = arch.width * FLOAT * tokens
    turned = rotations(arch, options)
    host = (4 if traits.mixed_inputs else 2) * row + shared + turned + SMALL_BYTES_PER_TOKEN * tokens
    host += value_indices(arch, options, tokens)
    kept = top.bytes - (1 if traits.mixed_inputs else 3) * row
    if options.cache_type_k == "bf16":
        kept += row
    copied = copied_attention(arch, sizes, options, traits, tokens)
    size = max(kept, copied) + shared + turned
    certain = top.fits and options.cache_type_k != "bf16" and not (arch.windowed and copied > kept)
    certainty: Certainty = "measured" if certain else "bounded"
    formula = f"{top.name} or flash attention's copies, + masks; {tokens} tokens"
    return Buffer(device=size, host=host, certainty=certainty, formula=formula)


def value_indices(arch: Architecture, options: Options, tokens: int) -> int:
    """Bytes that say where V goes; without flash attention it is stored transposed, an index an element."""
    if options.flash_attn != "off" or arch.mla:
        return 0
    kinds = {layer.windowed for layer in arch.layers if layer.v}
    return 8 * tokens * len(kinds) * max((layer.v for layer in arch.layers), default=0)


def copied_attention(arch: Architecture, sizes: Shape, options: Options, traits: Traits, tokens: int) -> int:
    """Bytes alive while one layer's quantized K and V are copied to f16 (fattn-common.cuh); 0 without.

    The copies are of all sequences' cells at once; a windowed layer has its own, fewer cells.
    """
    if not copies_are_made(options, traits):
        return 0
    own = caches.target(arch, sizes, options, traits)
    largest = max(
        ((layer.k + layer.v) * (own.swa_cells if layer.windowed else own.cells) for layer in arch.layers),
        default=0,
    )
    queries = arch.heads * arch.head_size
    if arch.mla:
        rows = 4 * queries
    else:
        rows = 4 * arch.width + query_rows(arch)
        rows -= arch.width if queries == arch.width else 0
    return 2 * largest * sizes.streams + FLOAT * rows * tokens


def query_rows(arch: Architecture) -> int:
    """Floats per token that are as wide as the queries: these and the result, and what gates it."""
    return (5 if arch.name in LINEAR else 2) * arch.heads * arch.head_size


def copies_are_made(options: Options, traits: Traits) -> bool:
    """Whether flash attention on a GPU copies a cache, which is not f16."""
    quantized = options.cache_type_k in ROTATED or options.cache_type_v in ROTATED
    return traits.hip_flash_attention_copies and quantized and options.flash_attn != "off"


def _sparse_on_gpu(
    arch: Architecture, sizes: Shape, options: Options, traits: Traits, top: Peak, shared: int
) -> Buffer:
    """qwen4exp's graph split in two; hyper-connections begin on the host."""
    tokens = pad(sizes.ubatch, sizes.slots)
    host = 5 * arch.width * FLOAT * tokens + shared + rotations(arch, options)
    host += value_indices(arch, options, tokens)
    host += SMALL_BYTES_PER_TOKEN * tokens + 28 * sizes.cells * sizes.slots
    rows = {"experts": 2, "pooling": 0}.get(top.name, 1)
    size = max(top.bytes - rows * arch.width * FLOAT * tokens, 0) + shared
    size += copies(arch, sizes, options, traits, tokens)
    if sizes.streams > 1:
        size = size * 9 // 8
    size = max(size, _while_copies_count(arch, sizes, options, traits))
    certain = top.fits and sizes.slots == 1
    if top.name == "sparse attention" and options.cache_type_k not in ROTATED:
        certain = certain and sizes.cells >= 131072
    certainty: Certainty = "measured" if certain else "bounded"
    formula = f"{top.name} + masks + flash attention's copies; {tokens} tokens"
    return Buffer(device=size, host=host, certainty=certainty, formula=formula)


def _while_copies_count(arch: Architecture, sizes: Shape, options: Options, traits: Traits) -> int:
    """The size at the largest ubatch at which flash attention's copies still find no hole; 0 below it."""
    last = max((layer.k + layer.v for layer in arch.layers), default=0)
    if not arch.index_pool or sizes.slots > 1 or sizes.ubatch <= last:
        return 0
    return buffer(arch, replace(sizes, ubatch=last), options, traits, GFX1151).device


def masks(arch: Architecture, sizes: Shape, options: Options, traits: Traits) -> int:
    """Bytes of the attention masks: one row of cells per token, for each kind of cache."""
    tokens = pad(sizes.ubatch, sizes.slots)
    own = caches.target(arch, sizes, options, traits)
    cells = (sizes.cells if own.kv else 0) + own.swa_cells
    entry = FLOAT if options.flash_attn == "off" else traits.mask_bytes
    return cells * tokens * entry + pools(arch, sizes) * tokens * MASK


def pools(arch: Architecture, sizes: Shape) -> int:
    """Blocks of indexer keys that a full cache has (hybrid-idx.cpp: cells / ratio, times the sequences)."""
    return sizes.cells // arch.index_pool * sizes.slots if arch.index_pool and arch.index_size else 0


def rotations(arch: Architecture, options: Options) -> int:
    """Bytes of the Hadamard matrices that a quantized cache is rotated with (llama-kv-cache.cpp)."""
    if arch.mla or not any(layer.k for layer in arch.layers):
        return 0
    heads = [arch.head_size] + ([arch.head_size_swa] if arch.windowed else [])
    total = 0
    for size in heads:
        if options.cache_type_k in ROTATED and size % 64 == 0:
            total += (size & -size) ** 2
        if options.cache_type_v in ROTATED and size % 64 == 0:
            total += 64**2
    return total * FLOAT


def peak(arch: Architecture, sizes: Shape, options: Options, tokens: int) -> Peak:
    """The fullest moment of the graph."""
    linear = linear_floats(arch, sizes, tokens)
    if arch.streams > 1 and arch.index_pool:
        return sparse_peak(arch, sizes, options, tokens, linear)
    found = {
        "feed-forward": tokens * feed_floats(arch),
        "experts": tokens * expert_floats(arch),
        "attention": tokens * attention_floats(arch),
        "linear attention": linear,
        "logits": sizes.outputs * arch.vocabulary + 5 * tokens * arch.width,
        "scan": mamba_floats(arch, sizes, tokens) if arch.state_s and arch.name not in LINEAR else 0,
        "attention scores": score_floats(arch, sizes, tokens) if options.flash_attn == "off" else 0,
    }
    name = max(found, key=lambda key: found[key])
    fits = arch.name in COMPARED and name not in ("scan", "attention")
    size = found[name] * FLOAT
    margin = 10 if arch.name in COMPARED or name == "scan" else 11
    return Peak(bytes=size * margin // 10, name=name, fits=fits)


def feed_floats(arch: Architecture) -> int:
    """Up, gate and their product beside five rows of the residual stream."""
    return 3 * arch.feed + 5 * arch.width if arch.feed and not _all_experts(arch) else 0


def _all_experts(arch: Architecture) -> bool:
    """Whether `feed_forward_length` only repeats the experts' size."""
    return bool(arch.expert_used) and arch.feed in (arch.expert_feed, 0)


def expert_floats(arch: Architecture) -> int:
    """The same for the experts a token uses; their outputs fit where up and gate were, or come on top."""
    if not arch.expert_used:
        return 0
    inner = arch.expert_feed or arch.feed
    on_top = arch.width if arch.width > 2 * inner else 0
    return arch.expert_used * (3 * inner + on_top) + 5 * arch.width


def attention_floats(arch: Architecture) -> int:
    """Queries (with their gate), their rotated copy and the output."""
    return 3 * arch.heads * arch.head_size + 2 * arch.width if not arch.mla else 0


def score_floats(arch: Architecture, sizes: Shape, tokens: int) -> int:
    """Without flash attention: a score for every head, cell and token, beside queries, keys and values."""
    queries = arch.heads * arch.head_size
    widest = max((max(layer.k, layer.v) for layer in arch.layers), default=0)
    row = 5 * arch.width + (3 if arch.name in LINEAR else 2) * queries + 4 * widest
    turned = sizes.cells * widest // 2 if arch.mla else 0  # V is a part of K there, and is copied out
    return tokens * (arch.heads * sizes.cells + row) + turned if widest else 0


def linear_floats(arch: Architecture, sizes: Shape, tokens: int) -> int:
    """Gated DeltaNet: a state in, one out (and one per rollback step), and a layer's projections."""
    if arch.name not in LINEAR or not arch.state_s:
        return 0
    copies_of_state = 3 + sizes.rollback if sizes.rollback else 2
    per_sequence = copies_of_state * arch.state_s + arch.state_r
    wide = arch.width * arch.streams * 5 // 2 if arch.streams > 1 else 0
    row = 2 * arch.conv_channels + arch.inner + 5 * arch.width + wide
    several = 21 if sizes.slots > 4 and arch.streams == 1 else 20
    return (max(sizes.slots, 1) * per_sequence + tokens * row) * several // 20


def mamba_floats(arch: Architecture, sizes: Shape, tokens: int) -> int:
    """Mamba-2, an upper bound: states in and out, twice the input projection."""
    slots = max(sizes.slots, 1)
    states = (2 * slots - 1) * arch.state_s + slots * arch.state_r
    projection = 2 * arch.inner + arch.conv_channels - arch.inner
    row = 2 * projection + arch.inner + 5 * arch.width + 512
    return (states + tokens * row) * (13 if slots == 1 else 10) // 10


def sparse_peak(arch: Architecture, sizes: Shape, options: Options, tokens: int, linear: int) -> Peak:
    """qwen4exp: hyper-connections hold several residual streams, the indexer scores and masks every cell.

    The selection mask is made twice (2 x 2 B a cell); the second fits where the scores (4 B a pool) were if
    those are large enough. Re-pooling gathers all keys at once, whatever the ubatch.
    """
    wide, cells, blocks = arch.width * arch.streams, sizes.cells, pools(arch, sizes)
    queries = arch.heads * arch.head_size
    turned = queries if options.cache_type_k in ROTATED else 0
    holes = min(2, 2 * blocks // cells)
    entry = FLOAT if options.flash_attn == "off" else MASK
    scores = FLOAT * arch.heads * cells if options.flash_attn == "off" else 0
    if scores:
        holes = 0
    selected = entry * cells * (2 - holes)
    if sizes.slots > 1 and holes == 2:  # seen up to 32768 cells: one hole was too small by the tail
        selected = entry * min(cells, 65536)
    pooled = 39 * 4 * blocks
    experts = arch.expert_used * (3 * arch.expert_feed + arch.width) + 3 * wide + 2 * arch.width
    picked = 8 * arch.index_top_k
    row = FLOAT * (4 * wide + 2 * queries + arch.width // 2 + turned) + picked
    found = {
        "experts": tokens * FLOAT * experts + pooled,
        "sparse attention": tokens * (4 * blocks + selected + row + scores) + pooled,
        "pooling": blocks * 4 * 679 + tokens * FLOAT * 7 * wide // 2,
        "linear attention": FLOAT * linear * 26 // 25 + pooled,
    }
    name = max(found, key=lambda key: found[key])
    fits = name == "experts" or (name == "sparse attention" and sizes.slots == 1 and tokens >= 512)
    return Peak(bytes=found[name], name=name, fits=fits)


def copies(arch: Architecture, sizes: Shape, options: Options, traits: Traits, tokens: int) -> int:
    """Bytes of the f16 copies of a quantized cache that HIP's flash attention makes (fattn-common.cuh).

    They fit where a mask was once the ubatch is large enough; the queries are copied too.
    """
    if not copies_are_made(options, traits):
        return 0
    widest = max((layer.k + layer.v for layer in arch.layers), default=0)
    size = 2 * widest * sizes.cells
    fits = arch.index_pool and sizes.slots == 1 and MASK * sizes.cells * tokens > size
    queries = arch.heads * arch.head_size * FLOAT * tokens
    return 0 if fits else size + (queries if arch.index_pool else 0)


def mtp_buffer(arch: Architecture, sizes: Shape, options: Options, traits: Traits, device: Device) -> Buffer:
    """The compute buffer of an MTP context: one block, its feed-forward on the outputs alone."""
    if device.kind != "cpu" and (fit := traits.compute.get(arch.name)) and fit.draft_mib:
        size = int(fit.draft_mib * sizes.ubatch / fit.at_ubatch * MIB)
        return Buffer(
            device=size, host=masks(arch, sizes, options, traits), certainty="measured", formula=fit.source
        )
    tokens = pad(sizes.ubatch, sizes.slots)
    masked = sizes.cells * tokens * traits.mask_bytes
    small = SMALL_BYTES_PER_TOKEN * tokens + rotations(arch, options)
    if arch.streams > 1 and arch.index_pool:
        total = _sparse_mtp(arch, sizes, tokens)
    else:
        total = _dense_mtp(arch, sizes, options, tokens, masked)
    if options.flash_attn == "off":
        total += FLOAT * score_floats(arch, sizes, tokens)
    formula = "one block of attention + masks"
    if device.kind == "cpu":
        return Buffer(device=0, host=total + small, certainty="bounded", formula=formula)
    if arch.index_pool:
        host = 5 * arch.width * FLOAT * tokens + masked + pools(arch, sizes) * tokens * MASK
        host += small + 28 * sizes.cells * sizes.slots
        size = total + copies(arch, sizes, options, traits, tokens)
    else:
        host = 2 * arch.width * FLOAT * tokens + masked + small
        size = total * 33 // 32
        if copies_are_made(options, traits):
            widest = max(layer.k + layer.v for layer in arch.layers)
            copied = 2 * widest * sizes.cells * sizes.streams
            size = max(size, copied + FLOAT * tokens * (2 * arch.width + query_rows(arch)) + masked)
    return Buffer(device=size, host=host, certainty="bounded", formula=formula)


def _dense_mtp(arch: Architecture, sizes: Shape, options: Options, tokens: int, masked: int) -> int:
    """Bytes of a head of plain attention: before it with the masks, or after it in their place."""
    queries = arch.heads * arch.head_size
    if arch.name in LINEAR:
        before = (2 if options.cache_type_k in ROTATED else 3) * arch.width + 4 * queries
        after = 7 * arch.width + 5 * queries
    else:
        before, after = 3 * queries, 13 * arch.width // 2 + 4 * queries
    logits = sizes.outputs * arch.vocabulary + 5 * tokens * arch.width
    return max(
        FLOAT * tokens * before + masked, FLOAT * tokens * after + masked // 5, FLOAT * logits + masked
    )


def _sparse_mtp(arch: Architecture, sizes: Shape, tokens: int) -> int:
    """Bytes of a qwen4exp head's buffer: an envelope of the engine's figures."""
    cells, blocks, wide = sizes.cells, pools(arch, sizes), arch.width * arch.streams
    low = tokens * (FLOAT * 7 * wide + 2 * blocks)
    middle = tokens * (53 * cells // 10 + 2 * blocks) + 720 * blocks + tokens * FLOAT * (17 * wide // 4)
    high = tokens * (7 * cells // 2 + 2 * blocks) + 1200 * blocks + tokens * FLOAT * 9 * wide
    pooling = tokens * 2 * (cells + blocks) + 3360 * blocks + tokens * FLOAT * 4 * wide
    return max(low, min(middle, high), pooling)


def output(arch: Architecture, sizes: Shape, options: Options) -> tuple[int, str]:
    """Bytes of the output buffers in use, target and draft, and their formula (output_reserve)."""
    rows = max(sizes.outputs, sizes.slots)
    total = FLOAT * arch.vocabulary * rows
    text = f"{rows} rows of {arch.vocabulary} logits"
    if options.uses_draft_context:
        total += FLOAT * arch.vocabulary * sizes.slots
        text += f" + {sizes.slots} of the draft"
    if options.uses_mtp:
        total += FLOAT * arch.wide * sizes.batch
        text += f" + hidden states of {sizes.batch} tokens x {arch.wide}"
    return total, text


def output_at_start(arch: Architecture, sizes: Shape) -> int:
    """Bytes of the output buffer that the start-up log shows."""
    return FLOAT * arch.vocabulary * sizes.slots
