"""A level is named by what it counts."""

import pytest

from kveval.load.workload import workload_of
from kveval.report.data.level_units import STREAMS, unit_of


@pytest.mark.parametrize(
    ("workload", "heading", "sentence"),
    [
        ({}, "at N concurrent", "300 concurrent requests"),
        ({"profile": "concurrent"}, "at N concurrent", "300 concurrent requests"),
        ({"profile": "poisson"}, "at N requests/min", "300 requests/min"),
        ({"profile": "prefix-length"}, "at N prefix tokens", "300 prefix tokens"),
        ({"profile": "sweep"}, "at strategy N", "strategy 300 of the sweep"),
    ],
)
def test_a_level_is_named_by_what_it_counts(
    workload: dict[str, str], heading: str, sentence: str
) -> None:
    unit = unit_of([workload_of(workload)] * 2)
    assert (unit.heading, unit.in_sentence([300])) == (heading, sentence)
    assert unit.axis


def test_levels_that_count_different_things_get_neutral_words() -> None:
    assert (
        unit_of([workload_of({"profile": "poisson"}), workload_of({})]).label(5)
        == "level 5"
    )
    assert unit_of([]) == STREAMS
