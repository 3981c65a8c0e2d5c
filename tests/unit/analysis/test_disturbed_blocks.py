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
CELLS = [_CONFIG.specification(cell).to_json() for cell in _CONFIG.cells]


def run(number: int, *shares: float | None, cell: int = 0) -> Run:
    levels = [
        {"level": level, "others_cpu_percent": share}
        for level, share in enumerate(shares, start=1)
    ]
    return msgspec.convert(described(CELLS[cell], number, levels=levels), Run)


def test_a_run_is_disturbed_by_what_others_took_in_any_of_its_levels() -> None:
    quiet = [run(1, 0.4, 10.0), run(1, None, cell=1), run(2)]
    disturbed = [run(3, 0.5, 10.1), run(2, 38.0, 2.0, cell=1)]
    found = DisturbedBlocks.from_runs([*quiet, *disturbed], 3)
    assert [run.run for run in found.runs] == [2, 3]
    assert [run.others_percent for run in found.runs] == [38.0, 10.1]
    assert found.blocks == [2, 3]
    assert (found.quiet, found.needed) == (1, 2)


@pytest.mark.parametrize(
    ("planned", "disturbed", "needed"),
    [
        (3, [], 0),
        (3, [2], 1),
        (3, [1, 2, 3], 3),
        # The further blocks of a campaign that was repeated before.
        (5, [2, 3], 0),
        (5, [2, 3, 5], 1),
        # It plans fewer than a verdict needs, and more.
        (1, [1], 1),
        (9, [1, 4, 8], 0),
    ],
)
def test_as_many_blocks_are_needed_as_are_lacking_for_a_verdict(
    planned: int, disturbed: list[int], needed: int
) -> None:
    runs = [run(number, 40.0, cell=cell) for number in disturbed for cell in (0, 1)]
    assert DisturbedBlocks.from_runs(runs, planned).needed == needed


@given(st.integers(1, 12), st.sets(st.integers(1, 12)))
def test_once_the_further_blocks_were_quiet_nothing_is_repeated(
    planned: int, disturbed: set[int]
) -> None:
    runs = [run(number, 99.0) for number in disturbed]
    first = DisturbedBlocks.from_runs(runs, planned)
    within = [one for one in runs if one.run <= planned]
    again = DisturbedBlocks.from_runs(within, planned + first.needed)
    assert again.quiet >= min(planned, MIN_RUNS)
    assert first.needed == 0 or again.needed <= MIN_RUNS - min(planned, MIN_RUNS)
