"""Which blocks other programs disturbed, and how many are needed for them."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, RAW
from tests.support.stored_runs import described

from kveval.analysis.disturbed_blocks import DisturbedBlocks
from kveval.configuration.loading import load_config
from kveval.load.sample_sizes import MIN_RUNS
from kveval.store.run_file import Run

_CONFIG = load_config(RAW["config"], CONFIG)
SPECIFICATIONS = [_CONFIG.specification(cell).to_json() for cell in _CONFIG.cells]
FIRST_CELL, SECOND_CELL = 0, 1


def run(number: int, *others_percent: float | None, cell: int = FIRST_CELL) -> Run:
    """Return a run of a cell; `others_percent`: what other programs took in each of its levels, None if unknown."""
    levels = [
        {"level": level, "others_cpu_percent": share}
        for level, share in enumerate(others_percent, start=1)
    ]
    document = described(SPECIFICATIONS[cell], number, levels=levels)
    return msgspec.convert(document, Run)


def test_a_run_is_disturbed_by_what_others_took_in_any_of_its_levels() -> None:
    quiet = [
        run(1, 0.4, 10.0),
        run(1, None, cell=SECOND_CELL),
        run(2),
    ]
    disturbed = [
        run(3, 0.5, 10.1),
        run(2, 38.0, 2.0, cell=SECOND_CELL),
    ]
    blocks = DisturbedBlocks.from_runs([*quiet, *disturbed], planned=3)
    in_order = [(run.run, run.others_percent) for run in blocks.runs]
    assert in_order == [(2, 38.0), (3, 10.1)]
    assert blocks.blocks == [2, 3]
    assert blocks.quiet == 1
    assert blocks.needed == 2


@pytest.mark.parametrize(
    ("planned", "disturbed", "needed"),
    [
        pytest.param(3, [], 0, id="none disturbed"),
        pytest.param(3, [2], 1, id="one disturbed"),
        pytest.param(3, [1, 2, 3], 3, id="all disturbed"),
        pytest.param(5, [2, 3], 0, id="repeated before"),
        pytest.param(5, [2, 3, 5], 1, id="repeated before, and disturbed again"),
        pytest.param(1, [1], 1, id="fewer planned than a verdict needs"),
        pytest.param(9, [1, 4, 8], 0, id="more planned than a verdict needs"),
    ],
)
def test_as_many_blocks_are_needed_as_are_lacking_for_a_verdict(
    planned: int, disturbed: list[int], needed: int
) -> None:
    runs = [
        run(number, 40.0, cell=cell)
        for number in disturbed
        for cell in (FIRST_CELL, SECOND_CELL)
    ]
    assert DisturbedBlocks.from_runs(runs, planned).needed == needed


@given(st.integers(1, 12), st.sets(st.integers(1, 12)))
def test_once_the_further_blocks_were_quiet_nothing_is_repeated(
    planned: int, disturbed: set[int]
) -> None:
    runs = [run(number, 99.0) for number in disturbed]
    before = DisturbedBlocks.from_runs(runs, planned)
    # What is beyond the plan is measured again, quiet this time.
    kept = [run for run in runs if run.run <= planned]
    after = DisturbedBlocks.from_runs(kept, planned + before.needed)
    assert after.quiet >= min(planned, MIN_RUNS)
    planned_fewer = MIN_RUNS - min(planned, MIN_RUNS)
    assert before.needed == 0 or after.needed <= planned_fewer
