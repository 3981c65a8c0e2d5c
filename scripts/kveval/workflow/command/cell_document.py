"""The document that `kveval show` prints of a cell: plain values, from files alone.

Levels and peak are those of levels.csv and peak.csv; without these tables, run.json says which levels were measured.
Nothing is computed here but means over runs, so that no number differs from those of the report.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.result.levels import level_results
from kveval.report.result.model import known_facts, known_number
from kveval.tables.levels.activity import activity_at
from kveval.tables.levels.outcomes import outcomes_of, read_facts
from kveval.tables.one_request import times_by_source
from kveval.workflow.command.cell_lookup import (
    LEVELS,
    PEAK,
    RESULTS,
    CellFolder,
    StoredCell,
    StoredRun,
)
from kveval.workflow.failed_tables import reason_in

Row = Mapping[str, str]
Document = dict[str, Any]

GIB = 2**30
SEVERITIES = ("fail", "warn", "note")
_PEAK_NUMBERS = ("throughput_tok_s", "throughput_low_tok_s", "throughput_high_tok_s")


def cell_document(stored: StoredCell) -> Document:
    """Describe a cell; paths as in `stored`, times as in run.json, None for what is not known."""
    levels, reason = _cell_table(stored.source, LEVELS)
    peaks, _ = _cell_table(stored.source, PEAK)
    document: Document = {
        "cell": _cell(stored),
        "measurements": sorted({run.run.measurement for run in stored.runs}),
        "results": None if stored.source is None else str(stored.source.folder),
        "so_far": stored.source is not None
        and stored.source.tables != stored.source.folder,
        "elsewhere": [str(folder) for folder in stored.elsewhere],
        "runs": [_run(run) for run in stored.runs],
        "unreadable": list(stored.unreadable),
        "levels": [level.model_dump() for level in level_results(levels)]
        or _levels_of_runs(stored.runs),
        "not_computed": reason,
        "peak": _peak(peaks[0]) if peaks else None,
        "one_request": _one_request(stored.runs),
        "activity": [proof for run in stored.runs for proof in _activity(run)],
        "checks": _checks(levels, stored.source),
    }
    document["next"] = list(_next_steps(document, stored.source))
    return document


def _cell_table(source: CellFolder | None, name: str) -> tuple[list[Row], str | None]:
    """Return the rows of a cell's table; none where it was not made, with the reason if its file has that instead."""
    if source is None or not (source.tables / name).exists():
        return [], None
    reason = reason_in(source.tables / name)
    return ([] if reason else _rows(source.tables / name)), reason


