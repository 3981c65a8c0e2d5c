"""The gain from the tiers of measured cells, predicted with `benefit` from the levels of their baseline, as a table.

Tables of levels have one row per run and level (`levels.tables.run_tables`, complete_metrics.csv); tables of requests
have the run and level of each request.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.analysis.benefit import Basis, Benefit, Interval, MeasuredLevel, basis_of, tier_copies
from kveval.analysis.cells import KEYS, CellKey, common_level
from kveval.config.types import BLOCK_TOKENS
from kveval.spec.curve.of_cells import CellCurves, curves_of, serving_of
from kveval.spec.specification import Specification, SpecificationError
from kveval.store.run_file import IMPORTED, Cell, Run

RUNS_READ = 3
"""Number of the baseline's runs that a prediction uses; each takes a second or more to simulate."""
_PREDICTED = ("throughput_percent", "throughput_tok_s", "ttft_ms_mean")
COLUMNS = (
    *(*KEYS, "level", "baseline_runs"),
    *(f"{name}{end}" for name in _PREDICTED for end in ("", "_low", "_high")),
    *("busy_percent", "saturates", "enough_blocks", "enough_gib"),
)
"""Predicted: change of throughput against the baseline, %; output tokens per second; mean TTFT; each with the range of
90 % of the simulations; the share of time in which the device works; whether more requests arrive than are answered;
`enough_*`: the tier size of the first arm, in cpu_blocks and GiB of host memory, with 90 % of the gain that any size
has, empty where none has any."""
# Per level and run. With 1,000 requests a model takes half a minute of CPU time, with three times as many four minutes.
_MOST_REQUESTS = 1_000


def measured_levels(levels: pd.DataFrame, requests: pd.DataFrame) -> dict[int, list[MeasuredLevel]]:
    """Return level -> what each run served at it, for the levels of a cell in which requests were completed."""
    found: dict[int, list[MeasuredLevel]] = {}
    of_run = dict(list(requests.groupby(["run", "level"])))
    for row in levels[levels["throughput_tok_s"].notna()].to_dict("records"):
        one = _measured_level(row, of_run.get((row["run"], row["level"]), requests[:0]))
        if one is not None:
            found.setdefault(int(row["level"]), []).append(one)
    return found


def _measured_level(row: Mapping[Hashable, Any], requests: pd.DataFrame) -> MeasuredLevel | None:
    if not row["throughput_tok_s"] > 0 or not row["requests_completed"] > 0 or requests.empty:
        return None
    start, end = pd.to_datetime([row["window_start"], row["window_end"]], utc=True, format="ISO8601")
    inside, ended = (pd.to_datetime(requests[name], utc=True).between(start, end) for name in ("first_token", "end"))
    begin = float(row["warmup_s"])
    return MeasuredLevel(
        run=int(row["run"]),
        window=(begin, begin + float(row["duration_s"])),
        requests=len(requests),
        prompt_tokens=float(row["request_prompt_tokens"]),
        ttft_ms=requests.loc[inside, "ttft_ms"].to_numpy(float),
        itl_ms=requests.loc[ended & requests["itl_ms"].gt(0), "itl_ms"].to_numpy(float),
        **{name: float(row[name]) for name in ("throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50")},
    )


def tier_benefits(
    basis: Basis, level: int, curves: Mapping[Cell, CellCurves], specifications: Mapping[Cell, Specification]
) -> tuple[dict[Cell, Benefit], tuple[int, Benefit] | None]:
    """Return the effects on a level of the tiers of all arms that share a baseline.

    Also the tier size in tokens with which the first arm has 90 % of the gain that any size has, and the effect of that
    size; None where no size has a gain.
    """
    first, knee = next(iter(curves)), next(iter(curves.values())).tier
    size = None if knee is None else knee.size_for()
    found: dict[Cell | None, Benefit] = {}
    for serving in dict.fromkeys(serving_of(specifications[cell]) for cell in curves):
        alike = [cell for cell in curves if serving_of(specifications[cell]) == serving]
        sizes: dict[Cell | None, tuple[float, float]] = {cell: _in_use(curves[cell]) for cell in alike}
        if size is not None and alike[0] == first:
            sizes[None] = size, size
        benefits = basis.benefits(specifications[alike[0]], level, [*sizes.values()])
        found |= zip(sizes, benefits, strict=True)
    return {cell: found[cell] for cell in curves}, None if size is None else (size, found[None])


def _in_use(curves: CellCurves) -> tuple[float, float]:
    low, high = (part * curves.tier_tokens for part in curves.usable)
    return low, high


