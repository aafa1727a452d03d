"""The report as a reader meets it: in a real browser, on a phone and a desk, light and dark."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

import paths
from bench import report
from bench.results import Identity, Point, Store
from tests.contract.browser import Browser, browser

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
NASTY = '<img src=x onerror=alert(1)> & "quoted" $x^2$ with-a-word-that-has-no-place-to-break-' + "x" * 80


def stored(folder: Path) -> None:
    """One point or more of every sweep, with a name that would break a page that does not escape."""
    identity = Identity(subject=NASTY, digest="sha256:" + "ab" * 32, image="haloforge/cpu", build="b11434")
    mib = 2.0**20

    def put(sweep: str, settings: dict[str, Any], **given: Any) -> None:
        host = {"cpu": "a processor", "cores": 2, "memory_bytes": 25e9}
        Store(sweep, at=folder).append(
            Point(sweep=sweep, settings=settings, identity=identity, host=host, **given)
        )

    for size in (64, 512):
        put(
            "ubatch", {"batch": 512, "ubatch": size}, predicted={"compute_host_bytes": size * mib / 10},
            measured={"compute_host_bytes": size * mib / 11, "prompt_tps_d0": 100.0 + size, "ttft_s": 0.5},
            samples=[{"depth": 0, "prompt_tps": 100.0}],
        )  # fmt: skip
        put("slots", {"users": size // 64, "load": "short"}, measured={"total_tps": 20.0, "user_tps": 5.0})
    put("cache", {"talk": NASTY, "checkpoints": 0}, measured={"hit_share": 0.0, "turn_s": 1.0})
    put("mtp", {"n_max": 0, "p_min": 0.0, "kind": "code"}, measured={"decode_tps": 20.0})
    put("load", {"files": "cold", "turn": 0}, measured={"healthy_s": 3.0})
    put("load", {"files": "warm", "turn": 0}, status="failed", reason=NASTY)
    for side, rate in (("A", 100.0), ("B", 90.0)):
        put("compare", {"side": side}, samples=[{"decode_tps": rate + turn} for turn in range(3)])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    stored(folder / "results")
    return report.write(folder / "out", results=folder / "results").page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_is_whole(
    chromium: Browser, page: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    chromium.open(page, width=width, scheme=scheme)
    chromium.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert chromium.complaints() == []
    assert chromium.requests() == [page.as_uri()], "the page must need no network and no other file"
    wide = chromium.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= width == wide[1]
    assert chromium.evaluate("document.querySelectorAll('article svg').length") > 15
    assert chromium.evaluate("document.images.length") == 0, "a name became an element"


@pytest.mark.parametrize("width", [390, 1280])
def test_no_text_of_a_picture_is_cut_off(chromium: Browser, page: Path, width: int) -> None:
    chromium.open(page, width=width, scheme="light")
    cut = chromium.evaluate(
        """[...document.querySelectorAll('article svg text')].filter(text => {
          const inner = text.getBoundingClientRect();
          const outer = text.ownerSVGElement.getBoundingClientRect();
          return inner.left < outer.left - 2 || inner.right > outer.right + 2
            || inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2;
        }).map(text => text.textContent)"""
    )
    assert cut == []
    assert (
        chromium.evaluate(
            """Math.min(...[...document.querySelectorAll('article svg text')].map(text =>
              parseFloat(getComputedStyle(text).fontSize)
                * text.ownerSVGElement.getBoundingClientRect().width
                / text.ownerSVGElement.viewBox.baseVal.width))"""
        )
        >= 8
    ), "type of a picture must stay readable, in CSS pixels"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_stands_out_from_what_is_behind_it(
    chromium: Browser, page: Path, scheme: Literal["light", "dark"]
) -> None:
    """WCAG 2: 4.5 to 1 for text, 3 to 1 for lines and bars."""
    chromium.open(page, width=390, scheme=scheme)
    ratios = chromium.evaluate(
        """(() => {
          const canvas = document.createElement('canvas').getContext('2d');
          const parse = colour => {
            canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
            return [...canvas.getImageData(0, 0, 1, 1).data];
          };
          const light = rgb => rgb.slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const contrast = (a, b) => {
            const [x, y] = [light(parse(a)), light(parse(b))];
            return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
          };
          const value = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
          const found = {};
          for (const back of ['--back', '--page'])
            for (const text of ['--ink', '--soft', '--accent'])
              found[text + back] = contrast(value(text), value(back));
          found['--published'] = contrast(value('--published'), value('--publishedback'));
          found['--warn'] = contrast(value('--warn'), value('--warnback'));
          for (let i = 1; i <= 8; i++) found['--s' + i] = contrast(value('--s' + i), value('--back'));
          return found;
        })()"""
    )
    assert {name: ratio for name, ratio in ratios.items() if ratio < (3 if name[:3] == "--s" else 4.5)} == {}


def test_light_and_dark_look_different_and_not_blank(chromium: Browser, page: Path) -> None:
    from PIL import Image

    seen = {}
    for scheme in SCHEMES:
        chromium.open(page, width=390, scheme=scheme)
        picture = Image.open(io.BytesIO(chromium.screenshot())).convert("RGB")
        colours = picture.getcolors(1 << 24) or []
        assert len(colours) > 200, "a blank page has a handful of colours"
        assert max(count for count, _ in colours) < 0.9 * picture.width * picture.height
        assert picture.height > 5000
        seen[scheme] = picture.resize((1, 1)).tobytes()
    assert sum(seen["light"]) > 550
    assert sum(seen["dark"]) < 250


def test_every_picture_and_table_has_a_name(chromium: Browser, page: Path) -> None:
    chromium.open(page, width=390, scheme="light")
    nodes = chromium.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (
            node["role"]["value"],
            node.get("name", {}).get("value", ""),
            node.get("description", {}).get("value", ""),
        )
        for node in nodes
        if not node.get("ignored") and "role" in node
    ]
    pictures = [one for one in named if one[0] == "image"]
    assert len(pictures) == chromium.evaluate("document.querySelectorAll('article svg').length")
    assert all("The table below has all figures." in name + told for _, name, told in pictures)
    headings = [name for role, name, _ in named if role == "heading"]
    assert headings[0] == "Haloforge bench report"
    assert all(headings)
    assert chromium.evaluate("document.querySelectorAll('article').length") == chromium.evaluate(
        "document.querySelectorAll('article table').length"
    )
    ids = chromium.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids)), "an id must be there once"


def test_the_table_behind_a_plot_opens_by_keyboard(chromium: Browser, page: Path) -> None:
    chromium.open(page, width=390, scheme="light")
    assert chromium.evaluate("document.querySelector('details').open") is False
    chromium.evaluate("document.querySelector('details summary').focus()")
    for kind in ("keyDown", "keyUp"):
        chromium.call(
            "Input.dispatchKeyEvent",
            type=kind,
            key="Enter",
            code="Enter",
            text="\r",
            windowsVirtualKeyCode=13,
        )
    assert chromium.evaluate("document.querySelector('details').open") is True


def test_every_plot_is_a_file_too(page: Path) -> None:
    svg, png = sorted(page.parent.glob("*.svg")), sorted(page.parent.glob("*.png"))
    assert [file.stem for file in svg] == [file.stem for file in png]
    assert {"e4", "h3", "h4", "h5", "h7", "compare"} <= {file.stem for file in svg}
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in png)


def test_two_reports_of_the_same_results_are_the_same(page: Path, tmp_path: Path) -> None:
    results = page.parent.parent / "results"
    again = report.write(tmp_path, results=results, pictures=False)
    assert again.page.read_text() == page.read_text()


def test_without_matplotlib_tables_and_data_are_there_and_it_says_what_to_install(
    page: Path, tmp_path: Path, chromium: Browser
) -> None:
    """In a process where matplotlib cannot be imported."""
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from pathlib import Path; from bench import report\n"
        f"report.write(Path({str(tmp_path)!r}), results=Path({str(page.parent.parent / 'results')!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'matplotlib" in done.stderr
    data = json.loads((tmp_path / "report.json").read_text())
    assert len(data["points"]) == 10
    assert not list(tmp_path.glob("*.svg"))
    chromium.open(tmp_path / "index.html", width=390, scheme="light")
    assert chromium.complaints() == []
    assert chromium.evaluate("document.querySelectorAll('svg').length") == 0
    assert chromium.evaluate("document.querySelectorAll('article table').length") > 15
    assert "pip install" in chromium.evaluate("document.querySelector('.notice').textContent")
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_newcomer_without_results_sees_the_published_figures(tmp_path: Path, chromium: Browser) -> None:
    written = report.write(tmp_path / "out", results=tmp_path / "none", pictures=False)
    chromium.open(written.page, width=390, scheme="dark")
    assert chromium.complaints() == []
    assert "Nothing was measured here yet" in chromium.evaluate("document.querySelector('.lead').textContent")
    assert chromium.evaluate("document.querySelectorAll('article svg').length") >= 10
