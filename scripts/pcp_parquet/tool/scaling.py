"""Units as numbers, and the conversion of values from a metric's units to others (pmParseUnitsStr(3), pmConvScale(3)).

Operations follow libpcp's in their order, so that the results agree to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

_TIME = {
    **dict.fromkeys(("nanoseconds", "nanosecond", "nanosec", "ns"), 0),
    **dict.fromkeys(("microseconds", "microsecond", "microsec", "us"), 1),
    **dict.fromkeys(("milliseconds", "millisecond", "millisec", "ms"), 2),
    **dict.fromkeys(("seconds", "second", "sec", "s"), 3),
    **dict.fromkeys(("minutes", "minute", "min"), 4),
    **dict.fromkeys(("hours", "hour", "hr", "h"), 5),
}
_PREFIXES = ("", "k", "m", "g", "t", "p", "e", "z", "y")
_BINARY = ("", "kibi", "mebi", "gibi", "tebi", "pebi", "exbi", "zebi", "yobi")
_DECIMAL = ("", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta", "yotta")
_SPACE = {
    name: scale
    for scale, (short, binary, decimal) in enumerate(
        zip(_PREFIXES, _BINARY, _DECIMAL, strict=True)
    )
    for stem in (short + "byte", binary + "byte", decimal + "byte")
    for name in (stem, stem + "s", *((short + "b", short + "ib") if scale else ()))
}
_SECONDS = (1e-9, 1e-6, 1e-3, 1.0, 60.0, 3600.0)
# The units of time in seconds, as multiplier and divisor.
_TIME_RATIO = ((1, 10**9), (1, 10**6), (1, 1000), (1, 1), (60, 1), (3600, 1))
_COUNT = re.compile(r"counts?(?: x 10(?:\^(-?\d+))?)?(?=[\s^]|$)", re.IGNORECASE)
_WORD = re.compile(r"([a-z]+)(?:\^(-?\d+))?(?=\s|$)", re.IGNORECASE)
_NUMBER = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Units:
    """pmUnits: exponents of space, time and count, and their scales (1024^n bytes; ns to hours; 10^n)."""

    space: int = 0
    time: int = 0
    count: int = 0
    space_scale: int = 0
    time_scale: int = 0
    count_scale: int = 0
    extra: int = 0


@dataclass(frozen=True)
class Scaling:
    """How to convert values to other units: if `rate`, first to rates per second; then times both factors in order."""

    rate: bool = False
    ratio: float = 1.0
    multiplier: float = 1.0

    @property
    def changes(self) -> bool:
        """Whether values change, so that they need a double instead of the metric's own type."""
        return self.rate or self.ratio * self.multiplier != 1.0


def unpacked(packed: int) -> Units:
    """The fields of a packed pmUnits word."""
    nibbles = [packed >> shift & 15 for shift in (28, 24, 20, 16, 12, 8)]
    signed = [value - 16 if value > 7 else value for value in nibbles]
    return Units(
        signed[0], signed[1], signed[2], nibbles[3], nibbles[4], signed[5], packed & 255
    )


def scaling(
    packed: int, *, counter: bool, raw: bool, target_units: str | None = None
) -> Scaling:
    """The conversion of a metric with `packed` units; counters become rates per second unless `raw`.

    `target_units` are of the metric's dimension ("MB"), or for a counter of its rate ("KB / min"). ValueError if they
    are of another dimension or cannot be read.
    """
    own = unpacked(packed)
    if target_units is None:
        divided = min(own.space, own.time, own.count) < 0
        if raw or not counter or divided:
            return Scaling()
        target, multiplier = _quotient(own, 1.0, Units(time=1, time_scale=3), 1.0)
    else:
        per_second = counter and not raw and "/" not in target_units
        target, multiplier = parse_units(
            f"{target_units} / s" if per_second else target_units
        )
    dimensions = (own.space, own.time, own.count)
    if dimensions == (target.space, target.time, target.count):
        return Scaling(False, _ratio(own, target), multiplier)
    if dimensions != (target.space, target.time + 1, target.count):
        raise ValueError(f"{target_units!r} is of another dimension than the metric")
    multiplier = (
        multiplier
        / _TIME_RATIO[target.time_scale][1]
        * _TIME_RATIO[target.time_scale][0]
    )
    return Scaling(True, _ratio(own, replace(target, time=own.time)), multiplier)


