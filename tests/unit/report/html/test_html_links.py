import pytest

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import StyledText, Table
from kveval.report.html.arm_runs import TITLE, runs_title
from kveval.report.html.links import ClaimLinks
from kveval.report.sections import Bullets, Paragraph, Section, anchor_of

SMALL = [
    Cell("Qwen3-0.6B", "no-offload", 0),
    Cell("Qwen3-0.6B", "native-offload", 1000),
    Cell("Qwen3-0.6B", "native-offload", 10_000),
]
LARGE = [cell.on("Qwen3-14B") for cell in SMALL]


def target(cell: Cell) -> str:
    return f"(#{anchor_of(runs_title(cell))})"


def test_with_one_model_every_arm_leads_to_its_runs() -> None:
    said = ClaimLinks(SMALL).link_sentence(
        "native-offload 10K delivered more than no-offload.", "Qwen3-0.6B"
    )
    assert (
        said
        == f"[native-offload 10K]{target(SMALL[2])} delivered more than [no-offload]{target(SMALL[0])}."
    )


def test_with_several_an_arm_is_of_the_model_named_last() -> None:
    links = ClaimLinks([*SMALL, *LARGE])
    said = links.link_sentence(
        "Qwen3-14B with native-offload 1K; Qwen3-0.6B with native-offload 10K"
    )
    assert target(LARGE[1]) in said
    assert target(SMALL[2]) in said
    assert links.link_sentence("no-offload was best") == "no-offload was best"


@pytest.mark.parametrize(
    "text",
    ["no-offload-again 10K", "a-no-offload", "results/no-offload/0", "`no-offload`"],
)
def test_what_only_resembles_an_arm_is_none(text: str) -> None:
    assert ClaimLinks(SMALL).link_sentence(text, "Qwen3-0.6B") == text


def test_a_cell_that_gets_a_link_keeps_its_style() -> None:
    cell = StyledText("**better**, 1 of 5 runs of no-offload copied", "better")
    section = ClaimLinks(SMALL).link_section(
        Section("r", [Table(["verdict"], [[cell]])])
    )
    (table,) = section.blocks
    linked = table.rows[0][0]
    assert (linked.style, target(SMALL[0]) in linked) == ("better", True)


def test_tables_are_of_the_model_of_their_row_or_section() -> None:
    table = Table(
        ["model", "arm", "tok/s"],
        [["Qwen3-14B", "no-offload", "5"], ["", "no-offload", "6"]],
        frozenset({2}),
    )
    other = Table(["", "native-offload 1K"], [["TTFT", "5"]], frozenset({1}))
    root = Section(
        "r",
        [
            Section("Qwen3-0.6B", [table, other]),
            Section("m", [Paragraph("**Qwen3-14B**"), other]),
        ],
    )
    linked = ClaimLinks([*SMALL, *LARGE]).link_section(root)
    first, second = linked.sections
    rows, header = first.blocks[0].rows, first.blocks[1].header
    assert [row[1] for row in rows] == [
        f"[no-offload]{target(LARGE[0])}",
        f"[no-offload]{target(SMALL[0])}",
    ]
    assert header[1] == f"[native-offload 1K]{target(SMALL[1])}"
    assert second.blocks[1].header[1] == f"[native-offload 1K]{target(LARGE[1])}"


def test_each_sentence_of_the_answer_leads_to_runs() -> None:
    root = Section(
        "r",
        [
            Paragraph("Which?"),
            Bullets(["no-offload did.", "It rests on 3 runs."]),
            Bullets(["Do more."]),
        ],
    )
    blocks = ClaimLinks(SMALL).link_report(root).blocks
    assert blocks[1].items == [
        f"[no-offload]{target(SMALL[0])} did.",
        f"It rests on 3 runs. [The runs](#{anchor_of(TITLE)})",
    ]
    assert blocks[2].items == ["Do more."]
