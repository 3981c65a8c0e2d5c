"""A level is named by what it counts."""

from typing import Any

import pytest

from kveval.load.workload import workload_of
from kveval.report.data.level_units import STREAMS, load_in_few_words, unit_of


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


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (
            {"levels": [4, 8], "prefix_tokens": 1024, "prefix_count": 16},
            "4, 8 concurrent requests, 16 prefixes x 1,024 tokens",
        ),
        ({"levels": [1, 8, 16, 1000]}, "1 to 1,000 concurrent requests"),
        (
            {"levels": [2], "prefix_tokens": 100, "prefix_count": {"per_level": 3}},
            "2 concurrent requests, 3 times as many prefixes x 100 tokens",
        ),
        (
            {
                "profile": "prefix-length",
                "levels": [512],
                "prefix_count": {"tokens": 9000},
            },
            "512 prefix tokens, prefixes, 9,000 tokens together",
        ),
        ({"profile": "sweep", "sweep_size": 5}, ""),
    ],
)
def test_a_load_is_named_in_few_words(workload: dict[str, Any], words: str) -> None:
    assert load_in_few_words(workload_of(workload)) == words
