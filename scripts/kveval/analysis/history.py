"""The history of results: the rows that a campaign adds, and series over builds with their change points."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from packaging.version import InvalidVersion, Version

from kveval.analysis.cells import common_level
from kveval.analysis.estimators.change_points import ChangePoint, change_points
from kveval.analysis.estimators.intervals import mean_interval, percent
from kveval.analysis.levels.goodput import GOODPUT
from kveval.analysis.verdict import METRICS
from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.stacks.registry import find_server
from kveval.store.run_file import Run

HIGHER_IS_BETTER: Mapping[str, bool] = METRICS | {GOODPUT: True}
FEWEST_BUILDS = 12
"""With fewer builds no order of their values is improbable enough to be a significant change."""
_CONDITIONS = ("engine", "weights", "hardware", "workload")
_SERIES = [*CELL_COLUMNS, "metric", "level", *_CONDITIONS]
_COMMIT = re.compile(r"\+(?:.*\.)?g([0-9a-f]{7,40})\b|-g([0-9a-f]{7,40})$")


def history_rows(
    complete: pd.DataFrame,
    comparison: pd.DataFrame,
    peaks: pd.DataFrame,
    runs: Sequence[Run],
    campaign: str,
) -> pd.DataFrame:
    """Return what a campaign adds to the history (`kveval.store.history`): a row per cell, run and metric.

    `complete`, `comparison` and `peaks` are the campaign's tables, `runs` its runs. Values are those at the level at
    which the model's cells are compared; a value that a run lacks has no row.
    """
    software = {
        (run.cell, run.run): json.dumps(run.software, sort_keys=True) for run in runs
    }
    levels = {
        model: common_level(comparison, peaks, model)
        for model in map(str, complete["model"].unique())
    }
    rows = complete[complete["level"] == complete["model"].map(levels)]
    names = [
        *CELL_COLUMNS,
        "level",
        "measurement",
        "run",
        "run_started",
        "checks_failed",
        *_CONDITIONS,
    ]
    metrics = [name for name in HIGHER_IS_BETTER if name in rows]
    rows = rows.melt(names, metrics, var_name="metric").dropna(subset="value")
    rows["campaign"] = campaign
    rows["software"] = [
        software[Cell.from_row(row), row["run"]]
        for row in rows[[*CELL_COLUMNS, "run"]].to_dict("records")
    ]
    texts = ["checks_failed", "run_started", *_CONDITIONS]
    return rows.assign(**rows[texts].fillna("").astype(str)).reset_index(drop=True)


@dataclass(frozen=True)
class Build:
    """The runs of one build: their geometric mean, and its 95 % interval, NaN for a single run.

    `software`: program -> the versions that ran.
    """

    version: str
    mean: float
    low: float
    high: float
    runs: int
    software: Mapping[str, frozenset[str]]

    @property
    def label(self) -> str:
        """The commit that the version names, else the version."""
        return commit_of(self.version) or self.version


@dataclass(frozen=True)
class BuildSeries:
    """A metric of a cell over builds, in their order; `conditions`: what was equal in all of them."""

    cell: Cell
    metric: str
    level: int
    conditions: Mapping[str, str]
    builds: Sequence[Build]

    @cached_property
    def changes(self) -> list[ChangePoint]:
        """The change points of the builds' means on the ln scale; none with fewer than FEWEST_BUILDS."""
        means = np.array([build.mean for build in self.builds])
        return change_points(np.log(means)) if len(means) >= FEWEST_BUILDS else []


def commit_of(version: str) -> str:
    """Return the commit that a version names, as setuptools-scm and `git describe` do; "" where it names none."""
    found = _COMMIT.search(version)
    return "" if found is None else found[1] or found[2]


