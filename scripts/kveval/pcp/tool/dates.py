"""Dates and times of day in words and numbers, as PCP's tools take them after "@" (getdate(3), PCPIntro(1)).

All are in the process's time zone (`time.tzset`), which -z and -Z set.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime

SECOND = 1_000_000_000
_LENGTHS_S = {
    **{"fortnight": 14 * 86400, "week": 7 * 86400, "day": 86400, "hour": 3600},
    **{"minute": 60, "min": 60, "second": 1, "sec": 1},
}
_LENGTHS_MONTHS = {"year": 12, "month": 1}
_UNITS = "|".join(sorted({*_LENGTHS_S, *_LENGTHS_MONTHS}, key=len, reverse=True))
_LENGTH = re.compile(
    rf"(?:(?P<count>[-+]?\s*\d+|\blast|\bnext)\s*|\b)(?P<unit>{_UNITS})s?\b(?P<ago>\s+ago\b)?", re.IGNORECASE
)
_COUNTS = {"": 1, "last": -1, "next": 1}
_DAYS = {"yesterday": -1, "today": 0, "now": 0, "tomorrow": 1}
_DAY = re.compile(rf"\b({'|'.join(_DAYS)})\b", re.IGNORECASE)
# Hours ahead of UTC of the abbreviations that are unambiguous.
_ZONES = {
    **{"UTC": 0, "UT": 0, "GMT": 0, "Z": 0, "WET": 0, "CET": 1, "MET": 1, "EET": 2, "BST": 1, "MEST": 2, "CEST": 2},
    **{"AST": -4, "ADT": -3, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7},
    **{"HST": -10, "JST": 9, "NZST": 12, "NZDT": 13},
}


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


def moment_of_date(text: str, start_ns: int, end_ns: int) -> int:
    """The moment that a date in words or ISO 8601 means; ValueError if it means none.

    "2 hours ago" and "-1 day" count from the end of the archive, "1 week" from its start, "yesterday 10:00", days of
    the week and times without a date from today.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        moment = _in_words(text, start_ns, end_ns)
    return int(moment.replace(microsecond=0).timestamp()) * SECOND + moment.microsecond * 1000


def _in_words(text: str, start_ns: int, end_ns: int) -> datetime:
    # Most command lines have no such date.
    from dateutil.parser import parse  # noqa: PLC0415
    from dateutil.relativedelta import relativedelta  # noqa: PLC0415

    seconds = months = 0
    lengths = list(_LENGTH.finditer(text))
    for match in lengths:
        count, unit = (match["count"] or "").lower().replace(" ", ""), match["unit"].lower()
        number = (_COUNTS[count] if count in _COUNTS else int(count)) * (-1 if match["ago"] else 1)
        seconds += number * _LENGTHS_S.get(unit, 0)
        months += number * _LENGTHS_MONTHS.get(unit, 0)
    rest = _LENGTH.sub(" ", text)
    days = [_DAYS[word.lower()] for word in _DAY.findall(rest)]
    rest = _DAY.sub(" ", rest).strip(" ,\t")
    backwards = re.search(r"last|ago|^\s*-", text.lower()) is not None
    by_unit = re.search(rf" ({_UNITS})", f" {text.lower()}") is not None
    moment = datetime.fromtimestamp((end_ns if backwards else start_ns) // SECOND if by_unit else int(time.time()))
    if days or not lengths or rest:
        moment = moment.replace(hour=0, minute=0, second=0)
    try:
        # In capitals, of which alone it takes zones.
        found: datetime = (
            parse(rest.upper(), default=moment, tzinfos=_zone) if rest or not (days or lengths) else moment
        )
    except (ValueError, OverflowError, LookupError):
        raise ValueError(f"{text!r}: {rest!r} is not a date, time, zone, day or length of time") from None
    shifted_s = (found + relativedelta(months=months)).timestamp() + seconds + 86400 * sum(days)
    return datetime.fromtimestamp(shifted_s, UTC)


def _zone(name: str | None, east_s: int | None) -> int | None:
    """Seconds east of Greenwich, by a zone's name or as they were given; None, the process's zone, for neither."""
    return east_s if name is None else 3600 * _ZONES[name]
