"""Checks of a campaign's tables: identities, comparisons, and whether the verdicts follow from the tables.

Every check takes the `Tables` and yields one outcome per problem, nothing if all is well. Tables read back from files,
perhaps edited, must pass the same checks as new ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.estimators.correlations import MIN_POINTS
from kveval.estimators.intervals import holm
from kveval.load.sample_sizes import MIN_RUNS
from kveval.store.run_file import IMPORTED
from kveval.tables.cells import baseline_of, tables_by_cell
from kveval.tables.levels.outcomes import Outcome, check, fail, note, warn
from kveval.verdict.averages import ARM, averages
from kveval.verdict.verdict_words import (
    BETTER,
    IDLE,
    PARITY,
    VERDICTS,
    WORSE,
    WORSE_IDLE,
)


@dataclass(frozen=True)
class Tables:
    """The campaign's tables: complete_metrics, peak_throughput_all, comparison, contrasts, peak_comparison, averages.

    `correlations`: of system metrics with throughput, see `correlations_by_model`; model is "" or "all" if pooled
    over models.
    """

    levels: pd.DataFrame
    peaks: pd.DataFrame
    comparison: pd.DataFrame
    contrasts: pd.DataFrame = field(default_factory=pd.DataFrame)
    peak_comparison: pd.DataFrame = field(default_factory=pd.DataFrame)
    averages: pd.DataFrame = field(default_factory=pd.DataFrame)
    correlations: pd.DataFrame = field(default_factory=pd.DataFrame)
    alpha: float = 0.05

    def comparisons(self) -> Iterator[dict[str, Any]]:
        """The rows of all comparisons."""
        return _rows(self.comparison, self.contrasts, self.peak_comparison)


@check("R2", "R5")
def rows_once(tables: Tables) -> Iterator[Outcome]:
    """Every level of every run is in the tables once, and every cell has one peak."""
    levels, peaks = tables.levels, tables.peaks
    keys = [*CELL_COLUMNS, "run", "level"]
    for row in levels[levels.duplicated(keys)].to_dict("records"):
        yield fail(
            "twice in the tables: run {run}, level {level}",
            Cell.from_row(row),
            run=row["run"],
            level=row["level"],
        )
    for row in peaks[peaks.duplicated([*CELL_COLUMNS])].to_dict("records"):
        yield fail("twice in the tables: the cell", Cell.from_row(row))


@check("R2")
def one_measurement_per_cell(tables: Tables) -> Iterator[Outcome]:
    """All runs of a cell are of one measurement, and no measurement is listed under two cells.

    The measurement of an imported run is named after its files; there, runs of one cell must have one configuration.
    """
    imported = tables.levels["engine"] == IMPORTED
    for cell, rows in tables_by_cell(tables.levels[imported]).items():
        if rows["configuration"].nunique() > 1:
            yield warn(
                "runs of different configurations: see `configuration` in the campaign's sheet",
                cell,
            )
    for cell, rows in tables_by_cell(tables.levels[~imported]).items():
        names = list(map(str, rows["measurement"].unique()))
        if len(names) > 1:
            yield fail(
                "runs of different measurements: {measurements}",
                cell,
                measurements=names,
            )
    for name, rows in (
        tables.levels[[*CELL_COLUMNS, "measurement"]]
        .drop_duplicates()
        .groupby("measurement", sort=False)
    ):
        if len(rows) > 1:
            yield fail(
                "measurement {measurement} stands under {cells}",
                measurement=name,
                cells=[cell.full_label for cell in tables_by_cell(rows)],
            )


@check("R5")
def balanced_panel(tables: Tables) -> Iterator[Outcome]:
    """Averages over models use only models that have every arm, and follow from the tables of comparisons."""
    if tables.averages.empty:
        return
    expected = averages(tables.comparison).set_index([*ARM, "metric"])["effect_percent"]
    for row in tables.averages.to_dict("records"):
        right = expected.get(
            (row["scenario"], row["cpu_blocks"], row["metric"]), np.nan
        )
        if not np.isclose(
            row["effect_percent"], right, rtol=1e-6, atol=1e-9, equal_nan=True
        ):
            yield fail(
                "{effect_percent:.4g} % is not the geometric mean over the balanced panel, {expected_percent:.4g} %",
                f"{row['scenario']}/{row['cpu_blocks']} {row['metric']}",
                effect_percent=row["effect_percent"],
                expected_percent=right,
            )
    for missing in dict.fromkeys(
        str(names) for names in tables.averages["missing"].fillna("") if names
    ):
        cells = [Cell.from_path(path).full_label for path in missing.split(";")]
        yield note("averages over models lack {cells}", cells=cells)


@check("R6")
def denominators(tables: Tables) -> Iterator[Outcome]:
    """Every percentage names the cell that is its 100 %, and that cell was measured."""
    known = tables_by_cell(tables.levels)
    for row in tables.comparisons():
        cell, baseline = Cell.from_row(row), baseline_of(row)
        if pd.notna(row["effect_percent"]) and (
            baseline not in known or baseline == cell
        ):
            yield fail(
                "{metric} is compared with {reference}",
                cell,
                metric=row["metric"],
                reference=_label(baseline),
            )


@check("R9")
def replication(tables: Tables) -> Iterator[Outcome]:
    """A verdict rests on three or more blocks; with fewer there is none."""
    for row in tables.comparisons():
        if row["verdict"] in VERDICTS and row["runs"] < MIN_RUNS:
            yield fail(
                "{metric}: {verdict} from {runs:.0f} runs",
                Cell.from_row(row),
                metric=row["metric"],
                verdict=row["verdict"],
                runs=row["runs"],
            )


@check("R10")
def peak_bracketed(tables: Tables) -> Iterator[Outcome]:
    """The peak is inside the grid of levels, and more than one run was measured."""
    for row in tables.peaks.to_dict("records"):
        if not bool(row["bracketed"]):
            yield note(
                "not bracketed: {level} is the first or the last level measured",
                Cell.from_row(row),
                level=row["level"],
            )
        if row["runs"] < 2:
            yield note(
                "level {level} was selected by the run that gives its value",
                Cell.from_row(row),
                level=row["level"],
            )


@check("R10")
def common_level(tables: Tables) -> Iterator[Outcome]:
    """The primary comparison is at one level for both cells, not at the peak of each."""
    for row in tables.comparison.to_dict("records"):
        used = {level for level in str(row["levels_compared"]).split(";") if level}
        if (
            row["verdict"] in VERDICTS
            and str(row["level"]).removesuffix(".0") not in used
            and len(used) < 2
        ):
            yield fail(
                "{metric} is compared at {level}, its values are of level {levels_compared}",
                Cell.from_row(row),
                metric=row["metric"],
                level=row["level"],
                levels_compared=row["levels_compared"],
            )


@check("R11")
def multiplicity(tables: Tables) -> Iterator[Outcome]:
    """Verdicts use p values adjusted by Holm's method: over all models for the primary metric, else each alone."""
    families: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for number, row in enumerate(_rows(tables.comparison, tables.contrasts)):
        if pd.notna(row["p_holm"]):
            primary = str(row["family"]).startswith("primary")
            key = row["metric"], row["family"], None if primary else number
            families.setdefault(key, []).append(row)
    for members in families.values():
        for source, target in (("p_value", "p_holm"), ("p_parity", "p_parity_holm")):
            for row, right in zip(
                members, holm([row[source] for row in members]), strict=True
            ):
                if not np.isclose(row[target], right, rtol=1e-6, atol=1e-12):
                    yield fail(
                        "{metric}: {column} is {p_adjusted:.3g}, over {comparisons} it is {p_expected:.3g}",
                        Cell.from_row(row),
                        metric=row["metric"],
                        column=target,
                        p_adjusted=row[target],
                        comparisons=len(members),
                        p_expected=right,
                    )
    for row in tables.comparisons():
        if (
            row["verdict"] in (BETTER, WORSE, WORSE_IDLE)
            and not row["p_holm"] < tables.alpha
        ):
            yield fail(
                "{verdict} at p = {p_holm:.3g}",
                Cell.from_row(row),
                verdict=row["verdict"],
                p_holm=row["p_holm"],
            )


