"""Exports of usage: tables whose rows are sums over hours or days, which are no requests though they have their columns."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Names without case and punctuation, as OpenAI, LiteLLM, GPUStack, OpenRouter, Azure and Langfuse have them.
_THINGS = "(request|call|query|queries|invocation|observation|generation|completion)s?"
_COUNT = re.compile(
    f".*requests.*|.*invocations|(api|model|llm)calls|calls|queries|count|{_THINGS}count|(number|num|count|n)(of)?{_THINGS}"
)
# What a gateway says of its own state or of a limit at a request.
_STATE = re.compile(
    "limit|remain|running|waiting|queue|active|concurrent|pending|flight|rate|per|max|reset"
)
_PERIOD = re.compile(
    "(usage|bucket|window|period|interval|start)?(day|hour|week|month|bucket|window|period|interval|date)s?|startingat"
)
_END = re.compile(
    "(bucket|window|period|interval)?(end|ending|stop)(time|at|date|s|ms)?"
)
_DATE = re.compile(
    r"\d{4}[-/]\d{1,2}|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|20\d\d[01]\d[0-3]\d"
)
_HOUR_S, _MINUTE_S = 3600, 60
# So many times that are whole hours are no chance.
_LEAST_TIMES = 3


class RowTime(NamedTuple):
    """The time of a row as it is written, and in s since 1970; None for none, and for one from a log's own start."""

    text: str
    seconds: float | None


def plain_name(name: str) -> str:
    """Return a field's name without case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def is_end(name: str) -> bool:
    """Return whether a field holds the end of what begins at a row's time."""
    return _END.fullmatch(plain_name(name)) is not None


def why_sums(
    fields: Mapping[str, Sequence[Any]],
    times: Sequence[RowTime],
    ends: Sequence[RowTime],
) -> str:
    """Return what shows that the rows of a table are sums over requests, "" where nothing does.

    `fields`: the values of each field; `times`: of the rows that have one; `ends`: the ends that belong to these.
    """
    why = _why_counts(fields)
    if why:
        return why
    if not times:
        names = (name for name in fields if _PERIOD.fullmatch(plain_name(name)))
        period = next(names, "")
        return f"{period} is a time over which a row sums up" if period else ""
    if all(_DATE.fullmatch(time.text.strip()) for time in times):
        return f"its times are dates without a time of day, such as {times[0].text}"
    return _why_regular(times, ends)


def _why_counts(fields: Mapping[str, Sequence[Any]]) -> str:
    for name, values in fields.items():
        plain = plain_name(name.rpartition(".")[2])
        if _COUNT.fullmatch(plain) and not _STATE.search(plain):
            most = max(_numbers(values), default=0)
            if most > 1:
                return f"{name} counts requests, up to {most:,.0f} in a row"
    return ""


def _why_regular(times: Sequence[RowTime], ends: Sequence[RowTime]) -> str:
    begins = {time.seconds for time in times}
    if len(begins) < _LEAST_TIMES:
        return ""
    if all(begin is not None and begin % _HOUR_S == 0 for begin in begins):
        return f"its times are whole hours, such as {times[0].text}"
    widths = {
        end.seconds - begin.seconds
        for begin, end in zip(times, ends, strict=False)
        if begin.seconds is not None and end.seconds is not None
    }
    if len(widths) == 1 and min(widths) >= _MINUTE_S:
        return f"each row is of {min(widths):,.0f} s"
    return ""


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        try:
            yield float(value)
        except (TypeError, ValueError):
            continue
