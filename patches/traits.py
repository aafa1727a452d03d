"""What the planner, the renderer and the checks must know of an engine's tree.

Constants measured on one build are wrong on the next, so formulas carry these, and each engine states its
own in the `traits:` block of its `engine.yaml`. Defaults are those of llama.cpp b11434, each read from its
source or measured on it. A trait that could not be verified on an engine's tree is listed in `guessed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]


class ComputeFit(BaseModel):
    """A compute buffer fitted from measurements.

    MiB = (base + per_cell x cells of a stream) x ubatch / at_ubatch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_mib: float = Field(ge=0)
    per_cell_mib: float = Field(ge=0)
    at_ubatch: int = Field(gt=0)
    draft_mib: float = Field(default=0, ge=0)
    host_mib: float = Field(default=0, ge=0)
    source: str


class Traits(BaseModel):
    """The `traits:` block of an engine.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    indexer_k_heads: Count = 2
    """Indexer cache, K part per cell, in multiples of `indexer.key_length` (raw key | pooled key)."""
    indexer_v_heads: Count = 0
    """Indexer cache, V part per cell, in the same multiples."""
    qwen4exp_draft_memory: Literal["indexed", "plain"] = "indexed"
    """MTP context of qwen4exp: attention and indexer of its block, or a plain KV cache without indexer."""
    plain_draft_in_checkpoint: bool = True
    """A draft context that is a plain KV cache is copied whole into every context checkpoint."""
    rollback_rows: bool = True
    """Recurrent state is kept 1 + draft n-max times, so that rejected drafts can be taken back."""
    rollback_architectures: tuple[str, ...] = (
        "bailingmoe3",
        "deepseek4",
        "glm5-next",
        "kimi-k3",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
    )
    """Architectures whose state can be rolled back (llm_arch_supports_rs_rollback)."""
    mtp_heads: tuple[Literal["hc_head", "output_hc", "shared"], ...] = ("hc_head",)
    """Tensor naming of the separate qwen4exp MTP heads that this tree loads (the catalog's `family`)."""
    mtp_layer_filter: bool = True
    """The MTP context holds the extra blocks alone. False: it duplicates the whole KV cache."""
    load_auto: Mapping[Literal["cpu", "gpu", "igpu"], Literal["mmap", "none"]] = {
        "cpu": "mmap",
        "gpu": "mmap",
        "igpu": "none",
    }
    """What load mode `auto` becomes on a kind of device."""
    lazy_auto: Mapping[Literal["cpu", "gpu", "igpu"], bool] = {"cpu": True, "gpu": True, "igpu": False}
    """Whether lazy mode `auto` leaves a big table in the file on a kind of device."""
    lazy_without_mmap: bool = False
    """Lazy reading works in load mode `none` too."""
    lazy_min_bytes: Bytes = 4 * 2**30
    """Lazy mode `auto` takes tensors above this size only."""
    lazy_resident_bytes: Bytes = 2_793_406_464
    """Pages of a lazily read table that stay in RAM in use: 2.6 to 2.7 GiB measured on gfx1151."""
    swa_cache_quantized: bool = True
    """The sliding-window cache takes the types of -ctk and -ctv; False: it stays f16."""
    auto_slots: Annotated[int, Field(gt=0)] = 4
    """Slots, and one unified cache, when -np is left out."""
    server_limits_outputs: bool = True
    """llama-server reserves logits for slots x (1 + draft) rows; False: for a whole batch."""
    mask_bytes: Literal[2, 4] = 2
    """Bytes per entry of the attention mask in the host compute buffer with flash attention."""
    ctx_checkpoints: Count = 32
    """Context checkpoints per slot by default."""
    checkpoint_min_step: Count = 8192
    """Least distance in tokens between two checkpoints by default."""
    cache_ram_mib: int = 8192
    """Limit of the prompt cache in MiB by default; -1 none, 0 off."""
    memory_lines_verbosity: Count = 4
    """The least -lv at which buffer sizes are logged."""
    hip_flash_attention_copies: bool = True
    """The HIP backend puts f16 copies of quantized K and V beside a flash attention operation."""
    compute: Mapping[str, ComputeFit] = Field(default_factory=dict)
    """Architecture -> compute buffer fitted on gfx1151, where a tree differs from b11434."""
    flags_as_of: int | None = None
    """Upstream build whose command line this tree takes, where that is not its own build number."""
    flags: Mapping[str, str] = Field(default_factory=dict)
    """Setting -> the flag this tree spells otherwise; "" for a setting it does not have."""
    guessed: tuple[str, ...] = ()
    """Names of traits that were not verified on this tree."""

    @model_validator(mode="after")
    def _guesses_exist(self) -> Traits:
        unknown = [name for name in self.guessed if name not in type(self).model_fields]
        if unknown:
            raise ValueError(f"guessed names no trait: {', '.join(unknown)}")
        return self
