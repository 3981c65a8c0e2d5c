"""Checks of a campaign's tables: who is who, what is compared with what, and whether the verdicts follow from them.

Every function takes the `Tables` and returns what it found, nothing if all is well. Tables that are read again, or
edited, are held to the same as those just made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from kveval.analysis.cells import KEYS
from kveval.analysis.estimators.intervals import holm
from kveval.analysis.levels.checks import MIN_RUNS
from kveval.analysis.levels.outcomes import Outcome
from kveval.analysis.statistics.averages import ARM, averages
from kveval.analysis.statistics.verdicts import BETTER, PARITY, VERDICTS, WORSE

_MIN_POINTS = 10


@dataclass(frozen=True)
class Tables:
    """The campaign's tables: complete_metrics, peak_throughput_all, comparison, contrasts, peak_comparison, averages.

    `correlations`: columns model, x, y, n, r, low, high; "" or "all" as the model is one over models.
    """

    levels: pd.DataFrame
    peaks: pd.DataFrame
    comparison: pd.DataFrame
    contrasts: pd.DataFrame = field(default_factory=pd.DataFrame)
    peak_comparison: pd.DataFrame = field(default_factory=pd.DataFrame)
    averages: pd.DataFrame = field(default_factory=pd.DataFrame)
    correlations: pd.DataFrame = field(default_factory=pd.DataFrame)
    alpha: float = 0.05

    def compared(self) -> Iterator[dict[str, Any]]:
        """The rows of all comparisons."""
        return _rows(self.comparison, self.contrasts, self.peak_comparison)


CampaignCheck = Callable[[Tables], list[Outcome]]


def judge_campaign(tables: Tables) -> list[Outcome]:
    """Run every check on a campaign's tables."""
    return [outcome for check in CAMPAIGN_CHECKS for outcome in check(tables)]


def rows_once(tables: Tables) -> list[Outcome]:
    """Every level of every run stands in the tables once, and every cell has one peak."""
    found = []
    for table, keys in ((tables.levels, [*KEYS, "run", "level"]), (tables.peaks, [*KEYS])):
        for row in table[table.duplicated(keys)].to_dict("records"):
            found.append(Outcome("rows_once", "fail", f"twice in the tables: {_join(row, keys)}", _cell(row)))
    return found


def one_measurement_per_cell(tables: Tables) -> list[Outcome]:
    """All runs of a cell are of one measurement, and no measurement stands under two cells."""
    pairs = tables.levels[[*KEYS, "measurement"]].drop_duplicates()
    found = []
    for key, rows in pairs.groupby(list(KEYS), sort=False):
        if len(rows) > 1:
            ids = ", ".join(map(str, rows["measurement"]))
            found.append(
                Outcome("one_measurement_per_cell", "fail", f"runs of different measurements: {ids}", _path(key))
            )
    for name, rows in pairs.groupby("measurement", sort=False):
        if len(rows) > 1:
            cells = ", ".join(_cell(row) for row in rows.to_dict("records"))
            found.append(Outcome("one_measurement_per_cell", "fail", f"measurement {name} stands under {cells}"))
    return found


def balanced_panel(tables: Tables) -> list[Outcome]:
    """Averages over models are of models that have every arm, as the tables of comparisons give them."""
    if tables.averages.empty:
        return []
    expected = averages(tables.comparison).set_index([*ARM, "metric"])["effect_percent"]
    found = []
    for row in tables.averages.to_dict("records"):
        where = f"{row['scenario']}/{row['cpu_blocks']} {row['metric']}"
        right = expected.get((row["scenario"], row["cpu_blocks"], row["metric"]), np.nan)
        if not np.isclose(row["effect_percent"], right, rtol=1e-6, atol=1e-9, equal_nan=True):
            message = f"{row['effect_percent']:.4g} % is not the geometric mean over the balanced panel, {right:.4g} %"
            found.append(Outcome("balanced_panel", "fail", message, where))
    for missing in dict.fromkeys(str(names) for names in tables.averages["missing"].fillna("") if names):
        found.append(Outcome("balanced_panel", "note", f"averages over models lack {missing.replace(';', ', ')}"))
    return found


