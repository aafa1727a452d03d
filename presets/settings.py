"""Every setting of a preset, declared once.

A field of `Settings` carries its name, its type (which also says how strictly YAML text is read), the
engine option it becomes and since which build, its default, its limits and its help. The schema for
editors, the command line, the documentation and the planner's options are all derived from here.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from presets.planner.options import SPEC_TYPES
from presets.strict_yaml import Plain

# --- types: how a value is read ---------------------------------------------------------------------

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


def whole(value: Any) -> int:
    """An integer, if every reader of the file would see the same one.

    `131072`, `131_072`, `1e5` and `0x2000` are; `010` (8 or 10?), `1:30`, `128k` and `1.5` are not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{_shown(value)} is not a whole number")
    if isinstance(value, int | float):
        if value != int(value):
            raise ValueError(f"{value} is not a whole number")
        return int(value)
    text = value.strip()
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"0x[0-9a-fA-F]+", text):
        return int(text, 16)
    if re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?[eE]\+?[0-9]{1,2}", text) and float(text) == int(float(text)):
        return int(float(text))
    raise ValueError(f"{text!r} is not a whole number{_number_hint(text)}")


def real(value: Any) -> float:
    """A finite number; what two YAML versions read differently is refused as in `whole`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{_shown(value)} is not a number")
    if isinstance(value, int | float):
        return float(value)
    text = value.strip()
    if re.fullmatch(r"[-+]?((0|[1-9][0-9_]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,2})?", text):
        return float(text.replace("_", ""))
    raise ValueError(f"{text!r} is not a number{_number_hint(text)}")


def switch(value: Any) -> bool:
    """True or false, also spelled on/off, yes/no, 1/0, quoted or not, in any case."""
    text = str(value).strip().lower()
    if isinstance(value, bool | int | str) and text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError(f"{_shown(value)} is neither true nor false")


def text(value: Any) -> str:
    """A single line of text without control characters."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{_shown(value)} is not text")
    shown = str(value)
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in shown):
        raise ValueError(f"{shown!r} holds a line break or a control character")
    return shown


def layers(value: Any) -> str:
    """A number of layers, `auto` or `all`."""
    shown = str(value).strip().lower() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return shown if shown in ("auto", "all") else str(whole(value))


def word(*allowed: str, aliases: Mapping[str, str] | None = None) -> Callable[[Any], str]:
    """One of the allowed words, in any case; `aliases` gives other spellings of them."""
    known = {each.lower(): each for each in allowed} | dict(aliases or {})

    def read(value: Any) -> str:
        spelled = str(value).strip().lower() if isinstance(value, str | int | bool) else ""
        if spelled not in known:
            raise ValueError(f"{_shown(value)} is not one of {', '.join(allowed)}")
        return known[spelled]

    return read


def address(value: Any) -> str:
    """An IP address; Docker publishes ports on addresses and not on names."""
    shown = text(value).strip()
    try:
        return str(ipaddress.ip_address({"localhost": "127.0.0.1"}.get(shown, shown)))
    except ValueError as error:
        raise ValueError(f"{shown!r} is not an IP address of this host") from error


def words(value: Any) -> tuple[str, ...]:
    """A list of words, or one text with commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError(f"{_shown(value)} is not a list")
    return tuple(text(item).strip() for item in items if text(item).strip())


def argument_list(value: Any) -> tuple[str, ...]:
    """A list of arguments, one item each; a single text is refused, as its spaces are ambiguous."""
    if not isinstance(value, list | tuple):
        raise ValueError(
            f"{_shown(value)} is not a list; write one argument an item: [--swa-full, --seed, 1]"
        )
    return tuple(text(item) for item in value)


def text_map(value: Any) -> dict[str, str]:
    """A mapping of names to text."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{_shown(value)} is not a mapping")
    return {text(key): text("" if item is None else item) for key, item in value.items()}


