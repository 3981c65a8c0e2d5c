"""System metrics of a level: every entry of config/metrics.yaml reduced over the level's window of the recording.

A metric that was not recorded, has too few samples or an implausible value is NaN, never 0, and named in the notes.
Units come from the recording; where PCP has none, the catalogue's `scale` is the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import ValidationError

from kveval.campaign.metric import Metric, MetricSource
from kveval.estimators.spreads import Array
from kveval.host.errors import Failure
from kveval.store.conditions import RunConditions
from kveval.tables.csv_files import BY_INSTANCE, NOTES, SAMPLES
from kveval.tables.levels.outcomes import Outcome, add_outcomes, checks_in, run_checks
from kveval.tables.system import checks_system
from kveval.tables.system.checks_system import WindowMetrics
from kveval.tables.system.recorded import recorded_names
from kveval.tables.system.windows import CounterSeries, Gauge, Window, select_series
from pcp_parquet.parquet.reading import samples_of

SYSTEM_CHECKS = checks_in(checks_system)
# The fewest samples that describe a window.
MIN_SAMPLES = 30
_FEWEST_SAMPLES = 2
# Through rounding, a CPU that is never idle is 100.00000000000001 % busy.
_ROUNDING = 1e-9

# (PCP's unit, unit of the column) -> factor. For a rate, PCP's unit is that of the counter.
UNIT_FACTORS: dict[tuple[str, str], float] = {
    ("byte", "GiB"): 2**-30,
    ("Kbyte", "GiB"): 2**-20,
    ("Mbyte", "GiB"): 2**-10,
    ("byte", "MB/s"): 1e-6,
    ("Kbyte", "MB/s"): 1024e-6,
    ("byte", "GB/s"): 1e-9,
    ("sec", "ms"): 1e3,
    ("millisec", "ms"): 1.0,
    ("sec", "cores"): 1.0,
    ("millisec", "cores"): 1e-3,
    ("nanosec", "cores"): 1e-9,
    ("microsec", "percent"): 1e-4,
    ("millisec", "percent"): 1e-1,
}
_UNITLESS = ("", "count")
# Why a level has no metrics at all.
NO_WINDOW = "the level has no window"
_OVER_TIME: Mapping[str, Callable[[Array], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "max": lambda values: float(np.max(values)),
    "last": lambda values: float(values[-1]),
}
_COMBINED: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}


class MetricsError(Failure):
    """config/metrics.yaml asks for something that cannot be computed."""


class _Unavailable(Exception):
    """A metric has no value in a window; the message says why."""


class _TooFew(_Unavailable):
    """There are fewer samples in the window than are needed: as many as the message says."""


def parse_metrics(catalogue: Mapping[str, Any]) -> dict[str, Metric]:
    """Turn the content of config/metrics.yaml into typed entries. Raises MetricsError naming entry and mistake."""
    metrics = {}
    for key, entry in catalogue.items():
        try:
            metrics[key] = Metric.model_validate(entry)
        except ValidationError as error:
            raise MetricsError(f"metric {key}: {error}") from error
    return metrics


class SystemRecording:
    """The metrics of one run's pcp.parquet, read once for all levels. Raises ValueError if it is not a recording."""

    def __init__(
        self, parquet: Path, metrics: Mapping[str, Metric], ran: RunConditions
    ) -> None:
        """Read the PCP metrics that `metrics` name for the server that `ran`."""
        self._metrics = metrics
        self._sources = {key: _sources(metric, ran) for key, metric in metrics.items()}
        names = {
            name
            for sources in self._sources.values()
            for source in sources
            for name in source.all_names
        }
        self.samples, self._archive = samples_of(parquet, names)
        # By metric and the instances of it that are chosen.
        self._counters: dict[tuple[str, str | None, str | None], CounterSeries] = {}
        self._gauges: dict[tuple[str, str | None, str | None], Gauge] = {}

    def reduce(self, window: Window, least: int = MIN_SAMPLES) -> WindowMetrics:
        """Reduce every metric over a closed window (ns since 1970, UTC); NaN with fewer than `least` samples of it."""
        values: dict[str, float] = dict.fromkeys(self._metrics, np.nan)
        breakdown = {
            f"{key}{BY_INSTANCE}": ""
            for key, metric in self._metrics.items()
            if metric.breakdown
        }
        problems: dict[str, list[str]] = {"absent": [], "refused": [], "unscaled": []}
        counts, notes, short = [0], [], []
        for key, metric in self._metrics.items():
            reader = self._reader(key, window, least)
            if reader is None:
                problems["absent"] += [] if metric.optional else [key]
                continue
            if reader.unscaled():
                problems["unscaled"].append(key)
                notes.append(f"{key}: a fraction that is not scaled by 100")
                continue
            try:
                value, samples = reader.value()
            except _TooFew as reason:
                counts.append(int(str(reason)))
                short.append(key)
                continue
            except _Unavailable as reason:
                notes.append(f"{key}: {reason}")
                continue
            counts.append(samples)
            low, high = _plausible_range(metric)
            if not low - _ROUNDING * abs(low) <= value <= high + _ROUNDING * abs(high):
                problems["refused"].append(key)
                notes.append(
                    f"{key}: {value:g} {metric.unit} refused, outside the plausible {low:g}..{high:g}"
                )
                continue
            values[key] = value
            if metric.breakdown:
                by_instance = reader.per_instance()
                breakdown[f"{key}{BY_INSTANCE}"] = ";".join(
                    f"{name}={number:.4g}" for name, number in by_instance.items()
                )
        if short:
            notes.insert(
                0, f"fewer than {least} samples in the window: {', '.join(short)}"
            )
        if problems["absent"]:
            notes.insert(0, f"not recorded: {', '.join(problems['absent'])}")
        lists = {name: tuple(keys) for name, keys in problems.items()}
        return WindowMetrics(values, max(counts), notes, breakdown, **lists)

    def value(self, key: str, window: Window) -> float:
        """Return a metric over a part of a window, from at least two samples; NaN where it has no value."""
        reader = (
            self._reader(key, window, _FEWEST_SAMPLES) if key in self._metrics else None
        )
        try:
            return reader.value()[0] if reader else np.nan
        except _Unavailable:
            return np.nan

    def _reader(self, key: str, window: Window, least: int) -> _Reader | None:
        """Return a reader of a metric from the first of its sources that was recorded, None if none was.

        Sources with values are preferred: an agent without its library records a metric but never a value.
        """
        recorded = list(filter(self._is_recorded, self._sources[key]))
        if not recorded:
            return None
        source = next(filter(self._has_values, recorded), recorded[0])
        return _Reader(self, self._metrics[key], source, window, least)

    def _is_recorded(self, source: _Source) -> bool:
        return all(name in self.samples for name in source.all_names)

    def _has_values(self, source: _Source) -> bool:
        return all(len(self.samples[name].times) for name in source.all_names)

    def counter(self, name: str, source: _Source) -> CounterSeries:
        """Return a metric as a counter, prepared once."""
        samples = self.samples[name]
        if samples.info.semantics != "counter":
            raise _Unavailable(
                f"{name} is {samples.info.semantics}, not a counter: it has no rate"
            )
        key = (name, source.entry.select, source.entry.omit)
        if key not in self._counters:
            keep = select_series(samples.names, source.entry.select, source.entry.omit)
            self._counters[key] = CounterSeries(
                samples, keep, self._archive.start_ns or 0, self._archive.marks_ns
            )
        return self._counters[key]

    def gauge(self, name: str, source: _Source) -> Gauge:
        """Return a metric as a gauge, prepared once."""
        key = (name, source.entry.select, source.entry.omit)
        if key not in self._gauges:
            samples = self.samples[name]
            keep = select_series(samples.names, source.entry.select, source.entry.omit)
            self._gauges[key] = Gauge(samples, keep)
        return self._gauges[key]


