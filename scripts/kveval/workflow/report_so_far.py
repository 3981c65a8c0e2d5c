"""A report over the runs that exist, with what failed listed with its reason."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from kveval.analysis.cells import CellKey, by_size
from kveval.analysis.levels.pilot import Pilot, read_pilot
from kveval.analysis.levels.recording import convert_recording
from kveval.analysis.levels.tables import run_tables
from kveval.analysis.peaks import cell_tables, collect
from kveval.analysis.statistics.campaign import ComparisonSettings
from kveval.analysis.summaries import summary_tables
from kveval.analysis.verdict_tables import verdict_tables
from kveval.host.errors import Failure
from kveval.measure.failures import cause
from kveval.report import report
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.reading import figure_data
from kveval.report.data.run_facts import key_of
from kveval.report.figures.draw import write_figures
from kveval.report.figures.names import figure_names
from kveval.store.run_file import Run, pointed_run, scenario_name, stored_run
from kveval.workflow.code_digest import files_behind

_SCRIPTS = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Analysis:
    """How the workflow makes its tables: vLLM's version, the least samples of a window, settings and baselines."""

    version: str
    min_samples: int
    comparison: Mapping[str, Any]


def report_so_far(plan: ReportPlan, results: Path, logs: Path, analysis: Analysis, output: Path) -> None:
    """Write a report over the runs that exist, with its own tables and figures; what failed is listed with its reason.

    `analysis`: as for the full report. Raises ReportError when nothing was measured.
    """
    pointers = {cell: _pointers(results, cell, plan.runs_of(cell)) for cell in plan.cells}
    failed = failures(plan, pointers, logs)
    if not any(pointers.values()):
        raise _nothing(plan, failed)
    with tempfile.TemporaryDirectory() as scratch:
        measured, tables = _measured(plan, pointers, failed, analysis, results, Path(scratch))
        beside = output.parent / "analysis"
        beside.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            table.to_csv(beside / f"{name}.csv", index=False)
        folder = output.parent / "figures"
        folder.mkdir(exist_ok=True)
        models = by_size(list(measured.levels["model"]), plan.parameters)
        figures = {name: [folder / f"{name}.png"] for name in figure_names(models)}
        empty = write_figures(figure_data(plan, measured), figures)
        report.write_report(plan, measured, [paths[0] for paths in figures.values()], output, empty)


def _measured(
    plan: ReportPlan,
    pointers: Mapping[CellKey, Sequence[Path]],
    failed: dict[CellKey, str],
    analysis: Analysis,
    results: Path,
    scratch: Path,
) -> tuple[Measured, dict[str, pd.DataFrame]]:
    """Make the tables of what exists, as the workflow's rules would; what cannot be read is added to `failed`.

    Returned with all of them, by the names of their files.
    """
    pairs: list[tuple[Path, Path]] = []
    runs: list[Run] = []
    recordings: dict[tuple[CellKey, int], Path] = {}
    for cell, found in pointers.items():
        required = plan.scenarios[cell[1]].get("exercised")
        converted: list[tuple[Path, Path]] = []
        readable: list[Run] = []
        for pointer in found:
            try:
                files, run = _converted(pointer, scratch, required), pointed_run(pointer)
            except Failure as failure:
                # One run that cannot be read must not keep the others out of the report.
                failed[cell] = f"failed: {pointer.parent.name} cannot be read: {failure}"
                continue
            converted.append(files)
            readable.append(run)
        if not converted:
            continue
        try:
            paths = [c[0] for c in converted], [c[1] for c in converted]
            tables = cell_tables(*paths, plan.metrics, analysis.version, analysis.min_samples)
        except Failure as failure:
            failed[cell] = f"failed: {failure}"
            continue
        pairs.append(_write_pair(tables, Path(tempfile.mkdtemp(dir=scratch))))
        runs += readable
        recordings |= {(key_of(run), run.run): files[1] for run, files in zip(readable, converted, strict=True)}
    if not runs:
        raise _nothing(plan, failed)
    collected = collect([pair[0] for pair in pairs], [pair[1] for pair in pairs], plan.metrics)
    complete, peaks = collected["complete_metrics"], collected["peak_throughput_all"]
    settings = ComparisonSettings(**analysis.comparison["settings"])
    judged = verdict_tables(complete, peaks, analysis.comparison["baselines"], settings)
    beside = {name: judged[name] for name in ("contrasts", "averages", "checks")}
    pilots = _pilots(results, plan)
    measured = Measured(runs, complete, peaks, judged["comparison"], failed, recordings, **beside, pilots=pilots)
    sums = summary_tables(complete, peaks, judged["comparison"], plan.baseline_of, plan.parameters)
    return measured, {**collected, **judged, **sums}


def failures(plan: ReportPlan, pointers: Mapping[CellKey, Sequence[Path]], logs: Path) -> dict[CellKey, str]:
    """Return, for every cell that lacks a run, the cause that the log of the last such run names."""
    found = {}
    for cell in plan.cells:
        there = {path.parent.name for path in pointers[cell]}
        for log in sorted((logs / "benchmark").joinpath(*map(str, cell)).glob("run-*.log")):
            reason = None if log.stem in there else cause(log)
            if reason is not None:
                found[cell] = f"failed: {reason}"
    return found


def _pilots(results: Path, plan: ReportPlan) -> list[Pilot]:
    """The searches for levels on the campaign's baselines, those that ended."""
    paths = [results.joinpath(*map(str, cell), "pilot", "levels.json") for cell in plan.cells]
    return [read_pilot(path) for path in paths if path.exists()]


def _nothing(plan: ReportPlan, failed: Mapping[CellKey, str]) -> report.ReportError:
    causes = "".join(f"\n  {'/'.join(map(str, cell))}: {reason}" for cell, reason in failed.items())
    return report.ReportError(f"campaign {plan.name}: no run was measured, there is nothing to report{causes}")


def _pointers(results: Path, cell: CellKey, runs: int) -> list[Path]:
    folder = results.joinpath(*map(str, cell))
    paths = [folder / f"run-{kind}{run}" / "measurement.json" for kind in ("", "i") for run in range(1, runs + 1)]
    return [path for path in paths if path.exists()]


def _converted(pointer: Path, scratch: Path, required: Sequence[Mapping[str, Any]] | None) -> tuple[Path, Path]:
    """Return a run's levels.parquet and pcp.parquet: the workflow's where it has made them, else made now."""
    levels, pcp = pointer.with_name("levels.parquet"), pointer.with_name("pcp.parquet")
    if _current(levels, "convert_load") and _current(pcp, "convert_pcp"):
        return levels, pcp
    stored = stored_run(pointer)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    run_tables(stored, required, scenario_name(pointer))[0].to_parquet(folder / "levels.parquet", index=False)
    convert_recording(stored, folder / "pcp.parquet")
    return folder / "levels.parquet", folder / "pcp.parquet"


def _current(path: Path, script: str) -> bool:
    """Whether a file was made by the script as it is now: an older one may lack what the tables need today."""
    return path.exists() and path.stat().st_mtime >= max(
        file.stat().st_mtime for file in files_behind(_SCRIPTS / f"{script}.py")
    )


def _write_pair(pair: tuple[pd.DataFrame, pd.DataFrame], folder: Path) -> tuple[Path, Path]:
    levels, peak = folder / "levels.csv", folder / "peak.csv"
    pair[0].to_csv(levels, index=False)
    pair[1].to_csv(peak, index=False)
    return levels, peak
