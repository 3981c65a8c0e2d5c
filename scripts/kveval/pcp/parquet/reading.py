"""Reads one metric's samples as a pandas frame, from only those row groups that can hold them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import itemgetter, or_
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from kveval.pcp.archive.meta import Labels
from kveval.pcp.conversion.footer import ArchiveInfo, MetricInfo
from kveval.pcp.conversion.labels import LabelHistory
from kveval.pcp.parquet.longfile import LongFile, codes, times_ns

Source = str | Path
Names = str | Sequence[str] | None
_ALWAYS = (-(1 << 63), (1 << 63) - 1)


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
        table = table.filter(_one_of([instance] if isinstance(instance, str) else instance))
    if labels is not None:
        table = table.filter(_labelled(file, info, labels))
    if host is not None:
        table = table.filter(pc.field("host") == host if file.has_host else pc.scalar(archive.host == host))
    frame = _frame(table)
    frame.attrs = {
        **{"metric": info.name, "units": info.units, "semantics": info.semantics, "type": info.type},
        "marks_ns": archive.marks_ns,
    }
    return frame


def _moment(time_ns: int) -> pa.Scalar[Any]:
    return pa.scalar(time_ns, pa.timestamp("ns", "UTC"))


def _one_of(instances: Sequence[str]) -> pc.Expression:
    return pc.field("instance").isin(pa.array(instances, pa.string()))


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


def _labelled(file: LongFile, info: MetricInfo, wanted: Mapping[str, Any]) -> pc.Expression:
    """Choose the samples whose labels, of the metric and of the instance, are those wanted at the sample's time."""
    archive = file.archive()
    parts = []
    for host in archive.hosts or [archive.host]:
        chosen = _labelled_on(info.labels_of(host), file.instance_labels(info, host), wanted)
        parts.append((pc.field("host") == host) & chosen if file.has_host else chosen)
    return reduce(or_, parts)


def _labelled_on(
    metric: LabelHistory, instances: Mapping[str, LabelHistory], wanted: Mapping[str, Any]
) -> pc.Expression:
    by_windows: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for name, history in instances.items():
        by_windows.setdefault(_windows(metric, history, wanted), []).append(name)
    others = ~_one_of(list(instances)) & _within(_windows(metric, [], wanted))
    return reduce(or_, (_one_of(names) & _within(windows) for windows, names in by_windows.items()), others)


def _windows(metric: LabelHistory, instance: LabelHistory, wanted: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Time spans in ns, end excluded, in which the labels match."""
    edges = [_ALWAYS[0], *sorted({time for time, _ in (*metric[1:], *instance[1:])}), _ALWAYS[1]]
    return tuple(
        window for window in pairwise(edges) if _match(_at(metric, window[0]) | _at(instance, window[0]), wanted)
    )


def _at(history: LabelHistory, time_ns: int) -> Labels:
    """The labels at a time; the first ones also apply to samples from before they were recorded."""
    return history[max(0, bisect_right(history, time_ns, key=itemgetter(0)) - 1)][1] if history else {}


def _within(windows: Sequence[tuple[int, int]]) -> pc.Expression:
    if list(windows) == [_ALWAYS]:
        return pc.scalar(True)
    spans = (
        (pc.field("timestamp") >= _moment(begin)) & (pc.field("timestamp") < _moment(end)) for begin, end in windows
    )
    return reduce(or_, spans, pc.scalar(False))


def _match(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in labels and str(labels[name]) == str(value) for name, value in wanted.items())
