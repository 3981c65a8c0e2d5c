"""Formats numbers for the report, with no more digits than their uncertainty justifies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Per cent. Ends of intervals beyond it, which are common with two runs, are shown as "more than" this.
_WIDEST = 1000.0
# Decimal places: smaller values are rounding errors in every quantity of the report.
_FINEST = 4
# More decimal places than any number has.
_ALL = 400


MISSING = "n/a"


def decimals_for(half_width: float) -> int:
    """Return the decimal places (negative: tens, hundreds, ...) to which a value of this uncertainty is known.

    The place of the uncertainty's first digit, and one more if that digit is small: rounding 570 with an uncertainty of
    135 to 600 would move it by a fifth of the uncertainty. The Particle Data Group's rule (Review of Particle Physics,
    Introduction, 5.3): two digits of the uncertainty if its leading digits are up to 354, else one.

    >>> decimals_for(45.0), decimals_for(135.0), decimals_for(2.8), decimals_for(0.061)
    (-1, -1, 1, 2)
    """
    places = math.floor(math.log10(half_width))
    return int(half_width / 10.0**places <= 3.54) - places


def _decimals_shown(low: float, high: float) -> int:
    """Return the decimals for an interval's ends that are still right for the rounded ends."""
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
        bound = f"{10.0**-_FINEST:.{_FINEST}f}"
        return f"< {bound}" if value > 0 else f"> -{bound}"
    return f"{round(value, decimals) + 0.0:,.{max(decimals, 0)}f}"


def significant(value: float, digits: int = 2, most_decimals: int = _ALL) -> str:
    """Return a number with `digits` significant digits, for a value without a known uncertainty.

    At most `most_decimals` decimal places.

    >>> significant(0.04567), significant(1234.0), significant(0.0)
    ('0.046', '1,200', '0')
    """
    if not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return rounded(value, min(decimals, most_decimals))


def with_interval(value: float, low: float, high: float) -> str:
    """Return a value with its interval, both rounded by the interval; without one, two significant digits.

    If the interval is far wider than the value, the value still has two digits instead of being rounded to 0.

    >>> with_interval(1191.4, 1150.0, 1240.0), with_interval(37.2, 0.7, 1809.0)
    ('1,190 (1,150 to 1,240)', '37 (0 to 1,800)')
    """
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return significant(value)
    decimals = _decimals_shown(low, high)
    shown = (
        rounded(value, decimals)
        if round(value, decimals) or abs(value) < 1
        else significant(value)
    )
    return f"{shown} ({rounded(low, decimals)} to {rounded(high, decimals)})"


def effect(value: float, low: float, high: float, confidence: float = 95.0) -> str:
    """Return a difference in per cent with signs, rounded by its interval; the end of a very wide one is cut off.

    The confidence of the interval is shown if it is not the 95 % of the tables' headings.

    >>> effect(13.26, 10.6, 16.08), effect(2.0, -99.9, 3e9)
    ('+13.3 % (+10.6 to +16.1)', '+2 % (-100 to more than +1,000)')
    """
    if not math.isfinite(value):
        return MISSING
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return f"{_signed(value, 0)} % (no interval)"
    of = (
        ""
        if confidence >= 95 or not math.isfinite(confidence)
        else f"{confidence:.3g} %: "
    )
    if low <= _WIDEST < high:
        ends = f"{of}{_signed(low, 0)} to more than {_signed(_WIDEST, 0)}"
        return f"{_signed(value, 0)} % ({ends})"
    decimals = min(_decimals_shown(low, high), 1)
    ends = f"{of}{_signed(low, decimals)} to {_signed(high, decimals)}"
    return f"{_signed(value, decimals)} % ({ends})"