def _plausible_range(metric: Metric) -> tuple[float, float]:
    low, high = metric.plausible or (None, None)
    return -np.inf if low is None else low, np.inf if high is None else high


@dataclass(frozen=True)
class _Source:
    """A source with its PCP names for one release of the server."""

    entry: MetricSource
    names: tuple[str, ...]
    over: tuple[str, ...] = ()

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, *self.over)


def _sources(metric: Metric, ran: RunConditions) -> list[_Source]:
    sources = []
    for entry in (metric, *metric.alternatives):
        parts = [entry.pcp or entry.numerator]
        if metric.reduction == "ratio":
            parts.append(entry.denominator)
        names = [recorded_names(part or {}, ran) for part in parts]
        recorded = [part for part in names if part is not None]
        if len(recorded) == len(parts):
            sources.append(_Source(entry, *recorded))
    return sources


@dataclass(frozen=True)
class _Reader:
    """One metric in one window, from one of its sources."""

    recording: SystemRecording
    metric: Metric
    source: _Source
    window: Window
    least: int

    def value(self) -> tuple[float, int]:
        """Return the value in the metric's unit, and its number of samples. Raises _Unavailable."""
        if self.metric.reduction == "ratio":
            return self._ratio()
        if self.metric.reduction in ("rate", "increase"):
            gained, samples = self._gained()
            return _COMBINED[self.metric.instances](list(gained.values())), samples
        return self._gauge()

    def unscaled(self) -> bool:
        """Whether the recording is a fraction, by its name or help text, but the column's per cent are not scaled."""
        if (
            self.metric.unit != "percent"
            or self.metric.reduction == "ratio"
            or self.source.entry.scale == 100
        ):
            return False
        infos = [self.recording.samples[name].info for name in self.source.names]
        return any(
            info.units in _UNITLESS
            and (info.name.endswith("_perc") or "1 means 100 percent" in info.help)
            for info in infos
        )

    def per_instance(self) -> dict[str, float]:
        """Return the value of each instance; {} for metrics that are sums of several PCP metrics."""
        if len(self.source.names) > 1 or self.metric.reduction == "ratio":
            return {}
        name = self.source.names[0]
        if self.metric.reduction in ("rate", "increase"):
            return self._gained()[0]
        over_time = _OVER_TIME[self.metric.reduction]
        gauge = self.recording.gauge(name, self.source)
        values_by_instance = gauge.per_instance(self.window)
        return {
            label: self._factor() * over_time(values)
            for label, values in values_by_instance.items()
        }

    @property
    def _seconds(self) -> float:
        return (self.window[1] - self.window[0]) / 1e9

    def _gained(self) -> tuple[dict[str, float], int]:
        """Return a counter's increase, or rate, in the metric's unit by instance, and the number of samples."""
        gained, samples = self._increase(self.source.names)
        factor = self._factor() / (
            self._seconds if self.metric.reduction == "rate" else 1.0
        )
        return {label: factor * value for label, value in gained.items()}, samples

    def _gauge(self) -> tuple[float, int]:
        combination = self.metric.instances
        first, *others = (
            self.recording.gauge(name, self.source).at_moments(self.window, combination)
            for name in self.source.names
        )
        per_host: list[float] = []
        counts = [0]
        for host, moments in first.items():
            if not all(host in other for other in others):
                continue
            # The sum at the moments at which all of them were sampled.
            values = moments.together_with([other[host] for other in others])
            if len(values):
                counts.append(len(values))
                per_host.append(_OVER_TIME[self.metric.reduction](values))
        self._require(max(counts))
        return self._factor() * _COMBINED[combination](per_host), max(counts)

    def _ratio(self) -> tuple[float, int]:
        over = self._factor(self.source.names, self.source.over)
        parts, samples = self._increase(self.source.names)
        wholes, _ = self._increase(self.source.over)
        if self.metric.instances in ("sum", "mean"):
            parts, wholes = {"": sum(parts.values())}, {"": sum(wholes.values())}
        ratios = [
            over * parts.get(name, 0.0) / whole
            for name, whole in wholes.items()
            if whole > 0
        ]
        if not ratios:
            raise _Unavailable("its denominator did not move")
        if self.metric.instances == "share_above":
            limit = self.metric.above or 0.0
            return 100 * sum(ratio > limit for ratio in ratios) / len(ratios), samples
        return _COMBINED[
            "mean" if self.metric.instances == "sum" else self.metric.instances
        ](ratios), samples

    def _increase(self, names: Sequence[str]) -> tuple[dict[str, float], int]:
        """Return the increase of counters in the window, by instance, summed over names; and the number of samples.

        If the recording covers only a part of the window, at least half, the increase is extrapolated to all of it.
        """
        total: dict[str, float] = {}
        counts = []
        for name in names:
            increase = self.recording.counter(name, self.source).increase(self.window)
            self._require(increase.samples)
            if increase.seconds < 0.5 * self._seconds:
                raise _Unavailable(
                    f"its samples cover {increase.seconds:.0f} s of the window's {self._seconds:.0f} s"
                )
            for label, gained in increase.gained.items():
                total[label] = (
                    total.get(label, 0.0) + gained * self._seconds / increase.seconds
                )
            counts.append(increase.samples)
        return total, min(counts)

    def _factor(self, names: Sequence[str] = (), over: Sequence[str] = ()) -> float:
        """Return the factor from the recording's unit to the metric's. Raises _Unavailable for other units."""
        factors = set()
        for name in names or self.source.names:
            unit = self.recording.samples[name].info.units
            if unit in _UNITLESS or (
                over and unit == self.recording.samples[over[0]].info.units
            ):
                factors.add(self.source.entry.scale)
            elif (unit, self.metric.unit) in UNIT_FACTORS:
                factors.add(UNIT_FACTORS[unit, self.metric.unit])
            else:
                raise _Unavailable(
                    f"recorded in {unit}, which cannot be turned into {self.metric.unit}"
                )
        if len(factors) != 1:
            raise _Unavailable(
                f"adds up metrics of different units: {', '.join(names or self.source.names)}"
            )
        return factors.pop()

    def _require(self, samples: int) -> None:
        if samples < self.least:
            raise _TooFew(str(samples))