def _rows(path: Path) -> list[Row]:
    """Return the rows of a table; none where it is not there."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def _cell(stored: StoredCell) -> Document:
    cell = stored.cell
    sizes = (run.run.specification.get("budget", {}) for run in stored.runs)
    size_bytes = next((size.get("requested_bytes") for size in sizes), None)
    return {
        "path": cell.path,
        **cell.row,
        "tier_bytes": size_bytes,
        "tier_gib": None if size_bytes is None else size_bytes / GIB,
    }


def _run(stored: StoredRun) -> Document:
    run = stored.run
    return {
        "run": run.run,
        "place": str(stored.place),
        "measurement": run.measurement,
        "started": run.started,
        "finished": run.finished,
        "engine": run.engine,
        "weights": run.weights,
        "host": {
            "fingerprint": run.hardware.get("fingerprint"),
            "cpu_model": run.hardware.get("cpu_model"),
            "cpus": run.hardware.get("cpus"),
            "gpus": [gpu.get("name") for gpu in run.hardware.get("gpus") or ()],
        },
        "versions": run.software or dict(run.specification.get("versions", {})),
    }


def _levels_of_runs(runs: Sequence[StoredRun]) -> list[Document]:
    """Return the levels that run.json lists: how many runs measured each, and which runs failed there."""
    failed: dict[int, list[int]] = defaultdict(list)
    measured: dict[int, int] = defaultdict(int)
    for stored in runs:
        for level in stored.run.levels:
            measured[level.level] += level.status == "ok"
            if level.status != "ok":
                failed[level.level].append(stored.run.run)
    return [
        {"level": level, "runs": measured[level], "failed_runs": failed[level]}
        for level in sorted(measured)
    ]


def _peak(row: Row) -> Document:
    return {
        "level": int(float(row["level"])),
        "runs": int(float(row["runs"])),
        **{column: known_number(row.get(column)) for column in _PEAK_NUMBERS},
        "bracketed": row.get("bracketed") == "True",
        "plateau": [int(level) for level in row.get("plateau", "").split(";") if level],
    }


def _one_request(runs: Sequence[StoredRun]) -> list[Document]:
    """Return the times of one request over the runs, as one_request.csv has them: by where its prompt came from."""
    timed = [run.run.one_request for run in runs if run.run.one_request is not None]
    if not timed:
        return []
    missing = dict.fromkeys(("ttft_ms_median", "ttft_ms_least", "ttft_ms_most"))
    return [missing | row for row in times_by_source(timed)]


def _activity(stored: StoredRun) -> list[Document]:
    """Return how much the counters that an arm requires rose in a run, over its levels; none for a baseline.

    `active`: whether a counter rose enough at some level, None where it was not read.
    """
    run = described(stored.run)
    required = run.required_counters
    activities = [
        activity_at(run, level) for level in run.levels if level.status == "ok"
    ]
    rows = []
    for place, entry in enumerate(required):
        rises = [activity.rises[place] for activity in activities]
        amounts = [rise.rise for rise in rises if rise.rise is not None]
        rows.append(
            {
                "run": stored.run.run,
                "counter": entry.counter,
                "at_least": min(
                    (rise.needed for rise in rises), default=entry.at_least
                ),
                "moved": sum(amounts) if amounts else None,
                "active": any(rise.enough for rise in rises) if amounts else None,
            }
        )
    return rows


def _checks(levels: Iterable[Row], source: CellFolder | None) -> list[Document]:
    """Return what checks found, the worst first: of the levels, and of the campaign's tables as far as it is this cell."""
    checks = [
        {
            "severity": outcome.severity,
            "check": outcome.code,
            "message": outcome.message,
            "facts": known_facts(outcome.facts),
            "run": int(row["run"]),
            "level": int(row["level"]),
        }
        for row in levels
        for outcome in outcomes_of(row)
    ]
    if source is not None:
        checks += _checks_of_tables(source)
    return sorted(checks, key=lambda check: SEVERITIES.index(check["severity"]))


def _checks_of_tables(source: CellFolder) -> list[Document]:
    analysis = source.tables.parents[2] / "analysis"
    return [
        {
            "severity": row["severity"],
            "check": row["check"],
            "message": row["message"],
            "facts": known_facts(read_facts(row["facts"])),
            "run": None,
            "level": None,
        }
        for row in _rows(analysis / "checks.csv")
        if row["model"] and not row["run"] and Cell.from_row(row) == source.cell
    ]


def _next_steps(document: Document, source: CellFolder | None) -> Iterator[Document]:
    """Yield what would say more about the cell, and the command for it, the most urgent first."""
    campaign = _campaign_file(source)
    configfile = f" --configfile {campaign}" if campaign else ""
    if document["unreadable"]:
        yield _step("a run cannot be read", f"snakemake --cores 4 verify{configfile}")
    if not document["runs"]:
        why = "no run of this cell is in the store"
        yield _step(why, f"snakemake --cores 4 report{configfile}")
        return
    if document["peak"] is None:
        why = "throughput and latencies are not computed yet"
        if document["not_computed"]:
            why = "computes throughput and latencies again, where the cause is removed"
        yield _step(why, f"snakemake --cores 4 report_so_far{configfile}")
        return
    if all(level["activity"] == ["none"] for level in document["levels"]):
        why = "the arm was not active; does the load reuse more than the device's cache holds?"
        yield _step(why, f"kveval curve {campaign}".rstrip())
    if not document["peak"]["bracketed"]:
        why = "the peak is the first or last level; with levels beyond it, what would be measured?"
        yield _step(why, f"kveval plan {campaign}".rstrip())
    why = "how it compares with its baseline"
    yield _step(why, f"snakemake --cores 4 report{configfile}")


def _step(why: str, command: str) -> Document:
    return {"why": why, "command": command}


def _campaign_file(source: CellFolder | None) -> str:
    """Return the campaign's file: by the name of its folder of results, else a word in its place; "" for the default."""
    if source is None or source.results.name == RESULTS:
        return ""
    file = Path("config", "campaigns", f"{source.results.name}.yaml")
    root = source.results.parent.parent.parent
    return file.as_posix() if (root / file).is_file() else "CAMPAIGN.yaml"