def json_object(value: Any) -> dict[str, Any]:
    """A JSON object, given as a mapping or as JSON text.

    Inside, unquoted words follow YAML 1.2; `on`, `off`, `yes`, `no` and `010` must be quoted or written
    as true, false or 10, since YAML 1.1 and 1.2 disagree on them.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise ValueError(f"{_shown(value)} is not a JSON object")
    return {str(key): _json_value(item, str(key)) for key, item in value.items()}


def _json_value(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_value(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return _json_plain(value, path) if isinstance(value, Plain) else value


def _json_plain(value: Plain, path: str) -> Any:
    if value in ("true", "false"):
        return value == "true"
    if value.lower() in {"on", "off", "yes", "no", "y", "n", "true", "false"}:
        raise ValueError(
            f"{path}: {str(value)!r} can mean a word or a truth value; quote it or write true/false"
        )
    if re.fullmatch(r"[-+.]?[0-9].*|[-+]?\.(inf|nan)", value, re.IGNORECASE):
        if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", value):
            return int(value)
        if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?", value):
            return float(value)
        raise ValueError(
            f"{path}: {str(value)!r} is a number in one YAML version and text in another; quote it"
        )
    return str(value)


def _number_hint(text: str) -> str:
    if re.fullmatch(r"[-+]?0[0-9_]+", text):
        return f": a leading zero means octal to some readers; write {text.lstrip('0') or '0'}"
    if suffix := re.fullmatch(r"([0-9]+)\s*([kKmMgG])(i?[bB])?", text):
        power = {"k": 10, "m": 20, "g": 30}[suffix[2].lower()]
        return f"; write {int(suffix[1]) << power} if you mean {suffix[1]} x 2^{power}"
    return ""


def _shown(value: Any) -> str:
    return "an empty value" if value is None else repr(str(value) if isinstance(value, str) else value)


Whole = Annotated[int, BeforeValidator(whole)]
Real = Annotated[float, BeforeValidator(real)]
Switch = Annotated[bool, BeforeValidator(switch), WithJsonSchema({"type": "boolean"})]
Text = Annotated[str, BeforeValidator(text), WithJsonSchema({"type": "string"})]
SpecTypes = Annotated[
    tuple[Annotated[str, BeforeValidator(word(*SPEC_TYPES))], ...],
    BeforeValidator(words),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"enum": list(SPEC_TYPES)}}, {"enum": list(SPEC_TYPES)}]}
    ),
]
Layers = Annotated[
    str,
    BeforeValidator(layers),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"enum": ["auto", "all"]}]}),
]
Arguments = Annotated[tuple[str, ...], BeforeValidator(argument_list)]
TextMap = Annotated[dict[str, str], BeforeValidator(text_map)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(json_object)]
OnOffAuto = Annotated[
    Literal["on", "off", "auto"],
    BeforeValidator(
        word(
            "on", "off", "auto",
            aliases={**dict.fromkeys(_TRUE, "on"), **dict.fromkeys(_FALSE, "off"), "-1": "auto"},
        )
    ),
    WithJsonSchema({"enum": ["on", "off", "auto", True, False]}),
]  # fmt: skip
OnOff = Annotated[
    Literal["on", "off"],
    BeforeValidator(
        word("on", "off", aliases={**dict.fromkeys(_TRUE, "on"), **dict.fromkeys(_FALSE, "off")})
    ),
    WithJsonSchema({"enum": ["on", "off", True, False]}),
]
_CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
CacheType = Annotated[
    Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"],
    BeforeValidator(word(*_CACHE_TYPES)),
]


# --- options: what a value becomes ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """One way an option was written, from upstream build `since` on.

    `off` is the word for false; a switch without one is simply left out when false. `template_key`
    names the chat-template argument that did the option's work before there was an option.
    """

    since: int = 0
    on: str = ""
    off: str = ""
    template_key: str = ""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The engine option of a setting: its spellings, newest first, and how a value is put into words."""

    spellings: tuple[Spelling, ...]
    template: Mapping[Any, Any] = field(default_factory=dict)

    def at(self, build: int) -> Spelling | None:
        """The spelling that a build understands; None where the build has no such option."""
        return next((spelling for spelling in self.spellings if spelling.since <= build), None)


def option(
    on: str, off: str = "", *, since: int = 0, before: Spelling | None = None, template: Any = None
) -> Option:
    """Declare an option by its long name; `before` is how builds older than `since` spell it."""
    newest = Spelling(since=since, on=on, off=off)
    return Option(spellings=(newest, before) if before else (newest,), template=template or {})


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A setting that becomes an environment variable: `values` maps it to the text, None to unset."""

    variable: str
    values: Mapping[Any, str | None]


LAZY_RENAMED: Final = 10700
"""First pin seen with `--lazy-mode` (upstream pull request 27969 of 2026-08-29; b10685 has the old word)."""
REASONING_OPTIONS: Final = 11000
"""Pins from here on have `--reasoning` and `--reasoning-effort`; before, the chat template's own keys."""


