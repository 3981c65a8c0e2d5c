from pathlib import Path

import pytest
from PIL import Image
from tests.support.html_checks import PageReader
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.report.figures.names import figure_names
from kveval.report.html.page import narrow_data_uri, render_page, write_page
from kveval.report.report import write_report

IMAGE = "data:image/svg+xml;base64,PHN2Zy8+"
TABLE = """| arm | tok/s |
| --- | ---: |
| no-offload | 1,190 (1,150 to 1,240) |
| **better** <b> {.better} | n/a |
"""
RUNS = "# Runs\n"


def page(text: str, *appendices: str) -> str:
    """A page of a report with a figure of this name, and of no runs."""
    files = [f"# A campaign\n\nMeasured today.\n\n{text}", *appendices]
    return render_page(files, RUNS, {"effect_plot": IMAGE})


def test_every_kind_of_block_is_shown_and_the_page_is_whole() -> None:
    text = page(
        f"""> Said.

|  |  |
| --- | --- |
| an arm | **4.1 times** {{.better}}; 228 against 55.6 |

- no arm is better
- [one](#part) is

## Part

```
vllm serve <x>
```

{TABLE}
![Effects](figures/effect_plot.png)

Against the *baseline*.

|  |  |
| --- | --- |
| campaign | `smoke` |
"""
    )
    read = PageReader(text)
    assert read.problems == []
    assert {"h1", "h2", "ul", "pre", "table", "figure", "img"} <= {*read.tags}
    for html in (
        '<div class="note"><p>Said.</p></div>',
        "<h1>A campaign</h1>\n<p>Measured today.</p>",
        '<p class="value better">4.1 times</p>',
        "<p>228 against 55.6</p>",
        '<li>no arm is better <a class="to-runs" href="#runs">The runs</a></li><li><a href="#part">one</a> is</li>',
        "<code>vllm serve &lt;x&gt;\n</code>",
        f'<img src="{IMAGE}" alt="Effects">',
        "<figcaption>Against the <em>baseline</em>.</figcaption>",
        '<td class="number" data-sort="1190">1,190 (1,150 to 1,240)</td>',
        '<td class="better"><strong>better</strong> &lt;b&gt;</td>',
        '<td class="short"><code>smoke</code></td>',
    ):
        assert html in text
    assert text.count("Effects") == 1


def test_folded_parts_and_appendices_are_closed_and_others_are_not() -> None:
    folded = "<details><summary>Folded</summary>\n\n### Inside\n\nx\n\n</details>\n\ny"
    text = page(f"## Open\n\nx\n\n{folded}", "# Apart\n\n## Within\n\nx\n")
    assert PageReader(text).problems == []
    main = "".join(text.partition("<main>")[2].splitlines())
    assert '<section id="open"><h2>Open</h2><p>x</p><details id="folded">' in main
    assert (
        '<section id="inside"><h3>Inside</h3><p>x</p></section></details><p>y</p></section>'
        in main
    )
    assert '<details id="apart"><summary>Apart</summary>' in main
    assert '<section id="within"><h3>Within</h3>' in main


def test_the_contents_lead_to_every_part() -> None:
    read = PageReader(page("## Part\n\n### Inner\n", "# Another\n\n## Inner\n"))
    assert read.links == ["#part", "#another", "#runs"]
    assert [name for name in read.ids if "inner" in name] == ["inner", "inner-1"]
    assert read.problems == []


def test_tables_are_sortable_where_there_is_something_to_sort_by() -> None:
    assert 'class="sortable n-last"' in page(f"## A\n\n{TABLE}")
    for table in (
        "| a |\n| --- |\n| 1 |\n",
        "|  |  |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |\n",
    ):
        assert 'class="sortable n-last"' not in page(f"## A\n\n{table}")


def test_a_figure_without_its_image_is_an_error() -> None:
    with pytest.raises(KeyError):
        page("![Gone](figures/gone.png)\n\nIt was.")


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
    files, result = write_report(plan, measured, figures, tmp_path / "REPORT.md")
    write_page(files, result, {}, tmp_path / "report.html")
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
