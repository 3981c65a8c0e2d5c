"""A recording second by second: any entry of config/metrics.yaml over time, and how busy each CPU was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.analysis.system.metrics import UNIT_FACTORS
from kveval.config.catalogue import name_for
from kveval.pcp.parquet.rates import increase, rate
from kveval.pcp.parquet.reading import describe, series
from kveval.spec.servers.registry import recorded_as

_BUSY = ("user", "nice", "sys", "intr", "steal")
_IDLE = ("idle", "wait.total")


def timeline(
    parquet: Path, entry: Mapping[str, Any], version: str, start_ns: int, end_ns: int
) -> pd.Series[float] | None:
    """Return one entry of config/metrics.yaml over time in its unit, indexed by seconds since `start_ns`.

    Counters become rates per second; instances are put together as the entry says; of several places the first that
    was recorded is read. None where there is none, the unit is not the entry's, or the entry is a ratio. `version` is
    the server's.
    """
    for source in (entry, *entry.get("alternatives", ())):
        names = source.get("pcp", {})
        expression = name_for({"*": names} if isinstance(names, str) else names, version)
        for (metrics,) in recorded_as([expression or ""], version):
            values = _read(parquet, {**entry, **source}, metrics, start_ns, end_ns)
            if values is not None:
                seconds = (pd.DatetimeIndex(values.index).as_unit("ns").asi8 - start_ns) / 1e9
                return pd.Series(values.to_numpy(), index=seconds)
    return None


def _read(
    parquet: Path, source: Mapping[str, Any], metrics: Sequence[str], start_ns: int, end_ns: int
) -> pd.Series[float] | None:
    """The sum of a source's metrics, instances put together, by time; None unless all were recorded in its unit."""
    known = describe(parquet)
    total: pd.Series[float] | None = None
    for name in metrics:
        if name not in known:
            return None
        unit = known[name].units
        factor = source.get("scale", 1.0) if unit in ("", "count") else UNIT_FACTORS.get((unit, source["unit"]))
        if factor is None:
            return None
        read = rate if known[name].semantics == "counter" else series
        table = _instances(read(parquet, name, start_ns=start_ns, finish_ns=end_ns), source)
        values: pd.Series[float] = factor * table.groupby("timestamp")["value"].agg(source.get("instances", "sum"))
        total = values if total is None else total + values
    return None if total is None or total.empty else total


def _instances(table: pd.DataFrame, source: Mapping[str, Any]) -> pd.DataFrame:
    """The instances that a source asks for."""
    for key, wanted in (("select", True), ("omit", False)):
        if source.get(key):
            table = table[table["instance"].astype(str).str.contains(source[key], regex=True) == wanted]
    return table


def percpu_busy(parquet: Path, start_ns: int, end_ns: int) -> pd.Series[float] | None:
    """Return the share of the window, in per cent, that each CPU was not idle; None where it was not recorded."""
    known = describe(parquet)
    parts: dict[bool, list[pd.Series[float]]] = {True: [], False: []}
    for states, busy in ((_BUSY, True), (_IDLE, False)):
        for state in states:
            name = f"kernel.percpu.cpu.{state}"
            if name in known:
                table = increase(parquet, name, start_ns, end_ns)
                parts[busy].append(table.set_index("instance")["increase"].astype(float))
    if not parts[True] or not parts[False]:
        return None
    busy_time, idle_time = (pd.concat(found, axis=1).sum(axis=1) for found in (parts[True], parts[False]))
    everything = busy_time + idle_time
    share = (100 * busy_time / everything[everything > 0]).dropna()
    return None if share.empty else share
