"""The page in a real browser without a network: nothing is asked for, nothing complains, tables are sorted."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.browser import PROGRAM, Page, chromium

from kveval.report.html.page import render_page

pytestmark = pytest.mark.skipif(
    not shutil.which(PROGRAM), reason=f"needs {PROGRAM} (Debian's package)"
)

DRAWING = b'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="400"><rect width="900" height="400"/></svg>'
_ARMS = "native-offload 10K; lmcache-local 10K; lmcache-redis 10K; lmcache-valkey 10K; llm-d-redis"
_CHANGE = "1,900 | +658 % (+120 to more than +1,000) | cannot tell yet, idle"
ARMS = ["b 10K", "b 5K", "a", "c"]
_GAIN = "**+660 % (+120 to more than +1,000)** {.better}"
_TIMES = "median TTFT, ms: before to after"
_BETTER = (
    "lmcache-local 10K +6.9 % (+4.5 to +9.4); lmcache-valkey 10K +5.2 % (+2.8 to +7.7)"
)
_CONCLUSION = (
    "one of the arms that are better; the table of arms against each other has them"
)
REPORT = f"""# A campaign

| model | best arm | gain (95 %) | {_TIMES} | tier |
| --- | --- | --- | --- | --- |
| Qwen3-0.6B | no arm is better |  |  |  |
| Qwen3-8B | [lmcache-valkey 10K](#runs) | {_GAIN} | 16,500 to 15,400 | 22.0 GiB (10,000 blocks) |

> A note.

- No arm was better. [The runs](#of-one-arm)

## Results

| arm | tok/s |
| --- | ---: |
| b 10K | 9.0 (8.0 to 10.0) |
| b 5K | 1,200 (1,100 to 1,300) |
| a | n/a |
| c | -30 (-40 to -20) |

![A drawing](figures/drawing.svg)

What it shows.

![Drawn twice](figures/twice.svg)

For screens.

```
{"x" * 300}
```

## Verdicts

| arm | runs | tok/s | change, % of no-offload (95 %) | verdict | TTFT | change, % of no-offload (95 %) | verdict |
| --- | ---: | ---: | ---: | --- | ---: | ---: | --- |
| native-offload 10K | 3 | {_CHANGE} | {_CHANGE} |

## By model

| model | better than the baseline | no relevant difference from it | worse | not decided | conclusion |
| --- | --- | --- | --- | --- | --- |
| Qwen3-32B-AWQ | {_BETTER} | {_ARMS} | native-offload 10K | {_ARMS} | {_CONCLUSION} |
"""
_WIDE = "| some words in a cell " * 8 + "|"
RUNS = f"""# Runs

Deep inside.

## Of one arm

{"| column of a wide table " * 8 + "|"}
{"| --- " * 8 + "|"}
{_WIDE}
{_WIDE}
"""
MODES = ({}, {"dark": True}, {"width": 390, "height": 844}, {"scripts": False})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    drawing = f"data:image/svg+xml;base64,{base64.b64encode(DRAWING).decode()}"
    images = {"drawing": drawing, "twice": drawing}
    text = render_page([REPORT, RUNS], "# All", images, {"twice": drawing})
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_it_asks_for_nothing_and_nothing_complains(
    browser: Page, file: Path, mode: dict[str, int | bool]
) -> None:
    browser.open(file, **mode)
    assert browser.requested == [file.as_uri()]
    assert browser.complaints == []
    assert browser.value(
        "[...document.querySelectorAll('h1, h2')].map(e => e.textContent)"
    ) == [
        "A campaign",
        "Results",
        "Verdicts",
        "By model",
        "All",
    ]
    assert browser.value("document.querySelector('figure img').naturalWidth") == 900
    # Wide tables, figures and command lines scroll in boxes of their own.
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [320, 390, 639, 641, 1400])
def test_a_figure_that_is_drawn_for_narrow_screens_is_never_cut(
    browser: Page, file: Path, width: int
) -> None:
    browser.open(file, width=width, height=844)
    shown = browser.value(
        "[...document.querySelectorAll('#figure-twice img')]"
        ".filter(e => e.checkVisibility()).map(e => e.className)"
    )
    assert shown == (["narrow"] if width <= 640 else [""])
    box = "document.querySelector('#figure-twice .scroll')"
    assert browser.value(f"{box}.scrollWidth <= {box}.clientWidth")
    # The title of the narrow drawing is beside it.
    title = "document.querySelector('#figure-twice p.narrow')"
    assert browser.value(f"{title}.textContent") == "Drawn twice"
    assert browser.value(f"{title}.checkVisibility()") == (width <= 640)


@pytest.mark.parametrize("width", [800, 1100, 1400])
def test_the_last_column_of_a_table_of_verdicts_is_in_view(
    browser: Page, file: Path, width: int
) -> None:
    browser.open(file, width=width)
    box = "document.querySelector('#verdicts .scroll')"
    assert browser.value(f"{box}.scrollWidth <= {box}.clientWidth")


@pytest.mark.parametrize("width", [320, 390, 800, 801, 1400])
def test_every_cell_of_the_answers_table_is_in_view_under_its_title(
    browser: Page, file: Path, width: int
) -> None:
    browser.open(file, width=width, height=844)
    box = "document.querySelector('main > .scroll')"
    assert browser.value(f"{box}.scrollWidth <= {box}.clientWidth")
    cell = "document.querySelector('main > .scroll td:nth-child(4)')"
    blank = browser.value(f"{cell}.checkVisibility()")
    title = browser.value(
        f"getComputedStyle({cell.replace('td', 'tr:nth-child(2) td')}, '::before').content"
    )
    header = browser.value(f"{box}.querySelector('thead').checkVisibility()")
    assert (header, blank) == (width > 800, width > 800)
    assert (_TIMES in title) == (width <= 800)


@pytest.mark.parametrize("width", [1100, 1400])
def test_the_conclusion_by_model_is_in_view(
    browser: Page, file: Path, width: int
) -> None:
    browser.open(file, width=width)
    box = "document.querySelector('#by-model .scroll')"
    assert browser.value(f"{box}.scrollWidth <= {box}.clientWidth")


def test_a_dark_figure_has_the_ground_of_its_box(browser: Page, file: Path) -> None:
    """The page darkens drawings, which have a white ground, by a filter."""
    browser.open(file, dark=True)
    image = "getComputedStyle(document.querySelector('#figure-drawing img'))"
    inverted = browser.value(
        f"Number({image}.filter.match(/invert\\(([\\d.]+)\\)/)[1])"
    )
    grey = round(255 * (1 - inverted))
    box = "getComputedStyle(document.querySelector('#figure-drawing .scroll'))"
    ground = browser.value(f"{box}.backgroundColor")
    assert ground == f"rgb({grey}, {grey}, {grey})"


def test_what_is_loaded_from_elsewhere_or_breaks_would_be_seen(
    browser: Page, tmp_path: Path
) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        '<!doctype html><img src="https://example.org/x.png"><script>broken(</script>'
    )
    browser.open(path)
    assert "https://example.org/x.png" in browser.requested
    assert browser.complaints != []


def test_it_is_dark_where_the_reader_prefers_that(browser: Page, file: Path) -> None:
    grounds = []
    for dark in (False, True):
        browser.open(file, dark=dark)
        grounds.append(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


def column(browser: Page, number: int) -> list[str]:
    cells = f"document.querySelectorAll('#results tbody td:nth-child({number})')"
    return browser.value(f"[...{cells}].map(e => e.textContent)")


def test_a_click_on_a_header_sorts_by_the_numbers(browser: Page, file: Path) -> None:
    browser.open(file)
    assert column(browser, 1) == ARMS
    browser.click("#results th:nth-child(2)")
    assert column(browser, 1) == ["b 5K", "b 10K", "c", "a"]
    browser.click("#results th:nth-child(2)")
    assert column(browser, 1) == ["c", "b 10K", "b 5K", "a"]
    browser.click("#results th:nth-child(1)")
    assert column(browser, 1) == ["c", "b 10K", "b 5K", "a"]
    browser.click("#results th:nth-child(1)")
    assert column(browser, 1) == ["a", "b 5K", "b 10K", "c"]
    assert (
        browser.value("document.querySelector('#results th').getAttribute('aria-sort')")
        == "ascending"
    )


@pytest.mark.parametrize("scripts", [True, False])
def test_folded_parts_open_by_a_click_and_by_a_link_into_them(
    browser: Page, file: Path, scripts: bool
) -> None:
    browser.open(file, scripts=scripts)
    shown = "document.querySelector('#of-one-arm').checkVisibility({contentVisibilityAuto: true})"
    is_open = "document.querySelector('#runs').open"
    assert browser.value(is_open) is False
    browser.click("#runs > summary")
    assert browser.value(is_open) is True
    browser.click("#runs > summary")
    assert browser.value(is_open) is False
    browser.click("main > ul a")
    assert browser.value(is_open) is True
    assert browser.value(shown) is True
