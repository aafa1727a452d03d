"""The server options that decide memory, as given, and what the engine makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Final, Literal, get_args

from errors import BadInput, nearest
from patches.traits import Traits

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]
LoadMode = Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"]
LazyMode = Literal["auto", "on", "off"]
FlashAttention = Literal["auto", "on", "off"]

CACHE_TYPES: Final = get_args(CacheType)
SPEC_TYPES: Final = (
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "draft-dflash",
    "draft-dspark",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)
ROLLBACK_SPECS: Final = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
"""Types that make the engine keep `draft_n_max` more rows of recurrent state (need_n_rs_seq)."""
NGRAM_OUTPUTS: Final = {
    "ngram-simple": 48,
    "ngram-map-k": 48,
    "ngram-map-k4v": 48,
    "ngram-mod": 64,
    "ngram-cache": 8,
}
"""Tokens a draft without a model may have by default (common_speculative_n_max)."""
MAX_SLOTS: Final = 256
SHORT_NAMES: Final = {"spec_type": "spec_types", "cache_ram": "cache_ram_mib", "gpu_layers": "n_gpu_layers"}
"""Names of preset settings that are called otherwise here."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """llama-server options, resolved from a preset; None means "left out" where that differs from a value.

    Sizes are in tokens, `cache_ram_mib` in MiB (-1 no limit, 0 off). `n_gpu_layers` None means all.
    `override_tensor` is the engine's own form, `PATTERN=BUFFER,...`.
    """

    ctx: int = 0
    batch: int = 2048
    ubatch: int = 512
    slots: int | None = None
    kv_unified: bool | None = None
    kv_unified_per_slot: int = 0
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    draft_cache_type_k: CacheType = "f16"
    draft_cache_type_v: CacheType = "f16"
    flash_attn: FlashAttention = "auto"
    spec_types: tuple[str, ...] = ()
    draft_n_max: int = 3
    load_mode: LoadMode = "auto"
    lazy_mode: LazyMode = "auto"
    ctx_checkpoints: int = 32
    checkpoint_min_step: int = 8192
    cache_ram_mib: int = 8192
    n_gpu_layers: int | None = None
    repack: bool = True
    swa_full: bool = False
    override_tensor: str | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        for name in ("cache_type_k", "cache_type_v", "draft_cache_type_k", "draft_cache_type_v"):
            _one_of(name, getattr(self, name), CACHE_TYPES)
        _one_of("flash_attn", self.flash_attn, get_args(FlashAttention))
        _one_of("load_mode", self.load_mode, get_args(LoadMode))
        _one_of("lazy_mode", self.lazy_mode, get_args(LazyMode))
        for kind in self.spec_types:
            _one_of("spec_types", kind, SPEC_TYPES)
        self.overrides()

    def _check_numbers(self) -> None:
        least = {"ctx": 0, "batch": 1, "ubatch": 0, "kv_unified_per_slot": 0, "draft_n_max": 0}
        least |= {"ctx_checkpoints": 0, "checkpoint_min_step": 0, "cache_ram_mib": -1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise BadInput(
                    f"{name} is {getattr(self, name)}",
                    why=f"it must be at least {low}",
                    hint=f"--set {name}={low}",
                )
        if self.slots is not None and not 1 <= self.slots <= MAX_SLOTS:
            raise BadInput(
                f"slots is {self.slots}", why=f"the engine takes 1 to {MAX_SLOTS}", hint="--set slots=1"
            )

    def overrides(self) -> list[tuple[re.Pattern[str], bool]]:
        """Patterns of tensor names, each with whether its tensors go to the host.

        Raises:
            BadInput: a part is not PATTERN=BUFFER, or the pattern is no regular expression.
        """
        found = []
        for part in (self.override_tensor or "").split(","):
            pattern, equals, buffer = part.rpartition("=")
            if not part:
                continue
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise BadInput(f"override_tensor {part!r} cannot be used", why=str(error)) from error
            if not equals or not pattern or not buffer:
                raise BadInput(f"override_tensor {part!r} is not PATTERN=BUFFER", hint="exps=CPU, say")
            found.append((compiled, buffer.startswith("CPU") or buffer.endswith("_Host")))
        return found

    @property
    def uses_mtp(self) -> bool:
        """Whether an MTP head drafts."""
        return "draft-mtp" in self.spec_types

    @property
    def uses_draft_context(self) -> bool:
        """Whether a second context exists: a draft model or an MTP head."""
        return any(kind.startswith("draft-") for kind in self.spec_types)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the engine makes of `Options` for one model: clamps and paddings done.

    `cells` is the KV cells of one stream, `streams` how many there are (1 when unified), `context` their
    product. `outputs` is the rows of logits reserved, `rollback` the further copies of recurrent state.
    """

    slots: int
    unified: bool
    cells: int
    streams: int
    batch: int
    ubatch: int
    outputs: int
    rollback: int
    draft_tokens: int
    slot_context: int

    @property
    def context(self) -> int:
        """KV cells in all."""
        return self.cells * self.streams


