"""Where a host gets Debian packages from, in both forms of apt's source files."""

from __future__ import annotations

from pathlib import Path

import pytest

from errors import HostLacks
from images import apt
from images.apt import Archives
from images.base import Debian, mmdebstrap_arguments, sources

DEB822 = """# comment
Types: deb deb-src
URIs: http://mirror.example/debian/
Suites: trixie
  trixie-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie
Components: main

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
"""


def test_deb822_sources_are_read() -> None:
    assert list(apt.parse_deb822(DEB822)) == [
        ("http://mirror.example/debian", "trixie"),
        ("http://mirror.example/debian", "trixie-updates"),
        ("http://mirror.example/debian-security", "trixie-security"),
    ]


def test_one_line_sources_are_read() -> None:
    text = """
# deb http://old.example/debian bookworm main
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib # why
deb-src http://mirror.example/debian bookworm main
deb https://packages.example/node nodistro extra
"""
    assert list(apt.parse_one_line(text)) == [("http://mirror.example/debian", "bookworm")]


def test_the_hosts_archives_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "a.list").write_text("deb https://packages.example/x stable-x main\n")
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    monkeypatch.setattr(apt, "_options", tuple)
    found = apt.archives(tmp_path)
    assert found.main == "http://mirror.example/debian"
    assert found.security == "http://mirror.example/debian-security"


def test_a_host_without_debian_sources_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "_options", tuple)
    monkeypatch.delenv(apt.MIRROR, raising=False)
    with pytest.raises(HostLacks, match=apt.MIRROR):
        apt.archives(tmp_path)


def test_the_variable_wins_over_the_hosts_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apt, "_options", tuple)
    monkeypatch.setenv(apt.MIRROR, "http://mirror.example/debian/")
    found = apt.archives(tmp_path)
    assert (found.main, found.security) == (
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    )


def test_date_checks_that_the_host_switched_off_stay_off_in_the_base() -> None:
    dump = 'Acquire "";\nAcquire::Check-Valid-Until "false";\nAcquire::Check-Date "true";\n'
    assert apt.parse_options(dump) == ('Acquire::Check-Valid-Until "false"',)


ARCHIVES = Archives(main="http://m/debian", security="http://m/security", options=('A "false"',))


def test_a_base_has_its_security_suite_where_the_host_knows_one() -> None:
    debian = Debian(suites=("trixie", "trixie-updates"), security="trixie-security")
    assert sources(debian, ARCHIVES) == [
        "deb http://m/debian trixie main",
        "deb http://m/debian trixie-updates main",
        "deb http://m/security trixie-security main",
    ]
    assert len(sources(Debian(suites=("forky",)), ARCHIVES)) == 1


def test_licences_stay_in_a_base_that_leaves_documentation_out() -> None:
    words = list(mmdebstrap_arguments(Debian(suites=("forky",)), ARCHIVES))
    assert words.index("--dpkgopt=path-include=/usr/share/doc/*/copyright") > words.index(
        "--dpkgopt=path-exclude=/usr/share/doc/*"
    )
    assert '--aptopt=A "false"' in words
