"""Dates and times of day in words and numbers, as PCP's tools take them after "@" (getdate(3), PCPIntro(1)).

All are in the process's time zone (`time.tzset`), which -z and -Z set.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

SECOND = 1_000_000_000
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"(?P<month>(?:{'|'.join(MONTHS)})[a-z]*\.?)"
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_UNIT_S = {
    **{"fortnight": 14 * 86400, "week": 7 * 86400, "day": 86400, "hour": 3600},
    **{"minute": 60, "min": 60, "second": 1, "sec": 1},
}
_UNIT_MONTHS = {"year": 12, "month": 1}
_ORDINALS = {
    **{"last": -1, "this": 0, "next": 2, "first": 1, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6},
    **{"seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12},
}
# Hours ahead of UTC of the abbreviations that are unambiguous.
_ZONES = {
    **{"utc": 0, "ut": 0, "gmt": 0, "z": 0, "wet": 0, "cet": 1, "met": 1, "eet": 2, "bst": 1, "mest": 2, "cest": 2},
    **{"ast": -4, "adt": -3, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7},
    **{"hst": -10, "jst": 9, "nzst": 12, "nzdt": 13},
}
_UNITS = "|".join(sorted({*_UNIT_S, *_UNIT_MONTHS}, key=len, reverse=True))


@dataclass(frozen=True)
class Broken:
    """A moment by its fields; None where a field was not given."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    hour: int | None = None
    minute: int | None = None
    second: float = 0.0


def broken(seconds: int) -> time.struct_time:
    """Local time of seconds since 1970."""
    return time.localtime(seconds)