def factor(value: float, low: float, high: float) -> str:
    """Return a difference in per cent as a factor, rounded by its interval to one decimal at most.

    The end of a very wide interval is cut off.

    >>> factor(310.6, 299.2, 322.4), factor(150.0, -60.0, 3e9)
    ('4.1 times (4.0 to 4.2)', '2.5 times (0.40 to more than 11)')
    """
    times, least, most = (1 + percent / 100 for percent in (value, low, high))
    half = (most - least) / 2
    if not math.isfinite(half) or half <= 0:
        return f"{significant(times)} times (no interval)"
    if least <= 1 + _WIDEST / 100 < most:
        ends = f"{significant(least)} to more than {1 + _WIDEST / 100:.0f}"
        return f"{significant(times)} times ({ends})"
    decimals = min(max(_decimals_shown(least, most), 0), 1)
    ends = f"{rounded(least, decimals)} to {rounded(most, decimals)}"
    return f"{rounded(times, decimals)} times ({ends})"


def end_of_effect(value: float, low: float, high: float) -> str:
    """Return the size of one end of a difference in per cent, as `effect` rounds it.

    >>> end_of_effect(2.13, -2.13, 1.9), end_of_effect(0.0, 0.2, 0.9)
    ('2.1', '0.0')
    """
    return rounded(value, min(_decimals_shown(low, high), 1) if high > low else 0)


def points(value: float, low: float, high: float) -> str:
    """Return a difference in percentage points with signs, rounded by its interval to one decimal at most.

    >>> points(-4.62, -5.9, -3.4), points(0.31, math.nan, math.nan)
    ('-4.6 (-5.9 to -3.4)', '+0.3')
    """
    if not high - low >= 2 * 0.05:
        return _signed(value, 1)
    decimals = min(_decimals_shown(low, high), 1)
    ends = f"{_signed(low, decimals)} to {_signed(high, decimals)}"
    return f"{_signed(value, decimals)} ({ends})"


def _signed(value: float, decimals: int) -> str:
    text = rounded(abs(value), decimals)
    if not any(digit in text for digit in "123456789"):
        return text
    return f"{'+' if value > 0 else '-'}{text}"


def mean_of(values: Sequence[float], most_decimals: int = _ALL) -> str:
    """Return the mean of repeated measurements, rounded by its 95 % t interval; of a single one, two digits.

    At most four digits: values that agree by chance, or cannot differ, would otherwise have too many. At most
    `most_decimals` decimal places.

    >>> mean_of([1.4567]), mean_of([0.04567], most_decimals=1), mean_of([99.6, 99.61, 99.62], most_decimals=1)
    ('1.5', '0.0', '99.6')
    """
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known):
        return MISSING
    return rounded_mean(float(known.mean()), known, most_decimals)


def geometric_mean_of(values: Sequence[float]) -> str:
    """Return the geometric mean of repeated measurements, by which arms are compared, rounded as in `mean_of`.

    The arithmetic one where one of them is not positive.

    >>> geometric_mean_of([21_400.0, 40_600.0]), geometric_mean_of([])
    ('29,000', 'n/a')
    """
    known = np.array([value for value in values if math.isfinite(value)])
    if not len(known) or not (known > 0).all():
        return mean_of(values)
    return rounded_mean(float(np.exp(np.log(known).mean())), known)


def rounded_mean(
    mean: float, values: Sequence[float] | np.ndarray, most_decimals: int = _ALL
) -> str:
    """Return a mean of any kind, rounded as in `mean_of` by the interval of the `values` that it is of."""
    known = np.array([value for value in values if math.isfinite(value)])
    if len(known) < 2:
        return significant(mean, most_decimals=most_decimals)
    # `kveval plan` of a bare installation, which has no scipy, writes numbers too.
    from kveval.estimators.intervals import half_width  # noqa: PLC0415

    half = half_width(known)
    if half <= 0 or not math.isfinite(half):
        return significant(mean, most_decimals=most_decimals)
    # However wide the interval, two digits are shown: the ratio of two such means is read beside them.
    first = math.floor(math.log10(abs(mean))) if mean else 0
    coarsest, finest = (1 - first, 3 - first) if mean else (0, 0)
    decimals = min(max(decimals_for(half), coarsest), finest)
    return rounded(mean, min(decimals, most_decimals))


def minutes(seconds: float) -> str:
    """Return a duration in minutes, below two minutes in seconds."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def count(number: float) -> str:
    """Return a whole number with thousands separated.

    >>> count(21400)
    '21,400'
    """
    return f"{number:,.0f}"