def with_system_metrics(
    levels: pd.DataFrame,
    recording: Path,
    catalogue: Mapping[str, Any],
    ran: RunConditions,
    min_samples: int = MIN_SAMPLES,
) -> pd.DataFrame:
    """Add the system metrics of every level's window to a run's table of levels, with pcp_samples and pcp_notes.

    `recording`: the run's pcp.parquet; `ran`: the run's conditions. The windows are those of the load generator, shifted
    by the clock offset of the run; a level without one gets NaN and a note. Checks that need the recording run here; their
    outcomes are added to those of the row.
    """
    metrics = parse_metrics(catalogue)
    opened = SystemRecording(recording, metrics, ran)
    rows: list[dict[str, Any]] = []
    outcomes: list[list[Outcome]] = []
    for record in levels.to_dict("records"):
        level = {str(name): value for name, value in record.items()}
        if pd.isna(level["window_start"]):
            reduced = _no_window(metrics)
            drift = dict.fromkeys(checks_system.HIT_RATIO_DRIFT, np.nan)
            outcomes.append([])
        else:
            window = _window(level)
            reduced = opened.reduce(window, min_samples)
            drift = checks_system.hit_ratio_drift(opened.value, window, level)
            sampled = checks_system.SampledLevel(
                {**level, **reduced.values, **drift}, reduced, min_samples
            )
            outcomes.append(run_checks(SYSTEM_CHECKS, sampled))
            reduced.values.update(dict.fromkeys(sampled.impossible_columns(), np.nan))
        notes = " | ".join(reduced.notes)
        row = {**drift, **reduced.values, **reduced.breakdown}
        rows.append({**row, SAMPLES: reduced.samples, NOTES: notes})
    added = pd.DataFrame(rows, index=levels.index)
    return add_outcomes(pd.concat([levels, added], axis=1), outcomes)


def _no_window(metrics: Mapping[str, Metric]) -> WindowMetrics:
    """The metrics of a level that has no window."""
    broken_down = [key for key, metric in metrics.items() if metric.breakdown]
    breakdown = {f"{key}{BY_INSTANCE}": "" for key in broken_down}
    values = dict.fromkeys(metrics, np.nan)
    return WindowMetrics(values, 0, [NO_WINDOW], breakdown)


def _window(level: Mapping[str, Any]) -> Window:
    """The window of a level by the recording's clock."""
    offset_s = level.get("clock_offset_s", 0.0)
    shift_ns = 0 if pd.isna(offset_s) else round(1e9 * offset_s)
    start, end = level["window_start"].value, level["window_end"].value
    return start + shift_ns, end + shift_ns
