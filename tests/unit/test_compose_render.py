"""What is rendered: golden files, and the properties that every rendered file has."""

# ruff: noqa: E501 (recorded lines keep their width)

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from compose.host import Device, facts, memlock_of, selinux_enforced
from compose.render import yaml_text
from errors import BadInput
from presets import schema
from tests.makers.rendering import BOX, LAPTOP, Image, rendered

MINIMAL = {
    "purpose": "a test",
    "flavour": "cpu",
    "model": "m",
    "quant": "q",
    "ctx": "4096",
    "gpu_layers": "0",
}


def preset(name: str = "mine", **settings: Any) -> schema.Preset:
    return schema.parse({**MINIMAL, **settings}, name=name)


def service(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)["services"]["llama-server"]
    return found


def undoubled(words: list[str]) -> list[str]:
    """What compose makes of a command without variables: each `$$` is a `$`."""
    assert all("$" not in word.replace("$$", "") for word in words)
    return [word.replace("$$", "$") for word in words]


@pytest.mark.parametrize("name", ["demo", "quality", "team", "chat-many"])
def test_rendered_presets_are_as_they_were_reviewed(name: str, golden: Callable[[str, str], None]) -> None:
    host = LAPTOP if name == "demo" else BOX
    golden(f"compose/{name}.yaml", rendered(schema.load(name), host=host, size=10**11).files["compose.yaml"])


