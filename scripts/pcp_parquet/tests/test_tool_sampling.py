"""Values between samples, rates and units, against values worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp_parquet.archive.units import COUNTER, DISCRETE, INSTANT
from pcp_parquet.tests.test_archive_writer import units
from pcp_parquet.tool.interpolation import Moments, present, rates, sampled
from pcp_parquet.tool.samples import SeriesSamples
from pcp_parquet.tool.scaling import Scaling, Units, parse_units, scaling, unpacked

S = 10**9


def series(values: dict[float, object], kind: type) -> SeriesSamples:
    times = np.array([int(second * S) for second in values], dtype=np.int64)
    return SeriesSamples(times, np.array(list(values.values()), dtype=kind))


def moments(*seconds: float, marks: tuple[float, ...] = ()) -> Moments:
    return Moments(
        np.array([int(second * S) for second in seconds], dtype=np.int64),
        0,
        np.array([int(second * S) for second in marks], dtype=np.int64),
    )


def at(
    samples: SeriesSamples, when: Moments, semantics: int, **life: int
) -> list[object]:
    values, valid = sampled(samples, when, semantics, **life)
    assert (valid == present(samples, when, semantics, **life)).all()
    assert values.dtype == samples.values.dtype
    return [
        value if there else None
        for value, there in zip(values.tolist(), valid.tolist(), strict=True)
    ]


def test_a_counter_lies_on_the_line_and_is_rounded_to_its_type() -> None:
    # A third of the way from 10 to 20 is 13.33, a half of the way 15, 0.95 of it 19.5: rounded up.
    for kind in (np.uint32, np.int32, np.uint64, np.int64):
        counted = series({0: 10, 3: 20}, kind)
        assert at(counted, moments(-1, 0, 1, 1.5, 2.85, 3, 4), COUNTER) == [
            None,
            10,
            13,
            15,
            20,
            20,
            None,
        ]
    assert at(series({0: 1.0, 4: 2.0}, np.float64), moments(1), COUNTER) == [1.25]
    assert at(series({0: 1.0, 4: 2.0}, np.float32), moments(3), COUNTER) == [1.75]


def test_a_counter_that_falls_is_on_the_line_too() -> None:
    for kind in (np.uint32, np.int32, np.uint64, np.int64):
        assert at(series({0: 20, 10: 10}, kind), moments(2.5), COUNTER) == [18]
    # From 2^32 - 6 down to 4, without a wrap: half of the way.
    assert at(series({0: 2**32 - 6, 2: 4}, np.uint32), moments(1), COUNTER) == [
        2**31 - 1
    ]


def test_differences_of_large_counters_are_exact() -> None:
    counted = series({0: 2**63 + 2**12, 2: 2**63 + 2**12 + 2**13}, np.uint64)
    assert at(counted, moments(1), COUNTER) == [2**63 + 2**13]


def test_the_nearer_sample_counts_and_on_a_tie_the_earlier() -> None:
    level = series({0: 10, 4: 20}, np.uint32)
    assert at(level, moments(1, 2, 2.001, 4, 4.5), INSTANT) == [10, 10, 20, 20, None]
    assert at(level, moments(1, 2, 2.001, 4, 4.5), DISCRETE) == [10, 10, 20, 20, 20]
    assert at(series({0: "a", 4: "b"}, object), moments(3.9, 4), INSTANT) == ["a", "b"]


def test_an_interruption_is_no_sample() -> None:
    level = series({0: 10, 4: 20, 8: 30}, np.uint32)
    when = moments(1, 4, 5, 7, 8, marks=(4.001, 6))
    assert at(level, when, INSTANT) == [10, 20, None, None, 30]
    assert at(level, when, DISCRETE) == [10, 20, None, None, 30]
    assert at(level, moments(3, marks=(3.5,)), DISCRETE) == [10]
    assert when.interrupted.tolist() == [False, False, True, True, False]


def test_the_life_of_an_instance_bounds_its_values() -> None:
    level = series({2: 10, 4: 20}, np.uint32)
    assert at(
        level, moments(1, 2, 3, 4, 9), DISCRETE, born_ns=3 * S, died_ns=8 * S
    ) == [None, None, 10, 20, None]


def test_no_samples() -> None:
    assert at(series({}, np.uint32), moments(1, 2), COUNTER) == [None, None]


def test_the_later_of_two_samples_of_one_time_counts() -> None:
    twice = SeriesSamples(
        np.array([0, S, S], dtype=np.int64), np.array([1, 2, 3], dtype=np.uint32)
    )
    assert at(twice, moments(1), INSTANT) == [3]


@given(
    st.lists(st.integers(0, 2**40), min_size=2, max_size=20),
    st.lists(st.floats(0, 25), min_size=1, max_size=10),
)
def test_counters_stay_between_their_samples(
    values: list[int], seconds: list[float]
) -> None:
    counted = series(dict(enumerate(sorted(values))), np.uint64)
    when = moments(*sorted(seconds))
    for second, value in zip(
        when.at_ns.tolist(), at(counted, when, COUNTER), strict=True
    ):
        if second <= (len(values) - 1) * S:
            low, high = math.floor(second / S), math.ceil(second / S)
            assert sorted(values)[low] <= value <= sorted(values)[high]
        else:
            assert value is None


def test_rates() -> None:
    values = np.array([[10, 30, 20, 26], [0, 0, 5, 5]], dtype=np.uint32)
    valid = np.array([[True, True, True, True], [True, False, True, True]])
    found, known = rates(values, valid, np.array([0, 2, 4, 7]) * S)
    assert known.tolist() == [[False, True, False, True], [False, False, False, True]]
    assert (found[0, 1], found[0, 3], found[1, 3]) == (10.0, 2.0, 0.0)


@pytest.mark.parametrize(
    ("text", "expected", "multiplier"),
    [
        ("KB", Units(space=1, space_scale=1), 1.0),
        ("Mbytes / sec", Units(1, -1, 0, 2, 3, 0), 1.0),
        ("count x 10^3", Units(count=1, count_scale=3), 1.0),
        ("ms", Units(time=1, time_scale=2), 1.0),
        ("/ hour", Units(time=-1, time_scale=5), 1.0),
        ("2 GiB", Units(space=1, space_scale=3), 0.5),
        ("byte^2", Units(space=2), 1.0),
        # A quotient of times has no dimension; the multiplier says what is left.
        ("ms / s", Units(), 1000.0),
        ("", Units(), 1.0),
    ],
)
def test_units(text: str, expected: Units, multiplier: float) -> None:
    assert parse_units(text) == (expected, multiplier)


@pytest.mark.parametrize("text", ["parsec", "KB MB", "3 x"])
def test_what_is_no_unit(text: str) -> None:
    with pytest.raises(ValueError, match="is not a unit"):
        parse_units(text)


def test_conversions() -> None:
    kilobytes, milliseconds = units(1, 0, 0, (1, 0, 0)), units(0, 1, 0, (0, 2, 0))
    assert unpacked(kilobytes) == Units(space=1, space_scale=1)
    assert scaling(kilobytes, counter=False, raw=False) == Scaling()
    assert (
        scaling(kilobytes, counter=False, raw=False, target_units="MB").ratio
        == 1 / 1024
    )
    assert scaling(kilobytes, counter=True, raw=False) == Scaling(rate=True)
    assert scaling(kilobytes, counter=True, raw=True) == Scaling()
    assert (
        scaling(kilobytes, counter=True, raw=False, target_units="bytes").ratio
        == 1024.0
    )
    per_minute = scaling(kilobytes, counter=True, raw=False, target_units="KB / min")
    assert (per_minute.rate, per_minute.ratio * per_minute.multiplier) == (True, 60.0)
    # Time that a counter counts, per second: a utilization.
    busy = scaling(milliseconds, counter=True, raw=False, target_units="s / s")
    assert busy.ratio * busy.multiplier == pytest.approx(0.001)
    assert scaling(units(1, -1, 0), counter=True, raw=False) == Scaling()
    with pytest.raises(ValueError, match="another dimension"):
        scaling(kilobytes, counter=False, raw=False, target_units="ms")