def build_series(
    history: pd.DataFrame, program: str | None = None
) -> list[BuildSeries]:
    """Return every series of a history, over the builds of a program, by default the server.

    Runs that failed a check, or without that program, are left out. Builds are in the order of their versions (PEP 440:
    development builds of a branch by their number of commits), or, if one is not a valid version, by first measurement.
    """
    sound = history[(history["checks_failed"] == "") & (history["value"] > 0)].copy()
    programs = {text: json.loads(text) for text in sound["software"].unique()}
    sound["build"] = sound["software"].map(
        {text: _version(software, program) for text, software in programs.items()}
    )
    sound = sound[sound["build"] != ""]
    place: dict[Any, int] = {
        build: number for number, build in enumerate(_in_order(sound))
    }
    series = []
    for key, rows in sound.groupby(_SERIES, sort=False):
        named: dict[str, Any] = dict(zip(_SERIES, key, strict=True))
        builds = [
            _build(str(version), of_build, programs)
            for version, of_build in sorted(
                rows.groupby("build"), key=lambda part: place[part[0]]
            )
        ]
        conditions = {name: str(named[name]) for name in _CONDITIONS}
        series.append(
            BuildSeries(
                Cell.from_row(named),
                str(named["metric"]),
                int(named["level"]),
                conditions,
                builds,
            )
        )
    return series


def _version(software: Mapping[str, str], program: str | None) -> str:
    server = find_server(software)
    return software.get(program or (server.name if server else ""), "")


def _in_order(rows: pd.DataFrame) -> list[str]:
    first = rows.groupby("build")["run_started"].min()
    try:
        return sorted(first.index, key=lambda build: (Version(build), first[build]))
    except InvalidVersion:
        return sorted(first.index, key=lambda build: (first[build], build))


def _build(
    version: str, rows: pd.DataFrame, programs: Mapping[str, Mapping[str, str]]
) -> Build:
    logs = np.log(rows["value"].to_numpy(dtype=float))
    ran = [programs[text] for text in rows["software"].unique()]
    software = {}
    for name in dict.fromkeys(chain(*ran)):
        software[name] = frozenset(
            versions[name] for versions in ran if name in versions
        )
    return Build(
        version, float(np.exp(logs.mean())), *mean_interval(logs), len(logs), software
    )


class BuildChange(NamedTuple):
    """A change of a metric: between which builds it lies, how large it is, and what else changed.

    `last_before`, `first_after`: the builds on its two sides; `earliest`, `latest`: the range of builds that holds the
    first one with the change, with a confidence of 95 %; `change_percent` with its 95 % interval; `also_changed`:
    other programs whose versions differ.
    """

    model: str
    scenario: str
    cpu_blocks: int
    metric: str
    level: int
    last_before: str
    first_after: str
    earliest: str
    latest: str
    change_percent: float
    low_percent: float
    high_percent: float
    better: bool
    also_changed: str
    engine: str
    weights: str
    hardware: str
    workload: str


def build_changes(series: Sequence[BuildSeries]) -> list[BuildChange]:
    """Return every change of each series."""
    return [
        _change(one_series, change)
        for one_series in series
        for change in one_series.changes
    ]


def _change(series: BuildSeries, change: ChangePoint) -> BuildChange:
    before, after = series.builds[change.index - 1], series.builds[change.index]
    difference = change.difference
    change_percent, low, high = (
        percent(logarithm)
        for logarithm in (difference.theta, *difference.interval(0.95))
    )
    return BuildChange(
        series.cell.model,
        series.cell.scenario,
        series.cell.cpu_blocks,
        metric=series.metric,
        level=series.level,
        last_before=before.version,
        first_after=after.version,
        earliest=series.builds[change.earliest].version,
        latest=series.builds[change.latest].version,
        change_percent=change_percent,
        low_percent=low,
        high_percent=high,
        better=(difference.theta > 0) == HIGHER_IS_BETTER.get(series.metric, True),
        also_changed="; ".join(_also_changed(before, after)),
        engine=series.conditions["engine"],
        weights=series.conditions["weights"],
        hardware=series.conditions["hardware"],
        workload=series.conditions["workload"],
    )


def _also_changed(before: Build, after: Build) -> list[str]:
    """The other programs whose versions differ between two builds."""
    return [
        f"{name} {', '.join(sorted(old)) or 'absent'} -> {', '.join(sorted(new)) or 'absent'}"
        for name in sorted(before.software.keys() | after.software.keys())
        if (old := before.software.get(name, frozenset()))
        != (new := after.software.get(name, frozenset()))
        and not (before.version in old and after.version in new)
    ]
