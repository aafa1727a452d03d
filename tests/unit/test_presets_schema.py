"""Presets: what is read, what is refused and how it is said, and what reaches the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from compose.planning import option_build
from errors import BadInput
from patches import engines
from presets import listing, predict, schema, strict_yaml
from presets.planner import ask
from presets.schema import Preset
from presets.settings import Environment, Option, Settings

MINIMAL = "purpose: a test\nmodel: smollm2-135m-instruct\nquant: Q4_1\nctx: 4096\n"
B11434 = 11434
OLD_PIN = 10685


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def loaded(folder: Path, extra: str) -> Preset:
    return schema.load(written(folder, MINIMAL + extra))


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def command(preset: Preset, build: int = B11434) -> list[str]:
    return preset.arguments(build, model="/model/m.gguf", draft="/model/d.gguf" if preset.head else None)


@pytest.mark.parametrize("name", schema.names())
def test_every_shipped_preset_loads_and_says_what_it_is_for(name: str) -> None:
    preset = schema.load(name)
    assert preset.name == name
    assert len(preset.purpose) > 20
    arguments = command(preset)
    for explicit in (
        "--ctx-size",
        "--batch-size",
        "--ubatch-size",
        "--parallel",
        "--port",
        "--log-verbosity",
    ):
        assert explicit in arguments
    assert ("--kv-unified" in arguments) != ("--no-kv-unified" in arguments)


@pytest.mark.parametrize("name", [name for name in schema.names() if name != "demo"])
def test_gpu_presets_say_how_weights_are_read(name: str) -> None:
    arguments = command(schema.load(name))
    assert option(arguments, "--load-mode") == "none"
    assert option(arguments, "--lazy-mode") in ("on", "off")


@pytest.mark.parametrize("name", schema.names())
def test_the_memory_that_a_preset_states_is_what_the_planner_says(name: str) -> None:
    preset = schema.load(name)
    plan = ask.judge(ask.of_preset(preset, ask.Request(free_gib=predict.BOX_GIB))[0])
    assert preset.predicted_mib == predict.mib(preset), "./inv presets.predict"
    assert plan.verdict in ("fits", "tight"), "on an empty 128 GB box"


def test_the_presets_of_the_seeds_are_all_there() -> None:
    wanted = {"demo", "quality", "no-thinking", "fast", "longctx", "agent", "team", "chat-many"}
    stock = {"stock-quality", "stock-balanced", "stock-speed", "stock-longctx", "stock-no-thinking"}
    assert set(schema.names()) == wanted | stock
    team = schema.load("team")
    assert (team.slots, team.ctx // team.slots, team.kv_unified, team.ctx_checkpoints) == (
        8,
        131072,
        False,
        1,
    )
    chat = schema.load("chat-many")
    assert chat.slots == 8
    assert not chat.spec_type


def test_the_schema_for_editors_is_the_one_beside_the_presets() -> None:
    assert schema.SCHEMA_FILE.read_text(encoding="utf-8") == schema.text_schema(), (
        "./inv presets.schema --write"
    )


def test_the_page_about_settings_is_made_from_their_declarations() -> None:
    page = schema.FOLDER.parent / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == listing.settings_page(), "./inv presets.schema --settings"


@pytest.mark.parametrize("path", sorted(schema.FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_schema_for_editors_accepts_every_preset(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=preset.schema.json\n")
    document = yaml.safe_load(path.read_text())
    jsonschema.Draft202012Validator(json.loads(schema.text_schema())).validate(document)


@pytest.mark.parametrize(
    "wrong", [{"ctxx": 1}, {"ctx": "many"}, {"flash_attn": "perhaps"}, {"spec_type": ["draft-nothing"]}]
)
def test_the_schema_for_editors_refuses_what_the_loader_refuses(wrong: dict[str, Any]) -> None:
    document = {**yaml.safe_load(MINIMAL), **wrong}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(json.loads(schema.text_schema())).validate(document)


def test_each_setting_is_an_option_a_variable_or_about_the_container() -> None:
    container = {"bind", "api_key_file", "guard_gib", "memory_limit", "start_seconds", "restart", "seccomp"}
    container |= {"environment", "extra_args"}
    declared = {
        name
        for name, item in Settings.model_fields.items()
        if any(isinstance(found, Option | Environment) for found in item.metadata)
    }
    assert declared | container == set(Settings.model_fields)
    assert not declared & container
    assert all(item.description for item in Settings.model_fields.values())


# --- YAML traps ---


@pytest.mark.parametrize("spelled", ["on", "true", '"on"', "1", "yes", "ON", "True", "'true'"])
def test_flash_attention_on_in_every_spelling(tmp_path: Path, spelled: str) -> None:
    assert option(command(loaded(tmp_path, f"flash_attn: {spelled}\n")), "--flash-attn") == "on"


@pytest.mark.parametrize(
    ("spelled", "meant"), [("off", "off"), ("no", "off"), ("0", "off"), ("-1", "auto"), ("auto", "auto")]
)
def test_flash_attention_in_other_spellings(tmp_path: Path, spelled: str, meant: str) -> None:
    assert option(command(loaded(tmp_path, f"flash_attn: {spelled}\n")), "--flash-attn") == meant


@pytest.mark.parametrize(
    ("spelled", "meant"), [("off", False), ('"false"', False), ("No", False), ("on", True), ('"yes"', True)]
)
def test_switches_become_the_right_one_of_a_pair(tmp_path: Path, spelled: str, meant: bool) -> None:
    arguments = command(loaded(tmp_path, f"warmup: {spelled}\nkv_unified: {spelled}\n"))
    assert ("--warmup" in arguments, "--no-warmup" in arguments) == (meant, not meant)
    assert ("--kv-unified" in arguments, "--no-kv-unified" in arguments) == (meant, not meant)


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [("131_072", 131072), ("1e5", 100000), ('"4096"', 4096), ("0x2000", 8192), ("1.5e4", 15000)],
)
def test_whole_numbers_that_can_mean_one_thing(tmp_path: Path, spelled: str, meant: int) -> None:
    assert loaded(tmp_path, "").model_fields_set
    text = MINIMAL.replace("ctx: 4096", f"ctx: {spelled}")
    assert schema.load(written(tmp_path, text)).ctx == meant


@pytest.mark.parametrize(
    ("spelled", "words"),
    [
        ("010000", "write 10000"),
        ("08080", "write 8080"),
        ("128k", "write 131072"),
        ("1:30", "not a whole number"),
        ("1.5", "not a whole number"),
        ("true", "not a whole number"),
        ("", "an empty value"),
        ("[4096]", "not a whole number"),
        ("0o20000", "not a whole number"),
        ("1e-3", "not a whole number"),
    ],
)
def test_whole_numbers_that_can_mean_two_things_are_refused(tmp_path: Path, spelled: str, words: str) -> None:
    text = MINIMAL.replace("ctx: 4096", f"ctx: {spelled}")
    with pytest.raises(BadInput) as caught:
        schema.load(written(tmp_path, text))
    assert "line 4: ctx" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL + "ctx: 8192\n", "line 5"),
        (MINIMAL + "environment:\n\tA: b\n", "tab"),
        (MINIMAL + "\tslots: 2\n", "tab"),
        ("- a\n", "not a mapping"),
        ("", "empty"),
        (MINIMAL + "---\n" + MINIMAL, "2 YAML documents"),
        (MINIMAL + "environment: !!python/object/apply:os.system [id]\n", "not a mapping"),
        (MINIMAL + "alias: !!binary aGk=\n", "!!binary is not allowed"),
        (MINIMAL + "? [a]\n: b\n", "a key must be a plain word"),
        (MINIMAL + "alias: *nowhere\n", "not valid YAML"),
        (MINIMAL + "alias: [a\n", "not valid YAML"),
    ],
)
def test_yaml_that_is_not_what_it_seems_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        schema.load(written(tmp_path, text))
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_anchors_and_merges_are_followed(tmp_path: Path) -> None:
    text = "defaults: &d\n  A: one\n  B: two\n"
    document = strict_yaml.parse(text + "environment:\n  <<: *d\n  B: three\n")
    assert document.values["environment"] == {"A": "one", "B": "three"}


def test_aliases_cannot_fill_the_memory() -> None:
    text = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n'
    for this, last in zip("bcdefgh", "abcdefg", strict=True):
        text += f"{this}: &{this} [{','.join(['*' + last] * 9)}]\n"
    with pytest.raises(BadInput, match="line"):
        strict_yaml.parse(text)


@pytest.mark.parametrize(
    "text", ["a: &a\n  b: *a\n", "&a\nmodel: *a\n", "a: &a [*a]\n", "a: &a\n  <<: *a\n", "[" * 3000]
)
def test_nesting_without_end_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="nested") as caught:
        strict_yaml.parse(text)
    assert caught.value.hint


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"purpose: \xff\xfe\n")
    with pytest.raises(BadInput, match="UTF-8"):
        schema.load(path)
    with pytest.raises(BadInput, match="cannot read"):
        schema.load(tmp_path / "missing.yaml")


# --- JSON for the chat template ---


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ('{"note": "cost $5 ${X} $NAME $$"}', {"note": "cost $5 ${X} $NAME $$"}),
        ("'{\"a\": \"it''s \\\"x\\\" y\", \"b\": true}'", {"a": "it's \"x\" y", "b": True}),
        ("{preserve_thinking: true, n: 3, x: 0.5, none: null, word: ok}",
         {"preserve_thinking": True, "n": 3, "x": 0.5, "none": None, "word": "ok"}),
        ('{"grüße": "日本語 🙂", deep: {a: [1, "on"]}}', {"grüße": "日本語 🙂", "deep": {"a": [1, "on"]}}),
    ],
)  # fmt: skip
def test_chat_template_values_arrive_as_they_were_meant(
    tmp_path: Path, spelled: str, meant: dict[str, Any]
) -> None:
    arguments = command(loaded(tmp_path, f"chat_template_kwargs: {spelled}\n"))
    given = option(arguments, "--chat-template-kwargs")
    assert json.loads(given) == meant
    assert "\n" not in given


@pytest.mark.parametrize("spelled", ["{a: on}", "{a: no}", "{a: 010}", "{a: 1:30}", "[1]", "'{a'", "{a: y}"])
def test_chat_template_values_that_can_mean_two_things_are_refused(tmp_path: Path, spelled: str) -> None:
    with pytest.raises(BadInput, match="chat_template_kwargs"):
        loaded(tmp_path, f"chat_template_kwargs: {spelled}\n")


# --- keys, extends, overrides ---


def test_an_unknown_key_names_the_near_one(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        loaded(tmp_path, "ubatchs: 64\n")
    assert "line 5: unknown key 'ubatchs'; did you mean 'ubatch'?" in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        loaded(tmp_path, "slots: none\nport: 99999\nbatc: 1\n")
    assert all(words in str(caught.value) for words in ("slots", "port", "batc"))


def test_a_missing_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ctx is missing"):
        schema.load(written(tmp_path, MINIMAL.replace("ctx: 4096\n", "")))


def test_extends_takes_one_level_and_keeps_purpose_apart(tmp_path: Path) -> None:
    written(tmp_path, MINIMAL + "slots: 2\n", "base.yaml")
    path = written(tmp_path, "purpose: another\nextends: base\nbatch: 1024\n", "top.yaml")
    preset = schema.load(path)
    assert (preset.purpose, preset.slots, preset.batch, preset.name) == ("another", 2, 1024, "top")
    with pytest.raises(BadInput, match="one level"):
        schema.load(written(tmp_path, "purpose: third\nextends: top\n", "third.yaml"))
    with pytest.raises(BadInput, match="purpose is missing"):
        schema.load(written(tmp_path, "extends: base\n", "mute.yaml"))


def test_a_preset_that_does_not_exist_names_the_near_one() -> None:
    with pytest.raises(BadInput, match="did you mean 'quality'"):
        schema.load("qualty")


def test_overrides_are_read_like_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL)
    assert schema.load(path, {"slots": "2", "flash_attn": "on"}).slots == 2
    with pytest.raises(BadInput, match="did you mean 'slots'"):
        schema.load(path, {"slot": "2"})


def test_paths_are_relative_to_the_preset(tmp_path: Path) -> None:
    text = "purpose: local\nmodel: sub/tiny.gguf\nctx: 512\n"
    assert schema.load(written(tmp_path, text)).model == str(tmp_path / "sub/tiny.gguf")


# --- settings that cannot stand together ---


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("batch: 64\nubatch: 128\n", "ubatch 128 is larger than batch 64"),
        ("cache_type_v: q8_0\nflash_attn: off\n", "needs flash_attn on"),
        ("spec_type: [draft-mtp]\n", "needs a head"),
        ("head: Q8_0\n", "loaded by nothing"),
        ("kv_unified_per_slot: 512\n", "unless kv_unified"),
        ("spec_type: draft-mtp\nhead: Q8_0\ndraft_n_max: 4\nubatch: 4\n", "draft_n_max + 2 = 6"),
        ("spec_type: draft-mtp\nhead: Q8_0\ndraft_n_min: 4\n", "draft_n_min 4 is above"),
        ("bind: 0.0.0.0\n", "without a key"),
        ("bind: 192.168.1.7\n", "without a key"),
        ("bind: my-host\n", "not an IP address"),
        ("environment: {GGML_CUDA_ENABLE_UNIFIED_MEMORY: 0}\n", "0 counts as set"),
        ("environment: {HSA_OVERRIDE_GFX_VERSION: 11.0.0}\n", "refused"),
        ("environment: {LLAMA_ARG_CTX_SIZE: 1}\n", "engine option"),
        ("environment: {ROCBLAS_USE_HIPBLASLT: 1}\n", "written by the setting hipblaslt"),
        ("environment: {'A B': 1}\n", "not a variable name"),
        ("effort: enormous\n", "not one of"),
        ("name: other\n", "named by its file"),
    ],
)
def test_conflicts_are_refused(tmp_path: Path, extra: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        loaded(tmp_path, extra)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("slots: 4\nspec_type: draft-mtp\nhead: Q8_0\nubatch: 8\n", "cuts one decode of 4 slots, 16 rows"),
        ("slots: 4\nkv_unified: true\n", "a pool of 4096 tokens for 4 slots"),
        ("cache_type_k: q4_0\n", "ruins the output"),
        ("load_mode: mmap\n", "page faults"),
        ("cache_ram: -1\n", "without a limit"),
        ("memory_limit: 6g\n", "cache_ram 8192 MiB"),
        ("ctx_checkpoints: 0\n", "cannot reuse any prompt"),
        ("cache_type_k: bf16\n", "converted whole"),
    ],
)
def test_what_is_likely_not_meant_is_warned_of(tmp_path: Path, extra: str, words: str) -> None:
    assert any(words in warning for warning in loaded(tmp_path, extra).warnings())


# --- engines of other dates ---


def test_old_builds_get_the_old_spelling() -> None:
    old = command(schema.load("quality"), OLD_PIN)
    assert option(old, "--tensor-read-lazy") == "on"
    assert "--lazy-mode" not in old
    assert json.loads(option(old, "--chat-template-kwargs")) == {
        "enable_thinking": True,
        "reasoning_effort": "medium",
    }
    assert "--reasoning" not in old
    new = command(schema.load("quality"), B11434)
    assert option(new, "--lazy-mode") == "on"
    assert (option(new, "--reasoning"), option(new, "--reasoning-effort")) == ("on", "medium")
    assert "--chat-template-kwargs" not in new


@pytest.mark.parametrize("name", schema.names())
@pytest.mark.parametrize("engine", engines.names())
def test_every_preset_has_words_for_every_engine(name: str, engine: str) -> None:
    build = option_build(engines.load(engine))
    arguments = command(schema.load(name, {"engine": engine}), build)
    assert ("--lazy-mode" in arguments) == (build >= 10700)
    assert ("--reasoning" in arguments) == (build >= 11000 and name not in ("demo",))


def test_a_setting_without_an_option_in_an_old_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cors_origins cannot be set"):
        command(loaded(tmp_path, "cors_origins: http://localhost\n"), OLD_PIN)


def test_variables_of_settings() -> None:
    assert schema.load("quality").variables() == {"ROCBLAS_USE_HIPBLASLT": "1"}
    assert schema.load("quality", {"attention_rotation": "off"}).variables()["LLAMA_ATTN_ROT_DISABLE"] == "1"


def test_the_planner_sees_what_the_engine_sees() -> None:
    options = schema.load("team").options()
    assert (options.slots, options.ctx, options.kv_unified, options.uses_mtp) == (8, 1048576, False, True)
    assert (options.cache_type_k, options.draft_cache_type_k, options.cache_ram_mib) == ("q8_0", "f16", 2048)


_values = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12),
    st.one_of(st.booleans(), st.integers(-9999, 9999), st.text(max_size=30), st.none()),
    max_size=5,
)


@settings(deadline=None)
@given(_values)
def test_any_json_survives_the_preset(values: dict[str, Any]) -> None:
    preset = schema.parse({**yaml.safe_load(MINIMAL), "chat_template_kwargs": values}, name="any")
    arguments = command(preset)
    if values:
        assert json.loads(option(arguments, "--chat-template-kwargs")) == values
    else:
        assert "--chat-template-kwargs" not in arguments
