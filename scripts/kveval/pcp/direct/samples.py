"""Samples under PCP's names, collected and written as one Parquet file in the long form."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kveval.pcp.conversion.catalog import Ints
from kveval.pcp.conversion.chunks import Chunk
from kveval.pcp.conversion.footer import ArchiveInfo, MetricInfo, encode
from kveval.pcp.conversion.table import LongWriter

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


@dataclass
class _Series:
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))


class DirectFile:
    """A recording being written; `close` completes the file and gives it its name."""

    def __init__(self, path: Path, host: str) -> None:
        self._host = host
        self._writer = LongWriter(path, with_host=False)
        self._keys: list[tuple[str, str | None]] = []
        self._numbers: dict[tuple[str, str | None], int] = {}
        self._pending: dict[int, _Series] = {}
        self._rows = 0
        self._about: dict[str, About] = {}
        self._counts: dict[str, int] = {}
        self._begin = self._end = 0

    def add(self, moment_ns: int, samples: Iterable[DirectSample]) -> None:
        """Take the samples of one moment, ns since 1970 UTC."""
        moment_ns -= moment_ns % 1000
        self._begin, self._end = self._begin or moment_ns, moment_ns
        for sample in samples:
            key = (sample.metric, sample.instance)
            number = self._numbers.setdefault(key, len(self._keys))
            if number == len(self._keys):
                self._keys.append(key)
            series = self._pending.setdefault(number, _Series())
            series.times.append(moment_ns)
            series.values.append(sample.value)
            self._about[sample.metric] = sample.about
            self._counts[sample.metric] = self._counts.get(sample.metric, 0) + 1
            self._rows += 1
        if self._rows >= FLUSH_ROWS:
            self._flush()

    def close(self) -> None:
        """Write the remaining rows and the file's description of itself."""
        self._flush()
        singular = {metric for metric, instance in self._keys if instance is None}
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
        described = [{"name": "exporters", "host": self._host, "start_ns": self._begin, "volumes": 1}]
        info = ArchiveInfo(
            self._host, [self._host], "UTC", "", described, self._begin, self._end, [], [], self._writer.rows
        )
        self._writer.finish(encode(info, metrics, {}, self._writer.time_unit))

    def names(self, series: Ints) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Return metric and instance of each series, as the writer asks for them."""
        metrics, instances = np.empty(len(series), dtype=np.object_), np.empty(len(series), dtype=np.object_)
        for row, number in enumerate(series.tolist()):
            metrics[row], instances[row] = self._keys[number]
        return metrics, instances

    def _flush(self) -> None:
        if not self._pending:
            return
        order = sorted(self._pending, key=lambda number: (self._keys[number][0], self._keys[number][1] or ""))
        parts = [self._pending[number] for number in order]
        none = np.empty(0, dtype=np.int64)
        chunk = Chunk(
            series=np.array(order, dtype=np.int64),
            counts=np.array([len(part.times) for part in parts], dtype=np.int64),
            times=np.concatenate([np.frombuffer(part.times, dtype=np.int64) for part in parts]),
            values=np.concatenate([np.frombuffer(part.values, dtype=np.float64) for part in parts]),
            texts=(none, np.empty(0, dtype=np.object_)),
            exact=(none, np.empty((0, 2), dtype=np.int64)),
        )
        self._writer.write(chunk, self, self._host)
        self._pending, self._rows = {}, 0


def moments(interval_s: float) -> Iterator[int]:
    """Yield the time, ns since 1970 UTC, once per interval; intervals that were missed are skipped."""
    due = time.monotonic()
    while True:
        yield time.time_ns()
        due = max(due + interval_s, time.monotonic() - interval_s)
        time.sleep(max(0.0, due - time.monotonic()))