def campaign_benefits(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    peaks: pd.DataFrame,
    comparison: pd.DataFrame,
    requests: Sequence[Path],
    baselines: Mapping[str, str | None],
) -> pd.DataFrame:
    """Return the table of `predicted_benefits` from a campaign's files.

    `levels`: complete_metrics.csv; `requests`: requests.parquet of each cell, in its folder MODEL/SCENARIO/CPU_BLOCKS.
    """
    files = {(*path.parts[-4:-2], path.parts[-2]): path for path in requests}

    def requests_of(cell: CellKey) -> pd.DataFrame | None:
        path = files.get((cell[0], cell[1], str(cell[2])))
        return None if path is None else pd.read_parquet(path)

    at = {model: common_level(comparison, peaks, model) for model in peaks["model"].unique()}
    return predicted_benefits(runs, levels, requests_of, at, baselines)


def predicted_benefits(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    requests_of: Callable[[CellKey], pd.DataFrame | None],
    at: Mapping[str, int | None],
    baselines: Mapping[str, str | None],
) -> pd.DataFrame:
    """Return a table with COLUMNS: one row per cell with a tier, at the level at which its model's cells are compared.

    `levels`: complete_metrics.csv; `requests_of`: the requests of a cell; `at`: the level of each model; `baselines`:
    scenario -> its baseline. Cells are left out if their requests are not known, or if their baseline was not measured
    or served more requests than can be simulated while the report is made.
    """
    rows = [
        row
        for model, level in at.items()
        if level is not None
        for row in _of_model([run for run in runs if run.cell.model == model], levels, requests_of, level, baselines)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _of_model(
    runs: Sequence[Run],
    levels: pd.DataFrame,
    requests_of: Callable[[CellKey], pd.DataFrame | None],
    level: int,
    baselines: Mapping[str, str | None],
) -> Iterator[tuple[Any, ...]]:
    first = {run.cell: run for run in sorted(runs, key=lambda run: -run.run)}
    specifications = {cell: known for cell, run in first.items() if (known := _specification(run, level)) is not None}
    machines = {run.hardware.get("fingerprint") for run in runs}
    tiers = {cell: baselines.get(cell.scenario) for cell in specifications if cell.cpu_blocks}
    for name in dict.fromkeys(tiers.values()):
        base = next((cell for cell in specifications if cell.scenario == name and not cell.cpu_blocks), None)
        if base is None or len(machines) > 1:
            continue
        basis = _basis(base, specifications[base], runs, levels, requests_of)
        if basis is None or level not in basis.levels:
            continue
        alike = {cell: specifications[cell] for cell, of in tiers.items() if of == name}
        curves = {cell: curves_of(one, level, reported_tokens=basis.device_tokens) for cell, one in alike.items()}
        benefits, enough = tier_benefits(basis, level, curves, alike)
        blocks = None if enough is None else -(-enough[0] // BLOCK_TOKENS)
        block_gib = BLOCK_TOKENS * specifications[base].model.kv_bytes_per_token / 2**30
        for cell, benefit in benefits.items():
            intervals: list[Interval] = [getattr(benefit, name) for name in _PREDICTED]
            yield (
                *(cell.model, cell.scenario, cell.cpu_blocks, level, len(basis.levels[level])),
                *(value for one in intervals for value in one),
                *(100 * benefit.busy, benefit.saturates, blocks, None if blocks is None else blocks * block_gib),
            )


def _specification(run: Run, level: int) -> Specification | None:
    """Return a run's specification; None if its requests at the level cannot be known before they are sent."""
    if run.engine == IMPORTED:
        return None
    try:
        found = Specification.from_json(run.specification)
    except SpecificationError:
        return None
    searched = found.workload.searched is not None or found.workload.profile == "sweep"
    return None if searched or level not in found.workload.given_levels else found


def _basis(
    cell: Cell,
    specification: Specification,
    runs: Sequence[Run],
    levels: pd.DataFrame,
    requests_of: Callable[[CellKey], pd.DataFrame | None],
) -> Basis | None:
    requests, given = requests_of(cell.key), specification.workload.given_levels
    rows = levels[(levels[[*KEYS]] == [*cell.key]).all(axis=1) & levels["level"].isin(given)]
    rows = rows[rows["run"].isin(sorted(rows["run"].unique())[:RUNS_READ])]
    found = {} if requests is None else measured_levels(rows, requests)
    facts = (run.server.get("facts", {}) for run in runs if run.cell == cell)
    reported = (tokens for one in facts if (tokens := one.get("kv_cache_tokens")))
    held = specification.budget.device_tokens or next(reported, None)
    most = max((seen.requests for each in found.values() for seen in each), default=0)
    if not found or held is None or most > _MOST_REQUESTS:
        return None
    return basis_of(specification, int(held), found, tier_copies(runs))
