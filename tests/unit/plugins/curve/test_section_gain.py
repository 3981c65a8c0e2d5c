"""The table of what tiers were predicted to buy, beside what was measured."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tests.support.report_text import tables_in

from kveval.campaign.cell import Cell
from kveval.plugins.curve.plugin import PLUGIN
from kveval.plugins.curve.predicted.cell_benefits import COLUMNS
from kveval.report.build import comparison_results, tiers_needed
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.render import Rendering, without_marks
from kveval.report.result.levels import level_results
from kveval.report.result.model import CampaignResult, Peak, ReportedCell
from kveval.verdict.codes import INPUTS

BASE, TIERED = Cell("m", "no-offload", 0), Cell("m", "native-offload", 5000)
SCENARIOS = {
    "no-offload": {"baseline": None},
    "native-offload": {"baseline": "no-offload"},
}
PLAN = ReportPlan("c", "C", "", 3, [BASE, TIERED], SCENARIOS, {})
CELL = TIERED.row
PREDICTED = pd.DataFrame(
    [
        (
            *TIERED.key,
            2,
            3,
            200.0,
            150.0,
            250.0,
            210.0,
            175.0,
            245.0,
            60.0,
            40.0,
            80.0,
            90.0,
            False,
            4100.0,
            0.0626,
        )
    ],
    columns=COLUMNS,
)
LEVELS = pd.DataFrame(
    [CELL | {"level": 2, "run": run, "ttft_ms_mean": 70.0 + run} for run in (1, 2, 3)]
)
COMPARED = pd.DataFrame(
    [
        CELL
        | {
            "metric": "throughput_tok_s",
            "baseline": "m/no-offload/0",
            "effect_percent": 215.0,
        }
        | {
            "low_percent": 180.0,
            "high_percent": 250.0,
            "interval_percent": 95.0,
            "bound": "",
            "level": 2,
        }
        | {"verdict": "better", "reason": "", "family": "primary", "cost_percent": 0.0}
        | {f"basis_{name}": "" for name in INPUTS}
    ]
)
EMPTY = pd.DataFrame(columns=["model", "scenario", "cpu_blocks", "level", "metric"])


def measured(
    levels: pd.DataFrame = LEVELS, compared: pd.DataFrame = COMPARED
) -> Measured:
    return Measured([], levels, EMPTY, compared, predicted=PREDICTED)


def said(facts: Measured, folder: Path) -> str:
    """The section on gains of a campaign that has nothing else."""
    levels = level_results(facts.levels.to_dict("records"))
    peak = Peak.model_construct() if levels else None
    cell = ReportedCell.model_construct(**CELL, levels=levels, peak=peak)
    result = CampaignResult.model_construct(
        workloads=[],
        cells=[cell],
        comparisons=comparison_results(PLAN, facts),
        tiers_needed=tiers_needed(facts),
        kv_bytes_per_token={},
        weights="full",
    )
    (folder / "analysis").mkdir(exist_ok=True)
    facts.predicted.to_csv(folder / "analysis" / "predicted.csv", index=False)
    assert PLUGIN.section is not None
    return Rendering(result).section(PLUGIN.section, folder)


def row(facts: Measured, folder: Path) -> Sequence[str]:
    """The only row of its table, without links."""
    [table] = tables_in(without_marks(said(facts, folder)))
    [cells] = table.rows
    return cells


def test_a_row_has_the_predicted_and_the_measured_change(tmp_path: Path) -> None:
    assert row(measured(), tmp_path) == [
        *("native-offload 5K", "3.0 times (2.5 to 3.5)", "3.1 times (2.8 to 3.5)"),
        *("60 (40 to 80)", "72.0"),
    ]


def test_what_was_not_measured_is_not_shown_what_was_not_compared_has_no_change(
    tmp_path: Path,
) -> None:
    assert said(measured(levels=EMPTY), tmp_path).strip() == ""
    assert row(measured(compared=EMPTY), tmp_path)[2] == "n/a"
    nothing = Measured([], LEVELS, EMPTY, COMPARED, predicted=PREDICTED.iloc[:0])
    assert said(nothing, tmp_path).strip() == ""


def test_the_memory_that_serves_most_is_said_once_a_model(tmp_path: Path) -> None:
    [sentence] = (
        line
        for line in said(measured(), tmp_path).splitlines()
        if line.startswith("- ")
    )
    assert sentence.startswith(
        "- m: at 2 concurrent requests, a tier in host memory adds 90 % of what one"
    )
    assert tiers_needed(Measured([], LEVELS, EMPTY, COMPARED)) == {}
