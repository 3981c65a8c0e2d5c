"""How long answers of users who pause are taken to last, and what `kveval curve` says of it."""

import numpy as np
import pytest
from benchmarks import campaign_files as files
from tests.support.paths import REPOSITORY
from tests.support.stored_runs import measured

from kveval.campaign.cell import Cell
from kveval.configuration.loading import load_config
from kveval.plugins.curve.plan.answer_times import answer_times
from kveval.plugins.curve.plan.curve_files import level_lines
from kveval.plugins.curve.plan.curves import level_curves
from kveval.plugins.curve.plan.fit import fit_lines
from kveval.plugins.curve.simulation.cells import curves_of
from kveval.store.store import Store
from kveval.workflow.planning.stored import StoreIndex

CONFIG = REPOSITORY / "config"
MODEL = "Qwen3-0.6B"
NONE, SMALL, LARGE = (
    Cell(MODEL, "no-offload", 0),
    Cell(MODEL, "native-offload", 800),
    Cell(MODEL, "native-offload", 2400),
)
# Of six users with answers of 128 tokens, tokens per second at which an answer takes 1.6 s.
RATE = 6 * 128 / 1.6


@pytest.fixture(scope="module")
def readers():
    return load_config(CONFIG / "campaigns" / "laptop-users.yaml", CONFIG)


def stored(config, root, cells, **changes):
    """Store a run of each cell, whose answers take the seconds given; return the index."""
    for cell, answer_s in cells.items():
        payload = files.report(np.random.default_rng(1), 0, 6, RATE * 1.6 / answer_s)
        levels = [{"level": 6, "status": "ok", "report": "raw/guidellm-0002.json.zst"}]
        specification = config.specification(cell).to_json()
        measured(Store(root), specification, payload=payload, levels=levels, **changes)
    return StoreIndex.read(root)


def text(config, store):
    (curves,) = level_curves(config, store)
    return "\n".join(level_lines(config, curves))


def test_a_cells_own_runs_say_how_long_its_answers_take(readers, tmp_path):
    store = stored(readers, tmp_path, {NONE: 5.0, SMALL: 4.0, LARGE: 0.5})
    times = answer_times(readers, list(readers.cells), 6, store)
    for cell, seconds in ((NONE, 5.0), (SMALL, 4.0), (LARGE, 0.5)):
        assert times[cell].least_s == times[cell].most_s
        assert times[cell].most_s == pytest.approx(seconds, rel=0.15)
    (curves,) = level_curves(readers, store)
    alone = curves_of(readers.specification(NONE), 6, answer_s=times[NONE].most_s)
    assert curves.cells[NONE].device_hit_share == alone.device_hit_share
    assert " s in no-offload; " in text(readers, store)
    assert ", as measured in runs of the same\n" in text(readers, store)


def test_from_the_baseline_a_tiers_answers_take_at_most_as_long(readers, tmp_path):
    store = stored(readers, tmp_path, {NONE: 5.0})
    times = answer_times(readers, list(readers.cells), 6, store)
    # Its first token comes after 0.3 of the time.
    assert times[SMALL].least_s == pytest.approx(0.7 * times[NONE].most_s)
    assert times[SMALL].most_s == times[NONE].most_s
    assert (
        f"as measured in {NONE.path}, without and with the time to the first token"
        in text(readers, store)
    )
    (curves,) = level_curves(readers, store)
    low, high = curves.hit_share_range(SMALL)
    each = [
        curves_of(readers.specification(SMALL), 6, answer_s=seconds).hit_share_range[0]
        for seconds in times[SMALL][:2]
    ]
    assert (low, high) == (min(each), max(each))


def test_another_size_is_better_than_an_assumption(readers, tmp_path):
    store = stored(readers, tmp_path, {LARGE: 0.5})
    times = answer_times(readers, list(readers.cells), 6, store)
    assert times[NONE].source == f"as measured in {LARGE.path}"
    assert times[NONE][:2] == times[LARGE][:2]


def test_a_report_that_cannot_be_read_is_passed_over(readers, tmp_path):
    levels = [{"level": 6, "status": "ok", "report": "raw/none.json"}]
    specification = readers.specification(NONE).to_json()
    measured(Store(tmp_path), specification, levels=levels)
    times = answer_times(readers, [NONE], 6, StoreIndex.read(tmp_path))
    assert times[NONE].source.startswith("assumed: 20 ms a token")


def test_another_load_tells_nothing(readers, tmp_path):
    other = load_config(CONFIG / "campaigns" / "laptop-users-no-pauses.yaml", CONFIG)
    store = stored(other, tmp_path, {NONE: 5.0})
    (one,) = answer_times(readers, [NONE], 6, store).values()
    assert one.most_s == pytest.approx(0.32)
    assert answer_times(other, [NONE], 6, store) == {}


def test_a_known_rate_of_computing_makes_the_assumption_a_range(readers, tmp_path):
    def requests(ttft_ms, served):
        one = {"ttft_ms": ttft_ms, "prompt_tokens": 1020, "served_tokens": served}
        return {"requests": [one] * 3}

    timed = {
        "cold": requests(1005.0, 0),
        "device": requests(5.0, 1000),
        "tier": requests(15.0, 1000),
    }
    other = load_config(CONFIG / "campaigns" / "laptop-users-no-pauses.yaml", CONFIG)
    store = stored(other, tmp_path, {SMALL: 5.0}, one_request=timed)
    times = answer_times(readers, list(readers.cells), 6, store)[SMALL]
    assert times.least_s == pytest.approx(0.32)
    # Of 3,128 tokens in the mean, the later ones take longer than the first 1,000.
    assert 3.4 < times.most_s < 2 * 3.4
    lines = text(readers, store)
    assert f"answers of 0.32 to {times.most_s:.1f} s, assumed: 20 ms a token" in lines
    assert "computing at 1,000 tok/s (measured" in lines
    (curves,) = level_curves(readers, store)
    low, high = curves.hit_share_range(SMALL)
    assert low < high
    assert list(fit_lines(readers, [curves], store))
