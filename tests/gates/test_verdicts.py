"""What made-up comparisons get stays the same: every column of their tables, and what a report says of them.

KVEVAL_UPDATE_GOLDEN=1 holds what is made now.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.gates import golden
from tests.gates.verdict_cases import CASES, Case
from tests.support.report_text import answer_in, part_of, result_of, text_of
from tests.support.synthetic import BASELINES, METRICS, peaks_table, required_counters
from tests.support.synthetic import runs as runs_of

from kveval.campaign.campaign_file import Comparison
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.result.model import CampaignResult
from kveval.tables.cells import THROUGHPUT, tables_by_cell
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict.verdicts import compare_all

HELD = Path(__file__).resolve().parent / "golden" / "verdicts.tar.xz"
_LONG = re.compile(r"-?\d+\.\d{8,}(e[-+]\d+)?")
# The parts of a report that say what the comparisons came to.
PARTS = ("By model", "Arms against each other", "Deployment guidance", "Comparisons")
KINDS = {
    "no-offload": {"arm": "none"},
    "native-offload": {"arm": "native"},
    "lmcache-redis": {"arm": "lmcache", "store": "redis"},
}


def _plan(case: Case, baselines: Mapping[str, str | None]) -> ReportPlan:
    cells = list(tables_by_cell(case.levels))
    scenarios = {
        name: {
            "title": name,
            "baseline": baselines.get(name),
            "required": required_counters(name),
            "store": None,
            "arm": "native",
            **KINDS.get(name, {}),
        }
        for name in {*baselines, *(cell.scenario for cell in cells)}
    }
    return ReportPlan(
        name="made-up",
        title="Made up",
        description="",
        runs=5,
        cells=cells,
        scenarios=scenarios,
        metrics=METRICS,
    )


def _texts(name: str) -> dict[str, str]:
    """The tables of a case, and what a report says of it."""
    case = CASES[name]()
    baselines = {
        scenario: None if scenario == "no-offload" else "no-offload"
        for scenario in {*BASELINES, *case.levels["scenario"]}
    }
    levels = case.levels.reset_index(drop=True)
    settings = Comparison(**case.settings)
    tables = compare_all(
        levels, baselines, settings, requested_runs=case.requested_runs
    )._asdict()
    files = {f"{name}/{table}.csv": _csv(tables[table]) for table in tables}
    measured = Measured(
        runs_of(levels),
        levels,
        peaks_table(_delivering(levels)),
        tables["baseline"],
        contrasts=tables["contrasts"],
        peak_comparison=tables["peaks"],
    )
    result = result_of(_plan(case, baselines), measured)
    return files | {f"{name}/report.md": _report(result, case.tables_only)}


def _delivering(levels: pd.DataFrame) -> pd.DataFrame:
    """The same levels, each with a throughput: a cell without any has no peak, and is no part of a report."""
    delivered = np.isfinite(levels[THROUGHPUT]) & (levels[THROUGHPUT] > 0)
    return levels.assign(**{THROUGHPUT: levels[THROUGHPUT].where(delivered, 1.0)})


def _csv(table: pd.DataFrame) -> str:
    return table.to_csv(index=False, float_format="%.9g")


def _report(result: CampaignResult, not_assessed_only: bool) -> str:
    """What a report says of the comparisons: what has no verdict, the answer, its parts, report.json."""
    text = text_of(result)
    not_assessed = part_of(text, "Not assessed")
    if not_assessed_only:
        return not_assessed
    answer = answer_in(result)
    comparisons = [row.model_dump() for row in result.comparisons]
    numbers = json.dumps(comparisons, indent=1, ensure_ascii=False, allow_nan=False)
    parts = [
        not_assessed,
        *(answer.question, *answer.sentences, *answer.next_steps),
        *(part_of(text, title) for title in PARTS),
        # Digits that depend on the processor's instructions are left out, as in the tables.
        _LONG.sub(lambda number: f"{float(number[0]):.9g}", numbers),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def test_every_case_gets_the_verdicts_that_it_got() -> None:
    made: dict[str, str] = {}
    for name in CASES:
        made |= _texts(name)
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        golden.write_archive(HELD, made)
    held = golden.read_archive(HELD)
    assert len(held) > 10, f"no {HELD}: write it with KVEVAL_UPDATE_GOLDEN=1"
    if difference := golden.difference(held, made):
        pytest.fail(difference, pytrace=False)
    assert GOODPUT in made["goodput/baseline.csv"]
