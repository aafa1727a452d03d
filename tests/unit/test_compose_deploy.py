"""What a deploy refuses before it touches anything, and which preset is meant when none is named."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from compose import choice, deploy, doctor
from errors import BadInput
from images.records import ImageRecord
from patches import engines
from presets import schema
from tests.makers.rendering import HELP


def image(*patches: str) -> ImageRecord:
    return ImageRecord(
        ref="haloforge/llama.cpp:test",
        digest="sha256:ab",
        id="sha256:ab",
        tags=(),
        flavour="rocm",
        cpu="zen5",
        device="ROCm",
        engine="llama.cpp",
        pin="b11434",
        revision="",
        series_digest="0",
        identity="i",
        recipe="r",
        base="b",
        patches=tuple((name, "0") for name in patches),
        size=1,
        created=datetime(2026, 11, 30, tzinfo=UTC),
        help_text=HELP,
    )


@pytest.mark.parametrize(
    ("settings", "patches", "refused"),
    [
        ({"slots": "3"}, (), True),
        ({"slots": "8"}, ("L1", "L2"), True),
        ({"slots": "3"}, ("L3", "L1"), False),
        ({"slots": "2"}, (), False),
        ({"slots": "8", "spec_type": "ngram-mod", "head": ""}, (), False),
        ({"slots": "8", "engine": "engramhalo"}, (), False),
    ],
)
def test_mtp_with_many_slots_needs_the_patch_for_it(
    settings: dict[str, str], patches: tuple[str, ...], refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if settings.get("head") == "":
        preset = schema.load("chat-many", {"slots": settings["slots"], "spec_type": "ngram-mod"})
    else:
        preset = schema.load("quality", settings)
    if refused:
        with pytest.raises(BadInput, match="lacks L3") as caught:
            deploy.refuse_unsafe_slots(preset, image(*patches))
        assert caught.value.exit_code == 2
    else:
        deploy.refuse_unsafe_slots(preset, image(*patches))
    warned = "never validated on EngramHalo" in capsys.readouterr().err
    assert warned == (preset.engine == "engramhalo")


def test_options_are_checked_before_the_engine_is_asked() -> None:
    preset = schema.load("demo").model_copy(update={"extra_args": ("--mlock",)})
    with pytest.raises(BadInput, match="use --load-mode mlock"):
        deploy.refuse_unknown_options(preset, image(), engines.load())


def test_which_preset_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "gpu_ready", lambda: False)
    assert choice.default_preset() == "demo"
    monkeypatch.setattr(doctor, "gpu_ready", lambda: True)
    assert choice.default_preset() == "quality"
    monkeypatch.setenv("HALOFORGE_PRESET", "team")
    assert choice.default_preset() == "team"
