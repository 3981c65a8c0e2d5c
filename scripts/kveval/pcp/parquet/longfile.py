"""An open Parquet file in the long form: its footer, and the rows of one metric."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kveval.pcp.conversion.footer import (
    ARCHIVE_KEY,
    LABELS_KEY,
    METRIC_KEY,
    ArchiveInfo,
    Labels,
    MetricInfo,
    decode_archive,
    decode_metric,
)


@dataclass
class Rows:
    """Rows of one metric, in no particular order.

    `times` in ns; `codes` number the sorted `instances`, -1 for a singular metric, likewise `host_codes` (None where
    the file has one host only). `values` are doubles or texts; `exact` are integers beyond 2^53 (None elsewhere), or
    None if there are none at all.
    """

    times: NDArray[np.int64]
    codes: NDArray[np.int64]
    instances: list[str]
    values: NDArray[Any]
    exact: NDArray[np.object_] | None
    host_codes: NDArray[np.int64] | None
    hosts: list[str]


@dataclass(frozen=True)
class Part:
    """Rows of one metric within a row group; `codes` number `names`, (host, instance) each, "" where there is none."""

    times: NDArray[np.int64]
    codes: NDArray[np.int64]
    names: list[tuple[str, str]]
    values: NDArray[np.float64]


class LongFile:
    """Opens a file that `convert` wrote. ValueError for any other."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path}: cannot be read as Parquet: {error}") from error
        self._footer: Mapping[bytes, bytes] = self._file.metadata.metadata or {}
        if ARCHIVE_KEY.encode() not in self._footer:
            raise ValueError(f"{path}: not written by kveval.pcp (no {ARCHIVE_KEY!r} in its metadata)")

    def archive(self) -> ArchiveInfo:
        """The recording: host, zone, start, end, marks, problems."""
        return decode_archive(self._footer[ARCHIVE_KEY.encode()])

    def metrics(self) -> dict[str, MetricInfo]:
        """Every metric of the file, sorted by name."""
        prefix = METRIC_KEY.encode()
        found = (decode_metric(text) for key, text in self._footer.items() if key.startswith(prefix))
        return {info.name: info for info in sorted(found, key=lambda info: info.name)}

    def metric(self, name: str) -> MetricInfo:
        """One metric, by any of its names; KeyError if the archive has no such metric."""
        if (text := self._footer.get((METRIC_KEY + name).encode())) is not None:
            return decode_metric(text)
        for info in self.metrics().values():
            if name in info.names:
                return info
        raise KeyError(f"{self.path}: no metric {name!r}")

    def find(self, names: Collection[str]) -> dict[str, MetricInfo]:
        """Those of the metrics that the file has, by the name asked for; any of a metric's names will do."""
        texts = {name: self._footer.get((METRIC_KEY + name).encode()) for name in names}
        found = {name: decode_metric(text) for name, text in texts.items() if text is not None}
        # To decode every metric for names that are nowhere would take longer than all the rest.
        everything = b"".join(self._footer.values())
        others = [name for name, text in texts.items() if text is None and f'"{name}"'.encode() in everything]
        if others:
            aliases = {alias: info for info in self.metrics().values() for alias in info.names}
            found |= {name: aliases[name] for name in others if name in aliases}
        return found

    def parts_of(self, metrics: Collection[str]) -> Iterator[tuple[str, Part]]:
        """The numbers of these metrics, row group after row group; each row group is read once."""
        low, high = min(metrics, default=""), max(metrics, default="")
        at = self._column("metric")
        columns = ["timestamp", "metric", "instance", "value", *(["host"] if self._has_host else [])]
        for number in range(self._file.metadata.num_row_groups if metrics else 0):
            if _may_hold(self._file.metadata.row_group(number).column(at).statistics, low, high):
                table = self._file.read_row_group(number, columns=columns, use_threads=False)
                yield from _split(table, metrics)

    def instance_labels(self, info: MetricInfo) -> dict[str, list[tuple[int, Labels]]]:
        """Instance name -> [(valid from ns, labels), ...] for the instances of a metric that have labels."""
        text = self._footer.get(f"{LABELS_KEY}{info.indom}".encode(), b"{}")
        return {name: [(time, labels) for time, labels in history] for name, history in json.loads(text).items()}

    def rows(
        self, info: MetricInfo, instances: Collection[str] | None, start_ns: int | None, finish_ns: int | None
    ) -> Rows:
        """The samples of a metric in a closed window (ns), of these instances; only row groups that may hold some."""
        text = info.type == "string"
        groups = self._groups(info.name, instances, start_ns, finish_ns)
        columns = ["timestamp", "metric", "instance", "text" if text else "value"]
        if not text and self._any_exact(groups):
            columns.append("value_int")
        if self._has_host:
            columns.append("host")
        # Threads would cost more than they save: it is a few row groups.
        table = self._file.read_row_groups(groups, columns=columns, use_threads=False)
        times = table["timestamp"].cast(pa.int64()).to_numpy()
        metric_codes, metrics = _codes(table["metric"])
        codes, names = _codes(table["instance"])
        keep = metric_codes == (metrics.index(info.name) if info.name in metrics else -2)
        if start_ns is not None:
            keep &= times >= start_ns
        if finish_ns is not None:
            keep &= times <= finish_ns
        if instances is not None:
            keep &= np.isin(codes, [number for number, name in enumerate(names) if name in instances])
        at = np.flatnonzero(keep)
        hosts: tuple[NDArray[np.int64] | None, list[str]] = (None, [])
        if self._has_host:
            host_codes, host_names = _codes(table["host"])
            hosts = (host_codes[at], host_names)
        chosen = table.take(at) if text or "value_int" in columns else None
        return Rows(
            times=times[at],
            codes=codes[at],
            instances=names,
            values=_objects(chosen["text"]) if text and chosen is not None else table["value"].to_numpy()[at],
            exact=_integers(chosen["value_int"]) if not text and chosen is not None else None,
            host_codes=hosts[0],
            hosts=hosts[1],
        )

    @property
    def _has_host(self) -> bool:
        return "host" in self._file.schema_arrow.names

    def _column(self, name: str) -> int:
        return int(self._file.schema_arrow.get_field_index(name))

    def _any_exact(self, groups: Sequence[int]) -> bool:
        metadata, at = self._file.metadata, self._column("value_int")
        counts = [(metadata.row_group(number), number) for number in groups]
        return any(group.column(at).statistics.null_count < group.num_rows for group, _ in counts)

    def _groups(self, metric: str, instances: Collection[str] | None, start: int | None, end: int | None) -> list[int]:
        metadata = self._file.metadata
        metric_at, instance_at, time_at = map(self._column, ("metric", "instance", "timestamp"))
        low, high = (min(instances), max(instances)) if instances else ("", "")
        found = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if not _may_hold(group.column(metric_at).statistics, metric, metric):
                continue
            if instances and not _may_hold(group.column(instance_at).statistics, low, high):
                continue
            times = group.column(time_at).statistics
            if (start is not None and times.max_raw < start) or (end is not None and times.min_raw > end):
                continue
            found.append(number)
        return found


