"""REPORT.md of five campaigns, word for word; of one with its appendices.

After a change that is meant to change the report: KVEVAL_UPDATE_GOLDEN=1 pytest tests/unit/report/test_golden.py, and
read the difference before it is committed.
"""

import os
from pathlib import Path

import pytest
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.report.figures.names import figure_names
from kveval.report.report import write_report

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize(
    ("file", "campaign"),
    [
        *(
            ("whole", "contrasts"),
            ("failing_cells", "failing"),
            ("single_run", "one run"),
        ),
        *(("miniature", "miniature"), ("mechanism", "mechanism")),
    ],
)
def test_a_report_is_what_it_was(file: str, campaign: str, tmp_path: Path) -> None:
    plan, measured = CAMPAIGNS[campaign]()
    figures = [
        tmp_path / "figures" / f"{name}.png"
        for name in figure_names(measured.levels["model"])
    ]
    empty = {"pcp_lmcache": "not recorded: LMCache's counters"}
    write_report(plan, measured, figures, tmp_path / "REPORT.md", empty)
    written, golden = (
        (tmp_path / "REPORT.md").read_text(encoding="utf-8"),
        GOLDEN / f"{file}.md",
    )
    if file == "whole":
        appendices = sorted((tmp_path / "appendix").glob("*.md"))
        written = "\n".join(
            [written, *(path.read_text(encoding="utf-8") for path in appendices)]
        )
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(written, encoding="utf-8")
    assert written == golden.read_text(encoding="utf-8")
