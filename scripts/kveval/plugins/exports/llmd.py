"""A cell's peak as a benchmark report of llm-d-benchmark, version 0.2, for tools that read those.

`benchmark_report.yaml.j2` says what is in it. llm-d-benchmark's own package, `llmd-benchmark-report`, knows fields and
units and refuses what is wrong (its README section "v0.2.x Format Description": a report describes one stage of one run).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml
from llmd_benchmark_report import BenchmarkReportV02
from pydantic import ValidationError

from kveval.host.errors import Failure
from kveval.load.levels import prefix_count_at, prefix_tokens_at, streams_at
from kveval.load.workload import workload_of
from kveval.report.data.level_units import unit_of
from kveval.report.result.model import known_number
from kveval.stacks.registry import IMPORTED_SERVER, find_server, server_version
from kveval.store.run_file import Run, collected_runs
from kveval.tables.cells import THROUGHPUT, rows_of, tables_by_cell
from kveval.tables.csv_files import read_table

# Namespace of the ids, so that a level of a run always has the same id.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "kveval.benchmark-report")
Part = dict[str, Any]


class ExportError(Failure):
    """There is nothing to export, or nothing that a benchmark report can say."""


def write_peak_reports(
    levels: pd.DataFrame,
    peaks: pd.DataFrame,
    runs: Sequence[Run],
    campaign: str,
    listed: Path,
) -> None:
    """Write the report of every cell's peak as YAML among its tables, and a list of these files.

    A report is about one run: of several, the one with the median throughput at that level. Raises ExportError, as for a
    cell without a peak.
    """
    files = []
    for cell, rows in tables_by_cell(levels).items():
        peak = rows_of(peaks, cell)
        if peak.empty:
            raise ExportError(f"{cell.path}: it has no peak to export")
        at = rows[(rows["level"] == peak["level"].iloc[0]) & (rows[THROUGHPUT] > 0)]
        at = at.sort_values([THROUGHPUT, "run"])
        row = at.to_dict("records")[(len(at) - 1) // 2]
        run = next(run for run in runs if (run.cell, run.run) == (cell, row["run"]))
        report = level_report(row, run, campaign, len(at))
        text = yaml.safe_dump(report, sort_keys=False, allow_unicode=True)
        files.append(listed.parents[1] / cell.path / "benchmark_report_v0.2.yaml")
        files[-1].write_text(text, encoding="utf-8")
    listed.write_text("".join(f"{file}\n" for file in files))


def level_report(
    row: Mapping[Any, Any], run: Run, campaign: str, runs: int = 1
) -> Part:
    """Return the report of one level of one run from its row of complete_metrics.csv; `runs`: how many there are.

    Raises ExportError for what the package does not take.
    """
    server = find_server(run.versions) or IMPORTED_SERVER
    start, end = (
        pd.Timestamp(row[name]).floor("us") for name in ("window_start", "window_end")
    )
    text = _template().render(
        run=run,
        # A column that a table does not have is as unknown as a blank one.
        row=defaultdict(lambda: None, row),
        campaign=campaign,
        runs=runs,
        start=start.to_pydatetime(),
        end=end.to_pydatetime(),
        server=server.name,
        server_version=server_version(run.versions, "unknown"),
        load=workload_of(run.workload),
    )
    try:
        report = BenchmarkReportV02.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        raise ExportError(
            f"{run.cell.path}: no benchmark report of llm-d-benchmark ({error})",
            code="not_valid",
        ) from error
    return report.model_dump(mode="json", exclude_unset=True, exclude_none=True)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=_as_yaml
    )
    environment.globals |= {
        "arguments": _arguments,
        "hash": _hash,
        "known": known_number,
        "mean": _mean,
        "prefix_count_at": prefix_count_at,
        "prefix_tokens_at": prefix_tokens_at,
        "quantiles": _quantiles,
        "streams_at": streams_at,
        "uid": lambda name: str(uuid.uuid5(_NAMESPACE, name)),
        "unit_of": unit_of,
    }
    file = Path(__file__).with_name("benchmark_report.yaml.j2")
    return environment.from_string(file.read_text(encoding="utf-8"))


class _Line(yaml.SafeDumper):
    """Writes values in one line, repeated ones in full."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write no aliases: a name of one would be there twice in a template."""
        return True


def _as_yaml(value: Any) -> str:
    """Return a value in one line that is read as the same value: quoted, with the type of what is no text."""
    return yaml.dump(
        value,
        Dumper=_Line,
        default_style='"',
        default_flow_style=True,
        width=math.inf,
        sort_keys=False,
    ).strip()


def _mean(unit: str, value: float | None) -> Part | None:
    mean = known_number(value)
    return None if mean is None else {"units": unit, "mean": mean}


def _quantiles(row: Mapping[str, Any], unit: str, latency: str) -> Part | None:
    """Return the mean and the quantiles of a latency of the row, None where it was not observed."""
    mean = _mean(unit, row[f"{latency}_mean"])
    named = ("p50", "p90", "p99")
    return mean and mean | {
        name: known_number(row[f"{latency}_{name}"]) for name in named
    }


def _arguments(argv: Sequence[str]) -> Part:
    """Return a command line as option -> value, None for a switch; other arguments are under `positional`."""
    options: Part = {}
    positional: list[str] = []
    waiting = ""
    for argument in argv:
        if argument.startswith("--"):
            waiting, _, value = argument.partition("=")
            options[waiting] = value or None
        elif waiting and options[waiting] is None:
            options[waiting] = argument
        else:
            positional.append(argument)
    return {"positional": positional, **options} if positional else options


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


if __name__ == "__main__":
    name, *paths = sys.argv[1:]
    levels, peaks, runs, listed = map(Path, paths)
    tables = read_table(levels), read_table(peaks)
    write_peak_reports(*tables, collected_runs(runs), name, listed)
