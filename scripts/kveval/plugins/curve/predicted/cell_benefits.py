"""The gain from the tiers of measured cells, predicted with `benefit` from the levels of their baseline, as a table.

Tables of levels have one row per run and level (`levels.rows.run_tables`, complete_metrics.csv); tables of requests
have the run and level of each request.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.campaign.specification import Specification, SpecificationError
from kveval.plugins.curve.predicted.benefit import (
    Basis,
    Benefit,
    MeasuredLevel,
    basis_of,
)
from kveval.plugins.curve.predicted.tier_copies import tier_copies
from kveval.plugins.curve.simulation.cells import CellCurves, curves_of, serving_of
from kveval.stacks.tier_layout import needed_size
from kveval.store.run_file import IMPORTED, Run
from kveval.tables.cells import common_level, rows_of
from kveval.tables.levels.checks_run import disturbed
from kveval.tables.levels.outcomes import warned

RUNS_READ = 3
"""Number of the baseline's runs that a prediction uses; each takes a second or more to simulate."""
_PREDICTED = ("throughput_percent", "throughput_tok_s", "ttft_ms_mean")
COLUMNS = (
    *(*CELL_COLUMNS, "level", "baseline_runs"),
    *(f"{name}{end}" for name in _PREDICTED for end in ("", "_low", "_high")),
    *("busy_percent", "saturates", "enough_blocks", "enough_gib"),
)
"""Predicted: change of throughput against the baseline, %; output tokens per second; mean TTFT; each with the range of
90 % of the simulations, all empty for a tier that changes nothing in them; the share of time in which the device works;
whether more requests arrive than are answered; `enough_*`: the tier size of the first arm, in cpu_blocks and GiB of host
memory, with 90 % of the gain that any size has, empty where none has any."""
# From four requests a gain of 135 % was predicted where 4,100 % were measured.
_LEAST_REQUESTS = 10
# Per level and run. With 1,000 requests a model takes half a minute of CPU time, with three times as many four minutes.
_MOST_REQUESTS = 1_000


def measured_levels(
    levels: pd.DataFrame, requests: pd.DataFrame
) -> dict[int, list[MeasuredLevel]]:
    """Return level -> what each run served at it, for the levels of a cell that show how fast its server is.

    Left out are levels that other programs disturbed, and those with fewer than ten completed requests.
    """
    by_level: dict[int, list[MeasuredLevel]] = {}
    of_run = dict(list(requests.groupby(["run", "level"])))
    served = levels["throughput_tok_s"].gt(0) & levels["requests_completed"].ge(
        _LEAST_REQUESTS
    )
    for row in levels[served & ~warned(levels, disturbed)].to_dict("records"):
        sent = of_run.get((row["run"], row["level"]))
        if sent is not None:
            by_level.setdefault(int(row["level"]), []).append(
                _measured_level(row, sent)
            )
    return by_level


def _measured_level(
    row: Mapping[Hashable, Any], requests: pd.DataFrame
) -> MeasuredLevel:
    start, end = pd.to_datetime(
        [row["window_start"], row["window_end"]], utc=True, format="ISO8601"
    )
    inside, ended = (
        pd.to_datetime(requests[name], utc=True).between(start, end)
        for name in ("first_token", "end")
    )
    begin = float(row["warmup_s"])
    return MeasuredLevel(
        run=int(row["run"]),
        window=(begin, begin + float(row["duration_s"])),
        requests=len(requests),
        prompt_tokens=float(row["request_prompt_tokens"]),
        ttft_ms=requests.loc[inside, "ttft_ms"].to_numpy(float),
        itl_ms=requests.loc[ended & requests["itl_ms"].gt(0), "itl_ms"].to_numpy(float),
        **{
            name: float(row[name])
            for name in ("throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50")
        },
    )


def tier_benefits(
    basis: Basis,
    level: int,
    curves: Mapping[Cell, CellCurves],
    specifications: Mapping[Cell, Specification],
) -> tuple[dict[Cell, Benefit], tuple[int, Benefit] | None]:
    """Return the effects on a level of the tiers of all arms that share a baseline.

    Also the tier size in tokens with which the first arm has 90 % of the gain that any size has, and the effect of that
    size; None where no size has a gain.
    """
    first, tier = next(iter(curves)), next(iter(curves.values())).tier
    size = None if tier is None else tier.size_for()
    benefits_by_cell: dict[Cell | None, Benefit] = {}
    for serving in dict.fromkeys(serving_of(specifications[cell]) for cell in curves):
        cells = [cell for cell in curves if serving_of(specifications[cell]) == serving]
        # In use at least and at most.
        sizes: dict[Cell | None, tuple[float, float]] = {}
        for cell in cells:
            least, most = curves[cell].usable
            tier_tokens = curves[cell].tier_tokens
            sizes[cell] = least * tier_tokens, most * tier_tokens
        if size is not None and cells[0] == first:
            sizes[None] = size, size
        benefits = basis.benefits(specifications[cells[0]], level, [*sizes.values()])
        benefits_by_cell |= zip(sizes, benefits, strict=True)
    benefits_of_cells = {cell: benefits_by_cell[cell] for cell in curves}
    if size is None:
        return benefits_of_cells, None
    return benefits_of_cells, (size, benefits_by_cell[None])