def test_a_key_becomes_a_secret_and_never_an_argument(
    tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# the team's\ns3cret$1\n")
    made = rendered(preset(api_key_file=str(keys), bind="0.0.0.0"))
    text = made.files["compose.yaml"]
    assert "s3cret" not in text
    assert made.argv[made.argv.index("--api-key-file") + 1] == "/run/secrets/api_key"
    assert service(text)["secrets"] == ["api_key"]
    source = yaml.safe_load(text)["secrets"]["api_key"]["file"]
    assert source == str(BOX.home / "deployments" / made.name / "api_key")
    keys.write_text("another\n")
    assert rendered(preset(api_key_file=str(keys), bind="0.0.0.0")).name != made.name


@pytest.mark.parametrize("content", ["", "# only a comment\n", " spaced \n"])
def test_a_key_file_without_a_usable_key_is_refused(tmp_path: Path, content: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(content)
    with pytest.raises(BadInput, match="no usable key"):
        rendered(preset(api_key_file=str(keys)))
    with pytest.raises(BadInput, match="cannot read api_key_file"):
        rendered(preset(api_key_file=str(tmp_path / "none")))


@pytest.mark.parametrize("name", schema.names())
def test_every_rendered_service_is_locked_down(name: str) -> None:
    made = service(rendered(schema.load(name)).files["compose.yaml"])
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges:true"]
    assert not made["user"].startswith("0")
    assert all(mount["read_only"] for mount in made["volumes"])
    assert [port["host_ip"] for port in made["ports"]] == ["127.0.0.1"]
    assert made["image"].startswith("sha256:")
    assert made["healthcheck"]["test"] == ["CMD", "/app/health"]
    assert (made["stop_grace_period"], made["stop_signal"]) == ("180s", "SIGTERM")
    assert made["restart"] == "on-failure:3"
    assert set(made["logging"]["options"]) == {"max-size", "max-file"}
    assert "privileged" not in made
    labels = made["labels"]
    assert labels["io.haloforge.preset"] == name
    assert labels["io.haloforge.image.digest"] == Image().digest


def test_devices_and_groups_follow_the_host_and_the_flavour() -> None:
    made = service(rendered(schema.load("quality")).files["compose.yaml"])
    assert made["devices"] == ["/dev/kfd:/dev/kfd", "/dev/dri/renderD128:/dev/dri/renderD128"]
    assert made["group_add"] == ["110", "992"]
    vulkan = service(rendered(schema.load("quality", {"flavour": "vulkan"})).files["compose.yaml"])
    assert vulkan["devices"] == ["/dev/dri/renderD128:/dev/dri/renderD128"]
    assert vulkan["group_add"] == ["110"]
    demo = service(rendered(schema.load("demo")).files["compose.yaml"])
    assert "devices" not in demo
    assert "group_add" not in demo
    one = replace(
        BOX, devices=(Device(path="/dev/kfd", gid=110), Device(path="/dev/dri/renderD129", gid=110))
    )
    assert service(rendered(schema.load("quality"), host=one).files["compose.yaml"])["group_add"] == ["110"]


def test_memlock_is_unlimited_where_the_daemon_may_raise_it() -> None:
    assert service(rendered(schema.load("quality")).files["compose.yaml"])["ulimits"] == {"memlock": -1}
    limited = rendered(schema.load("quality"), host=replace(BOX, memlock=8388608))
    assert service(limited.files["compose.yaml"])["ulimits"] == {"memlock": 8388608}
    assert any("8388608 bytes" in warning for warning in limited.warnings)
    assert not any("locked" in warning for warning in rendered(schema.load("demo"), host=LAPTOP).warnings)


def test_selinux_keeps_a_container_from_models_and_devices(tmp_path: Path) -> None:
    fedora = rendered(schema.load("quality"), host=replace(BOX, selinux=True))
    assert service(fedora.files["compose.yaml"])["security_opt"] == [
        "no-new-privileges:true",
        "label=disable",
    ]
    for text, enforced in (("1", True), ("0", False)):
        (tmp_path / "enforce").write_text(text)
        assert selinux_enforced(tmp_path / "enforce") is enforced
    assert not selinux_enforced(tmp_path / "none")


def test_the_engine_runs_as_the_caller_unless_that_is_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for uid, gid, wanted in ((1000, 100, (1000, 100)), (0, 0, (10001, 10001))):
        monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
        monkeypatch.setattr(os, "getgid", lambda gid=gid: gid)
        found = facts(tmp_path)
        assert (found.uid, found.gid) == wanted
        assert found.devices == ()


LIMITS = "Max open files   20000  20000  files\nMax locked memory         8388608              {}             bytes\n"


@pytest.mark.parametrize(
    ("hard", "capabilities", "most"),
    [
        ("8388608", "000001fffeffffff", 8388608),
        ("unlimited", "000001fffeffffff", None),
        ("8388608", "000001ffffffffff", None),
    ],
)
def test_what_a_daemon_may_lock(hard: str, capabilities: str, most: int | None) -> None:
    assert memlock_of(LIMITS.format(hard), f"Name:\tdockerd\nCapEff:\t{capabilities}\n") == most


def test_the_guard_starts_the_server_and_can_be_switched_off() -> None:
    made = service(rendered(preset(guard_gib="2")).files["compose.yaml"])
    assert made["entrypoint"][:5] == [
        "/app/guard", "--stop-below-mib", "2048", "--start-above-mib", "3479",
    ]  # fmt: skip
    assert made["entrypoint"][5:] == ["--", "/app/llama-server"]
    assert "entrypoint" not in service(rendered(preset(guard_gib="0")).files["compose.yaml"])


def test_loading_gets_time_by_size() -> None:
    made = service(rendered(schema.load("quality"), size=111_334_654_784).files["compose.yaml"])
    assert made["healthcheck"]["start_period"] == "505s"
    made = service(rendered(preset(start_seconds="900")).files["compose.yaml"])
    assert made["healthcheck"]["start_period"] == "900s"


def test_the_name_follows_from_the_content() -> None:
    one, same, other = rendered(preset()), rendered(preset()), rendered(preset(slots="2"))
    assert one.name == same.name
    assert one.files == same.files
    assert one.name != other.name
    assert one.project.startswith("haloforge-")
    elsewhere = rendered(preset(), host=replace(BOX, home=Path("/srv/other")))
    assert elsewhere.project != one.project


def test_a_pushed_image_is_named_by_its_repository_digest() -> None:
    pushed = Image(ref="registry.example/haloforge@sha256:" + "cd" * 32)
    assert service(rendered(preset(), image=pushed).files["compose.yaml"])["image"] == pushed.ref


def test_an_option_that_the_image_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--no-mmap is not an option of this engine; use --load-mode none"):
        rendered(preset(extra_args=["--no-mmap"]))


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1"])
def test_urls(address: str) -> None:
    url = rendered(preset(bind=address, port="18080")).url
    assert url == ("http://[::1]:18080" if address == "::1" else "http://127.0.0.1:18080")


_text = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], min_codepoint=32), max_size=40
).filter(lambda text: "\x7f" not in text)


@settings(deadline=None)
@given(_text)
def test_any_text_survives_as_a_yaml_scalar(text: str) -> None:
    assert yaml.safe_load(yaml_text(text, escape_dollar=False)) == text
    assert yaml.safe_load(yaml_text(text)) == text.replace("$", "$$")


@settings(deadline=None)
@given(_text, st.dictionaries(_text, _text, max_size=3))
def test_any_command_survives_rendering(alias: str, values: dict[str, str]) -> None:
    made = rendered(preset(alias=alias[:128], chat_template_kwargs=values))
    assert undoubled(service(made.files["compose.yaml"])["command"]) == list(made.argv)