@check("R12")
def parity_shown(tables: Tables) -> Iterator[Outcome]:
    """A verdict is parity only where both one-sided tests against the margin passed."""
    for row in tables.comparisons():
        if row["verdict"] in (PARITY, IDLE) and not row["p_parity_holm"] < tables.alpha:
            yield fail(
                "{metric}: {verdict} at p = {p_parity_holm:.3g} (TOST)",
                Cell.from_row(row),
                metric=row["metric"],
                verdict=row["verdict"],
                p_parity_holm=row["p_parity_holm"],
            )


@check("R14")
def replicates(tables: Tables) -> Iterator[Outcome]:
    """Cells that ran the same configuration are named as replicates, and get no verdict against each other."""
    configured = tables.levels[[*CELL_COLUMNS, "configuration"]].drop_duplicates()
    configured = configured[configured["configuration"].fillna("") != ""]
    same: dict[Cell, str] = {}
    for (_, name), rows in configured.groupby(["model", "configuration"], sort=False):
        if len(rows) > 1:
            cells = tables_by_cell(rows)
            same |= dict.fromkeys(cells, str(name))
            yield note(
                "{cells: and } ran the same: their difference is noise",
                cells=[cell.full_label for cell in cells],
            )
    for row in tables.comparisons():
        cell, baseline = Cell.from_row(row), baseline_of(row)
        same_configuration = baseline in same and same.get(cell) == same[baseline]
        if same_configuration and row["verdict"] in VERDICTS:
            yield fail(
                "{metric}: {verdict}, though both ran the same",
                Cell.from_row(row),
                metric=row["metric"],
                verdict=row["verdict"],
            )


