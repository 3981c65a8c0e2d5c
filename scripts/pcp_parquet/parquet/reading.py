"""Reads what `convert` wrote, from only those row groups that can hold it: samples as frames or arrays, the footer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pcp_parquet.conversion.footer import (
    ARCHIVE_KEY,
    LABELS_KEY,
    METRICS_KEY,
    ArchiveInfo,
    LabelHistory,
    MetricInfo,
    decode_archive,
    decode_labels,
    decode_metrics,
)

if TYPE_CHECKING:
    import pandas as pd

_LAST_NS = (1 << 63) - 1
_NANOSECONDS = pa.timestamp("ns", tz="UTC")
_NS_OF = {"us": 1000, "ns": 1}
Source = str | Path
Names = str | Sequence[str] | None


def describe(parquet: Source) -> dict[str, MetricInfo]:
    """Type, semantics, units, help and labels of every metric in the file."""
    return dict(LongFile(parquet).metrics())


def archive_info(parquet: Source) -> ArchiveInfo:
    """Host, time zone, start, end, marks and problems of the recording."""
    return LongFile(parquet).archive()


def series(
    parquet: Source,
    metric: str,
    *,
    instance: Names = None,
    labels: Mapping[str, Any] | None = None,
    host: str | None = None,
    start_ns: int | None = None,
    finish_ns: int | None = None,
) -> pd.DataFrame:
    """The samples of one metric: columns timestamp (UTC), instance (categorical; missing if singular), value.

    Sorted by instance and time. `value` is a double, or text for a metric of type string; where an integer is too
    large for a double there is a column value_int (UInt64 for unsigned metrics, else Int64; NA for the others) beside
    it, and in a file of several hosts a column host. `instance`: a name or several. `labels`: what the labels of the
    metric and the instance must be at the sample's time (compared as text). The window is closed, ns since 1970 UTC.
    `attrs` of the frame say metric, units, semantics, type and marks_ns. KeyError if the archive has no such metric.
    Needs pandas, which the rest of this module does without.
    """
    file = LongFile(parquet)
    info, archive = file.metric(metric), file.archive()
    columns = ["text"] if info.type == "string" else ["value", "value_int"]
    table = file.read(columns, [info.name], start_ns, finish_ns)
    if instance is not None:
        names = [instance] if isinstance(instance, str) else instance
        table = table.filter(pc.field("instance").isin(pa.array(names, pa.string())))
    if host is not None:
        table = table.filter(
            pc.field("host") == host
            if file.has_host
            else pc.scalar(archive.host == host)
        )
    frame = _frame(table, unsigned=info.type.startswith("U"))
    if labels is not None:
        frame = frame[_labelled(file, info, frame, labels)].reset_index(drop=True)
    frame.attrs = {
        **{
            "metric": info.name,
            "units": info.units,
            "semantics": info.semantics,
            "type": info.type,
        },
        "marks_ns": archive.marks_ns,
    }
    return frame


def _frame(table: pa.Table, *, unsigned: bool) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415  (what reads no frames does without)

    times, names = (
        times_ns(table),
        [name for name in ("instance", "host") if name in table.column_names],
    )
    numbered = {name: codes(table[name]) for name in names}
    order = np.lexsort([times, *(numbers for numbers, _ in numbered.values())])
    words = {
        name: pd.Categorical.from_codes(
            numbers[order], pd.Index(names_of_codes, dtype="str")
        )
        for name, (numbers, names_of_codes) in numbered.items()
    }
    data: dict[str, Any] = {
        "timestamp": pd.DatetimeIndex(times[order].view("datetime64[ns]"), tz="UTC"),
        **words,
    }
    if "text" in table.column_names:
        numbers, texts = codes(table["text"])
        data["value"] = np.array([*texts, None], dtype=np.object_)[numbers[order]]
    else:
        data["value"] = table["value"].to_numpy()[order]
    if "value_int" in table.column_names and table["value_int"].null_count < len(table):
        exact, kind = table["value_int"], pa.uint64() if unsigned else pa.int64()
        whole = pc.fill_null(exact, 0).cast(kind).to_numpy()
        missing = exact.is_null().to_numpy()
        data["value_int"] = pd.arrays.IntegerArray(whole[order], missing[order])
    columns = [
        "timestamp",
        "instance",
        "value",
        *(name for name in ("value_int", "host") if name in data),
    ]
    return pd.DataFrame(data)[columns]


def _labelled(
    file: LongFile, info: MetricInfo, frame: pd.DataFrame, required: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Whether each sample has these labels, of the metric or of the instance, at its time."""
    chosen = np.zeros(len(frame), dtype=np.bool_)
    archive = file.archive()
    of_instances = {
        host: file.instance_labels(info, host)
        for host in archive.hosts or [archive.host]
    }
    keys = [name for name in ("host", "instance") if name in frame]
    groups: Iterable[tuple[Any, pd.DataFrame]] = frame.groupby(
        keys, dropna=False, observed=True
    )
    for (*host, name), part in groups:
        where = host[0] if host else archive.host
        histories = [info.labels_of(where), of_instances[where].get(name) or [(0, {})]]
        times = part["timestamp"].astype("int64").to_numpy()
        # The first labels also apply to samples from before they were recorded.
        at = [_places_in(history, times) for history in histories]
        pairs, place = np.unique(np.stack(at), axis=1, return_inverse=True)
        merged = [
            histories[0][first][1] | histories[1][second][1]
            for first, second in pairs.T.tolist()
        ]
        chosen[part.index] = np.array([_match(labels, required) for labels in merged])[
            place
        ]
    return chosen


