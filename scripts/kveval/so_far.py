"""A report over the runs that exist, with what failed listed with its reason."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from kveval import report
from kveval.campaign_data import figure_data
from kveval.figure_data import CellKey, by_size
from kveval.figure_names import figure_names
from kveval.figures import write_figures
from kveval.imports import files_behind
from kveval.levels import run_tables
from kveval.pcparchive import convert
from kveval.peaks import cell_tables, collect
from kveval.report_data import Measured, Plan
from kveval.run_facts import key_of
from kveval.runfile import read_run, stored_run
from kveval.stats import Settings, compare


def report_so_far(
    plan: Plan, results: Path, logs: Path, version: str, comparison: Mapping[str, Any], output: Path
) -> None:
    """Write a report over the runs that exist, with its own figures beside it; what failed is listed with its reason.

    `version`: vLLM's; `comparison`: settings and baselines as in the full report. Raises ReportError when nothing was
    measured.
    """
    pointers = {cell: _pointers(results, cell, plan.runs) for cell in plan.cells}
    failed = failures(plan, pointers, logs)
    if not any(pointers.values()):
        causes = "".join(f"\n  {'/'.join(map(str, cell))}: {cause}" for cell, cause in failed.items())
        raise report.ReportError(f"campaign {plan.name}: no run was measured, there is nothing to report{causes}")
    with tempfile.TemporaryDirectory() as scratch:
        measured = _measured(plan, pointers, failed, version, comparison, Path(scratch))
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = output.parent / "figures"
        folder.mkdir(exist_ok=True)
        models = by_size(list(measured.levels["model"]), plan.parameters)
        figures = {name: [folder / f"{name}.png"] for name in figure_names(models)}
        empty = write_figures(figure_data(plan, measured), figures)
        report.write_report(plan, measured, [paths[0] for paths in figures.values()], output, empty)


def _measured(
    plan: Plan,
    pointers: Mapping[CellKey, Sequence[Path]],
    failed: Mapping[CellKey, str],
    version: str,
    comparison: Mapping[str, Any],
    scratch: Path,
) -> Measured:
    """Make the tables of what exists, as the workflow's rules would."""
    pairs, runs, recordings = [], [], {}
    for cell, found in pointers.items():
        if not found:
            continue
        required = plan.scenarios[cell[1]].get("exercised")
        converted = [_converted(pointer, scratch, required) for pointer in found]
        tables = cell_tables([c[0] for c in converted], [c[1] for c in converted], plan.metrics, version)
        pairs.append(_write_pair(tables, Path(tempfile.mkdtemp(dir=scratch))))
        for pointer, (_, recording) in zip(found, converted, strict=True):
            run = read_run(stored_run(pointer))
            runs.append(run)
            recordings[key_of(run), run.run] = recording
    collected = collect([pair[0] for pair in pairs], [pair[1] for pair in pairs], plan.metrics)
    complete, peaks = collected["complete_metrics"], collected["peak_throughput_all"]
    compared = compare(complete, comparison["baselines"], Settings(**comparison["settings"]))
    return Measured(runs, complete, peaks, compared, failed, recordings)


def failures(plan: Plan, pointers: Mapping[CellKey, Sequence[Path]], logs: Path) -> dict[CellKey, str]:
    """Return, for every cell without a run, the last cause its jobs' logs name."""
    found = {}
    for cell in plan.cells:
        if pointers[cell]:
            continue
        for log in sorted((logs / "benchmark").joinpath(*map(str, cell)).glob("run-*.log")):
            causes = re.findall(r"FAILED: (.*)", log.read_text(errors="replace"))
            if causes:
                found[cell] = f"failed: {causes[-1]}"
    return found


def _pointers(results: Path, cell: CellKey, runs: int) -> list[Path]:
    folder = results.joinpath(*map(str, cell))
    paths = [folder / f"run-{run}" / "measurement.json" for run in range(1, runs + 1)]
    return [path for path in paths if path.exists()]


def _converted(pointer: Path, scratch: Path, required: Sequence[Mapping[str, Any]] | None) -> tuple[Path, Path]:
    """Return a run's levels.parquet and pcp.parquet: the workflow's where it has made them, else made now."""
    levels, pcp = pointer.with_name("levels.parquet"), pointer.with_name("pcp.parquet")
    if _current(levels, "levels") and _current(pcp, "pcparchive"):
        return levels, pcp
    stored = stored_run(pointer)
    folder = Path(tempfile.mkdtemp(dir=scratch))
    run_tables(stored, required)[0].to_parquet(folder / "levels.parquet", index=False)
    convert(stored / "raw" / "pcp.tar.zst", folder / "pcp.parquet")
    return folder / "levels.parquet", folder / "pcp.parquet"


def _current(path: Path, module: str) -> bool:
    """Whether a file was made by the module as it is now: an older one may lack what the tables need today."""
    return path.exists() and path.stat().st_mtime >= max(file.stat().st_mtime for file in files_behind(module))


def _write_pair(pair: tuple[pd.DataFrame, pd.DataFrame], folder: Path) -> tuple[Path, Path]:
    levels, peak = folder / "levels.csv", folder / "peak.csv"
    pair[0].to_csv(levels, index=False)
    pair[1].to_csv(peak, index=False)
    return levels, peak
