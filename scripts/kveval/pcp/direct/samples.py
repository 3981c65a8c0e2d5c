"""Samples under PCP's names, collected and written as one Parquet file in the long form."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.conversion.catalog import Ints
from pcp_parquet.conversion.chunks import Chunk
from pcp_parquet.conversion.footer import ArchiveInfo, MetricInfo, encode
from pcp_parquet.conversion.table import LongWriter

FLUSH_ROWS = 1_000_000


@dataclass(frozen=True)
class About:
    """A metric as PCP would describe it: semantics (counter or instant), units as PCP writes them, a line of help."""

    semantics: str
    units: str
    help: str = ""


@dataclass(frozen=True)
class DirectSample:
    """One value of one series; `instance` is None for a metric without instances."""

    metric: str
    instance: str | None
    value: float
    about: About


class DirectFile:
    """A recording being written; `close` completes the file and gives it its name."""

    def __init__(self, path: Path, host: str) -> None:
        self._host = host
        self._writer = LongWriter(path, with_host=False)
        self._numbers: dict[tuple[str, str | None], int] = {}
        # The rows that are not written yet: number of the series, time, value.
        self._rows = array("q"), array("q"), array("d")
        self._about: dict[str, About] = {}
        self._counts = Counter[str]()
        self._begin = self._end = 0

    def add(self, moment_ns: int, samples: Iterable[DirectSample]) -> None:
        """Take the samples of one moment, ns since 1970 UTC."""
        moment_ns -= moment_ns % 1000
        self._begin, self._end = self._begin or moment_ns, moment_ns
        numbers, times, values = self._rows
        for sample in samples:
            # The values last: a stop may come between any two of these lines.
            self._about[sample.metric] = sample.about
            self._counts[sample.metric] += 1
            numbers.append(
                self._numbers.setdefault(
                    (sample.metric, sample.instance), len(self._numbers)
                )
            )
            times.append(moment_ns)
            values.append(sample.value)
        if len(times) >= FLUSH_ROWS:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows and the file's description of itself."""
        self._flush()
        singular = {metric for metric, instance in self._numbers if instance is None}
        metrics = {
            name: MetricInfo(
                name=name,
                names=(name,),
                pmid="",
                type="double",
                semantics=about.semantics,
                units=about.units,
                # Each metric has a domain of its own, as those of PCP's openmetrics agent have.
                indom=None if name in singular else name,
                help=about.help,
                labels={},
                samples=self._counts[name],
            )
            for name, about in sorted(self._about.items())
        }
        described = [
            {
                "name": "exporters",
                "host": self._host,
                "start_ns": self._begin,
                "volumes": 1,
            }
        ]
        info = ArchiveInfo(
            self._host,
            [self._host],
            "UTC",
            "",
            described,
            self._begin,
            self._end,
            [],
            [],
            self._writer.rows,
        )
        self._writer.finish(encode(info, metrics, {}, self._writer.time_unit))

    def names(self, series: Ints) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Return metric and instance of each series, as the writer asks for them."""
        keys = np.array(list(self._numbers), dtype=np.object_)[series]
        return keys[:, 0], keys[:, 1]

    def _flush(self) -> None:
        complete = len(self._rows[2])
        numbers, times, values = (
            np.frombuffer(rows, dtype=rows.typecode)[:complete] for rows in self._rows
        )
        if not len(times):
            return
        order = np.argsort(numbers, kind="stable")
        series, counts = np.unique(numbers, return_counts=True)
        none = np.empty(0, dtype=np.int64)
        texts, exact = (
            (none, np.empty(0, dtype=np.object_)),
            (none, np.empty((0, 2), dtype=np.int64)),
        )
        self._writer.write(
            Chunk(series, counts, times[order], values[order], texts, exact),
            self,
            self._host,
        )
        self._rows = array("q"), array("q"), array("d")


def moments(interval_s: float) -> Iterator[int]:
    """Yield the time, ns since 1970 UTC, once per interval; intervals that were missed are skipped."""
    due = time.monotonic()
    while True:
        yield time.time_ns()
        due = max(due + interval_s, time.monotonic() - interval_s)
        time.sleep(max(0.0, due - time.monotonic()))