def _places_in(history: LabelHistory, times: NDArray[Any]) -> Any:
    """Return for each time the index of the labels that hold then."""
    changes = [time for time, _ in history[1:]]
    return np.searchsorted(changes, times, side="right")


def _match(labels: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    return all(
        name in labels and str(labels[name]) == str(value)
        for name, value in required.items()
    )


class LongFile:
    """Opens a file that `convert` wrote. ValueError for any other."""

    def __init__(self, path: Source) -> None:
        self.path = Path(path)
        try:
            self._file = pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path}: cannot be read as Parquet: {error}") from error
        self.has_host = "host" in self._file.schema_arrow.names
        self._footer: Mapping[bytes, bytes] = self._file.metadata.metadata or {}
        if ARCHIVE_KEY.encode() not in self._footer:
            raise ValueError(
                f"{path}: not written by pcp-parquet (no {ARCHIVE_KEY!r} in its metadata)"
            )
        try:
            self._archive = decode_archive(self._footer[ARCHIVE_KEY.encode()])
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        self._tick_ns = _NS_OF[self._file.schema_arrow.field("timestamp").type.unit]

    def archive(self) -> ArchiveInfo:
        """The recording: host, zone, start, end, marks, problems."""
        return self._archive

    def metrics(self) -> Mapping[str, MetricInfo]:
        """Every metric of the file, sorted by name."""
        return decode_metrics(self._footer[METRICS_KEY.encode()])

    def metric(self, name: str) -> MetricInfo:
        """One metric, by any of its names; KeyError if the archive has no such metric."""
        if (info := self.find([name]).get(name)) is None:
            raise KeyError(f"{self.path}: no metric {name!r}")
        return info

    def find(self, names: Collection[str]) -> dict[str, MetricInfo]:
        """Those of the metrics that the file has, by the name asked for; any of a metric's names will do."""
        by_name = self.metrics()
        aliases = {alias: info for info in by_name.values() for alias in info.names}
        return {
            name: info
            for name in names
            if (info := by_name.get(name) or aliases.get(name)) is not None
        }

    def instance_labels(self, info: MetricInfo, host: str) -> dict[str, LabelHistory]:
        """The label history of a metric's instances on a host, by instance name; none for instances without labels."""
        names = (
            decode_labels(self._footer[LABELS_KEY.encode()])
            .get(host, {})
            .get(info.indom or "", {})
        )
        histories: dict[str, LabelHistory] = {}
        for name, history in names.items():
            histories[name] = [(time, labels) for time, labels in history]
        return histories

    def series_names(self) -> list[tuple[str, str | None, str]]:
        """Every series that has values: metric, instance (None if singular) and host, sorted."""
        keys = ["metric", "instance", *(["host"] if self.has_host else [])]
        names: set[tuple[str | None, ...]] = set()
        for number in range(self._file.num_row_groups):
            table = self._file.read_row_group(number, columns=keys)
            numbered = [codes(table[key]) for key in keys]
            words = [[*names_of_codes, None] for _, names_of_codes in numbered]
            rows = np.stack([numbers for numbers, _ in numbered])
            # A row group is sorted by metric and instance: few rows begin another series.
            begins = np.diff(rows, axis=1, prepend=-2).any(axis=0)
            for row in rows[:, begins].T.tolist():
                names.add(
                    tuple(word[code] for word, code in zip(words, row, strict=True))
                )
        own = () if self.has_host else (self._archive.host,)
        found = [(*name, *own) for name in names]
        return sorted(found, key=lambda name: tuple(part or "" for part in name))

    def read(
        self,
        columns: list[str],
        metrics: Collection[str],
        start_ns: int | None = None,
        finish_ns: int | None = None,
    ) -> pa.Table:
        """Return the rows of these metrics in a closed window: timestamp (ns), metric, instance, host, `columns`.

        Only row groups that may hold some are read; a column value_int without any value is left out.
        """
        low, high = min(metrics, default=""), max(metrics, default="")
        start, finish = start_ns or 0, _LAST_NS if finish_ns is None else finish_ns
        groups = [
            n
            for n in range(self._file.num_row_groups)
            if metrics and self._may_hold(n, low, high, start, finish)
        ]
        names = [
            "timestamp",
            "metric",
            "instance",
            *(["host"] if self.has_host else []),
            *columns,
        ]
        if not any(self._has_exact(number) for number in groups):
            names = [name for name in names if name != "value_int"]
        # Threads would cost more than they save: it is a few row groups.
        table = self._file.read_row_groups(groups, columns=names, use_threads=False)
        table = table.set_column(0, "timestamp", table["timestamp"].cast(_NANOSECONDS))
        times, (numbers, words) = times_ns(table), codes(table["metric"])
        keep = np.isin(
            numbers, [number for number, word in enumerate(words) if word in metrics]
        )
        return table.filter(pa.array(keep & (times >= start) & (times <= finish)))

    def _may_hold(
        self, number: int, low: str, high: str, start_ns: int, finish_ns: int
    ) -> bool:
        names, times = (
            self._statistics(number, "metric"),
            self._statistics(number, "timestamp"),
        )
        if not (
            start_ns <= times.max_raw * self._tick_ns
            and times.min_raw * self._tick_ns <= finish_ns
        ):
            return False
        # Names longer than 4 KiB are in no statistics.
        return bool(not names.has_min_max or (low <= names.max and names.min <= high))

    def _has_exact(self, number: int) -> bool:
        rows = self._file.metadata.row_group(number).num_rows
        return bool(self._statistics(number, "value_int").null_count < rows)

    def _statistics(self, number: int, column: str) -> Any:
        place = self._file.schema_arrow.get_field_index(column)
        return self._file.metadata.row_group(number).column(place).statistics


