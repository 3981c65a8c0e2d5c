"""A table with a row for each series and what the footer says of it, because few SQL engines read footers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pcp_parquet.archive.meta import Labels
from pcp_parquet.conversion.footer import LabelHistory
from pcp_parquet.parquet.reading import LongFile

_SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("instance", pa.string()),
        ("host", pa.string()),
        ("type", pa.string()),
        ("semantics", pa.string()),
        ("units", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("help", pa.string()),
    ]
)


def write_series_table(parquet: Path, output: Path) -> int:
    """Write a row for each series of a file in the long form, and return their number.

    Columns: metric, instance (null if singular), host, type, semantics, units ("" if dimensionless), labels (those of
    metric and instance as last recorded, as text) and help. ValueError if `parquet` is no file of `convert`.
    """
    file = LongFile(parquet)
    infos = file.metrics()
    of_instances: dict[tuple[str, str | None], dict[str, LabelHistory]] = {}
    rows: list[dict[str, Any]] = []
    for metric, instance, host in file.series_names():
        info = infos[metric]
        if (host, info.indom) not in of_instances:
            of_instances[host, info.indom] = file.instance_labels(info, host)
        own = of_instances[host, info.indom].get(instance or "", [])
        labels = _last(info.labels_of(host)) | _last(own)
        rows.append(
            {
                "metric": metric,
                "instance": instance,
                "host": host,
                "type": info.type,
                "semantics": info.semantics,
                "units": info.units,
                "labels": _texts(labels),
                "help": info.help,
            }
        )
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    partial = output.with_name(f".{output.name}.partial")
    try:
        pq.write_table(table, partial, compression="zstd")
        partial.replace(output)
    finally:
        partial.unlink(missing_ok=True)
    return len(rows)


def _last(history: LabelHistory) -> Labels:
    """The labels that were valid last; an instance that ended before the recording did has none at its end."""
    return next((labels for _, labels in reversed(history) if labels), {})


def _texts(labels: Labels) -> list[tuple[str, str]]:
    return [
        (name, value if isinstance(value, str) else json.dumps(value))
        for name, value in labels.items()
    ]
