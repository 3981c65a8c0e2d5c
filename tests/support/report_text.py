"""What a report says: its result without figures; REPORT.md with its appendices, as if they were one file."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from tests.support import synthetic_campaign

from kveval.report.build_result import campaign_result
from kveval.report.data.arm_links import plain_text
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.files import APPENDICES, MAIN
from kveval.report.result.model import CampaignResult, ReportedAnswer


def result_of(
    plan: ReportPlan, measured: Measured, figures: Sequence[str] = ()
) -> CampaignResult:
    """Return what a campaign found, as a report with these figures has it."""
    return campaign_result(plan, measured, {name: name for name in figures}, {})


@cache
def result_of_whole() -> CampaignResult:
    """Return what the whole made-up campaign found; its tests share it and change it nowhere."""
    return result_of(synthetic_campaign.plan(), synthetic_campaign.whole())


def answer_of(plan: ReportPlan, measured: Measured) -> ReportedAnswer:
    """Return the answer of a campaign."""
    return result_of(plan, measured).answer


def whole_report(folder: Path) -> str:
    """Return the text of the report in `folder`; links to figures are relative to it."""
    texts = [
        (folder / name).read_text(encoding="utf-8") for name in (MAIN, *APPENDICES)
    ]
    return "\n".join(text.replace("](../", "](") for text in texts)


def plain_table(table: Table) -> Table:
    """Return a table without its links to runs, as REPORT.md has it; of texts without any, such as a number, nothing
    changes.
    """
    header, *rows = (
        [text if plain_text(text) == text else plain_text(text) for text in row]
        for row in (table.header, *table.rows)
    )
    return replace(table, header=header, rows=rows)