def moment_of_fields(fields: Broken, start_ns: int) -> int:
    """The first moment from `start_ns` on with these fields; one lower than that of the start is in the next cycle."""
    now = broken(start_ns // SECOND)
    year, month, day, hour = now.tm_year, now.tm_mon, now.tm_mday, now.tm_hour
    if fields.year is not None:
        year, month, day, hour = fields.year, fields.month or 1, fields.day or 1, fields.hour or 0
    elif fields.month is not None:
        year += fields.month < month
        month, day, hour = fields.month, fields.day or 1, fields.hour or 0
    elif fields.day is not None:
        month += fields.day < day
        day, hour = fields.day, fields.hour or 0
    elif fields.hour is not None:
        day += fields.hour < hour
        hour = fields.hour
    whole = int(fields.second)
    seconds = int(time.mktime((year, month, day, hour, fields.minute or 0, whole, 0, 0, -1)))
    return seconds * SECOND + round((fields.second - whole) * SECOND)


@dataclass
class _Date:
    """The fields that a date in words gives."""

    year: int | None = None
    month: int | None = None
    day: int | None = None
    clock: tuple[int, int, float] | None = None
    zone_s: int | None = None
    weekday: tuple[int, int] | None = None
    aligned: bool = False
    relative_s: int = 0
    relative_months: int = 0
    seen: set[str] = field(default_factory=set)


def moment_of_date(text: str, start_ns: int, end_ns: int) -> int:
    """The moment that a date in words or ISO 8601 means; ValueError if it means none.

    "2 hours ago" and "-1 day" count from the end of the archive, "1 week" from its start, "yesterday 10:00", days of
    the week and times without a date from today.
    """
    try:
        exact = datetime.fromisoformat(text.strip())
    except ValueError:
        return _in_words(text, start_ns, end_ns)
    whole = int(exact.replace(microsecond=0).timestamp())
    return whole * SECOND + exact.microsecond * 1000


def _in_words(text: str, start_ns: int, end_ns: int) -> int:
    date, rest = _Date(), text.strip().lower()
    while rest:
        for name, pattern, take in _FORMS:
            if match := pattern.match(rest):
                if name != "relative" and name in date.seen:
                    raise ValueError(f"{text!r} has two values for its {name}")
                date.seen.add(name)
                take(date, match)
                rest = rest[match.end() :].lstrip(" ,\t")
                break
        else:
            raise ValueError(f"{text!r}: {rest!r} is not a date, time, zone, day or length of time")
    backwards = re.search(r"last|ago|^\s*-", text.lower()) is not None
    by_unit = re.search(rf" ({_UNITS})", " " + text.lower()) is not None
    now_s = (end_ns if backwards else start_ns) // SECOND if by_unit else int(time.time())
    return _moment(date, now_s)


def _moment(date: _Date, now_s: int) -> int:
    now = broken(now_s)
    hour, minute, second = date.clock or (0, 0, 0.0)
    if {"date", "time", "day"} & date.seen or date.aligned or not {"relative"} & date.seen:
        fields = (date.year or now.tm_year, date.month or now.tm_mon, date.day or now.tm_mday, hour, minute)
        if date.zone_s is not None:
            seconds = int((datetime(*fields) - datetime(1970, 1, 1)).total_seconds()) - date.zone_s
        else:
            seconds = int(time.mktime((*fields, 0, 0, 0, -1)))
    else:
        seconds, second = now_s, 0.0
    seconds += date.relative_s
    if date.relative_months:
        at = broken(seconds)
        months = at.tm_year * 12 + at.tm_mon - 1 + date.relative_months
        seconds = int(
            time.mktime((months // 12, months % 12 + 1, at.tm_mday, at.tm_hour, at.tm_min, at.tm_sec, 0, 0, -1))
        )
    if date.weekday is not None and "date" not in date.seen:
        ordinal, weekday = date.weekday
        at = broken(seconds)
        days = (weekday - (at.tm_wday + 1) % 7 + 7) % 7 + 7 * (ordinal if ordinal <= 0 else ordinal - 1)
        seconds = int(
            time.mktime((at.tm_year, at.tm_mon, at.tm_mday + days, at.tm_hour, at.tm_min, at.tm_sec, 0, 0, -1))
        )
    return seconds * SECOND + round(second * SECOND)


def _take_date(date: _Date, match: re.Match[str]) -> None:
    month, year = match["month"], match["year"] if "year" in match.groupdict() else None
    date.month = int(month) if month.isdigit() else MONTHS.index(month[:3]) + 1
    date.day = int(match["day"])
    if not (1 <= date.month <= 12 and 1 <= date.day <= 31):
        raise ValueError(f"{match[0]!r} is not a date")
    if year:
        short = int(year)
        date.year = short + (2000 if short < 69 else 1900 if short < 100 else 0)


def _take_year(date: _Date, match: re.Match[str]) -> None:
    date.year = int(match[1])


def _take_time(date: _Date, match: re.Match[str]) -> None:
    hour, half = int(match["hour"]), match["half"]
    if half:
        hour = hour % 12 + (12 if half.startswith("p") else 0)
    date.clock = (hour, int(match["minute"] or 0), float(match["second"] or 0))
    if hour > 23 or int(match["minute"] or 0) > 59:
        raise ValueError(f"{match[0]!r} is not a time of day")
    if match["offset"]:
        sign = -1 if match["offset"][0] == "-" else 1
        digits = match["offset"][1:].replace(":", "").rjust(4, "0")
        date.zone_s = sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def _take_zone(date: _Date, match: re.Match[str]) -> None:
    date.zone_s = (_ZONES[match[1]] + bool(match[2])) * 3600


def _take_weekday(date: _Date, match: re.Match[str]) -> None:
    ordinal = match["ordinal"]
    number = 0 if not ordinal else _ORDINALS[ordinal] if ordinal in _ORDINALS else int(ordinal)
    date.weekday = (number, _DAYS.index(match["name"][:3]))


def _take_relative(date: _Date, match: re.Match[str]) -> None:
    count = match["count"]
    number = 1 if not count else _ORDINALS[count] if count in _ORDINALS else int(count.replace(" ", ""))
    number = -number if match["ago"] else number
    unit = match["unit"]
    date.relative_months += number * _UNIT_MONTHS.get(unit, 0)
    date.relative_s += number * _UNIT_S.get(unit, 0)


def _take_word(date: _Date, match: re.Match[str]) -> None:
    date.aligned = date.aligned or match[1] != "now"
    date.relative_s += {"yesterday": -86400, "tomorrow": 86400}.get(match[1], 0)


_WORDS = "|".join(_ORDINALS)
_FORMS: list[tuple[str, re.Pattern[str], Callable[[_Date, re.Match[str]], None]]] = [
    ("date", re.compile(r"(?P<year>\d{2,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})(?![\d:])"), _take_date),
    ("date", re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})(?:/(?P<year>\d{2,4}))?(?!\d)"), _take_date),
    (
        "time",
        re.compile(
            r"t?(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}(?:\.\d+)?))?"
            r"\s*(?:(?P<half>[ap]\.?m\.?)|(?P<offset>[-+]\d{1,2}:?\d{2}))?(?![a-z\d])"
        ),
        _take_time,
    ),
    (
        "time",
        re.compile(r"(?P<hour>\d{1,2})\s*(?P<half>[ap]\.?m\.?)(?P<minute>)(?P<second>)(?P<offset>)(?![a-z])"),
        _take_time,
    ),
    (
        "relative",
        re.compile(rf"(?P<count>[-+]?\s*\d+|{_WORDS})?\s*(?P<unit>{_UNITS})s?\b(?P<ago>\s+ago\b)?"),
        _take_relative,
    ),
    ("date", re.compile(rf"(?P<day>\d{{1,2}})[- ]*{_MONTH}(?:[-, ]+(?P<year>\d{{4}})(?![\d:]))?"), _take_date),
    ("date", re.compile(rf"{_MONTH}\s*(?P<day>\d{{1,2}})(?![\d:])(?:[, ]+(?P<year>\d{{4}})(?![\d:]))?"), _take_date),
    (
        "day",
        re.compile(
            rf"(?:(?P<ordinal>\d+|{_WORDS})\s+)?"
            r"(?P<name>(?:sun|mon|tue|wed|thu|fri|sat)(?:[a-z]*day|s|nes|r|rs)?\.?)(?![a-z])"
        ),
        _take_weekday,
    ),
    ("word", re.compile(r"(yesterday|today|tomorrow|now)\b"), _take_word),
    ("year", re.compile(r"((?:19|20)\d\d)(?!\d)"), _take_year),
    ("zone", re.compile(rf"({'|'.join(sorted(_ZONES, key=len, reverse=True))})\b(\s*dst\b)?"), _take_zone),
]
