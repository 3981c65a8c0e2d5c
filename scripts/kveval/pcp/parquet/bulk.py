"""Many metrics of a file at once: every row group is read once, however many of the metrics it holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kveval.pcp.conversion.footer import ArchiveInfo, MetricInfo
from kveval.pcp.parquet.longfile import LongFile, codes, times_ns
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
    infos = {name: info for name, info in file.find(metrics).items() if info.type != "string"}
    table = file.read(["value"], {info.name for info in infos.values()})
    metric_codes, words = codes(table["metric"])
    series, instances = codes(table["instance"])
    hosts = codes(table["host"]) if file.has_host else (np.zeros(len(series), dtype=np.int64), [""])
    names = [(host, instance) for host in hosts[1] for instance in (*instances, "")]
    # A null instance has code -1 and becomes the last name of its host.
    series = hosts[0] * (len(instances) + 1) + np.where(series < 0, len(instances), series)
    times, values = times_ns(table), np.asarray(table["value"].to_numpy(), dtype=np.float64)
    order = np.lexsort((times, series, metric_codes))
    edges = np.searchsorted(metric_codes[order], np.arange(len(words) + 1))
    rows = {word: order[begin:end] for word, begin, end in zip(words, edges, edges[1:], strict=False)}
    found = {}
    for name, info in infos.items():
        at = rows.get(info.name, order[:0])
        used, inside = np.unique(series[at], return_inverse=True)
        found[name] = Samples(info, times[at], inside, [names[number] for number in used], values[at])
    return found, file.archive()
