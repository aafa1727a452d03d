"""A preset: one YAML file that names a model, an engine and how the engine is to run."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from errors import BadInput, nearest
from presets import strict_yaml
from presets.planner.options import Options
from presets.settings import CORS_OPTION, Environment, Option, Settings, Text, Whole

FOLDER: Final = Path(__file__).resolve().parent
SCHEMA_FILE: Final = FOLDER / "preset.schema.json"
QUANTISED: Final = frozenset({"q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"})

LEFT_TO_ENGINE: Final = {
    "thinking": "auto",
    "effort": "default",
    "reasoning_budget": -1,
    "reasoning_format": "auto",
}
"""Values that write no option, so that engines without it run too."""

FORBIDDEN_VARIABLES: Final = {
    "GGML_CUDA_ENABLE_UNIFIED_MEMORY": "it moves 77 GB to anonymous memory or corrupts, and 0 counts as set",
    "GGML_HIP_ENABLE_UNIFIED_MEMORY": "it moves 77 GB of weights from GTT to anonymous memory",
    "HSA_OVERRIDE_GFX_VERSION": "the image is built for gfx1151; an override loads kernels of another GPU",
    "LLAMA_API_KEY": "a key in the environment can be read by anyone who can inspect the container",
    "HF_TOKEN": "the engine downloads nothing; the token belongs to `./inv models.fetch`",
}
"""Variables that a preset may not set, and why."""


class Preset(Settings):
    """Settings plus what they are for and what they run."""

    name: str = Field("", exclude=True, description="The file's name without .yaml.")
    purpose: Text = Field(min_length=1, description="What this preset is for, in one line.")
    extends: Text | None = Field(
        None, description="Another preset whose settings this one starts from (one level)."
    )
    engine: Text = Field("llama.cpp", description="Engine, a folder of patches/.")
    flavour: Literal["cpu", "rocm", "vulkan"] = Field("rocm", description="Image flavour.")
    model: Text = Field(min_length=1, description="Model: a key of the catalog, or the path of a .gguf file.")
    quant: Text = Field("", description="Quant of the model, a key of the catalog; none for a .gguf file.")
    head: Text | None = Field(
        None,
        min_length=1,
        description="Draft head: a key of the model's catalog, or the path of a .gguf file.",
    )
    answer: Text | None = Field(
        "Paris",
        description="Pattern in a right answer to smoke's question for the capital of France; null: any.",
    )
    predicted_mib: Whole | None = Field(
        None, ge=1, description="Memory the planner predicts (MiB); a test recomputes it."
    )

    @property
    def served_name(self) -> str:
        """The model name that the API shows."""
        return self.alias or self.name

    @property
    def local(self) -> bool:
        """Whether the model is a file of the user's and not of the catalog."""
        return self.model.endswith(".gguf")

    @property
    def uses_mtp(self) -> bool:
        """Whether an MTP head drafts."""
        return "draft-mtp" in self.spec_type

    @property
    def drafts(self) -> bool:
        """Whether a draft model or head is loaded."""
        return any(kind.startswith("draft-") for kind in self.spec_type)

    def options(self) -> Options:
        """The planner's view of these settings."""
        return Options(
            ctx=self.ctx,
            batch=self.batch,
            ubatch=self.ubatch,
            slots=self.slots,
            kv_unified=self.kv_unified,
            kv_unified_per_slot=self.kv_unified_per_slot or 0,
            cache_type_k=self.cache_type_k,
            cache_type_v=self.cache_type_v,
            draft_cache_type_k=self.draft_cache_type_k,
            draft_cache_type_v=self.draft_cache_type_v,
            flash_attn=self.flash_attn,
            spec_types=self.spec_type,
            draft_n_max=self.draft_n_max,
            load_mode=self.load_mode,
            lazy_mode=self.lazy_mode,
            ctx_checkpoints=self.ctx_checkpoints,
            checkpoint_min_step=self.checkpoint_min_step,
            cache_ram_mib=self.cache_ram,
            n_gpu_layers=int(self.gpu_layers) if self.gpu_layers.isdigit() else None,
            repack=self.repack is not False,
            swa_full="--swa-full" in self.extra_args,
            override_tensor=self.override_tensor,
        )

    def arguments(
        self, build: int, *, model: str, draft: str | None = None, api_key_file: str | None = None
    ) -> list[str]:
        """The engine's arguments, every one explicit.

        Args:
            build: upstream build whose options the engine takes.
            model, draft, api_key_file: paths as the engine sees them.

        Raises:
            BadInput: a setting that this build has no option for.
        """
        found = ["--model", model, "--host", "0.0.0.0"]  # noqa: S104 - inside the container only
        found += ["--model-draft", draft] if draft else []
        found += ["--api-key-file", api_key_file] if api_key_file else []
        template: dict[str, Any] = {}
        for name, option in options_of(Preset):
            value = self._value(name, build)
            if self._left_out(name, value):
                continue
            spelling = option.at(build)
            if spelling is None:
                raise BadInput(
                    f"preset {self.name}: {name} cannot be set",
                    why=f"engine {self.engine} (options as of b{build}) has no such option",
                    hint=f"remove {name} or choose another engine",
                )
            if spelling.template_key:
                template[spelling.template_key] = option.template[value]
            elif isinstance(value, dict):
                template.update(value)
            else:
                found += _words(spelling.on, spelling.off, value)
        if template:
            found += ["--chat-template-kwargs", compact(template)]
        return found + list(self.extra_args)

    def _value(self, name: str, build: int) -> Any:
        """A setting's value, or what follows from others where it is not set."""
        if name == "alias":
            return self.served_name
        if name == "cors_origins" and self.cors_origins is None and build >= CORS_OPTION:
            # The engine's default lets every web page that the user visits talk to a server without a key.
            return f"http://127.0.0.1:{self.port},http://localhost:{self.port}"
        return getattr(self, name)

    def variables(self) -> dict[str, str]:
        """The environment variables that the settings and `environment` ask for."""
        found: dict[str, str] = {}
        for name, item in Preset.model_fields.items():
            for environment in item.metadata:
                if isinstance(environment, Environment):
                    value = environment.values[getattr(self, name)]
                    found.update({} if value is None else {environment.variable: value})
        return found | self.environment

    def _left_out(self, name: str, value: Any) -> bool:
        """Whether a setting writes nothing: not set, or about a part that does not run."""
        if value is None or value in ((), {}, ""):
            return True
        if name.startswith("draft_"):
            return not self.drafts
        if name.startswith("ngram_"):
            return "ngram-mod" not in self.spec_type
        return name in LEFT_TO_ENGINE and LEFT_TO_ENGINE[name] == value

    def conflicts(self) -> Iterator[str]:
        """Settings that cannot stand together, each with what to change."""
        if not self.local and not self.quant:
            yield f"quant is missing: model {self.model} is a key of the catalog"
        if self.head is not None and self.head.endswith(".gguf") != self.local:
            yield "model and head must both be paths of .gguf files, or both keys of the catalog"
        if self.ubatch > self.batch:
            yield f"ubatch {self.ubatch} is larger than batch {self.batch}; the engine would run {self.batch}"
        if self.cache_type_v in QUANTISED and self.flash_attn == "off":
            yield f"cache_type_v {self.cache_type_v} needs flash_attn on; the engine refuses to load"
        if self.kv_unified_per_slot is not None and not self.kv_unified:
            yield "kv_unified_per_slot does nothing unless kv_unified is true"
        if self.drafts and self.head is None:
            yield f"spec_type {', '.join(self.spec_type)} needs a head"
        if self.head is not None and not self.drafts:
            yield f"head {self.head} would be loaded by nothing; add draft-mtp to spec_type or remove it"
        if self.drafts and self.draft_n_min > self.draft_n_max:
            yield f"draft_n_min {self.draft_n_min} is above draft_n_max {self.draft_n_max}"
        if self.uses_mtp and self.ubatch < self.draft_n_max + 2:
            yield f"ubatch {self.ubatch} is below draft_n_max + 2 = {self.draft_n_max + 2}, the least for MTP"
        if not ipaddress.ip_address(self.bind).is_loopback and self.api_key_file is None:
            yield f"bind {self.bind} opens the server to the network without a key; set api_key_file"
        yield from self._variable_conflicts()

    def _variable_conflicts(self) -> Iterator[str]:
        own = {
            found.variable: name
            for name, item in Preset.model_fields.items()
            for found in item.metadata
            if isinstance(found, Environment)
        }
        for variable in self.environment:
            if variable in FORBIDDEN_VARIABLES:
                yield f"environment: {variable} is refused: {FORBIDDEN_VARIABLES[variable]}"
            elif variable.startswith("LLAMA_ARG_"):
                yield f"environment: {variable} is an engine option; use its setting or extra_args"
            elif variable in own:
                yield f"environment: {variable} is written by the setting {own[variable]}"
            elif not variable.replace("_", "a").isalnum() or variable[:1].isdigit():
                yield f"environment: {variable!r} is not a variable name"

    def warnings(self) -> Iterator[str]:
        """What works but is likely not meant."""
        per_slot = self.ctx if self.kv_unified else self.ctx // self.slots
        rows = self.slots * (1 + self.draft_n_max) if self.drafts else self.slots
        if self.ubatch < rows:
            yield f"ubatch {self.ubatch} cuts one decode of {self.slots} slots, {rows} rows, in parts"
        if self.slots > 1 and self.kv_unified:
            yield f"a pool of {self.ctx} tokens for {self.slots} slots: when it is full, all requests fail"
        if self.slots > 1 and self.uses_mtp:
            yield "MTP helps one user and slows several down"
        if per_slot < 1024:
            yield f"{per_slot} tokens per slot: long prompts and thinking will be cut"
        if "bf16" in (self.cache_type_k, self.cache_type_v):
            yield "a bf16 KV cache is converted whole by flash attention; f16 or q8_0 is faster"
        if self.cache_type_k in ("q4_0", "q4_1", "iq4_nl"):
            yield f"cache_type_k {self.cache_type_k} ruins the output (KL divergence 5.5 measured at q4_0)"
        if self.flavour == "rocm" and self.load_mode in ("mmap", "mmap+mlock"):
            yield "mapped loading on an integrated GPU uploads by page faults: hours instead of seconds"
        if self.flavour != "cpu" and self.lazy_mode == "auto":
            yield "lazy_mode auto means off on an integrated GPU; say on or off"
        if self.cache_ram == -1:
            yield "cache_ram -1: the prompt cache grows without a limit"
        if (limit := self.memory_limit_mib) is not None and self.cache_ram * 2 > limit:
            yield f"cache_ram {self.cache_ram} MiB takes over half of memory_limit {self.memory_limit}"
        if self.ctx_checkpoints == 0:
            yield "ctx_checkpoints 0: a hybrid model cannot reuse any prompt"
        if self.drafts and self.draft_n_max > 4:
            yield f"draft_n_max {self.draft_n_max}: above 4 seldom pays and costs recurrent state per slot"

    @property
    def memory_limit_mib(self) -> int | None:
        """The container's memory limit in MiB (2^20 bytes), rounded down."""
        if self.memory_limit is None:
            return None
        power = {"k": 10, "m": 20, "g": 30}.get(self.memory_limit[-1].lower(), 0)
        return int(self.memory_limit.rstrip("kmgKMG")) << power >> 20