def times_ns(table: pa.Table) -> NDArray[np.int64]:
    """Return the timestamps of a table's rows, ns since 1970 UTC."""
    return np.asarray(table["timestamp"].cast(pa.int64()).to_numpy(), dtype=np.int64)


def codes(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str]]:
    """Return a dictionary column as numbers into its sorted words, -1 where it is null."""
    words = sorted(
        {word for chunk in column.chunks for word in chunk.dictionary.to_pylist()}
    )
    rank = {word: number for number, word in enumerate(words)}
    parts = [np.empty(0, dtype=np.int64)]
    for chunk in column.chunks:
        table = np.array(
            [*(rank[word] for word in chunk.dictionary.to_pylist()), -1], dtype=np.int64
        )
        # A null takes the last entry.
        parts.append(table[pc.fill_null(chunk.indices, len(table) - 1).to_numpy()])
    return np.concatenate(parts), words


@dataclass(frozen=True)
class Samples:
    """The samples of one metric, sorted by series and time.

    `times` in ns since 1970 UTC; `series` numbers `names`, the (host, instance) of each series; the host is "" in a
    file of one host, the instance "" of a singular metric. `values` are doubles; NaN where the archive has no number.
    """

    info: MetricInfo
    times: NDArray[np.int64]
    series: NDArray[np.int64]
    names: list[tuple[str, str]]
    values: NDArray[np.float64]


def samples_of(
    parquet: Source, metrics: Collection[str]
) -> tuple[dict[str, Samples], ArchiveInfo]:
    """Return the samples of all of `metrics` that the file has, by the name asked for, and what the archive is.

    Texts are left out. ValueError for a file that `convert` did not write.
    """
    file = LongFile(parquet)
    infos = {
        name: info for name, info in file.find(metrics).items() if info.type != "string"
    }
    table = file.read(["value"], {info.name for info in infos.values()})
    metric_codes, words = codes(table["metric"])
    series, instances = codes(table["instance"])
    hosts = (
        codes(table["host"])
        if file.has_host
        else (np.zeros(len(series), dtype=np.int64), [""])
    )
    names = [(host, instance) for host in hosts[1] for instance in (*instances, "")]
    # A null instance has code -1 and becomes the last name of its host.
    series = hosts[0] * (len(instances) + 1) + np.where(
        series < 0, len(instances), series
    )
    times, values = (
        times_ns(table),
        np.asarray(table["value"].to_numpy(), dtype=np.float64),
    )
    order = np.lexsort((times, series, metric_codes))
    edges = np.searchsorted(metric_codes[order], np.arange(len(words) + 1))
    rows = {
        word: order[begin:end]
        for word, begin, end in zip(words, edges, edges[1:], strict=False)
    }
    samples = {}
    for name, info in infos.items():
        at = rows.get(info.name, order[:0])
        used, inside = np.unique(series[at], return_inverse=True)
        samples[name] = Samples(
            info, times[at], inside, [names[number] for number in used], values[at]
        )
    return samples, file.archive()
