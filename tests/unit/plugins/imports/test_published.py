"""The published tree through its sheet: the ids and the numbers that it had, and what a user has to correct."""

import json
import os
from pathlib import Path

import pytest
from tests.support.described import run_tables
from tests.support.import_sheets import Row, campaign_plan, correct, update

from kveval.plugins.imports.run import import_run
from kveval.store.run_file import stored_run
from kveval.store.store import Store

pytestmark = pytest.mark.skipif(
    "KVEVAL_TEST_DATA" not in os.environ,
    reason="KVEVAL_TEST_DATA is not set: it names a folder with real measurements",
)
MODEL = "Qwen3-0.6B"
COLUMNS = ["throughput_tok_s", "ttft_ms_mean", "itl_ms_mean"]
# As they were when trees were imported by patterns of names: id, and sums over the ten strategies.
PUBLISHED = {
    f"{MODEL}/lmcache-local/20000": (
        "6cdb5904a68d0083",
        [19892.223419810398, 8176.1150500452995, 162.14157224750002],
    ),
    f"{MODEL}/native-offload/20000": (
        "e6d75e9b86ec7a84",
        [20141.7872592975, 7797.4193089284, 140.9977158599],
    ),
    f"{MODEL}/no-offload/0": (
        "1e50091594b2fb3a",
        [20181.026992851803, 7578.4533430538, 140.71400678039998],
    ),
}


def corrections(row: Row) -> dict[str, str]:
    """The two other reports of the folder are left out; the sizes of tiers are in none of its files."""
    if "oct2025" not in row["report"]:
        return {"use": "no"}
    return {"cpu_blocks": "20000"} if row["cpu_blocks"] == "?" else {}


def test_the_evaluation_of_october_keeps_its_ids_and_its_numbers(
    tmp_path: Path,
) -> None:
    sheet = tmp_path / "imports.csv"
    updated = update(sheet, Path(os.environ["KVEVAL_TEST_DATA"]) / "guidellm")
    assert len(updated.added) == 32
    assert len(updated.published) == 3
    # Of 30 rows of the evaluation, the sizes of two tiers in ten rows each.
    assert correct(sheet, corrections) == 2 + 20
    made = {}
    for run in campaign_plan(sheet).runs:
        pointer = tmp_path / f"{run.cell.scenario}.json"
        import_run(run, Store(tmp_path / "store"), pointer)
        levels = run_tables(stored_run(pointer))[0]
        measurement = json.loads(pointer.read_text())["measurement"]
        made[run.cell.path] = (measurement, pytest.approx([*levels[COLUMNS].sum()]))
    assert made == PUBLISHED
