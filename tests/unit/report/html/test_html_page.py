from collections.abc import Mapping
from pathlib import Path

import jinja2
import pytest
from PIL import Image
from tests.support.html_checks import PageReader
from tests.support.report_text import result_of
from tests.unit.report.test_report_claims import CAMPAIGNS, tree

from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Table
from kveval.report.figures.names import figure_names
from kveval.report.html.page import narrow_data_uri, render_page, write_page
from kveval.report.sections import (
    Block,
    Bullets,
    Code,
    Paragraph,
    Picture,
    Section,
    Tile,
    Tiles,
)

IMAGE = "data:image/svg+xml;base64,PHN2Zy8+"
TABLE = Table(
    ["arm", "tok/s"],
    [
        ["no-offload", numerals.with_interval(1191.4, 1150, 1240)],
        ["**better** <b>", numerals.MISSING],
    ],
    frozenset({1}),
)


def page(*blocks: Block, images: Mapping[str, str] | None = None) -> str:
    return render_page(Section("A campaign", blocks), images or {})


def test_every_kind_of_block_is_shown_and_the_page_is_whole() -> None:
    picture = Picture(
        "effect_plot", "figures/effect_plot.png", "Effects", "Against the *baseline*."
    )
    blocks = [
        Paragraph("Said.", note=True),
        Paragraph("Measured today.", small=True),
        Tiles([Tile("an arm", "4.1 times", ["228 against 55.6"], "better")]),
        Bullets(["one"]),
        Code("vllm serve <x>"),
        TABLE,
        picture,
    ]
    text = page(Section("Part", blocks), images={"effect_plot": IMAGE})
    read = PageReader(text)
    assert read.problems == []
    assert {"h1", "h2", "ul", "pre", "table", "figure", "img"} <= {*read.tags}
    assert '<div class="note"><p>Said.</p></div>' in text
    assert '<p class="facts">Measured today.</p>' in text
    assert '<p class="value better">4.1 times</p>' in text
    assert "<p>228 against 55.6</p>" in text
    assert "<code>vllm serve &lt;x&gt;</code>" in text
    assert text.count("Effects") == 1
    assert f'<img src="{IMAGE}" alt="Effects">' in text
    assert "<em>baseline</em>" in text
    assert '<td class="number" data-sort="1191.4">1,190 (1,150 to 1,240)</td>' in text


def test_folded_sections_and_appendices_are_closed_and_others_are_not() -> None:
    inner = [Paragraph("x")]
    text = page(
        Section("Open", inner),
        Section("Folded", inner, folded=True),
        Section("Apart", inner, appendix="apart"),
    )
    main = text.partition("<main>")[2]
    assert '<section id="open">' in main
    assert '<details id="folded"><summary>Folded</summary>' in main
    assert '<details id="apart"><summary>Apart</summary>' in main


def test_the_contents_lead_to_every_part() -> None:
    read = PageReader(
        page(
            Section("One part", []),
            Section("Another", [Section("Inner", [])], appendix="x"),
        )
    )
    assert read.links == ["#one-part", "#another"]


def test_sections_of_one_title_have_ids_of_their_own() -> None:
    twice = Section("Throughput", [TABLE])
    read = PageReader(
        page(Section("A", [twice]), Section("B", [Section("Throughput", [TABLE])]))
    )
    assert read.problems == []
    assert [name for name in read.ids if "throughput" in name] == [
        "throughput",
        "throughput-1",
    ]


def test_tables_are_sortable_where_there_is_something_to_sort_by() -> None:
    assert 'class="sortable n-last"' in page(TABLE)
    assert 'class="sortable n-last"' not in page(Table(["a"], [["1"]]))
    untitled = page(Table(["", ""], [["1", "2"], ["3", "4"]]))
    assert "<thead>" not in untitled
    assert 'class="sortable n-last"' not in untitled


def test_a_figure_without_its_image_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        page(Picture("gone", "figures/gone.png", "Gone", ""))


def test_a_drawing_for_narrow_screens_is_taken_where_there_is_one(
    tmp_path: Path,
) -> None:
    figure = tmp_path / "throughput_curve_Qwen3-0.6B_all.png"
    assert narrow_data_uri(figure) == ""
    narrow = tmp_path / "throughput_curve_Qwen3-0.6B_all.narrow.svg"
    narrow.write_text("<svg>of arms</svg>", encoding="utf-8")
    assert narrow_data_uri(figure).endswith("of arms%3C/svg%3E")
    narrow.write_text(f"<svg>{'x' * 100_000}</svg>", encoding="utf-8")
    assert narrow_data_uri(figure) == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<p><b></p>", "closes"),
        ('<a href="#x">y</a>', "nothing has the id x"),
        ('<p id="a"></p><p id="a"></p>', "twice"),
        ('<img src="https://example.org/x.png">', "loads"),
        ('<script src="x.js"></script>', "loads"),
        ('<link rel="stylesheet" href="x.css">', "has href"),
        ("<style>p { background: url(x.png) }</style>", "style"),
        ("<p>", "not closed"),
    ],
)
def test_what_is_wrong_with_a_page_is_found(text: str, problem: str) -> None:
    assert [found for found in PageReader(text).problems if problem in found]


@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_a_campaign_is_on_one_page_with_a_link_from_every_sentence_of_its_answer(
    campaign: str, tmp_path: Path
) -> None:
    plan, measured = CAMPAIGNS[campaign]()
    folder = tmp_path / "figures"
    folder.mkdir()
    figures = [
        folder / f"{name}.png" for name in figure_names(measured.levels["model"])
    ]
    for figure in figures:
        Image.new("RGB", (3, 2)).save(figure)
    result = result_of(plan, measured)
    write_page(tree(campaign), result, {}, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    read = PageReader(text)
    assert read.problems == []
    assert text.count("data:image/webp;base64,") == len(figures)
    sentences = (
        text.partition("<main>")[2]
        .partition("<ul>")[2]
        .partition("</ul>")[0]
        .split("</li>")[:-1]
    )
    assert sentences
    assert [
        sentence
        for sentence in sentences
        if 'href="#runs-of-' not in sentence and "#the-runs-" not in sentence
    ] == []
