"""Joins two files in the long form, of recordings of the same time: the metrics of both, the facts of the first."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pcp_parquet.conversion.footer import LABELS_KEY, decode_labels, encode
from pcp_parquet.parquet.reading import LongFile


def join(first: Path, second: Path, output: Path) -> None:
    """Write the rows of both files, each of one host, as one; it appears under its name when it is complete.

    A metric that both have is that of the first. ValueError where one is no such file, or of several hosts.
    """
    base, added = LongFile(first), LongFile(second)
    metrics = base.metrics()
    if base.has_host or added.has_host:
        raise ValueError(f"{first} and {second} are not of one host each")
    both = pa.array(sorted(metrics.keys() & added.metrics().keys()), pa.string())
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    with pq.ParquetFile(first) as one, pq.ParquetFile(second) as other:
        schema = one.schema_arrow.remove_metadata()
        labels = decode_labels((one.metadata.metadata or {})[LABELS_KEY.encode()])
        joined = dict(sorted({**added.metrics(), **metrics}.items()))
        rows = 0
        unit = schema.field("timestamp").type.unit
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            for file in (one, other):
                for number in range(file.num_row_groups):
                    table = file.read_row_group(number)
                    if file is other:
                        names = table["metric"].cast(pa.string())
                        table = table.filter(pc.invert(pc.is_in(names, both)))
                    if table.num_rows:
                        writer.write_table(table.cast(schema), table.num_rows)
                    rows += table.num_rows
            info = replace(base.archive(), rows=rows)
            writer.add_key_value_metadata(encode(info, joined, labels, unit))
    partial.replace(output)
