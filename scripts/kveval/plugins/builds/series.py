"""The history of results: the rows that a campaign adds, and series over builds with their intervals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from packaging.version import InvalidVersion, Version

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.estimators.intervals import mean_interval
from kveval.stacks.registry import find_server
from kveval.store.run_file import Run
from kveval.tables.cells import common_level
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict.verdicts import METRICS

_METRICS = [*METRICS, GOODPUT]
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
    """Return what a campaign adds to the history (`kveval.plugins.builds.history_files`): a row per cell, run and metric.

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
    metrics = [name for name in _METRICS if name in rows]
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
    """The runs of one build: their geometric mean, and its 95 % interval, NaN for a single run."""

    version: str
    mean: float
    low: float
    high: float
    runs: int

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
            _build(str(version), of_build)
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


def _build(version: str, rows: pd.DataFrame) -> Build:
    logs = np.log(rows["value"].to_numpy(dtype=float))
    return Build(version, float(np.exp(logs.mean())), *mean_interval(logs), len(logs))


def builds_table(series: Sequence[BuildSeries]) -> pd.DataFrame:
    """Return a row for each build of each series: its mean, and the 95 % interval of that."""
    rows = [
        {
            **cell_series.cell.row,
            "metric": cell_series.metric,
            "level": cell_series.level,
            **asdict(build),
            **cell_series.conditions,
        }
        for cell_series in series
        for build in cell_series.builds
    ]
    names = [field.name for field in fields(Build)]
    columns = [*CELL_COLUMNS, "metric", "level", *names, *_CONDITIONS]
    return pd.DataFrame(rows, columns=columns)