@check("R16")
def one_machine(tables: Tables) -> Iterator[Outcome]:
    """Cells that are compared were measured on equivalent machines; runs of others are left out of the comparison."""
    of_cell = _values_of_cells(tables.levels, "hardware")
    for row in tables.comparisons():
        baseline = baseline_of(row)
        ours = of_cell.get(Cell.from_row(row), set())
        theirs = of_cell.get(baseline, set()) if baseline else set()
        if row["verdict"] in VERDICTS and (ours or theirs) and not ours & theirs:
            yield fail(
                "{metric}: {reference} was measured on other hardware",
                Cell.from_row(row),
                metric=row["metric"],
                reference=_label(baseline),
            )


@check("R16")
def one_build(tables: Tables) -> Iterator[Outcome]:
    """An arm and its baseline ran the same build of the server, or differ in nothing but the build."""
    of_cell, settings_by_cell = (
        _values_of_cells(tables.levels, name)
        for name in ("server_build", "arm_settings")
    )
    for cell, baseline in dict.fromkeys(
        (Cell.from_row(row), baseline_of(row)) for row in tables.comparisons()
    ):
        if baseline is None:
            continue
        own_builds, baseline_builds = (
            of_cell.get(cell, set()),
            of_cell.get(baseline, set()),
        )
        settings = settings_by_cell.get(cell, set())
        if not (own_builds and baseline_builds) or own_builds == baseline_builds:
            continue
        facts = {
            "builds": sorted(own_builds),
            "reference": baseline.full_label,
            "reference_builds": sorted(baseline_builds),
        }
        if len(settings) == 1 and settings == settings_by_cell.get(baseline):
            yield note(
                "builds compared: {builds: and } with {reference_builds: and }",
                cell,
                **facts,
            )
        else:
            yield warn(
                "confounded: ran {builds: and }, {reference} {reference_builds: and }",
                cell,
                **facts,
            )


@check("R19")
def one_generator(tables: Tables) -> Iterator[Outcome]:
    """Levels that are compared come from one version of the load generator, whose metrics mean one thing."""
    for model, rows in tables.levels.groupby("model", sort=False):
        versions = sorted(
            {str(version) for version in rows["guidellm_version"].dropna()} - {""}
        )
        if len(versions) > 1:
            yield warn(
                "measured with GuideLLM {versions}, whose definitions may differ",
                str(model),
                versions=versions,
            )


@check("R17")
def correlations_within_models(tables: Tables) -> Iterator[Outcome]:
    """Every correlation is within one model, over ten or more points, and has an interval."""
    for row in tables.correlations.to_dict("records"):
        model = str(row["model"] or "")
        where = f"{row['x']} and {row['y']}, {model or 'all models'}"
        if model.lower() in ("", "all", "nan"):
            yield fail("pools models", where)
        if not row["n"] >= MIN_POINTS:
            yield fail(
                "{points} points, {points_needed} needed",
                where,
                points=row["n"],
                points_needed=MIN_POINTS,
            )
        if not (np.isfinite(row["low"]) and np.isfinite(row["high"])):
            yield fail("has no interval", where)


@check("R7")
def censored_share_shown(tables: Tables) -> Iterator[Outcome]:
    """Throughput of completed requests alone is shown only with the share of those that did not complete."""
    for name, table in (("levels", tables.levels), ("peaks", tables.peaks)):
        if "throughput_completed_tok_s" not in table:
            continue
        known = table.get("incomplete_share", pd.Series(np.nan, table.index)).notna()
        alone = table["throughput_completed_tok_s"].notna() & ~known
        if alone.any():
            yield fail(
                "{rows} rows have a completed-only throughput without the share of unfinished requests",
                name,
                rows=alone.sum(),
            )


def _rows(*tables: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in table.to_dict("records"):
            yield {str(name): value for name, value in row.items()}


def _label(baseline: Cell | None) -> str:
    return baseline.full_label if baseline else "nothing"


def _values_of_cells(levels: pd.DataFrame, column: str) -> dict[Cell, set[str]]:
    """Return the distinct values of a column by cell."""
    if column not in levels:
        return {}
    known = levels.dropna(subset=column).astype({column: str})
    return {cell: set(rows[column]) for cell, rows in tables_by_cell(known).items()}