def denominators(tables: Tables) -> list[Outcome]:
    """Every percentage names the cell it is of, and that cell was measured."""
    known = {_path(key) for key in tables.levels[list(KEYS)].drop_duplicates().itertuples(index=False, name=None)}
    return [
        Outcome("denominators", "fail", f"{row['metric']} is compared with {row['baseline'] or 'nothing'}", _cell(row))
        for row in tables.compared()
        if pd.notna(row["effect_percent"]) and (row["baseline"] not in known or row["baseline"] == _cell(row))
    ]


def replication(tables: Tables) -> list[Outcome]:
    """A verdict rests on three and more blocks; with fewer there is none."""
    return [
        Outcome("replication", "fail", f"{row['metric']}: {row['verdict']} from {row['runs']:.0f} runs", _cell(row))
        for row in tables.compared()
        if row["verdict"] in VERDICTS and row["runs"] < MIN_RUNS
    ]


def peak_bracketed(tables: Tables) -> list[Outcome]:
    """The peak lies inside the grid of levels, and more than one run says so."""
    found = []
    for row in tables.peaks.to_dict("records"):
        if not bool(row["bracketed"]):
            message = f"not bracketed: {row['level']} is the first or the last level measured"
            found.append(Outcome("peak_bracketed", "note", message, _cell(row)))
        if row["runs"] < 2:
            message = f"level {row['level']} was selected by the run that gives its value"
            found.append(Outcome("peak_bracketed", "note", message, _cell(row)))
    return found


def common_level(tables: Tables) -> list[Outcome]:
    """The primary comparison is at one level for both cells, not at the peak of each."""
    found = []
    for row in tables.comparison.to_dict("records"):
        used = {level for level in str(row["levels_compared"]).split(";") if level}
        if row["verdict"] in VERDICTS and str(row["level"]).removesuffix(".0") not in used and len(used) < 2:
            message = f"{row['metric']} is compared at {row['level']}, its values are of level {row['levels_compared']}"
            found.append(Outcome("common_level", "fail", message, _cell(row)))
    return found


def multiplicity(tables: Tables) -> list[Outcome]:
    """Verdicts use p values adjusted by Holm's method over all comparisons of a model and metric."""
    families: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for number, parts in enumerate(((tables.comparison, tables.contrasts), (tables.peak_comparison,))):
        for row in _rows(*parts):
            if pd.notna(row["p_holm"]):
                families.setdefault((number, row["model"], row["metric"]), []).append(row)
    found = []
    for members in families.values():
        for source, target in (("p_value", "p_holm"), ("p_parity", "p_parity_holm")):
            for row, right in zip(members, holm([row[source] for row in members]), strict=True):
                if not np.isclose(row[target], right, rtol=1e-6, atol=1e-12):
                    message = f"{row['metric']}: {target} is {row[target]:.3g}, over {len(members)} it is {right:.3g}"
                    found.append(Outcome("multiplicity", "fail", message, _cell(row)))
    for row in tables.compared():
        if row["verdict"] in (BETTER, WORSE) and not row["p_holm"] < tables.alpha:
            found.append(Outcome("multiplicity", "fail", f"{row['verdict']} at p = {row['p_holm']:.3g}", _cell(row)))
    return found


def parity_shown(tables: Tables) -> list[Outcome]:
    """Parity is said where both one-sided tests against the margin passed, and nowhere else."""
    return [
        Outcome("parity_shown", "fail", f"{row['metric']}: parity at p = {row['p_parity_holm']:.3g} (TOST)", _cell(row))
        for row in tables.compared()
        if row["verdict"] == PARITY and not row["p_parity_holm"] < tables.alpha
    ]


def replicates(tables: Tables) -> list[Outcome]:
    """Cells that ran the same are replicates: named as such, and never a treatment that is better or worse."""
    found = []
    configured = tables.levels[[*KEYS, "configuration"]].drop_duplicates()
    configured = configured[configured["configuration"].fillna("") != ""]
    same: dict[str, str] = {}
    for (_, name), rows in configured.groupby(["model", "configuration"], sort=False):
        if len(rows) > 1:
            cells = [_cell(row) for row in rows.to_dict("records")]
            same |= dict.fromkeys(cells, str(name))
            message = f"{' and '.join(cells)} ran the same: their difference is noise"
            found.append(Outcome("replicates", "note", message))
    for row in tables.compared():
        alike = same.get(_cell(row), "") == same.get(str(row["baseline"]), "?")
        if alike and row["verdict"] in VERDICTS:
            message = f"{row['metric']}: {row['verdict']}, though both ran the same"
            found.append(Outcome("replicates", "fail", message, _cell(row)))
    return found


