"""The catalog's data and rules, and which head fits which engine."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import documents
from errors import BadInput, CheckFailed
from patches.traits import Traits
from presets import catalog, gguf, models, models_check, schema
from tests.makers import hollow, shapes

MINIMAL: dict[str, Any] = {
    "title": "t",
    "architecture": "llama",
    "licence": {"name": "MIT", "url": "https://example.org"},
    "quants": {
        "Q": {
            "from": {"kind": "hub", "repo": "o/r", "revision": "a" * 40},
            "shards": [{"path": "x/a.gguf", "bytes": 5, "sha256": "b" * 64}],
        }
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """`MINIMAL` with one place set; a path like `quants.Q.from.revision`."""
    document = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    place: Any = document
    for step in parents:
        place = place[int(step)] if step.isdigit() else place[step]
    if value is None:
        place.pop(last)
    else:
        place[last] = value
    return document


def test_every_file_of_the_catalog_is_sound_and_matches_the_schema() -> None:
    shipped = catalog.SCHEMA_FILE.read_text(encoding="utf-8")
    assert shipped == catalog.text_schema(), "run presets.catalog.write_schema()"
    validator = jsonschema.Draft202012Validator(documents.read(catalog.SCHEMA_FILE))
    for name in catalog.names():
        assert catalog.model(name).name == name
        validator.validate(documents.read(catalog.FOLDER / f"{name}.yaml"))


def test_totals_are_the_published_ones() -> None:
    quants = catalog.model("qwen3.8-flash-next").quants
    assert {name: quant.bytes for name, quant in quants.items()} == {
        "UD-IQ1_M": 74_538_755_776,
        "UD-Q2_K_XL": 78_869_128_864,
        "UD-IQ3_XXS": 81_961_823_936,
        "UD-Q3_K_XL": 89_986_353_824,
        "UD-IQ4_XS": 93_682_584_224,
        "UD-Q4_K_XL": 111_334_654_784,
    }
    assert quants["UD-Q4_K_XL"].kld == 0.0469
    assert quants["UD-IQ1_M"].top1_percent == 79.7


def test_no_checksum_stands_for_two_files() -> None:
    sums = [
        shard.sha256
        for name in catalog.names()
        for files in (*catalog.model(name).quants.values(), *catalog.model(name).heads.values())
        for shard in files.shards
        if shard.sha256
    ]
    assert len(set(sums)) == len(sums)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("quants.Q.from.revision", "main", "revision"),
        ("quants.Q.from.kind", "ftp", "kind"),
        ("quants.Q.shards.0.path", "../a.gguf", "path"),
        ("quants.Q.shards.0.path", "/a.gguf", "path"),
        ("quants.Q.shards.0.path", "a/../../b.gguf", "path"),
        ("quants.Q.shards.0.sha256", "b" * 63, "sha256"),
        ("quants.Q.shards.0.bytes", 0, "bytes"),
        ("quants.Q.shards.0.url", "https://x", "url"),
        ("quants.Q.shards.0.path", "a-00001-of-00002.gguf", "shard 1 of 1"),
        ("quants.Q.shards", [], "shards"),
        ("quants.Q.tokens", 1, "tokens"),
        ("licence", None, "licence"),
        (
            "quants.Q.shards",
            [{"path": "a-00002-of-00002.gguf"}, {"path": "a-00001-of-00002.gguf"}],
            "shard 1 of 2",
        ),
        ("quants.Q.shards", [{"path": "a.gguf"}, {"path": "b.gguf"}], "shard 1 of 2"),
        ("heads", {"h": {"family": "odd", **MINIMAL["quants"]["Q"]}}, "family"),
        (
            "heads",
            {
                "h": {
                    "family": "hc_head",
                    "from": {"kind": "made", "head": "x", "quantise": "Q8_0"},
                    "shards": [{"path": "h.gguf"}],
                }
            },
            "not listed",
        ),
    ],
)
def test_a_bad_entry_is_refused_with_its_place(path: str, value: Any, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        catalog.parse(changed(path, value), name="m", source="m.yaml")


def test_a_wheel_without_a_checksum_for_its_member_is_refused() -> None:
    wheel = {"kind": "pypi-wheel", "project": "p", "version": "1", "wheel": "p-1.whl"}
    pinned = {**wheel, "bytes": 1, "sha256": "c" * 64}
    document = changed("quants.Q.from", pinned)
    catalog.parse(document, name="m", source="m.yaml")
    document["quants"]["Q"]["shards"][0].pop("sha256")
    with pytest.raises(BadInput, match="no sha256"):
        catalog.parse(document, name="m", source="m.yaml")
    with pytest.raises(BadInput, match="sha256"):
        catalog.parse(changed("quants.Q.from", {**wheel, "bytes": 1}), name="m", source="m.yaml")


def test_unknown_names_suggest_the_near_one() -> None:
    with pytest.raises(BadInput, match=r"qwen3\.8-flash-next"):
        catalog.model("qwen3.8-flash")
    with pytest.raises(BadInput, match="UD-Q4_K_XL"):
        catalog.quant("qwen3.8-flash-next", "Q4_K_XL")
    with pytest.raises(BadInput, match="dzannotti-Q8_0"):
        catalog.head("qwen3.8-flash-next", "dzannoti-Q8_0")


@pytest.mark.parametrize("name", schema.names())
def test_every_shipped_preset_names_files_that_exist_and_fit_its_engine(name: str) -> None:
    preset = schema.load(name)
    _, quant, head = models.chosen(preset)
    assert quant.shards
    assert (head is None) == (preset.head is None)


# --- heads and engines ---

UPSTREAM = Traits(mtp_heads=("hc_head",))
FORK = Traits(mtp_heads=("output_hc",))


@pytest.mark.parametrize(
    ("traits", "head", "fits"),
    [
        (UPSTREAM, "ggml-org-Q8_0", True),
        (UPSTREAM, "unsloth-Q8_0", True),
        (UPSTREAM, "unsloth-shared-Q8_0", False),
        (UPSTREAM, "dzannotti-Q4_K_M", False),
        (FORK, "dzannotti-Q8_0", True),
        (FORK, "ggml-org-Q4_0", False),
        (FORK, "unsloth-shared-Q8_0", False),
        (UPSTREAM, None, True),
    ],
)
def test_pairing_is_judged_by_family(traits: Traits, head: str | None, fits: bool) -> None:
    model = catalog.model("qwen3.8-flash-next")
    if fits:
        models_check.pair("engine", traits, model, head)
        return
    with pytest.raises(BadInput, match="does not fit engine") as caught:
        models_check.pair("engine", traits, model, head)
    assert "missing tensor" in caught.value.why
    assert "heads that fit" in caught.value.hint


def head_file(folder: Path, **changes: Any) -> Path:
    """A hollow qwen4exp MTP head with renamed or dropped tensors, or changed keys."""
    made = shapes.MODELS["qwen4exp-head"]()
    rename: dict[str, str] = changes.get("rename", {})
    tensors = [
        (_renamed(name, rename), shape, kind)
        for name, shape, kind in made.tensors
        if name not in changes.get("drop", ())
    ]
    keys = {**made.metadata, **changes.get("keys", {})}
    return hollow.write(
        hollow.Model(metadata=keys, tensors=tensors, vocabulary=made.vocabulary), folder / "head.gguf"
    )


def _renamed(name: str, rename: dict[str, str]) -> str:
    for old, new in rename.items():
        name = re.sub(old, new, name)
    return name


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> gguf.Header:
    return gguf.read(hollow.write(shapes.MODELS["qwen4exp"](), tmp_path_factory.mktemp("t") / "trunk.gguf"))


OUTPUT_HC = {r"blk\.\d+\.nextn\.hc_head_": "output_hc_"}


def test_the_family_is_read_off_the_tensor_names(tmp_path: Path) -> None:
    assert models_check.family_of(gguf.read(head_file(tmp_path))) == "hc_head"
    assert models_check.family_of(gguf.read(head_file(tmp_path, rename=OUTPUT_HC))) == "output_hc"
    shared = head_file(tmp_path, drop=("token_embd.weight", "output.weight"))
    assert models_check.family_of(gguf.read(shared)) == "shared"


def test_a_head_is_held_against_catalog_and_trunk(tmp_path: Path, trunk: gguf.Header) -> None:
    head = catalog.head("qwen3.8-flash-next", "ggml-org-Q8_0")
    models_check.check_head(head, head_file(tmp_path), trunk)
    with pytest.raises(CheckFailed, match="family output_hc"):
        models_check.check_head(head, head_file(tmp_path, rename=OUTPUT_HC), trunk)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"qwen4exp.attention.compress_ratios": [0] * 48}, "48 entries for 49 blocks"),
        ({"qwen4exp.embedding_length": 2048}, "embedding_length: 2048"),
        (
            {"qwen4exp.block_count": 33, "qwen4exp.attention.compress_ratios": [0] * 33},
            "blocks without the draft's: 32",
        ),
    ],
)
def test_a_head_of_another_model_is_refused(
    tmp_path: Path, trunk: gguf.Header, keys: dict[str, Any], words: str
) -> None:
    path = head_file(tmp_path, keys=keys)
    with pytest.raises(BadInput, match=words):
        models_check.check_head(catalog.head("qwen3.8-flash-next", "ggml-org-Q8_0"), path, trunk)
    with pytest.raises(BadInput, match=words):
        models_check.own_head(path, trunk, "llama.cpp", UPSTREAM)


def test_an_own_head_must_fit_the_engine(tmp_path: Path, trunk: gguf.Header) -> None:
    path = head_file(tmp_path)
    models_check.own_head(path, trunk, "llama.cpp", UPSTREAM)
    with pytest.raises(BadInput, match="does not fit engine fork"):
        models_check.own_head(path, trunk, "fork", FORK)


def test_a_head_given_as_the_model_is_refused(tmp_path: Path, trunk: gguf.Header) -> None:
    """llama-server crashes on it without a word."""
    with pytest.raises(BadInput, match="is an MTP head, not a model"):
        models_check.refuse_head(gguf.read(head_file(tmp_path)), "head.gguf")
    models_check.refuse_head(trunk, "trunk.gguf")


def test_a_model_of_another_kind_is_not_taken(tmp_path: Path) -> None:
    path = hollow.write(shapes.MODELS["qwen3-0.6b"](), tmp_path / "m.gguf")
    parsed = catalog.parse(MINIMAL, name="m", source="m.yaml")
    with pytest.raises(CheckFailed, match="another architecture"):
        models_check.check_model(parsed, parsed.quant("Q"), path)
    counted = catalog.parse({**MINIMAL, "architecture": "qwen3", "tensors": 7}, name="m", source="m.yaml")
    with pytest.raises(CheckFailed, match="m has 7"):
        models_check.check_model(counted, counted.quant("Q"), path)
