"""Numbers as a report may print them: no digit finer than what is known, units' decades readable."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kveval.analysis.estimators.intervals import half_width

MISSING = "n/a"
# Per cent. An interval that goes beyond it, as one from two runs may by any number of digits, says no more than that.
_WIDEST = 1000.0
# Decimal places: what is smaller in every quantity here is the rest of a subtraction.
_FINEST = 4


def decimals_for(half_width: float) -> int:
    """Return the decimal places (negative: tens, hundreds, ...) to which a value of this uncertainty is known.

    That of the uncertainty's first digit, and one more while that digit is small: rounding 570 with an uncertainty of
    135 to 600 would move the value by a fifth of it. The Particle Data Group's rule (Review of Particle Physics,
    Introduction, 5.3): two digits of the uncertainty up to 354, one above.

    >>> decimals_for(45.0), decimals_for(135.0), decimals_for(2.8), decimals_for(0.061)
    (-1, -1, 1, 2)
    """
    places = math.floor(math.log10(half_width))
    return int(half_width / 10.0**places <= 3.54) - places


def _decimals_shown(low: float, high: float) -> int:
    """Return the decimals for an interval's ends that still hold once the ends are rounded."""
    decimals = decimals_for((high - low) / 2)
    shown = (round(high, decimals) - round(low, decimals)) / 2
    return min(decimals, decimals_for(shown)) if shown > 0 else decimals


def rounded(value: float, decimals: int) -> str:
    """Return a number rounded to `decimals` places, which may be negative, with thousands separated.

    >>> rounded(1191.4, -1), rounded(0.0312, 2), rounded(4.407e-19, 22)
    ('1,190', '0.03', '< 0.0001')
    """
    if not math.isfinite(value):
        return MISSING
    if decimals > _FINEST and 0 < abs(value) < 10.0**-_FINEST:
        return f"{'< ' if value > 0 else '> -'}{10.0**-_FINEST:.{_FINEST}f}"
    return f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"


def significant(value: float, digits: int = 2) -> str:
    """Return a number with so many significant digits: for a value without a known uncertainty.

    >>> significant(0.04567), significant(1234.0), significant(0.0)
    ('0.046', '1,200', '0')
    """
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    return rounded(value, digits - 1 - math.floor(math.log10(abs(value))))


def with_interval(value: float, low: float, high: float) -> str:
    """Return a value with its interval, both no finer than the interval; without one, two significant digits.

    An interval far wider than the value still leaves it two digits: rounded to 0 it would read as nothing measured.

    >>> with_interval(1191.4, 1150.0, 1240.0), with_interval(37.2, 0.7, 1809.0)
    ('1,190 (1,150 to 1,240)', '37 (0 to 1,800)')
    """
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return significant(value)
    decimals = _decimals_shown(low, high)
    shown = rounded(value, decimals) if round(value, decimals) or abs(value) < 1 else significant(value)
    return f"{shown} ({rounded(low, decimals)} to {rounded(high, decimals)})"


def effect(value: float, low: float, high: float, confidence: float = 95.0) -> str:
    """Return a difference in per cent with signs, no finer than its interval; a very wide one is cut off.

    The interval says its confidence, per cent, where that is not the 95 % of the tables' headings.

    >>> effect(13.26, 10.6, 16.08), effect(2.0, -99.9, 3e9)
    ('+13.3 % (+10.6 to +16.1)', '+2 % (-100 to more than +1,000)')
    """
    if not math.isfinite(value):
        return MISSING
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return f"{_signed(value, 0)} % (no interval)"
    of = "" if confidence == 95 or not math.isfinite(confidence) else f"{confidence:g} %: "
    if low <= _WIDEST < high:
        return f"{_signed(value, 0)} % ({of}{_signed(low, 0)} to more than {_signed(_WIDEST, 0)})"
    decimals = min(_decimals_shown(low, high), 1)
    return f"{_signed(value, decimals)} % ({of}{_signed(low, decimals)} to {_signed(high, decimals)})"


def points(value: float, low: float, high: float) -> str:
    """Return a difference in percentage points with signs, one decimal at most and no finer than its interval.

    >>> points(-4.62, -5.9, -3.4), points(0.31, math.nan, math.nan)
    ('-4.6 (-5.9 to -3.4)', '+0.3')
    """
    if not high - low >= 2 * 0.05:
        return _signed(value, 1)
    decimals = min(_decimals_shown(low, high), 1)
    return f"{_signed(value, decimals)} ({_signed(low, decimals)} to {_signed(high, decimals)})"


def _signed(value: float, decimals: int) -> str:
    text = rounded(abs(value), decimals)
    if not any(digit in text for digit in "123456789"):
        return text
    return f"{'+' if value > 0 else '-'}{text}"


def mean_of(values: Sequence[float]) -> str:
    """Return the mean of repeated measurements, no finer than its 95 % t interval; two digits from a single one.

    Four at most: values that agree by chance, or that cannot differ, would else be printed to their last bit.
    """
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known):
        return MISSING
    mean = float(known.mean())
    if len(known) < 2:
        return significant(mean)
    half = half_width(known)
    if half <= 0:
        return significant(mean)
    # An interval as wide as the value still leaves its first digit.
    coarsest = decimals_for(abs(mean)) if mean else 0
    finest = 3 - math.floor(math.log10(abs(mean))) if mean else 0
    return rounded(mean, min(max(decimals_for(half), coarsest), finest))


def minutes(seconds: float) -> str:
    """Return a duration in minutes, seconds below two minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