def one_machine(tables: Tables) -> list[Outcome]:
    """What is compared was measured on machines that may stand for each other."""
    of_cell: dict[str, set[str]] = {}
    for row in tables.levels[[*KEYS, "hardware"]].drop_duplicates().to_dict("records"):
        of_cell.setdefault(_cell(row), set()).add(str(row["hardware"]))
    return [
        Outcome("one_machine", "fail", f"{row['metric']}: {row['baseline']} was measured on other hardware", _cell(row))
        for row in tables.compared()
        if row["verdict"] in VERDICTS and of_cell.get(_cell(row)) != of_cell.get(str(row["baseline"]))
    ]


def one_build(tables: Tables) -> list[Outcome]:
    """An arm and its baseline are one build of the server: otherwise the difference is the arm's and the build's."""
    if "server_build" not in tables.levels:
        return []
    of_cell: dict[str, set[str]] = {}
    for built in tables.levels[[*KEYS, "server_build"]].dropna().drop_duplicates().to_dict("records"):
        of_cell.setdefault(_cell(built), set()).add(str(built["server_build"]))
    found: dict[str, Outcome] = {}
    for row in tables.compared():
        own, other = of_cell.get(_cell(row), set()), of_cell.get(str(row["baseline"]), set())
        if own and other and own != other:
            message = f"confounded: ran {' and '.join(sorted(own))}, {row['baseline']} {' and '.join(sorted(other))}"
            found.setdefault(f"{_cell(row)} {row['baseline']}", Outcome("one_build", "warn", message, _cell(row)))
    return list(found.values())


def one_generator(tables: Tables) -> list[Outcome]:
    """Levels that are compared come from one version of the load generator, whose metrics mean one thing."""
    found = []
    for model, rows in tables.levels.groupby("model", sort=False):
        versions = sorted({str(version) for version in rows["guidellm_version"].dropna()} - {""})
        if len(versions) > 1:
            message = f"measured with GuideLLM {', '.join(versions)}, whose definitions may differ"
            found.append(Outcome("one_generator", "warn", message, str(model)))
    return found


def correlations_within_models(tables: Tables) -> list[Outcome]:
    """Correlations are of one model each, over ten and more points, with their interval."""
    found = []
    for row in tables.correlations.to_dict("records"):
        model = str(row["model"] or "")
        where = f"{row['x']} and {row['y']}, {model or 'all models'}"
        if model.lower() in ("", "all", "nan"):
            found.append(Outcome("correlations_within_models", "fail", "pools models", where))
        if not row["n"] >= _MIN_POINTS:
            message = f"{row['n']} points, {_MIN_POINTS} needed"
            found.append(Outcome("correlations_within_models", "fail", message, where))
        if not (np.isfinite(row["low"]) and np.isfinite(row["high"])):
            found.append(Outcome("correlations_within_models", "fail", "has no interval", where))
    return found


def censored_share_shown(tables: Tables) -> list[Outcome]:
    """Throughput of completed requests alone stands only beside the share of those that did not complete."""
    found = []
    for name in ("levels", "peaks"):
        table: pd.DataFrame = getattr(tables, name)
        if "throughput_completed_tok_s" not in table:
            continue
        alone = table["throughput_completed_tok_s"].notna()
        if "incomplete_share" in table:
            alone &= table["incomplete_share"].isna()
        if alone.any():
            message = f"{alone.sum()} rows have a completed-only throughput without the share of unfinished requests"
            found.append(Outcome("censored_share_shown", "fail", message, name))
    return found


CAMPAIGN_CHECKS: tuple[CampaignCheck, ...] = (
    rows_once,
    one_measurement_per_cell,
    balanced_panel,
    denominators,
    replication,
    peak_bracketed,
    common_level,
    multiplicity,
    parity_shown,
    replicates,
    one_machine,
    one_build,
    one_generator,
    correlations_within_models,
    censored_share_shown,
)


def _rows(*tables: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for table in tables:
        yield from ({str(name): value for name, value in row.items()} for row in table.to_dict("records"))


def _path(key: Any) -> str:
    return "/".join(str(part) for part in key)


def _cell(row: Any) -> str:
    return _path(row[key] for key in KEYS)


def _join(row: Any, keys: list[str]) -> str:
    return ", ".join(f"{key} {row[key]}" for key in keys[len(KEYS) :]) or "the cell"
