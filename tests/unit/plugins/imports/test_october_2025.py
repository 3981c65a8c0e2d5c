"""The published rows of October 2025, from the files they were made from."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.guidellm_reports import Story, document

from kveval.load.reports import Aggregate, LoadReport
from kveval.load.reports.reading import decode_report, read_report
from kveval.plugins.imports.october_2025 import published_row

DATA = Path(os.environ.get("KVEVAL_TEST_DATA", ""))
real_data = pytest.mark.skipif(
    "KVEVAL_TEST_DATA" not in os.environ,
    reason="KVEVAL_TEST_DATA is not set: it names a folder with real measurements",
)
CONFIGURATIONS = {
    "default": "GPU Only",
    "offload": "OffloadingConnector",
    "lmcache": "LMCacheConnectorV1",
}


@real_data
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_reproduces_the_published_row(name: str) -> None:
    tables = json.loads((DATA / "published-tables.json").read_text())["tables"]
    rows = next(table for table in tables if table["id"] == "000.performance_summary")[
        "rows"
    ]
    wanted = (("model", "Qwen3-0.6B"), ("config", CONFIGURATIONS[name]))
    published = next(
        row for row in rows if all(row[key] == value for key, value in wanted)
    )
    report = read_report(DATA / "guidellm" / f"oct2025-Qwen3-0.6B-{name}.json")
    row = published_row(report)
    assert row is not None
    assert round(row.max_output_tok_s, 1) == published["max_output_tps"]
    assert round(row.ttft_ms, 1) == published["avg_ttft_ms"]
    assert round(row.itl_ms, 1) == published["avg_tpot_ms"]
    assert (row.strategies, row.strategy) == (10, "throughput")
    assert round(100 * row.incomplete_share) == 41


def made(**changes: Any) -> LoadReport:
    """A sweep of two strategies; `changes` are those of a level."""
    stories = [Story(streams=2, ttft_s=0.1), Story(streams=8, ttft_s=0.3)]
    content = json.dumps(document("0.3", stories)).encode()
    report = decode_report(content, "r")
    levels = tuple(replace(level, **changes) for level in report.levels)
    return replace(report, levels=levels)


def test_takes_the_highest_rate_and_plain_means() -> None:
    row = published_row(made())
    assert row is not None
    delivered = Story(streams=8, ttft_s=0.3).delivered
    assert row.max_output_tok_s == pytest.approx(delivered / 60)
    assert row.ttft_ms == pytest.approx(200)
    assert row.strategies == 2
    assert "mean TTFT 200.0 ms" in str(row)


def test_a_sweep_in_which_every_request_failed_cut_none_off() -> None:
    row = published_row(made(completed=0, incomplete=0))
    assert row is not None
    assert row.incomplete_share == 0


def test_a_report_without_the_statistics_has_no_row() -> None:
    assert published_row(made(aggregate=Aggregate())) is None
