"""docs/analysis.md and docs/comparisons.md name every column of every table, and every rule with its checks."""

import re

import pytest
import yaml
from tests.support.described import run_tables
from tests.support.document_checks import DOCUMENT_RULES
from tests.support.paths import REPOSITORY
from tests.support.synthetic import BASELINES, METRICS, levels_table, peaks_table
from tests.unit.tables.test_level_tables import measurement  # noqa: F401  (a fixture)

from kveval.campaign.campaign_file import Comparison
from kveval.plugins.curve.predicted import waterfall
from kveval.plugins.curve.predicted.hits import NUMBERS, served_table
from kveval.tables.csv_files import PREDICTED_TEXTS
from kveval.verdict.verdict_tables import CHECKS, RULES, verdict_tables

TEXT = "".join(
    (REPOSITORY / "docs" / name).read_text()
    for name in ("analysis.md", "comparisons.md")
)
NAMED = set(re.findall(r"`([a-z0-9_]+)`", TEXT))


def documented(column: str) -> bool:
    latency = re.fullmatch(r"(ttft|tpot|itl|e2e)_ms_(mean|p50|p90|p99)", column)
    return column in NAMED or (latency is not None and f"{latency[1]}_ms_mean" in NAMED)


def test_every_column_of_a_level_is_documented(measurement) -> None:  # noqa: F811
    assert [name for name in run_tables(measurement())[0] if not documented(name)] == []


def test_every_column_of_predicted_hits_is_documented() -> None:
    columns = (*NUMBERS, *PREDICTED_TEXTS, *served_table([]))
    assert [name for name in columns if not documented(name)] == []


@pytest.mark.parametrize(
    "table",
    ["comparison", "contrasts", "peak_comparison", "averages", "checks", "peaks"],
)
def test_every_column_of_a_table_is_documented(table: str) -> None:
    levels = levels_table()
    tables = verdict_tables(levels, peaks_table(levels), BASELINES, Comparison()) | {
        "peaks": peaks_table(levels)
    }
    metrics = {
        *yaml.safe_load((REPOSITORY / "config" / "metrics.yaml").read_text()),
        *METRICS,
    }
    assert [
        name for name in tables[table] if not documented(name) and name not in metrics
    ] == []


def test_every_column_of_the_waterfall_is_documented() -> None:
    assert [name for name in waterfall.COLUMNS if not documented(name)] == []


def test_every_rule_is_listed_with_its_checks() -> None:
    listed = {
        row[0]: re.findall(r"`(\w+)`", row[1])
        for row in re.findall(r"^\| (R\d+) \|[^|]*\|([^|]*)\|$", TEXT, re.M)
    }
    checks = [check for of in CHECKS.values() for check in of]
    for rule in RULES:
        held = [check.name for check in checks if rule in check.rules]
        assert listed[rule] == [
            *held,
            *(function.__name__ for function in DOCUMENT_RULES.get(rule, ())),
        ]