def parse_units(text: str) -> tuple[Units, float]:
    """The units in "KB", "2.5 MB / sec", "count x 10^3" or "ms^2", and the factor for values in addition to them."""
    above, slash, below = text.partition("/")
    return _quotient(
        *_part(above, text), *(_part(below, text) if slash else (Units(), 1.0))
    )


def _part(text: str, whole: str) -> tuple[Units, float]:
    units, multiplier, rest = Units(), 1.0, text.strip()
    while rest:
        if match := _NUMBER.match(rest):
            multiplier *= float(match[0])
        elif match := _COUNT.match(rest):
            scale = int(match[1]) if match[1] else int(" x 10" in match[0].lower())
            units = replace(units, count=1, count_scale=scale)
        elif (
            (match := _WORD.match(rest))
            and match[1].lower() in _TIME
            and not units.time
        ):
            units = replace(
                units, time=int(match[2] or 1), time_scale=_TIME[match[1].lower()]
            )
        elif match and match[1].lower() in _SPACE and not units.space:
            units = replace(
                units, space=int(match[2] or 1), space_scale=_SPACE[match[1].lower()]
            )
        else:
            raise ValueError(
                f"{whole!r}: {rest!r} is not a unit (bytes, seconds or counts, with their multiples)"
            )
        rest = rest[match.end() :].lstrip()
    return units, multiplier


def _quotient(
    above: Units, above_times: float, below: Units, below_times: float
) -> tuple[Units, float]:
    multiplier = below_times / above_times
    space, space_scale, times = _dimension(
        (above.space, above.space_scale),
        (below.space, below.space_scale),
        lambda scale: 1024.0**scale,
    )
    multiplier *= times
    count, count_scale, times = _dimension(
        (above.count, above.count_scale),
        (below.count, below.count_scale),
        lambda scale: 10.0**scale,
    )
    multiplier *= times
    span, time_scale, times = _dimension(
        (above.time, above.time_scale),
        (below.time, below.time_scale),
        _SECONDS.__getitem__,
        base=3,
    )
    return Units(
        space, span, count, space_scale, time_scale, count_scale, above.extra
    ), multiplier * times


def _dimension(
    above: tuple[int, int],
    below: tuple[int, int],
    size: Callable[[int], float],
    base: int = 0,
) -> tuple[int, int, float]:
    """Exponent, scale and factor of one dimension of a quotient, each part given as (exponent, scale)."""
    exponent = above[0] - below[0]
    if above[0] and not below[0]:
        return exponent, above[1], 1.0
    if not above[0]:
        return exponent, below[1] if below[0] else 0, 1.0
    return (
        exponent,
        base if exponent else 0,
        size(above[1]) ** -above[0] * size(below[1]) ** below[0],
    )


def _ratio(own: Units, target: Units) -> float:
    """The factor between units of one dimension, as one division of whole numbers."""
    times = divided = 1
    for exponent, have, want in (
        (own.space, (1024**own.space_scale, 1), (1024**target.space_scale, 1)),
        (
            own.time,
            _TIME_RATIO[min(own.time_scale, 5)],
            _TIME_RATIO[min(target.time_scale, 5)],
        ),
        (
            own.count or (0 if own.space or own.time else 1),
            _ten(own.count_scale),
            _ten(target.count_scale),
        ),
    ):
        up, down = have[0] * want[1], have[1] * want[0]
        up, down = (up, down) if exponent >= 0 else (down, up)
        times, divided = times * up ** abs(exponent), divided * down ** abs(exponent)
    return float(times // divided) if times % divided == 0 else times / divided


def _ten(scale: int) -> tuple[int, int]:
    return (10**scale, 1) if scale >= 0 else (1, 10**-scale)
