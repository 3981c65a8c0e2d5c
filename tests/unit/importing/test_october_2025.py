"""The published rows of October 2025, from the files they were made from."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.guidellm_reports import Story, document

from kveval.importing.october_2025 import legacy_row, main
from kveval.load.reports import ReportFileError
from kveval.load.reports.reading import decode_report, read_report

DATA = Path(os.environ.get("KVEVAL_TEST_DATA", ""))
real_data = pytest.mark.skipif(
    "KVEVAL_TEST_DATA" not in os.environ, reason="KVEVAL_TEST_DATA is not set"
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
    row = legacy_row(
        read_report(DATA / "guidellm" / f"oct2025-Qwen3-0.6B-{name}.json"), name
    )
    assert round(row.max_output_tok_s, 1) == published["max_output_tps"]
    assert round(row.ttft_ms, 1) == published["avg_ttft_ms"]
    assert round(row.itl_ms, 1) == published["avg_tpot_ms"]
    assert (row.strategies, row.strategy) == (10, "throughput")
    assert round(100 * row.incomplete_share) == 41


@real_data
def test_the_command_prints_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(DATA / "guidellm" / "oct2025-Qwen3-0.6B-lmcache.json")]) == 0
    printed = capsys.readouterr().out
    assert "4707.3" in printed
    assert "693.8" in printed
    assert "14.9" in printed
    assert "41 % of its requests cut off" in printed


def test_takes_the_highest_rate_and_plain_means() -> None:
    stories = [Story(streams=2, ttft_s=0.1), Story(streams=8, ttft_s=0.3)]
    row = legacy_row(
        decode_report(json.dumps(document("0.3", stories)).encode(), "r"), "r"
    )
    assert row.max_output_tok_s == pytest.approx(stories[1].delivered / 60)
    assert row.ttft_ms == pytest.approx(200)
    assert row.strategies == 2


def test_a_sweep_in_which_every_request_failed_cut_none_off() -> None:
    report = decode_report(json.dumps(document("0.3")).encode(), "r")
    failed = tuple(replace(level, completed=0, incomplete=0) for level in report.levels)
    assert legacy_row(replace(report, levels=failed), "r").incomplete_share == 0


def test_a_report_without_the_statistics_is_refused_and_the_others_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = document("0.3")
    del content["benchmarks"][0]["metrics"]["inter_token_latency_ms"]
    with pytest.raises(ReportFileError) as error:
        legacy_row(decode_report(json.dumps(content).encode(), "r"), "r")
    assert (error.value.code, error.value.facts) == (
        "no_statistics",
        {"quantity": "itl_ms"},
    )
    (tmp_path / "good.json").write_text(json.dumps(document("0.3")))
    (tmp_path / "bad.json").write_text("{")
    assert main([str(tmp_path / "bad.json"), str(tmp_path / "good.json")]) == 1
    out, err = capsys.readouterr()
    assert "good.json" in out
    assert "bad.json" in err
