"""Values that a Prometheus has of a span of time, in the long form, under the names of its exporters.

Asked once, when a run is over: GET /api/v1/query_range (https://prometheus.io/docs/prometheus/latest/querying/api). Each
selector is asked for by itself, so that one without an answer costs no other. Nothing that goes wrong here ends a run.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kveval.host.http import HttpError, fetch
from kveval.pcp.direct.prometheus import Exporter
from kveval.pcp.direct.samples import DirectFile, DirectSample

RANGES_FILE = "raw/prometheus.parquet"
"""Their place in the folder of a run."""
STEP_S = 1
"""Between two values, as between two samples of a recording: a value is repeated until the next one was scraped."""
# Prometheus refuses more than 11,000 points of a series in one answer.
_POINTS = 10_000
_ANSWER_S = 30.0
_MOST_VALUES = 5_000_000
# A series that is not there for so much of the span was not scraped, or ended.
_GAP_S = 60.0


@dataclass
class Ranges:
    """The samples of a span, by their time in ns since 1970 UTC; `problems`: what is not there, and why."""

    samples: dict[int, list[DirectSample]] = field(
        default_factory=lambda: defaultdict(list)
    )
    series: int = 0
    values: int = 0
    problems: list[str] = field(default_factory=list)

    def write(self, path: Path, host: str) -> None:
        """Write them as one file in the long form."""
        file = DirectFile(path, host)
        for moment_ns in sorted(self.samples):
            file.add(moment_ns, self.samples[moment_ns])
        file.close()


_Series = tuple[str, dict[str, str], list[tuple[float, float]]]
"""A series of an answer: name, other labels, and its values by time in seconds."""


class _AnswerError(Exception):
    """An answer that has no values to be recorded; the message says why."""


def read_ranges(
    url: str,
    selectors: Mapping[str, Sequence[str]],
    start_s: float,
    end_s: float,
    key: str = "",
) -> Ranges:
    """Return what a Prometheus has of series between two times, seconds since 1970 UTC.

    `selectors`: of series, by the name that their exporter has in recordings; `key`: sent as a bearer's token.
    """
    ranges = Ranges()
    for source, texts in selectors.items():
        exporter = Exporter(source)
        for text in texts:
            try:
                _read(ranges, exporter, url, text, (start_s, end_s), key)
            except HttpError as error:
                # Its message has the address, which is nobody else's business.
                ranges.problems.append(f"{text}: no answer ({error.__cause__})")
            except _AnswerError as error:
                ranges.problems.append(f"{text}: {error}")
    return ranges


def _read(
    ranges: Ranges,
    exporter: Exporter,
    url: str,
    selector: str,
    span_s: tuple[float, float],
    key: str,
) -> None:
    """Add what one selector has. Raises HttpError, _AnswerError."""
    edges: dict[str, tuple[float, float]] = {}
    try:
        for begin_s, finish_s in _parts(*span_s):
            answer = _matrix(url, selector, begin_s, finish_s, key, ranges.problems)
            for name, labels, values in answer:
                if ranges.values + len(values) > _MOST_VALUES:
                    message = f"more than {_MOST_VALUES:,} values: select fewer series"
                    raise _AnswerError(message)
                for time_s, value in values:
                    sample = exporter.sample(name, labels, value)
                    ranges.samples[round(time_s * 1000) * 1_000_000].append(sample)
                ranges.values += len(values)
                series = json.dumps([name, labels], sort_keys=True)
                first, _ = edges.get(series, values[0])
                edges[series] = (first, values[-1][0])
    finally:
        ranges.series += len(edges)
    if not edges:
        raise _AnswerError("no series matches in this time")
    start_s, end_s = span_s[0] + _GAP_S, span_s[1] - _GAP_S
    short = [edge for edge in edges.values() if edge[0] > start_s or edge[1] < end_s]
    if short:
        count = f"{len(short)} of {len(edges)} series are"
        ranges.problems.append(f"{selector}: {count} missing for a part of the time")


def _parts(start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
    """Yield spans of as many points as one answer may have, on whole seconds."""
    begin, end = math.floor(start_s), math.ceil(end_s)
    while begin <= end:
        finish = min(end, begin + (_POINTS - 1) * STEP_S)
        yield begin, finish
        begin = finish + STEP_S


def _matrix(
    url: str,
    selector: str,
    begin_s: float,
    finish_s: float,
    key: str,
    problems: list[str],
) -> list[_Series]:
    """Return the series of one answer that have values in its time, sorted by time. Raises HttpError, _AnswerError."""
    query = {"query": selector, "start": begin_s, "end": finish_s, "step": STEP_S}
    address = f"{url}/api/v1/query_range?{urlencode(query)}"
    try:
        answer = json.loads(fetch(address, timeout_s=_ANSWER_S, key=key))
    except ValueError:
        raise _AnswerError("the answer is cut off, or no JSON") from None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict) or answer.get("status") != "success":
        raise _AnswerError("the answer is not that of a Prometheus")
    problems += [f"{selector}: {warning}" for warning in answer.get("warnings") or ()]
    if data.get("resultType") != "matrix":
        raise _AnswerError(f"answered with a {data.get('resultType')}")
    try:
        found = [(dict(one["metric"]), list(one["values"])) for one in data["result"]]
        read = [(labels, sorted(_numbers(values))) for labels, values in found]
    except (LookupError, TypeError, ValueError) as error:
        raise _AnswerError(f"series without labels or values ({error})") from None
    if any("__name__" not in labels for labels, _ in read):
        raise _AnswerError("is computed from series: name the series themselves")
    series, outside = [], 0
    for labels, values in read:
        inside = [pair for pair in values if begin_s <= pair[0] <= finish_s]
        outside += len(values) - len(inside)
        if inside:
            series.append((labels.pop("__name__"), labels, inside))
    if outside:
        problems.append(f"{selector}: {outside} values of other times left out")
    return series


def _numbers(values: Sequence[Any]) -> Iterator[tuple[float, float]]:
    """Yield times and values; those that are no finite numbers are as good as not scraped."""
    for time_s, text in values:
        value = float(text)
        if math.isfinite(value):
            yield float(time_s), value
