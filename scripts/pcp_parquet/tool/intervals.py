"""Lengths of time and moments as PCP's tools take them: PCPIntro(1), pmParseInterval(3), pmParseTimeWindow(3)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime

SECOND = 1_000_000_000
_UNITS = {
    **{
        "nanosecond": 1e-9,
        "nsec": 1e-9,
        "microsecond": 1e-6,
        "usec": 1e-6,
        "millisecond": 1e-3,
        "msec": 1e-3,
    },
    **{"second": 1.0, "sec": 1.0, "s": 1.0, "minute": 60.0, "min": 60.0, "m": 60.0},
    **{"hour": 3600.0, "hr": 3600.0, "h": 3600.0, "day": 86400.0, "d": 86400.0},
}
_ELEMENT = re.compile(r"\s*([+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([a-zA-Z]*)")


def parse_interval(text: str) -> int:
    """Length of time in ns of "5", "5min", "1h30m", "4 days 6 hours"; seconds if there is no unit.

    ValueError for what pmParseInterval(3) does not accept.
    """
    seconds, position = 0.0, 0
    if not text.strip():
        raise ValueError("an empty interval")
    while position < len(text.rstrip()):
        match = _ELEMENT.match(text, position)
        if match is None:
            raise ValueError(f"{text!r}: no number at {text[position:].strip()!r}")
        unit = match[2].lower()
        name = unit[:-1] if len(unit) > 1 and unit.endswith("s") else unit
        if unit and name not in _UNITS:
            raise ValueError(
                f"{text!r}: unknown unit {match[2]!r} (seconds, minutes, hours or days)"
            )
        seconds += float(match[1]) * (_UNITS[name] if unit else 1.0)
        position = match.end()
    return nanoseconds(seconds)


def nanoseconds(seconds: float) -> int:
    """Seconds as ns, rounded as libpcp does: beyond 999,999 s to whole microseconds."""
    whole = int(seconds)
    if whole <= 999_999:
        return whole * SECOND + int((seconds - whole) * SECOND + 0.5)
    return whole * SECOND + int((seconds - whole) * 1_000_000 + 0.5) * 1000


def parse_moment(text: str, start_ns: int, end_ns: int) -> int:
    """The moment, ns since 1970 UTC, that `text` means in an archive from `start_ns` to `end_ns`.

    An interval counts from the start, one with a minus sign back from the end, and "@" precedes a date, a time of day
    or both in the process's time zone (`time.tzset`, which -z and -Z set). Beyond PCP's own syntax: ISO 8601 with or
    without "@", and "@" with seconds since 1970. ValueError for anything else.
    """
    stripped = text.strip()
    if stripped.startswith("@"):
        date = stripped[1:].strip()
        if re.fullmatch(r"\d{9,}(\.\d+)?", date):
            whole, _, fraction = date.partition(".")
            return int(whole) * SECOND + int(fraction[:9].ljust(9, "0") or 0)
        return _moment_of_date(date, start_ns)
    try:
        if stripped.startswith("-"):
            return end_ns - parse_interval(stripped[1:])
        return start_ns + parse_interval(stripped.removeprefix("+"))
    except ValueError:
        if not re.search(r"[a-zA-Z-]", stripped[1:]):
            raise
        return _moment_of_date(stripped, start_ns)


def _moment_of_date(text: str, start_ns: int) -> int:
    """The moment of a date, a time of day or both: the next one from the start's hour on if parts are missing.

    ValueError if it cannot be understood, or may mean another day than the one that dateutil makes of it.
    """
    # Most command lines have no such date.
    from dateutil.parser import parse  # noqa: PLC0415
    from dateutil.relativedelta import relativedelta  # noqa: PLC0415

    def zone(name: str | None, east_s: int | None) -> int | None:
        if name is not None and east_s is None:
            raise ValueError(f"{text!r}: unknown time zone {name}")
        return east_s

    hour = datetime.fromtimestamp(start_ns // SECOND).replace(minute=0, second=0)
    midnight = hour.replace(hour=0)
    steps = (
        relativedelta(),
        relativedelta(days=1),
        relativedelta(months=1),
        relativedelta(years=1),
    )
    # In capitals, of which alone it takes zones.
    moments: list[datetime] = [
        parse(text.upper(), default=midnight + step, tzinfos=zone) for step in steps
    ]
    # What stands in the text is the same whatever the default is.
    first, other = (
        parse(text.upper(), default=datetime(*day), tzinfos=zone)
        for day in ((2000, 1, 1), (2004, 3, 2))
    )
    if first.year == other.year and not re.search(r"\d{4}|/", text):
        raise ValueError(
            f"{text!r}: write a year with four digits, and an hour with a colon, as in 10:00"
        )
    if first.day != other.day and (
        first.year == other.year or first.month == other.month
    ):
        raise ValueError(f"{text!r} has no day: write it as in 2024-03-11")
    moment = next(
        (moment for moment in moments if moment.timestamp() >= hour.timestamp()),
        moments[0],
    )
    return (
        int(moment.replace(microsecond=0).timestamp()) * SECOND
        + moment.microsecond * 1000
    )


@dataclass(frozen=True)
class TimeWindow:
    """The part of an archive that is wanted, ns since 1970 UTC; `origin_ns` is the time of the first sample."""

    start_ns: int
    finish_ns: int
    origin_ns: int


def time_window(
    span: tuple[int, int],
    start: str | None = None,
    finish: str | None = None,
    origin: str | None = None,
    align: str | None = None,
) -> TimeWindow:
    """The window that the options -S, -T, -O and -A choose from an archive's `span` (ns since 1970 UTC).

    As pmParseTimeWindow(3): start, finish and origin are kept within the archive; -A moves start and origin on to the
    next multiple of its interval, where the archive reaches so far. ValueError if an option cannot be understood, or
    if the window would end before it starts.
    """
    first, last = span
    begin = (
        max(_option("-S", start, first, last), first) if start is not None else first
    )
    if begin > last:
        raise ValueError(
            f"-S {start}: {shown(begin)} is after the archive's end, {shown(last)}"
        )
    step = _option("-A", align) if align is not None else 0
    if step and (aligned := -(-begin // step) * step) <= last:
        begin = aligned
    end = min(_option("-T", finish, begin, last), last) if finish is not None else last
    if end < begin:
        raise ValueError(
            f"-T {finish}: {shown(end)} is before the start of the window, {shown(begin)}"
        )
    sample = (
        min(max(_option("-O", origin, begin, end), begin), end)
        if origin is not None
        else begin
    )
    if step and origin is not None:
        aligned = -(-sample // step) * step
        aligned -= step if aligned > end else 0
        sample = aligned if begin <= aligned <= end else sample
    return TimeWindow(begin, end, sample)


def _option(
    option: str, text: str, first: int | None = None, last: int | None = None
) -> int:
    try:
        if first is not None and last is not None:
            return parse_moment(text, first, last)
        if (step := parse_interval(text)) > 0:
            return step
        raise ValueError("must be more than 0")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{option} {text}: {error}") from error


def shown(time_ns: int) -> str:
    """A moment in the process's time zone, for messages."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // SECOND))
