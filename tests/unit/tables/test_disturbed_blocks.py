"""Which blocks other programs disturbed, and how many are needed for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, RAW
from tests.support.described import described_run
from tests.support.stored_runs import described

from kveval.configuration.loading import load_config
from kveval.load.sample_sizes import MIN_RUNS
from kveval.store.run_file import Run
from kveval.tables.disturbed_blocks import blocks_to_add, disturbed_runs

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
    return described_run(document)


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
    found = disturbed_runs([*quiet, *disturbed, run(4, 99.0)], planned=3)
    assert [(run.run, run.others_percent) for run in found] == [(3, 10.1), (2, 38.0)]
    assert blocks_to_add(found, planned=3) == 2


@pytest.mark.parametrize(
    ("planned", "disturbed", "needed"),
    [
        pytest.param(3, [], 0, id="none disturbed"),
        pytest.param(3, [2], 1, id="one disturbed"),
        pytest.param(3, [1, 2, 3], 3, id="all disturbed"),
        pytest.param(5, [2, 3], 0, id="added before"),
        pytest.param(5, [2, 3, 5], 1, id="added before, and disturbed again"),
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
    assert blocks_to_add(disturbed_runs(runs, planned), planned) == needed


@given(st.integers(1, 12), st.sets(st.integers(1, 12)))
def test_once_the_further_blocks_were_quiet_none_is_added(
    planned: int, numbers: set[int]
) -> None:
    disturbed = disturbed_runs([run(number, 99.0) for number in numbers], planned)
    added = blocks_to_add(disturbed, planned)
    quiet = planned + added - len(disturbed)
    assert quiet >= min(planned, MIN_RUNS)
    if planned >= MIN_RUNS:
        assert blocks_to_add(disturbed, planned + added) == 0


@given(st.integers(1, 12))
def test_where_every_block_is_disturbed_again_the_campaign_needs_ever_more(
    planned: int,
) -> None:
    for _ in range(3):
        runs = [run(number, 99.0) for number in range(1, planned + 1)]
        added = blocks_to_add(disturbed_runs(runs, planned), planned)
        assert added == min(planned, MIN_RUNS)
        planned += added