def _split(table: pa.Table, metrics: Collection[str]) -> Iterator[tuple[str, Part]]:
    """Take a row group apart by metric; rows of one metric lie together in it."""
    metric_codes, words = _codes(table["metric"])
    codes, instances = _codes(table["instance"])
    hosts = _codes(table["host"]) if "host" in table.column_names else (np.zeros(len(codes), dtype=np.int64), [""])
    names = [(host, instance) for host in hosts[1] for instance in (*instances, "")]
    # A null instance has the number -1, and the last name of its host.
    codes = hosts[0] * (len(instances) + 1) + np.where(codes < 0, len(instances), codes)
    times, values = table["timestamp"].cast(pa.int64()).to_numpy(), table["value"].to_numpy()
    edges = np.flatnonzero(np.diff(metric_codes)) + 1
    for begin, end in zip([0, *edges], [*edges, len(metric_codes)], strict=True):
        if end > begin and words[metric_codes[begin]] in metrics:
            rows = slice(int(begin), int(end))
            used, inside = np.unique(codes[rows], return_inverse=True)
            numbers = np.asarray(values[rows], dtype=np.float64)
            part = Part(times[rows], np.asarray(inside, dtype=np.int64), [names[number] for number in used], numbers)
            yield words[metric_codes[begin]], part


def _may_hold(statistics: Any, low: str, high: str) -> bool:
    return bool(statistics.has_min_max and statistics.min <= high and statistics.max >= low)


def _codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """A dictionary column as numbers into its sorted words, -1 where it is null."""
    words = sorted({word for chunk in column.chunks for word in chunk.dictionary.to_pylist()})
    rank = {word: number for number, word in enumerate(words)}
    parts = []
    for chunk in column.chunks:
        table = np.array([*(rank[word] for word in chunk.dictionary.to_pylist()), -1], dtype=np.int64)
        # A null takes the last entry.
        parts.append(table[pc.fill_null(chunk.indices, len(table) - 1).to_numpy()])
    return np.concatenate([*parts, np.empty(0, dtype=np.int64)]), words


def _objects(column: pa.ChunkedArray) -> NDArray[np.object_]:
    return np.array([*column.to_pylist(), None], dtype=np.object_)[:-1]


def _integers(column: pa.ChunkedArray) -> NDArray[np.object_] | None:
    if column.null_count == len(column):
        return None
    return np.array([*(None if value is None else int(value) for value in column.to_pylist()), None], dtype=object)[:-1]
