"""Numbers series: (metric, instance number, time) -> one number per (metric, instance name), in sorted order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.meta import INDOM_NULL, Desc, History, Metadata

Ints = NDArray[np.int64]


class Instances:
    """The names of one domain's instance numbers at a time; fast as long as the times asked for do not decrease."""

    def __init__(self, domain: History) -> None:
        self.names: list[str] = sorted({name for _, _, name in domain.events})
        rank = {name: number for number, name in enumerate(self.names)}
        first: dict[int, int] = {}
        changes: list[tuple[int, int, int]] = []
        # A value older than its instance's first name takes that name: pmlogger may write the domain later.
        for time, instance, name in sorted(domain.events, key=lambda event: event[0]):
            if instance in first:
                changes.append((time, instance, rank[name]))
            else:
                first[instance] = rank[name]
        self._numbers = np.array(sorted(first), dtype=np.int64)
        self._first = np.array(
            [first[number] for number in self._numbers.tolist()], dtype=np.int64
        )
        self._changes = changes
        self.change_times = np.array([time for time, _, _ in changes], dtype=np.int64)
        self._applied = 0
        self._current = self._first.copy()

    def lookup(self, instances: Ints, time: int) -> Ints:
        """Rank of the name of each instance number at `time` (ns); -1 where the number was never named."""
        count = int(np.searchsorted(self.change_times, time, side="right"))
        if count < self._applied:
            self._applied, self._current = 0, self._first.copy()
        for _, instance, name in self._changes[self._applied : count]:
            self._current[np.searchsorted(self._numbers, instance)] = name
        self._applied = count
        if not len(self._numbers):
            return np.full(len(instances), -1, dtype=np.int64)
        at = np.minimum(
            np.searchsorted(self._numbers, instances), len(self._numbers) - 1
        )
        return np.where(self._numbers[at] == instances, self._current[at], -1)


class Catalog:
    """The metrics of one archive that `selected` accepts, sorted by name, and the numbering of their series.

    A series number is `base[metric] + rank of the instance name`, so numbers sort by metric name, then instance
    name. Instances that have no name in the archive, and a name that two instances of one record share, get
    numbers from `total` on.
    """

    def __init__(self, metadata: Metadata, selected: Callable[[Desc], bool]) -> None:
        self.metrics = sorted(
            filter(selected, metadata.descs.values()), key=lambda desc: desc.names[0]
        )
        self.known = metadata.descs.keys()
        self.unnamed: set[tuple[int, int]] = set()
        """(domain, instance number) of instances without a name."""
        self._index = {desc.pmid: number for number, desc in enumerate(self.metrics)}
        self.indoms = np.array([desc.indom for desc in self.metrics], dtype=np.int64)
        indoms = {desc.indom for desc in self.metrics} - {INDOM_NULL}
        self._domains = {
            indom: Instances(metadata.domains.get(indom, History())) for indom in indoms
        }
        sizes = [
            len(self._domains[desc.indom].names) if desc.indom in self._domains else 1
            for desc in self.metrics
        ]
        ends = np.cumsum([0, *sizes], dtype=np.int64)
        self.base, self.total = ends[:-1], int(ends[-1])
        self._by_number = domains = list(self._domains.values())
        self.change_times = np.sort(
            np.concatenate(
                [np.empty(0, np.int64), *(domain.change_times for domain in domains)]
            )
        )
        # For each metric the number of its domain, -1 for a singular one, and where the names of that domain begin.
        numbers = {indom: number for number, indom in enumerate(self._domains)}
        self._owners = np.array(
            [numbers.get(desc.indom, -1) for desc in self.metrics], dtype=np.int64
        )
        self._names_at = np.cumsum([0, *(len(domain.names) for domain in domains)])[
            self._owners
        ]
        self._names = np.array(
            [*(name for domain in domains for name in domain.names), None],
            dtype=np.object_,
        )
        self._metric_names = np.array(
            [desc.names[0] for desc in self.metrics], dtype=np.object_
        )
        self._extra: dict[tuple[int, int, int], int] = {}
        self._extra_names: list[tuple[int, str | None]] = []

    def metric_of(self, pmid: int) -> int:
        """Number of the metric with this PMID, -1 if it is not selected."""
        return self._index.get(pmid, -1)

    def epochs(self, times: Ints) -> Ints:
        """How many instances were renamed by each time (ns); lookups stay valid while this does not change."""
        return np.searchsorted(self.change_times, times, side="right")

    def series(self, metrics: Ints, instances: Ints, time: int) -> Ints:
        """Series number of each (metric, instance number) pair at `time`; all returned numbers differ."""
        owners = self._owners[metrics]
        ranks = np.zeros(len(metrics), dtype=np.int64)
        for number in np.flatnonzero(np.bincount(owners + 1, minlength=1)[1:]).tolist():
            where = np.flatnonzero(owners == number)
            ranks[where] = self._by_number[number].lookup(instances[where], time)
        series = self.base[metrics] + ranks
        for at in np.flatnonzero(ranks < 0).tolist():
            instance = int(instances[at])
            self.unnamed.add((int(self.indoms[metrics[at]]), instance))
            series[at] = self._extra_series(int(metrics[at]), instance, f"[{instance}]")
        if not (np.diff(np.sort(series)) > 0).all():
            self._separate(series, metrics, instances)
        return series

    def _separate(self, series: Ints, metrics: Ints, instances: Ints) -> None:
        order = np.argsort(series, kind="stable")
        again = order[1:][series[order[1:]] == series[order[:-1]]]
        # The number of the copy keeps them distinct even if a record holds the same instance several times.
        for copy, at in enumerate(again.tolist()):
            _, name = self.name(int(series[at]))
            series[at] = self._extra_series(
                int(metrics[at]), int(instances[at]), name, copy
            )

    def _extra_series(
        self, metric: int, instance: int, name: str | None, copy: int = -1
    ) -> int:
        key = (metric, instance, copy)
        if key not in self._extra:
            self._extra[key] = self.total + len(self._extra_names)
            self._extra_names.append((metric, name))
        return self._extra[key]

    def names(self, series: Ints) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """Metric and instance of each series number; None for the instance of a singular metric."""
        extra = series >= self.total
        metrics = (
            np.searchsorted(self.base, np.where(extra, 0, series), side="right") - 1
        )
        singular = extra | (self.indoms[metrics] == INDOM_NULL)
        names = self._names[
            np.where(
                singular, -1, self._names_at[metrics] + series - self.base[metrics]
            )
        ]
        for at in np.flatnonzero(extra).tolist():
            metrics[at], names[at] = self._extra_names[int(series[at]) - self.total]
        return self._metric_names[metrics], names

    def name(self, series: int) -> tuple[int, str | None]:
        """(metric number, instance name or None for a singular metric) of a series number."""
        if series >= self.total:
            return self._extra_names[series - self.total]
        metric = int(np.searchsorted(self.base, series, side="right")) - 1
        desc = self.metrics[metric]
        if desc.indom == INDOM_NULL:
            return metric, None
        return metric, self._domains[desc.indom].names[series - int(self.base[metric])]
