"""What the planner, the renderer and the checks must know of an engine's tree.

Constants measured on one build are wrong on the next, so formulas carry these, and each engine states its
own in the `traits:` block of its `engine.yaml`. Defaults are those of llama.cpp b11434, each read from its
source or measured on it. A trait that could not be verified on an engine's tree is listed in `guessed`.

Plain dataclasses: pydantic checks them as part of an engine's file (`patches.engines`), while `plan`, which
has to answer at once, reads them by `load` without importing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from annotated_types import Ge, Gt

import documents
from errors import BadInput, nearest

Count = Annotated[int, Ge(0)]
Bytes = Annotated[int, Ge(0)]
Mib = Annotated[float, Ge(0)]
FOLDER: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class ComputeFit:
    """A compute buffer fitted from measurements.

    MiB = (base + per_cell x cells of a stream) x ubatch / at_ubatch.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    base_mib: Mib
    per_cell_mib: Mib
    at_ubatch: Annotated[int, Gt(0)]
    draft_mib: Mib = 0.0
    host_mib: Mib = 0.0
    source: str


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The `traits:` block of an engine.yaml."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

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
    load_auto: Mapping[Literal["cpu", "gpu", "igpu"], Literal["mmap", "none"]] = field(
        default_factory=lambda: {"cpu": "mmap", "gpu": "mmap", "igpu": "none"}
    )
    """What load mode `auto` becomes on a kind of device."""
    lazy_auto: Mapping[Literal["cpu", "gpu", "igpu"], bool] = field(
        default_factory=lambda: {"cpu": True, "gpu": True, "igpu": False}
    )
    """Whether lazy mode `auto` leaves a big table in the file on a kind of device."""
    lazy_without_mmap: bool = False
    """Lazy reading works in load mode `none` too."""
    lazy_min_bytes: Bytes = 4 * 2**30
    """Lazy mode `auto` takes tensors above this size only."""
    lazy_resident_bytes: Bytes = 2_793_406_464
    """Pages of a lazily read table that stay in RAM in use: 2.6 to 2.7 GiB measured on gfx1151."""
    swa_cache_quantized: bool = True
    """The sliding-window cache takes the types of -ctk and -ctv; False: it stays f16."""
    auto_slots: Annotated[int, Gt(0)] = 4
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
    mixed_inputs: bool = True
    """A batch may mix tokens and embeddings: two more rows of the input layer on either side of a GPU."""
    hip_flash_attention_copies: bool = True
    """The HIP backend puts f16 copies of quantized K and V beside a flash attention operation."""
    compute: Mapping[str, ComputeFit] = field(default_factory=dict)
    """Architecture -> compute buffer fitted on gfx1151, where a tree differs from b11434."""
    flags_as_of: int | None = None
    """Upstream build whose command line this tree takes, where that is not its own build number."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Setting -> the flag this tree spells otherwise; "" for a setting it does not have."""
    guessed: tuple[str, ...] = ()
    """Names of traits that were not verified on this tree."""

    def __post_init__(self) -> None:
        known = {item.name for item in fields(self)}
        unknown = [name for name in self.guessed if name not in known]
        if unknown:
            raise ValueError(f"guessed names no trait: {', '.join(unknown)}")


def load(name: str = "llama.cpp") -> Traits:
    """The traits of an engine, without the rest of it.

    Raises:
        BadInput: there is no such engine, or its traits cannot be read.
    """
    known = [path.parent.name for path in FOLDER.glob("*/engine.yaml")]
    if name not in known:
        raise BadInput(f"no engine named {name!r}", why=nearest(name, known), hint="--engine llama.cpp")
    return of((documents.read(FOLDER / name / "engine.yaml") or {}).get("traits") or {}, name)


def of(block: Mapping[str, Any], name: str) -> Traits:
    """The traits of a block of YAML; lists become tuples. `engines.load` checks every type as well.

    Raises:
        BadInput: a key is unknown or a value impossible.
    """
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in block.items()
    }
    try:
        values["compute"] = {key: ComputeFit(**fit) for key, fit in (values.get("compute") or {}).items()}
        return Traits(**values)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"the traits of engine {name} cannot be used", why=str(error), hint=f"./inv fetch --engine {name}"
        ) from error
