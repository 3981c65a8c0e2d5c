"""Timelines of a recording: any entry of config/metrics.yaml over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.analysis.system.metrics import UNIT_FACTORS
from kveval.campaign.catalogue import name_for
from kveval.stacks.registry import recorded_as
from pcp_parquet.parquet.rates import rate
from pcp_parquet.parquet.reading import describe, series

# The number of samples over which a ratio is taken: within a single one the denominator may not have changed.
RATIO_SAMPLES = 5
# The largest distance of samples of two hosts that count as one moment.
HOSTS_APART = pd.Timedelta("2s")


def timeline(
    parquet: Path, entry: Mapping[str, Any], version: str, start_ns: int, end_ns: int
) -> pd.Series[float] | None:
    """Return one entry of config/metrics.yaml over time in its unit, indexed by seconds since `start_ns`.

    Counters become rates per second; instances are combined as the entry says; of several sources the first that was
    recorded is read. A ratio is that of its counters' increases over RATIO_SAMPLES samples, NaN where the denominator
    did not increase. None if nothing was recorded, or its unit cannot be converted. `version` is the server's.
    """
    if "numerator" in entry:
        return _ratio(parquet, entry, version, start_ns, end_ns)
    for source in (entry, *entry.get("alternatives", ())):
        names = source.get("pcp", {})
        expression = name_for(
            {"*": names} if isinstance(names, str) else names, version
        )
        for (metrics,) in recorded_as([expression or ""], version):
            values = _read(parquet, {**entry, **source}, metrics, start_ns, end_ns)
            if values is not None:
                seconds = (
                    pd.DatetimeIndex(values.index).as_unit("ns").asi8 - start_ns
                ) / 1e9
                return pd.Series(values.to_numpy(), index=seconds)
    return None


def _ratio(
    parquet: Path, entry: Mapping[str, Any], version: str, start_ns: int, end_ns: int
) -> pd.Series[float] | None:
    gains = []
    for part in ("numerator", "denominator"):
        counted = {"pcp": entry[part], "unit": None, "instances": "sum"}
        values = timeline(parquet, counted, version, start_ns, end_ns)
        if values is None:
            return None
        gains.append(values.rolling(RATIO_SAMPLES, min_periods=1).sum())
    upper, lower = gains
    return float(entry.get("scale", 1.0)) * upper / lower.where(lower > 0)


@lru_cache(maxsize=32)
def _rates(parquet: Path, name: str, *, start_ns: int, finish_ns: int) -> pd.DataFrame:
    """The rates of a counter, cached because several ratios use the same counters."""
    return rate(series(parquet, name, start_ns=start_ns, finish_ns=finish_ns))


def _read(
    parquet: Path,
    source: Mapping[str, Any],
    metrics: Sequence[str],
    start_ns: int,
    end_ns: int,
) -> pd.Series[float] | None:
    """The sum of a source's metrics over instances, by time; None unless all were recorded and have its unit.

    A source without a unit accepts any.
    """
    known = describe(parquet)
    total: pd.Series[float] | None = None
    for name in metrics:
        if name not in known:
            return None
        unit = known[name].units
        anything = unit in ("", "count") or source["unit"] is None
        factor = (
            source.get("scale", 1.0)
            if anything
            else UNIT_FACTORS.get((unit, source["unit"]))
        )
        if factor is None:
            return None
        read = _rates if known[name].semantics == "counter" else series
        table = read(parquet, name, start_ns=start_ns, finish_ns=end_ns)
        for key, kept in (("select", True), ("omit", False)):
            if source.get(key):
                table = table[
                    table["instance"].astype(str).str.contains(source[key], regex=True)
                    == kept
                ]
        values: pd.Series[float] = factor * _combine_instances(
            table, source.get("instances", "sum")
        )
        total = values if total is None else total + values
    return None if total is None or total.empty else total


def _combine_instances(table: pd.DataFrame, how: str) -> pd.Series[float]:
    """One value per moment: the instances of each host combined, then the hosts.

    Hosts are sampled at different moments: each moment of the first host gets the nearest values of the others.
    """
    if table.empty or "host" not in table:
        return table.groupby("timestamp")["value"].agg(how)
    hosts = [
        part.groupby("timestamp")["value"].agg(how)
        for _, part in table.groupby("host", observed=True)
    ]
    near = [
        host.reindex(hosts[0].index, method="nearest", tolerance=HOSTS_APART)
        for host in hosts
    ]
    together: pd.Series[float] = pd.concat(near, axis=1).dropna().agg(how, axis=1)
    return together
