"""Timelines of a recording: any entries of config/metrics.yaml over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.store.conditions import RunConditions
from kveval.tables.system.metrics import UNIT_FACTORS
from kveval.tables.system.recorded import recorded_names
from kveval.tables.system.windows import Gauge, ValuesByTime, Window, select_series
from pcp_parquet.parquet.rates import rates_of
from pcp_parquet.parquet.reading import Samples, samples_of

# The number of samples over which a ratio is taken: within a single one the denominator may not have changed.
RATIO_SAMPLES = 5
# The largest distance of samples of two hosts that count as one moment.
HOSTS_APART_NS = 2_000_000_000


def timelines(
    parquet: Path,
    entries: Mapping[str, Mapping[str, Any]],
    ran: RunConditions,
    start_ns: int,
    end_ns: int,
) -> dict[str, pd.Series[float]]:
    """Return entries of config/metrics.yaml over time in their units, indexed by seconds since `start_ns`.

    Counters become rates per second, and have no point where they were reset or the recording was interrupted. Instances
    are combined as the entry says; of several sources the first that was recorded is read. A ratio is that of its
    counters' increases over RATIO_SAMPLES samples, NaN where the denominator did not increase. An entry of which nothing
    was recorded, or whose unit cannot be converted, has no timeline. `ran`: the run's conditions. Raises ValueError for a
    file that is no recording.
    """
    sources = [
        source
        for entry in entries.values()
        for part in _parts(entry)
        for source in _sources(part, ran)
    ]
    names = {name for _, metrics in sources for name in metrics}
    samples, archive = samples_of(parquet, names)
    window = (start_ns, end_ns)
    recording = _Recording(samples, archive.marks_ns, ran, window)
    lines = {name: recording.line(entry) for name, entry in entries.items()}
    return {name: line for name, line in lines.items() if line is not None}


def _parts(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The counters of a ratio, of any unit; of any other entry itself."""
    if "numerator" not in entry:
        return [entry]
    return [
        {"pcp": entry[part], "unit": None, "instances": "sum"}
        for part in ("numerator", "denominator")
    ]


def _sources(
    entry: Mapping[str, Any], ran: RunConditions
) -> Iterator[tuple[Mapping[str, Any], Sequence[str]]]:
    """Yield what an entry may be read from, with the metrics that are added up for it."""
    for source in (entry, *entry.get("alternatives", ())):
        names = source.get("pcp", {})
        metrics = recorded_names({"*": names} if isinstance(names, str) else names, ran)
        if metrics is not None:
            yield {**entry, **source}, metrics


@dataclass(frozen=True)
class _Recording:
    """The samples of a recording, and the window that is drawn."""

    samples: Mapping[str, Samples]
    marks_ns: Sequence[int]
    ran: RunConditions
    window: Window

    def line(self, entry: Mapping[str, Any]) -> pd.Series[float] | None:
        """Return an entry by seconds since the window's start, None if nothing of it was recorded."""
        parts = [self._first_source(part) for part in _parts(entry)]
        if any(part is None for part in parts):
            return None
        if len(parts) == 1:
            return parts[0]
        upper, lower = (
            part.rolling(RATIO_SAMPLES, min_periods=1).sum()
            for part in parts
            if part is not None
        )
        return float(entry.get("scale", 1.0)) * upper / lower.where(lower > 0)

    def _first_source(self, entry: Mapping[str, Any]) -> pd.Series[float] | None:
        for source, metrics in _sources(entry, self.ran):
            values = self._sum(source, metrics)
            if values is not None:
                seconds = (values.index.to_numpy() - self.window[0]) / 1e9
                return pd.Series(values.to_numpy(), index=seconds)
        return None

    def _sum(
        self, source: Mapping[str, Any], metrics: Sequence[str]
    ) -> pd.Series[float] | None:
        """The sum of a source's metrics over instances, by time; None unless all were recorded and have its unit.

        A source without a unit accepts any.
        """
        total: pd.Series[float] | None = None
        for name in metrics:
            if name not in self.samples:
                return None
            samples = self._within(self.samples[name])
            unit = samples.info.units
            anything = unit in ("", "count") or source["unit"] is None
            factor = (
                source.get("scale", 1.0)
                if anything
                else UNIT_FACTORS.get((unit, source["unit"]))
            )
            if factor is None:
                return None
            if samples.info.semantics == "counter":
                samples = rates_of(samples, self.marks_ns)
            keep = select_series(
                samples.names, source.get("select"), source.get("omit")
            )
            how = source.get("instances", "sum")
            by_host = Gauge(samples, keep).at_moments(self.window, how)
            values = factor * _combine_hosts(by_host, how)
            total = values if total is None else total + values
        return None if total is None or total.empty else total

    def _within(self, samples: Samples) -> Samples:
        start, end = self.window
        rows = (samples.times >= start) & (samples.times <= end)
        return replace(
            samples,
            times=samples.times[rows],
            series=samples.series[rows],
            values=samples.values[rows],
        )


def _combine_hosts(by_host: Mapping[str, ValuesByTime], how: str) -> pd.Series[float]:
    """One value per moment, by ns since 1970: that of all hosts.

    Hosts are sampled at different moments: each moment of the first host gets the nearest values of the others.
    """
    hosts = [pd.Series(host.values, host.times) for host in by_host.values()]
    if not hosts:
        return pd.Series(dtype=float)
    first, *others = hosts
    near = [
        host.reindex(first.index, method="nearest", tolerance=HOSTS_APART_NS)
        for host in others
    ]
    if not near:
        return first
    together: pd.Series[float] = (
        pd.concat([first, *near], axis=1).dropna().agg(how, axis=1)
    )
    return together