CORS_OPTION: Final = 11000
"""First pin seen with `--cors-origins`."""
EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")


class Settings(BaseModel):
    """What a preset can set, in the order the documentation lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    # context and slots
    ctx: Annotated[Whole, option("--ctx-size")] = Field(
        ge=256, le=64 * 1024 * 1024,
        description="KV cells in all (tokens), split over the slots unless kv_unified is true. "
        "Always explicit: an MTP draft context left to itself takes the trained length.",
    )  # fmt: skip
    slots: Annotated[Whole, option("--parallel")] = Field(
        1, ge=1, le=256, description="Conversations served at the same time."
    )
    kv_unified: Annotated[Switch, option("--kv-unified", "--no-kv-unified")] = Field(
        False,
        description="One pool of ctx cells for all slots; when it is full, all running requests fail.",
    )
    kv_unified_per_slot: Annotated[Whole | None, option("--kv-unified-per-slot")] = Field(
        None, ge=256, description="With kv_unified: most cells one slot may use (tokens)."
    )
    batch: Annotated[Whole, option("--batch-size")] = Field(
        2048, ge=1, description="Most tokens in one decode call (logical batch)."
    )
    ubatch: Annotated[Whole, option("--ubatch-size")] = Field(
        512, ge=1, description="Most tokens in one forward pass (physical batch); sizes the compute buffer."
    )
    cache_type_k: Annotated[CacheType, option("--cache-type-k")] = Field(
        "f16", description="Type of the K cache. q4_0 ruins the output of this family of models."
    )
    cache_type_v: Annotated[CacheType, option("--cache-type-v")] = Field(
        "f16", description="Type of the V cache; a quantised one needs flash_attn."
    )
    flash_attn: Annotated[OnOffAuto, option("--flash-attn")] = Field("auto", description="Flash attention.")
    context_shift: Annotated[Switch | None, option("--context-shift", "--no-context-shift")] = Field(
        None, description="Drop the oldest tokens when a generation reaches its context."
    )
    ctx_checkpoints: Annotated[Whole, option("--ctx-checkpoints")] = Field(
        32, ge=0, le=1024,
        description="Context checkpoints kept per slot; for a hybrid model they are how a prompt is reused.",
    )  # fmt: skip
    checkpoint_min_step: Annotated[Whole, option("--checkpoint-min-step")] = Field(
        8192, ge=0, description="Fewest tokens between two checkpoints."
    )
    cache_ram: Annotated[Whole, option("--cache-ram")] = Field(
        8192, ge=-1, description="Most memory of the prompt cache in MiB, host side; 0 none, -1 no limit."
    )
    cache_reuse: Annotated[Whole, option("--cache-reuse")] = Field(
        0,
        ge=0,
        description="Shortest chunk reused by shifting KV (tokens); a recurrent state cannot be shifted.",
    )

    # weights
    gpu_layers: Annotated[Layers, option("--n-gpu-layers")] = Field(
        "99", description="Layers on the GPU: a number, `auto` or `all`."
    )
    load_mode: Annotated[
        Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"],
        BeforeValidator(word("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")),
        option("--load-mode"),
    ] = Field(
        "auto", description="How weights are read. Mapped loading is slow, and at times wrong, on gfx1151."
    )
    lazy_mode: Annotated[
        OnOffAuto, option("--lazy-mode", since=LAZY_RENAMED, before=Spelling(on="--tensor-read-lazy"))
    ] = Field(
        "auto",
        description="Read rows of the n-gram table from disk on demand. auto means off on an integrated GPU: "
        "26.8 GiB more stay resident.",
    )
    repack: Annotated[Switch | None, option("--repack", "--no-repack")] = Field(
        None, description="Repack weights for the CPU (a second copy of them in memory)."
    )
    fit: Annotated[OnOff, option("--fit")] = Field(
        "off", description="Let the engine shrink settings that are not given; off, since the plan decides."
    )
    override_tensor: Annotated[Text | None, option("--override-tensor")] = Field(
        None, description="Place tensors by name pattern, e.g. `per_layer_token_embd.weight=CPU`."
    )
    no_host: Annotated[Switch, option("--no-host")] = Field(False, description="Bypass the host buffer type.")

    # threads
    threads: Annotated[Whole | None, option("--threads")] = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads while generating; the engine's choice where it is not set.",
    )
    threads_batch: Annotated[Whole | None, option("--threads-batch")] = Field(
        None, ge=1, le=1024, description="CPU threads for prompts; as threads where it is not set."
    )

    # speculation
    spec_type: Annotated[SpecTypes, option("--spec-type")] = Field(
        (), description=f"Speculation, in order of precedence: {', '.join(SPEC_TYPES)}. Empty: none."
    )
    draft_n_max: Annotated[Whole, option("--spec-draft-n-max")] = Field(
        3,
        ge=1,
        le=16,
        description="Most tokens drafted at once; with MTP the recurrent state is kept 1 + n times.",
    )
    draft_n_min: Annotated[Whole, option("--spec-draft-n-min")] = Field(
        0, ge=0, le=16, description="Fewest tokens worth drafting."
    )
    draft_p_min: Annotated[Real, option("--spec-draft-p-min")] = Field(
        0.0,
        ge=0,
        le=1,
        description="Stop a draft when its probability falls below this; changes speed, not text.",
    )
    draft_p_split: Annotated[Real, option("--spec-draft-p-split")] = Field(
        0.1, ge=0, le=1, description="Probability at which a draft splits."
    )
    draft_gpu_layers: Annotated[Layers, option("--spec-draft-ngl")] = Field(
        "99", description="Layers of the draft model on the GPU."
    )
    draft_cache_type_k: Annotated[CacheType, option("--spec-draft-type-k")] = Field(
        "f16", description="Type of the draft's K cache; the engine does not take it from cache_type_k."
    )
    draft_cache_type_v: Annotated[CacheType, option("--spec-draft-type-v")] = Field(
        "f16", description="Type of the draft's V cache."
    )
    ngram_n_match: Annotated[Whole | None, option("--spec-ngram-mod-n-match")] = Field(
        None, ge=1, le=256, description="ngram-mod: length that must match (tokens)."
    )
    ngram_n_min: Annotated[Whole | None, option("--spec-ngram-mod-n-min")] = Field(
        None, ge=0, le=1024, description="ngram-mod: fewest tokens drafted."
    )
    ngram_n_max: Annotated[Whole | None, option("--spec-ngram-mod-n-max")] = Field(
        None, ge=1, le=1024, description="ngram-mod: most tokens drafted."
    )

    # thinking and the chat template
    thinking: Annotated[
        OnOffAuto,
        option(
            "--reasoning", since=REASONING_OPTIONS, before=Spelling(template_key="enable_thinking"),
            template={"on": True, "off": False},
        ),
    ] = Field("auto", description="Thinking; auto leaves it to the chat template.")  # fmt: skip
    effort: Annotated[
        Literal["default", "minimal", "low", "medium", "high", "xhigh", "max"],
        BeforeValidator(word("default", *EFFORTS)),
        option(
            "--reasoning-effort", since=REASONING_OPTIONS, before=Spelling(template_key="reasoning_effort"),
            template={level: level for level in EFFORTS},
        ),
    ] = Field("default", description="Reasoning effort; the template knows which levels exist.")  # fmt: skip
    reasoning_budget: Annotated[Whole, option("--reasoning-budget")] = Field(
        -1, ge=-1, description="Most tokens of thinking; -1 no limit."
    )
    reasoning_format: Annotated[
        Literal["auto", "none", "deepseek", "deepseek-legacy"],
        BeforeValidator(word("auto", "none", "deepseek", "deepseek-legacy")),
        option("--reasoning-format"),
    ] = Field("auto", description="Where thoughts go in an answer.")
    chat_template_kwargs: Annotated[JsonObject, option("--chat-template-kwargs")] = Field(
        {}, description="Further values for the chat template, a JSON object."
    )
    jinja: Annotated[Switch, option("--jinja", "--no-jinja")] = Field(
        True, description="Use the model's own chat template."
    )

    # sampling: what a request that says nothing gets; None leaves it to the model's file
    temperature: Annotated[Real | None, option("--temp")] = Field(
        None, ge=0, le=10, description="Temperature."
    )
    top_p: Annotated[Real | None, option("--top-p")] = Field(None, ge=0, le=1, description="Top-p.")
    top_k: Annotated[Whole | None, option("--top-k")] = Field(
        None, ge=0, description="Top-k; 0 switches it off."
    )
    min_p: Annotated[Real | None, option("--min-p")] = Field(None, ge=0, le=1, description="Min-p.")
    presence_penalty: Annotated[Real | None, option("--presence-penalty")] = Field(
        None, ge=-2, le=2, description="Presence penalty."
    )
    repeat_penalty: Annotated[Real | None, option("--repeat-penalty")] = Field(
        None, ge=0, le=4, description="Repeat penalty; 1 switches it off."
    )
    seed: Annotated[Whole | None, option("--seed")] = Field(None, ge=-1, description="Seed; -1 random.")
    n_predict: Annotated[Whole | None, option("--n-predict")] = Field(
        None, ge=-1, description="Most tokens of an answer that does not say; -1 no limit."
    )

    # service
    port: Annotated[Whole, option("--port")] = Field(
        8080, ge=1, le=65535, description="Port, inside the container and outside. Always explicit."
    )
    alias: Annotated[Text, option("--alias")] = Field(
        "", max_length=128, description="Model name in the API; the preset's name where it is empty."
    )
    metrics: Annotated[Switch, option("--metrics")] = Field(
        True, description="Prometheus metrics at /metrics."
    )
    slots_endpoint: Annotated[Switch, option("--slots", "--no-slots")] = Field(
        True, description="The /slots endpoint."
    )
    webui: Annotated[Switch, option("--webui", "--no-webui")] = Field(
        False, description="The built-in web page; our images are built without it."
    )
    warmup: Annotated[Switch, option("--warmup", "--no-warmup")] = Field(
        True, description="An empty run before the server says it is healthy."
    )
    timeout: Annotated[Whole, option("--timeout")] = Field(
        3600, ge=1, description="Seconds a connection may be silent; long prompts need much."
    )
    sleep_idle_seconds: Annotated[Whole | None, option("--sleep-idle-seconds")] = Field(
        None, ge=1, description="Free the model after this many idle seconds; None never."
    )
    log_verbosity: Annotated[Whole, option("--log-verbosity")] = Field(
        4, ge=4, le=9, description="4 or more: the buffer sizes and the lazy-reading line appear only then."
    )
    cors_origins: Annotated[Text | None, option("--cors-origins", since=CORS_OPTION)] = Field(
        None,
        description="Web origins that may call the API, with commas; this machine's own if not set.",
    )

    # environment of the engine
    attention_rotation: Annotated[
        Switch, Environment(variable="LLAMA_ATTN_ROT_DISABLE", values={True: None, False: "1"})
    ] = Field(True, description="Rotate K and V before quantising; better text, about 2 % slower.")
    hipblaslt: Annotated[
        Switch, Environment(variable="ROCBLAS_USE_HIPBLASLT", values={True: "1", False: None})
    ] = Field(False, description="Let rocBLAS use hipBLASLt.")

    # the container
    bind: Annotated[str, BeforeValidator(address)] = Field(
        "127.0.0.1", description="Host address the port is published on; others need an API key."
    )
    api_key_file: Text | None = Field(
        None,
        description="File on the host with one API key a line; mounted as a secret, never in the command.",
    )
    guard_gib: Real = Field(
        6.0,
        ge=0,
        le=64,
        description="Stop the server when the host's MemAvailable falls below this (GiB); 0 never.",
    )
    memory_limit: Text | None = Field(
        None,
        pattern=r"^[1-9][0-9]*[kmgKMG]?$",
        description="Memory limit of the container (cgroup), e.g. `12g`. GTT is not counted in it.",
    )  # fmt: skip
    start_seconds: Whole | None = Field(
        None,
        ge=5,
        le=7200,
        description="Time for loading before health counts (s); planned from the size if not set.",
    )
    restart: Annotated[
        Literal["no", "on-failure:3", "unless-stopped"],
        BeforeValidator(word("no", "on-failure:3", "unless-stopped", aliases={"false": "no", "off": "no"})),
    ] = Field(
        "on-failure:3", description="When Docker starts the container again; unless-stopped has no limit."
    )
    seccomp: Annotated[Literal["default", "unconfined"], BeforeValidator(word("default", "unconfined"))] = (
        Field("default", description="System call filter; unconfined only where the GPU runtime needs it.")
    )
    environment: TextMap = Field({}, description="Further environment variables of the engine.")
    extra_args: Arguments = Field(
        (), description="Further engine arguments, one an item; none that a setting already writes."
    )