def shape(options: Options, traits: Traits, *, trained: int, rollback: bool) -> Shape:
    """Resolve options as llama-context.cpp and server-context.cpp of b11434 do.

    Args:
        trained: the model's training context in tokens.
        rollback: whether the architecture can take back tokens of its recurrent state.
    """
    slots = traits.auto_slots if options.slots is None else options.slots
    unified = options.slots is None if options.kv_unified is None else options.kv_unified
    asked = options.ctx or (slots * options.kv_unified_per_slot if unified else 0)
    asked = asked or (trained if unified else trained * slots)
    batch = min(asked, options.batch)
    ubatch = min(batch, options.ubatch or batch)
    total = pad(asked, 256)
    cells = total if unified else pad(total // slots, 256)
    draft = draft_tokens(options)
    caps = [cells, trained] + (
        [options.kv_unified_per_slot] if options.kv_unified_per_slot and unified else []
    )
    return Shape(
        slots=slots,
        unified=unified,
        cells=cells,
        streams=1 if unified else slots,
        batch=batch,
        ubatch=ubatch,
        outputs=min(batch, slots * (1 + draft)) if traits.server_limits_outputs else batch,
        rollback=rollback_rows(options) if rollback and traits.rollback_rows else 0,
        draft_tokens=draft,
        slot_context=min(caps),
    )


def draft_tokens(options: Options) -> int:
    """The longest draft of any enabled kind (common_speculative_n_max)."""
    lengths = [NGRAM_OUTPUTS.get(kind, options.draft_n_max) for kind in options.spec_types]
    return max(lengths, default=0)


def rollback_rows(options: Options) -> int:
    """Further rows of recurrent state per sequence (common_params_speculative::need_n_rs_seq)."""
    return options.draft_n_max if any(kind in ROLLBACK_SPECS for kind in options.spec_types) else 0


def pad(number: int, to: int) -> int:
    """`number` rounded up to a multiple of `to` (GGML_PAD)."""
    return -(-number // to) * to


def override(options: Options, settings: dict[str, str]) -> Options:
    """Apply `key=value` settings from a command line.

    Raises:
        BadInput: an unknown key (names the nearest one) or a value of the wrong kind.
    """
    kinds = {item.name: str(item.type) for item in fields(Options)}
    changed: dict[str, object] = {}
    for given, text in settings.items():
        key = SHORT_NAMES.get(given, given)
        if key not in kinds:
            raise BadInput(
                f"the planner knows no setting {key!r}",
                why=nearest(key, list(kinds)),
                hint="./inv plan --help",
            )
        changed[key] = _parse(key, kinds[key], text)
    return replace(options, **changed)  # type: ignore[arg-type]


def _parse(key: str, kind: str, text: str) -> object:
    lowered = text.strip().lower()
    if "None" in kind and lowered in ("", "none", "auto"):
        return None
    if kind.startswith("tuple"):
        return tuple(word.strip() for word in text.split(",") if word.strip() not in ("", "none"))
    if kind.startswith("bool"):
        if lowered in ("on", "true", "yes", "1", "off", "false", "no", "0"):
            return lowered in ("on", "true", "yes", "1")
        raise BadInput(f"{key}={text} is not a switch", hint=f"--set {key}=on or --set {key}=off")
    if kind.startswith("int"):
        try:
            return int(lowered.replace("_", ""))
        except ValueError:
            raise BadInput(f"{key}={text} is not a whole number", hint=f"--set {key}=4096, say") from None
    return lowered


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise BadInput(
            f"{name} is {value!r}", why=nearest(value, list(known)), hint=f"--set {name}={known[0]}"
        )
