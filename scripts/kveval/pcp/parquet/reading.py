"""Reading back: one metric's samples as pandas, touching only what can hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kveval.pcp.conversion.footer import ArchiveInfo, MetricInfo
from kveval.pcp.parquet.longfile import LongFile, Rows

Source = str | Path
Names = str | Sequence[str] | None
_ALWAYS = (-(1 << 63), 1 << 63)


def describe(parquet: Source) -> dict[str, MetricInfo]:
    """Type, semantics, units, help and labels of every metric in the file."""
    return LongFile(parquet).metrics()


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
    info = file.metric(metric)
    chosen = {instance} if isinstance(instance, str) else None if instance is None else set(instance)
    spans = None
    if labels is not None:
        spans = _label_spans(file, info, labels)
        chosen = set(spans) if chosen is None else chosen & set(spans)
    singular = info.indom is None
    rows = file.rows(info, None if singular else chosen, start_ns, finish_ns)
    keep = np.ones(len(rows.times), dtype=bool)
    if singular and (instance is not None or (spans is not None and not spans)):
        keep[:] = False
    if spans is not None and not singular:
        keep &= _within(rows, spans)
    if host is not None:
        keep &= _of_host(file, rows, host)
    frame = _frame(rows, keep)
    frame.attrs = {
        **{"metric": info.name, "units": info.units, "semantics": info.semantics, "type": info.type},
        "marks_ns": file.archive().marks_ns,
    }
    return frame


def _frame(rows: Rows, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> pd.DataFrame:
    at = np.flatnonzero(keep)
    keys = [rows.times[at], rows.codes[at], *([] if rows.host_codes is None else [rows.host_codes[at]])]
    at = at[np.lexsort(keys)]
    data: dict[str, Any] = {
        "timestamp": pd.DatetimeIndex(rows.times[at].view("datetime64[ns]"), tz="UTC"),
        "instance": pd.Categorical.from_codes(rows.codes[at], pd.Index(rows.instances, dtype="str")),
        "value": rows.values[at],
    }
    if rows.exact is not None:
        data["value_int"] = pd.Series(rows.exact[at], dtype=object)
    if rows.host_codes is not None:
        data["host"] = pd.Categorical.from_codes(rows.host_codes[at], pd.Index(rows.hosts, dtype="str"))
    return pd.DataFrame(data)


def _label_spans(file: LongFile, info: MetricInfo, wanted: Mapping[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Instance name -> time spans (ns, half open) in which its labels are those wanted; "" for a singular metric."""
    if info.indom is None:
        return {"": [_ALWAYS]} if _match(info.labels, wanted) else {}
    spans: dict[str, list[tuple[int, int]]] = {}
    for name, history in file.instance_labels(info).items():
        # The first labels count for what was sampled before they were recorded, too.
        edges = [_ALWAYS[0], *(time for time, _ in history[1:]), _ALWAYS[1]]
        found = [
            (begin, end)
            for begin, end, (_, labels) in zip(edges, edges[1:], history, strict=False)
            if _match({**info.labels, **labels}, wanted)
        ]
        if found:
            spans[name] = found
    return spans


def _match(labels: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in labels and str(labels[name]) == str(value) for name, value in wanted.items())


def _within(rows: Rows, spans: Mapping[str, Sequence[tuple[int, int]]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    keep = np.zeros(len(rows.times), dtype=bool)
    always = [code for code, name in enumerate(rows.instances) if spans.get(name) == [_ALWAYS]]
    keep |= np.isin(rows.codes, always)
    for code, name in enumerate(rows.instances):
        for begin, end in spans.get(name, ()) if code not in always else ():
            keep |= (rows.codes == code) & (rows.times >= begin) & (rows.times < end)
    return keep


def _of_host(file: LongFile, rows: Rows, host: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if rows.host_codes is None:
        return np.full(len(rows.times), file.archive().host == host)
    return np.equal(rows.host_codes, rows.hosts.index(host) if host in rows.hosts else -2)


def wide(
    parquet: Source, metrics: Sequence[str], *, start_ns: int | None = None, finish_ns: int | None = None
) -> pd.DataFrame:
    """A table with one row per time and one column per series, `metric` or `metric[instance]`, as pcp2arrow has it.

    Values are as recorded (no rates). In a file of several hosts the columns begin with `host:`.
    """
    columns: dict[str, pd.Series[Any]] = {}
    for metric in metrics:
        frame = series(parquet, metric, start_ns=start_ns, finish_ns=finish_ns)
        keys = [name for name in ("host", "instance") if name in frame]
        for key, part in frame.groupby(keys, dropna=False, sort=True, observed=True):
            # Two samples of one series at one time are possible in overlapping archives: keep the last.
            values = part.drop_duplicates("timestamp", keep="last").set_index("timestamp")["value"]
            columns[_column(metric, key)] = values
    return pd.DataFrame(columns).sort_index()


def _column(metric: str, key: tuple[Any, ...]) -> str:
    *host, instance = key
    name = metric if pd.isna(instance) else f"{metric}[{instance}]"
    return f"{host[0]}:{name}" if host else name