def options_of(model: type[Settings]) -> Iterator[tuple[str, Option]]:
    """The settings that become engine options, in order."""
    for name, item in model.model_fields.items():
        for found in item.metadata:
            if isinstance(found, Option):
                yield name, found


def compact(value: Any) -> str:
    """JSON on one line, without spaces, non-ASCII letters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def names() -> list[str]:
    """The names of the presets that come with Haloforge, `demo` first."""
    found = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    return sorted(found, key=lambda name: name != "demo")


def load(name_or_path: str | os.PathLike[str], overrides: Mapping[str, str] | None = None) -> Preset:
    """A preset by name, or from a file (anything with a `/` or ending in .yaml or .yml).

    Args:
        overrides: settings as text, as `--set key=value` gives them.

    Raises:
        BadInput: no such preset, or it cannot be used; each fault with its line.
    """
    path = _locate(os.fspath(name_or_path))
    document = strict_yaml.read(path)
    values = {**_base(document, path), **document.values}
    for key in ("model", "head", "api_key_file"):
        if isinstance(given := values.get(key), str) and ("/" in given or given.endswith(".gguf")):
            values[key] = str((path.parent / Path(given).expanduser()).absolute())
    values |= {key: strict_yaml.Plain(value) for key, value in (overrides or {}).items()}
    return parse(values, name=path.stem, lines=document.lines, source=document.source)


def parse(
    values: Mapping[str, Any], *, name: str, lines: Mapping[str, int] | None = None, source: str = ""
) -> Preset:
    """Check the values of one preset, base and overrides already merged in."""
    source = source or f"preset {name}"
    if "name" in values:
        raise BadInput(f"{source}: name cannot be set", why="a preset is named by its file")
    try:
        preset = Preset.model_validate({**values, "name": name})
    except ValidationError as error:
        faults = "\n        ".join(_faults(error, lines or {}))
        raise BadInput(
            f"{source} cannot be used", why=faults, hint="./inv presets.schema lists every key"
        ) from error
    if conflicts := list(preset.conflicts()):
        raise BadInput(f"{source} contradicts itself", why="\n        ".join(conflicts))
    return preset


def text_schema() -> str:
    """The JSON schema for editors, as the file beside the presets holds it."""
    return json.dumps(_json_schema(), indent=2, ensure_ascii=False) + "\n"


@cache
def _json_schema() -> dict[str, Any]:
    schema = Preset.model_json_schema(mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Haloforge preset"
    schema["properties"].pop("name")
    # What `extends` brings in need not stand in the file itself.
    schema["required"] = ["purpose"]
    schema["anyOf"] = [{"required": ["extends"]}, {"required": ["ctx", "model"]}]
    return schema


def _locate(name: str) -> Path:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return Path(name)
    if name not in names():
        raise BadInput(f"no preset named {name!r}", why=nearest(name, names()), hint="./inv presets")
    return FOLDER / f"{name}.yaml"


def _base(document: strict_yaml.Document, path: Path) -> dict[str, Any]:
    """The settings of the preset that this one extends; its purpose and prediction are its own."""
    name = document.values.get("extends")
    if name is None:
        return {}
    if not isinstance(name, str):
        raise BadInput(f"{path}: extends wants the name of one preset")
    beside = path.with_name(f"{name}.yaml")
    base_path = beside if "/" not in name and beside.exists() else _locate(str(name))
    base = strict_yaml.read(base_path)
    if "extends" in base.values:
        raise BadInput(
            f"{path} extends {name}, which extends {base.values['extends']}",
            why="one level is allowed, so that a preset can be read in two files",
            hint=f"extend {base.values['extends']} and repeat what {name} adds",
        )
    return {key: value for key, value in base.values.items() if key not in ("purpose", "predicted_mib")}


def _faults(error: ValidationError, lines: Mapping[str, int]) -> Iterator[str]:
    for fault in error.errors():
        if fault["type"] == "none_required":
            continue
        key = str(fault["loc"][0]) if fault["loc"] else ""
        where = f"line {lines[key]}: " if key in lines else ""
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            known = [name for name in Preset.model_fields if name != "name"]
            yield f"{where}unknown key {key!r}; {nearest(key, known)}"
        elif fault["type"] == "missing":
            yield f"{key} is missing: {_help(Preset.model_fields[key])}"
        else:
            yield f"{where}{key}: {message[:1].lower()}{message[1:]}"


def _help(item: FieldInfo) -> str:
    return item.description or ""


def _words(on: str, off: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [on] if value else [off] if off else []
    if isinstance(value, float):
        return [on, f"{value:g}"]
    return [on, ",".join(value) if isinstance(value, tuple) else str(value)]
