"""Many metrics of a file at once: every row group is read once, however many of the metrics it holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kveval.pcp.conversion.footer import ArchiveInfo, MetricInfo
from kveval.pcp.parquet.longfile import LongFile, Part
from kveval.pcp.parquet.reading import Source


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


def samples_of(parquet: Source, metrics: Collection[str]) -> tuple[dict[str, Samples], ArchiveInfo]:
    """Return the samples of all of `metrics` that the file has, by the name asked for, and what the archive is.

    Texts are left out. ValueError for a file that `convert` did not write.
    """
    file = LongFile(parquet)
    infos = file.find(metrics)
    numeric = {info.name for info in infos.values() if info.type != "string"}
    parts: dict[str, list[Part]] = {name: [] for name in numeric}
    for name, part in file.parts_of(numeric):
        parts[name].append(part)
    found = {name: _sorted(info, parts[info.name]) for name, info in infos.items() if info.name in numeric}
    return found, file.archive()


def _sorted(info: MetricInfo, parts: list[Part]) -> Samples:
    """Put the rows of a metric from several row groups into one order."""
    names: dict[tuple[str, str], int] = {}
    codes = []
    for part in parts:
        table = np.array([names.setdefault(name, len(names)) for name in part.names], dtype=np.int64)
        codes.append(table[part.codes])
    times = np.concatenate([*(part.times for part in parts), np.empty(0, dtype=np.int64)])
    values = np.concatenate([*(part.values for part in parts), np.empty(0, dtype=np.float64)])
    series = np.concatenate([*codes, np.empty(0, dtype=np.int64)])
    order = np.lexsort((times, series))
    return Samples(info, times[order], series[order], list(names), values[order])
