"""The references of campaigns: the runs that they measure, by id, and the reports that they import."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.store.run_file import IMPORTED, recorded_cell


@dataclass
class References:
    """(measurement id, run) -> cells and campaigns that want it; imported report -> campaigns; what could not be read.

    What an unreadable campaign refers to is not known, so nothing may be deleted then. `searched`: cell -> campaigns
    that search its levels: every run of it may be theirs, because an id holds the levels that a pilot has found.
    `results`: the campaigns' folders of results, relative to the workflow's.
    """

    runs: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    reports: dict[str, list[str]] = field(default_factory=dict)
    searched: dict[Cell, list[str]] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    results: set[str] = field(default_factory=lambda: {"results"})

    def roots(self, workflow: Path) -> list[Path]:
        """Return the folders below which pointers lie, none of them within another."""
        inner = {
            name
            for name in self.results
            for other in self.results
            if name.startswith(f"{other}/")
        }
        return [workflow / name for name in sorted(self.results - inner)]

    def referrers(
        self, measurement: str | None, run: int | None, facts: Mapping[str, Any]
    ) -> list[str]:
        """Return the cells and campaigns that want a run, by its id, or by the reports that it was imported from."""
        if facts.get("engine") == IMPORTED:
            paths = (
                os.path.normpath(file["path"]) for file in facts.get("sources", ())
            )
            names = (name for path in paths for name in self.reports.get(path, []))
            return list(dict.fromkeys(names))
        runs, cell = (
            self.runs.get((measurement or "", run or 0), []),
            recorded_cell(facts),
        )
        if runs or cell is None:
            return runs
        return self.searched.get(cell, [])


def campaign_files(config: Path) -> list[Path]:
    """Return the campaign files of a copy of the workflow, in its folder `config`: config.yaml and campaigns/*.yaml."""
    default = config / "config.yaml"
    return [
        *([default] if default.exists() else []),
        *sorted((config / "campaigns").glob("*.yaml")),
    ]


def references(
    campaigns: Iterable[Path | Mapping[str, Any]], catalogues: Path
) -> References:
    """Read campaigns, given by their files or their values, and return what they refer to.

    `catalogues` is the folder of models.yaml and the others.
    """
    result = References()
    seen: list[Path | Mapping[str, Any]] = []
    for campaign in campaigns:
        if campaign not in seen:
            seen.append(campaign)
            _add_campaign(result, campaign, catalogues)
    return result


def _add_campaign(
    result: References, campaign: Path | Mapping[str, Any], catalogues: Path
) -> None:
    try:
        config = load_config(campaign, catalogues)
    except ConfigError as error:
        name = campaign.as_posix() if isinstance(campaign, Path) else "campaign"
        result.unreadable[name] = "; ".join(map(str, error.problems))
        return
    name = config.campaign.name
    result.results.add(config.campaign.results)
    if config.sheet is not None:
        for row in config.sheet.imported.values():
            names = result.reports.setdefault(config.sheet.file(row.report), [])
            names.append(f"imported by {name}")
    for cell in config.cells:
        pilot = config.pilot(cell)
        for searched in {cell, pilot} if pilot else ():
            result.searched.setdefault(searched, []).append(
                f"{searched.path} of {name}"
            )
        measurement = config.measurement_id(cell)
        for run in config.runs_of(cell):
            texts = result.runs.setdefault((measurement, run), [])
            if (text := f"{cell.path} run {run} of {name}") not in texts:
                texts.append(text)
