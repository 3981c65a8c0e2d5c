import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.report.data import numbers as numerals


def test_examples_in_the_docstrings() -> None:
    assert doctest.testmod(numerals).failed == 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([100.0, 101.0, 99.0], "100.0"),
        ([570.0, 510.0, 630.0], "570"),
        ([1234.5], "1,200"),
        ([0.01234, 0.01234], "0.012"),
        ([1.0, 9.0], "5.0"),
        ([65.0, 97.0, 99.0], "87"),
        ([100.0, 100.00000000000003], "100.0"),
        ([1.698421, 1.698423], "1.698"),
        ([123456.0, 123456.1], "123,500"),
        ([math.nan], "n/a"),
        ([math.nan, 7.04], "7.0"),
        ([], "n/a"),
    ],
)
def test_a_mean_has_no_digit_finer_than_its_interval_but_two(
    values: list[float], text: str
) -> None:
    assert numerals.mean_of(values) == text


def test_an_effect_without_interval_says_so() -> None:
    assert numerals.effect(11.8, math.nan, math.nan) == "+12 % (no interval)"
    assert numerals.effect(math.nan, math.nan, math.nan) == "n/a"
    assert numerals.effect(-0.04, -0.5, 0.4) == "0.0 % (-0.5 to +0.4)"


@given(st.floats(-99, 1e12), st.floats(-100, 0), st.floats(1001, 1e300))
def test_an_interval_that_says_next_to_nothing_says_it_in_few_digits(
    value: float, low: float, high: float
) -> None:
    text = numerals.effect(min(value, high), low, high)
    assert text.endswith(" to more than +1,000)")
    assert len(text.split(" (")[1]) <= len("-100 to more than +1,000)")


def test_an_interval_wholly_beyond_the_widest_keeps_both_ends() -> None:
    assert numerals.effect(2500.0, 2000.0, 3000.0) == "+2,500 % (+2,000 to +3,000)"


@given(st.floats(1, 1e6), st.floats(1, 1e6))
def test_no_interval_makes_a_value_nothing(value: float, factor: float) -> None:
    assert not numerals.with_interval(value, value / factor, value * factor).startswith(
        "0 "
    )


@given(st.floats(1e-3, 1e6), st.floats(1e-4, 0.5))
def test_rounding_moves_a_value_less_than_its_uncertainty(
    value: float, share: float
) -> None:
    half = value * share
    text = numerals.with_interval(value, value - half, value + half).split(" ")[0]
    assert abs(float(text.replace(",", "")) - value) <= half * 0.5 * (1 + 1e-9)


@given(st.floats(0.001, 100), st.floats(0.001, 50))
def test_a_rounded_effect_keeps_its_sign(value: float, half: float) -> None:
    text = numerals.effect(-value, -value - half, -value + half)
    assert not text.startswith("+")


@given(st.floats(1, 1e4), st.floats(0.01, 0.5))
def test_the_digits_shown_are_those_of_the_interval_shown(
    value: float, share: float
) -> None:
    text = numerals.with_interval(value, value * (1 - share), value * (1 + share))
    shown, low, high = (
        part.strip("()").replace(",", "")
        for part in text.replace(" to ", " ").split(" ")
    )
    allowed = max(numerals.decimals_for((float(high) - float(low)) / 2), 0)
    assert max(len(part.partition(".")[2]) for part in (shown, low, high)) <= allowed
