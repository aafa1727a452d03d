"""Caches and states: KV, sliding-window KV, indexer keys, recurrent state, checkpoints, prompt cache.

Sources in b11434: llama-kv-cache.cpp (constructor), llama-kv-cache-iswa.cpp (window cells),
llama-memory-hybrid-idx.cpp (indexer), llama-memory-recurrent.cpp (rows), llama-model.cpp create_memory
(which layers), server-context.cpp create_checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from patches.traits import Traits
from presets.gguf import row_bytes
from presets.planner.architecture import MTP_PLAIN, Architecture, Layer
from presets.planner.options import Options, Shape, pad

FLOAT_BYTES: Final = 4
CELL_META_BYTES: Final = 24
"""A saved cell: position 4, sequence count 4, x, y and token 12, sequence id 4."""
CHECKPOINT_EXTRA_BYTES: Final = 512
"""Headers of a saved state, about half a KiB."""


@dataclass(frozen=True, kw_only=True)
class Caches:
    """Sizes in bytes of one context's caches, with the cells they have."""

    kv: int
    swa: int
    indexer: int
    state: int
    cells: int
    swa_cells: int


def target(arch: Architecture, shape: Shape, options: Options, traits: Traits) -> Caches:
    """The caches of the main context, which never hold an extra block."""
    keep_extra = arch.name == "bailingmoe3"
    layers = [layer for layer in arch.layers if keep_extra or not layer.extra]
    types = (options.cache_type_k, options.cache_type_v)
    caches = _sizes(arch, layers, shape, types, options, traits)
    return Caches(
        **{**caches.__dict__, "state": state_row(arch) * max(shape.slots, 1) * (1 + shape.rollback)}
    )


def draft(arch: Architecture, shape: Shape, options: Options, traits: Traits, *, mtp: bool) -> Caches:
    """The caches of the draft context: an MTP block, or a whole model of its own."""
    types = (options.draft_cache_type_k, options.draft_cache_type_v)
    if not mtp:
        caches = _sizes(arch, list(arch.layers), shape, types, options, traits)
        return Caches(**{**caches.__dict__, "state": state_row(arch) * max(shape.slots, 1)})
    filtered = traits.mtp_layer_filter and arch.mtp
    layers = [layer for layer in arch.layers if layer.extra] if filtered else list(arch.layers)
    if arch.name == "qwen4exp" and traits.qwen4exp_draft_memory == "plain":
        layers = [Layer(k=layer.k, v=layer.v, windowed=layer.windowed, extra=True) for layer in layers]
    return _sizes(arch, layers, shape, types, options, traits)


def _sizes(
    arch: Architecture,
    layers: Sequence[Layer],
    shape: Shape,
    types: tuple[str, str],
    options: Options,
    traits: Traits,
) -> Caches:
    swa_cells = window_cells(arch, shape, options)
    if options.flash_attn == "off":
        layers = _padded(arch, layers)
    swa_types = types if traits.swa_cache_quantized else ("f16", "f16")
    base = [layer for layer in layers if not (layer.windowed and arch.window)]
    windowed = [layer for layer in layers if layer.windowed and arch.window]
    k, v = traits.indexer_k_heads, traits.indexer_v_heads
    index = sum(1 for layer in layers if layer.indexed)
    if arch.name != "qwen4exp":
        k, v = 1, 1
    row = row_bytes(types[0], k * arch.index_size) + row_bytes(types[1], v * arch.index_size) if index else 0
    return Caches(
        kv=shape.context * cell_bytes(base, types),
        swa=swa_cells * shape.streams * cell_bytes(windowed, swa_types),
        indexer=shape.context * index * row,
        state=0,
        cells=shape.cells,
        swa_cells=swa_cells if windowed else 0,
    )


def _padded(arch: Architecture, layers: Sequence[Layer]) -> list[Layer]:
    """Without flash attention V is stored transposed, each layer as wide as the widest."""
    widest = max((layer.v for layer in arch.layers), default=0)
    return [replace(layer, v=widest if layer.v else 0) for layer in layers]


def cell_bytes(layers: Sequence[Layer], types: tuple[str, str]) -> int:
    """Bytes of one cell over all these layers."""
    return sum(row_bytes(types[0], layer.k) + row_bytes(types[1], layer.v) for layer in layers)


def window_cells(arch: Architecture, shape: Shape, options: Options) -> int:
    """Cells per stream of a sliding-window cache."""
    if not arch.window:
        return 0
    if options.swa_full:
        return shape.cells
    sequences = shape.slots if shape.unified else 1
    return pad(min(shape.cells, arch.window * sequences + shape.ubatch), 256)


def state_row(arch: Architecture) -> int:
    """Bytes of one sequence's recurrent state: R and S of each layer, P of the n-gram layer; always f32."""
    layers = [layer for layer in arch.layers if layer.recurrent and not layer.extra]
    floats = sum(arch.state_r + arch.state_s + (arch.state_p if layer.ple else 0) for layer in layers)
    return floats * FLOAT_BYTES


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A context checkpoint: `fixed` bytes, and `per_token` for each of at most `tokens` tokens."""

    fixed: int
    per_token: int
    tokens: int

    def bytes_at(self, tokens: int) -> int:
        """Its size after a prefix of that many tokens."""
        return self.fixed + self.per_token * min(tokens, self.tokens)


def checkpoint(arch: Architecture, shape: Shape, options: Options, traits: Traits) -> Checkpoint | None:
    """What one checkpoint holds; None where memory can be rolled back and the server makes none.

    Recurrent: the state of one row. Sliding window: the window's cells. A draft context that is a plain KV
    cache is copied whole, whatever the flag says.
    """
    types = (options.cache_type_k, options.cache_type_v)
    drafted = 0
    if options.uses_mtp and arch.mtp and traits.plain_draft_in_checkpoint:
        plain = arch.name in MTP_PLAIN or traits.qwen4exp_draft_memory == "plain"
        own = (options.draft_cache_type_k, options.draft_cache_type_v)
        drafted = cell_bytes([x for x in arch.layers if x.extra], own) + CELL_META_BYTES if plain else 0
    if arch.recurrent:
        return Checkpoint(
            fixed=state_row(arch) + CHECKPOINT_EXTRA_BYTES, per_token=drafted, tokens=shape.cells
        )
    if arch.windowed and not options.swa_full:
        windowed = [layer for layer in arch.layers if layer.windowed and not layer.extra]
        swa_types = types if traits.swa_cache_quantized else ("f16", "f16")
        per_token = cell_bytes(windowed, swa_types) + CELL_META_BYTES
        return Checkpoint(fixed=CHECKPOINT_EXTRA_BYTES, per_token=per_token, tokens=arch.window)
    return None


def checkpoints_bytes(one: Checkpoint, shape: Shape, options: Options) -> int:
    """The most that all slots' checkpoints take: the list full, spaced by the least distance from the end."""
    step = options.checkpoint_min_step
    depths = (max(shape.slot_context - number * step, 0) for number in range(options.ctx_checkpoints))
    return shape.slots * sum(one.bytes_at(depth) for depth in depths)
