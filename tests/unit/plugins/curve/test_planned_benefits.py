"""What `kveval curve` says of what tiers buy, from a store with and without a measurement."""

import numpy as np
import pytest
from benchmarks import campaign_files as files
from tests.support.config_files import CONFIG, RAW
from tests.support.stored_runs import measured

from kveval.campaign.cell import Cell
from kveval.configuration.loading import load_config
from kveval.plugins.curve.plan.benefits import StoredBenefits
from kveval.plugins.curve.plan.curve_files import benefit_lines
from kveval.plugins.curve.plan.curves import level_curves
from kveval.plugins.curve.predicted import benefit as analysis
from kveval.store.store import Store
from kveval.workflow.planning.stored import StoreIndex

WORDS = ["--configfile", "mine.yaml"]
TIER = Cell("Qwen3-0.6B", "native-offload", 10_000)


@pytest.fixture(scope="module")
def config():
    return load_config(CONFIG / "config.yaml", CONFIG)


def test_before_any_measurement_it_says_what_it_would_take(config, tmp_path):
    store = StoreIndex.read(tmp_path)
    curves = [*level_curves(config, store)]
    bought = StoredBenefits(config, store).at(curves[0])
    assert bought is None
    [line] = benefit_lines(config, curves[0], bought, store, WORDS)
    assert line.endswith(
        ": snakemake --cores 4 results/Qwen3-0.6B/no-offload/0/peak.csv --configfile mine.yaml"
    )


def test_stored_runs_that_were_disturbed_are_repeated_and_quiet_ones_read_first(
    config, tmp_path
):
    base = config.specification(config.cells[0]).to_json()
    payload = files.report(np.random.default_rng(1), 0, 2, 40.0)

    def stored(run: int, share: float) -> StoreIndex:
        level = {"level": 2, "status": "ok", "report": "raw/guidellm-0002.json.zst"}
        levels = [level | {"others_cpu_percent": share}]
        measured(Store(tmp_path), base, run, payload=payload, levels=levels)
        return StoreIndex.read(tmp_path)

    for run in (1, 2, 3):
        store = stored(run, 30.0 + run)
    curves = [*level_curves(config, store)]
    bought = StoredBenefits(config, store).at(curves[0])
    [line] = benefit_lines(config, curves[0], bought, store, WORDS)
    assert line == (
        "  To predict the gain, measure Qwen3-0.6B/no-offload/0 again on a quiet machine, because other programs took"
        " 31 % of the processors or more in each of its 3 stored runs: `runs: 6`, snakemake --cores 4 report"
        " --configfile mine.yaml --config runs=6"
    )
    [line] = benefit_lines(config, curves[0], bought, store, ["--config", "seed=3"])
    assert line.endswith("report --config seed=3 runs=6")
    bridge = {"models": [TIER.model], "scenarios": ["no-offload"], "cpu_blocks": [0]}
    for changes, step in (
        ({"runs": 7}, "snakemake --cores 4 report --configfile mine.yaml"),
        ({"bridges": [bridge]}, "`rounds` under `bridges`"),
    ):
        other = load_config({**RAW["config"], **changes}, CONFIG)
        [line] = benefit_lines(other, curves[0], bought, store, WORDS)
        assert line.endswith(f"stored runs: {step}")
    levels = StoredBenefits(config, stored(4, 1.0))._measured(config.cells[0])
    assert [level.run for level in levels[2]] == [4]


def test_from_a_measurement_without_a_tier_it_predicts_each_size(
    config, tmp_path, monkeypatch
):
    monkeypatch.setattr(analysis, "_DRAWS", 4)
    monkeypatch.setattr(analysis, "_SEQUENCES", 2)
    specifications = {
        cell: config.specification(cell).to_json() for cell in config.cells
    }
    payload = files.report(np.random.default_rng(1), 0, 2, 40.0)
    unreadable = measured(
        Store(tmp_path), specifications[config.cells[0]], host={"fingerprint": "0000"}
    )
    (unreadable / "run.json").write_text("{")
    for run in (1, 3, 4, 6):
        measured(Store(tmp_path), specifications[config.cells[0]], run, payload=payload)
    faster = files.report(np.random.default_rng(1), 0, 2, 80.0)
    measured(Store(tmp_path), specifications[TIER], payload=faster)
    store = StoreIndex.read(tmp_path)
    curves = [*level_curves(config, store)]
    bought = StoredBenefits(config, store).at(curves[0])
    assert bought.basis.runs == [1, 3, 4]
    assert set(bought.cells) == {cell for cell in config.cells if cell.cpu_blocks}
    assert set(bought.measured) == {TIER}
    assert (
        bought.cells[TIER].throughput_percent.value
        > 0
        == bought.cells[config.cells[1]].throughput_percent.value
    )
    text = "\n".join(benefit_lines(config, curves[0], bought, store, WORDS))
    # Measured: twice the tokens of what was measured without.
    assert (
        "measured +100 %" in text and f"({-(-bought.knee[0] // 16):,} blocks)" in text
    )
    assert "no time for copies" in text and "runs 1, 3 and 4" in text
    assert "Not read: run 6, disturbed or more" in text