def predicted_benefits(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    peaks: pd.DataFrame,
    comparison: pd.DataFrame,
    requests: Sequence[Path],
    baselines: Mapping[str, str | None],
) -> pd.DataFrame:
    """Return a table with COLUMNS: one row per cell with a tier, at the level at which its model's cells are compared.

    `levels`: complete_metrics.csv; `requests`: requests.parquet of each cell, in its folder MODEL/SCENARIO/CPU_BLOCKS;
    `baselines`: scenario -> its baseline. Cells are left out if their requests are not known, or if their baseline was
    not measured or served more requests than can be simulated while the report is made.
    """
    rows: list[tuple[Any, ...]] = []
    files = {Cell.from_folder(path.parent): path for path in requests}
    for model in peaks["model"].unique():
        level = common_level(comparison, peaks, model)
        of_model = [run for run in runs if run.cell.model == model]
        if (
            level is not None
            and len({run.hardware.get("fingerprint") for run in of_model}) == 1
        ):
            rows += _model_rows(of_model, levels, files, level, baselines)
    return pd.DataFrame(rows, columns=COLUMNS)


def _model_rows(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    files: Mapping[Cell, Path],
    level: int,
    baselines: Mapping[str, str | None],
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a model; `files`: cell -> its requests."""
    first = {run.cell: run for run in sorted(runs, key=lambda run: -run.run)}
    specifications = {
        cell: known
        for cell, run in first.items()
        if (known := _specification(run, level)) is not None
    }
    tiers = {
        cell: baselines.get(cell.scenario) for cell in specifications if cell.cpu_blocks
    }
    for name in dict.fromkeys(tiers.values()):
        base = next(
            (
                cell
                for cell in specifications
                if cell.scenario == name and not cell.cpu_blocks
            ),
            None,
        )
        if base is None:
            continue
        file = files.get(base)
        if file is None:
            continue
        basis = _basis(base, specifications[base], runs, levels, pd.read_parquet(file))
        if basis is not None and level in basis.levels:
            arms = [cell for cell, baseline in tiers.items() if baseline == name]
            yield from _rows(basis, level, {arm: specifications[arm] for arm in arms})


def _rows(
    basis: Basis, level: int, specifications: Mapping[Cell, Specification]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the cells with a tier that share a baseline."""
    curves = {
        cell: curves_of(specification, level, reported_tokens=basis.device_tokens)
        for cell, specification in specifications.items()
    }
    benefits, enough = tier_benefits(basis, level, curves, specifications)
    enough_blocks, enough_gib = None, None
    if enough is not None:
        size = needed_size(specifications.values(), enough[0], level)
        enough_blocks, enough_gib = size.cpu_blocks, size.gib
    for cell, benefit in benefits.items():
        numbers = [value for name in _PREDICTED for value in getattr(benefit, name)]
        # A tier that serves nothing and of whose copies nothing is known would cost exactly nothing.
        predicted = numbers if benefit.has_effect else [math.nan] * len(numbers)
        yield (
            *(*cell.key, level, len(basis.levels[level]), *predicted),
            *(100 * benefit.busy, benefit.saturates, enough_blocks, enough_gib),
        )


def _specification(run: Run, level: int) -> Specification | None:
    """Return a run's specification; None if its requests at the level cannot be known before they are sent."""
    if run.engine == IMPORTED:
        return None
    try:
        specification = Specification.from_json(run.specification)
    except SpecificationError:
        return None
    workload = specification.workload
    # A run says which trace was replayed by its content, not where the file is.
    if workload.trace is not None and not workload.trace.file:
        return None
    searched = workload.searched is not None or workload.profile == "sweep"
    return None if searched or level not in workload.given_levels else specification


def _basis(
    cell: Cell,
    specification: Specification,
    runs: Sequence[Run],
    levels: pd.DataFrame,
    requests: pd.DataFrame,
) -> Basis | None:
    """Return the basis of a cell; runs that are compared may bear another name than their specification has."""
    given = specification.workload.given_levels
    rows = rows_of(levels, cell)
    rows = rows[rows["level"].isin(given)]
    # Disturbed levels show nothing; they are not to take the place of others.
    quiet = rows[~warned(rows, disturbed)]
    first_runs = sorted(quiet["run"].unique())[:RUNS_READ]
    measured = measured_levels(quiet[quiet["run"].isin(first_runs)], requests)
    own = [run for run in runs if run.cell == cell]
    reported = (run.server.get("facts", {}).get("kv_cache_tokens") for run in own)
    device_tokens = specification.budget.device_tokens or next(
        filter(None, reported), None
    )
    most = max(
        (seen.requests for of_level in measured.values() for seen in of_level),
        default=0,
    )
    if not measured or device_tokens is None or most > _MOST_REQUESTS:
        return None
    copies, hardware = tier_copies(runs), own[0].hardware
    return basis_of(specification, int(device_tokens), measured, copies, hardware)
