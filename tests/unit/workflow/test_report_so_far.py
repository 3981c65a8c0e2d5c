"""A report over the runs that exist: what is there with all its tables, what is not with its reason."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from tests.support import synthetic_campaign as campaign
from tests.support.synthetic_workflow import make_workflow

from kveval.report.report import ReportError
from kveval.workflow.report_so_far import Analysis, report_so_far

MODEL = "Qwen3-8B"
WHOLE, ARM = (MODEL, "no-offload", 0), (MODEL, "native-offload", 10_000)
NO_LEVEL, FAILED = (MODEL, "lmcache-local", 10_000), (MODEL, "lmcache-redis", 10_000)
DAMAGED = (MODEL, "llm-d-redis", 0)
CELLS = [WHOLE, ARM, NO_LEVEL, FAILED, DAMAGED]
CONTRASTS = {"contrasts": [["no-offload", "native-offload"]]}
ANALYSIS = Analysis("0.22.1", 30, {"baselines": campaign.BASELINES, "settings": CONTRASTS})


def of(folder: Path, cell: tuple[str, str, int]) -> Path:
    return folder.joinpath("results", *map(str, cell))


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole cells; of the others one has no level, one no run, one a description that is cut."""
    folder = tmp_path_factory.mktemp("half")
    make_workflow(folder, [cell for cell in CELLS if cell != FAILED])
    for path in of(folder, NO_LEVEL).glob("run-*/levels.parquet"):
        table = pd.read_parquet(path)
        table.assign(throughput_tok_s=float("nan"), checks_failed="completed").to_parquet(path, index=False)
    for path in of(folder, DAMAGED).glob("run-*/measurement.json"):
        stored = folder / json.loads(path.read_text())["path"]
        (stored / "run.json").write_text('{"schema": 1, "measurem')
    log = folder.joinpath("logs", "benchmark", *map(str, FAILED), "run-1.log")
    log.parent.mkdir(parents=True)
    log.write_text("12:00:00 FAILED: the tier asks for 18 GiB of 16\n")
    return folder


@pytest.fixture(scope="module")
def output(half_done: Path) -> Path:
    output = half_done / "results" / "so-far" / "REPORT.md"
    plan = campaign.plan(CELLS)
    with pytest.MonkeyPatch.context() as patch:
        # Pointers name their run from the repository's root.
        patch.chdir(half_done)
        report_so_far(plan, half_done / "results", half_done / "logs", ANALYSIS, output)
    return output


def test_every_cell_that_lacks_something_is_named_with_its_reason(output: Path) -> None:
    missing = output.read_text(encoding="utf-8").split("### Missing")[1].split("\n## ")[0]
    assert f"- {MODEL}, lmcache-redis 10K: failed: the tier asks for 18 GiB of 16" in missing
    assert re.search(rf"- {MODEL}, lmcache-local 10K: failed: .*no level with a throughput", missing)
    assert re.search(rf"- {MODEL}, llm-d-redis: failed: run-3 cannot be read: .*run.json", missing)
    assert "native-offload" not in missing


def test_the_report_names_only_files_that_are_there(output: Path) -> None:
    text = output.read_text(encoding="utf-8")
    assert "failed its own checks" not in text
    named = re.findall(r"`(analysis/\w+\.csv|report\.json)`|!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(named) > 20
    assert [path for pair in named for path in pair if path and not (output.parent / path).exists()] == []


def test_what_the_campaign_declares_is_compared(output: Path) -> None:
    contrasts = pd.read_csv(output.parent / "analysis" / "contrasts.csv")
    assert set(contrasts["scenario"]) == {"no-offload"}
    assert "against native-offload 10K: no-offload" in output.read_text(encoding="utf-8")


def test_nothing_measured_is_an_error_that_says_why(half_done: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"nothing to report[\s\S]*lmcache-redis/10000: failed: the tier asks for"):
        report_so_far(campaign.plan([FAILED]), half_done / "results", half_done / "logs", ANALYSIS, tmp_path / "R.md")
