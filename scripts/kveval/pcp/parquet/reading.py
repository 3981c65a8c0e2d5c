"""Reads one metric's samples as a pandas frame, from only those row groups that can hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kveval.pcp.conversion.footer import ArchiveInfo, MetricInfo
from kveval.pcp.parquet.longfile import LongFile, codes, times_ns

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
    large for a double there is a column value_int (int or None) beside it, and in a file of several hosts a column
    host. `instance`: a name or several. `labels`: what the labels of the metric and the instance must be at the
    sample's time (compared as text). The window is closed, ns since 1970 UTC. `attrs` of the frame say metric, units,
    semantics, type and marks_ns. KeyError if the archive has no such metric.
    """
    file = LongFile(parquet)
    info, archive = file.metric(metric), file.archive()
    columns = ["text"] if info.type == "string" else ["value", "value_int"]
    table = file.read(columns, [info.name], start_ns, finish_ns)
    if instance is not None:
        names = [instance] if isinstance(instance, str) else instance
        table = table.filter(pc.field("instance").isin(pa.array(names, pa.string())))
    if host is not None:
        table = table.filter(pc.field("host") == host if file.has_host else pc.scalar(archive.host == host))
    frame = _frame(table)
    if labels is not None:
        frame = frame[_labelled(file, info, frame, labels)].reset_index(drop=True)
    frame.attrs = {
        **{"metric": info.name, "units": info.units, "semantics": info.semantics, "type": info.type},
        "marks_ns": archive.marks_ns,
    }
    return frame


def _frame(table: pa.Table) -> pd.DataFrame:
    times, names = times_ns(table), [name for name in ("instance", "host") if name in table.column_names]
    numbered = {name: codes(table[name]) for name in names}
    order = np.lexsort([times, *(numbers for numbers, _ in numbered.values())])
    words = {
        name: pd.Categorical.from_codes(numbers[order], pd.Index(found, dtype="str"))
        for name, (numbers, found) in numbered.items()
    }
    data: dict[str, Any] = {"timestamp": pd.DatetimeIndex(times[order].view("datetime64[ns]"), tz="UTC"), **words}
    if "text" in table.column_names:
        numbers, texts = codes(table["text"])
        data["value"] = np.array([*texts, None], dtype=np.object_)[numbers[order]]
    else:
        data["value"] = table["value"].to_numpy()[order]
    if "value_int" in table.column_names and table["value_int"].null_count < len(table):
        whole = [None if value is None else int(value) for value in table["value_int"].to_pylist()]
        data["value_int"] = pd.Series([whole[row] for row in order], dtype=object)
    columns = ["timestamp", "instance", "value", *(name for name in ("value_int", "host") if name in data)]
    return pd.DataFrame(data)[columns]


def _labelled(file: LongFile, info: MetricInfo, frame: pd.DataFrame, wanted: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which samples have these labels, of the metric or of the instance, at their time."""
    chosen = np.zeros(len(frame), dtype=np.bool_)
    archive = file.archive()
    of_instances = {host: file.instance_labels(info, host) for host in archive.hosts or [archive.host]}
    keys = [name for name in ("host", "instance") if name in frame]
    groups: Iterable[tuple[Any, pd.DataFrame]] = frame.groupby(keys, dropna=False, observed=True)
    for (*host, name), part in groups:
        where = host[0] if host else archive.host
        histories = [info.labels_of(where), of_instances[where].get(name) or [(0, {})]]
        times = part["timestamp"].astype("int64").to_numpy()
        # The first labels also apply to samples from before they were recorded.
        at = [np.searchsorted([time for time, _ in one[1:]], times, side="right") for one in histories]
        pairs, place = np.unique(np.stack(at), axis=1, return_inverse=True)
        merged = [histories[0][first][1] | histories[1][second][1] for first, second in pairs.T.tolist()]
        chosen[part.index] = np.array([_match(labels, wanted) for labels in merged])[place]
    return chosen


def _match(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in labels and str(labels[name]) == str(value) for name, value in wanted.items())
