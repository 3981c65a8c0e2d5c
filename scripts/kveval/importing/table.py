"""The table of imports: every result that was found, what became of it and why, what its name declares and what ran."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kveval.host.findings import pluralize
from kveval.importing.interpret import (
    IMPORTED,
    LEFT_OUT,
    NOT_SELECTED,
    Result,
    settings_that_ran,
)
from kveval.importing.plan import ImportPlan

COLUMNS = (
    *(
        "tree",
        "result",
        "status",
        "reason",
        "model",
        "scenario",
        "cpu_blocks",
        "runs",
        "levels",
    ),
    *("declared_model", "declared_arm", "declared_cpu_blocks", "declared_rate"),
    *(
        "effective_cpu_blocks",
        "effective_said_by",
        "effective_connectors",
        "configuration",
        "gpu_memory_utilization",
    ),
    *(
        "hardware",
        "software",
        "mempress",
        "replicas",
        "prefix_tokens",
        "prefix_count",
        "turns",
        "guidellm",
        "vllm",
    ),
    *("start", "end", "requests_completed", "requests_incomplete", "requests_errored"),
    *("archive_files", "remarks", "recording"),
)


def write_table(
    plan: ImportPlan, recordings: Mapping[tuple[str, int], Sequence[str]], output: Path
) -> None:
    """Write analysis/imported.csv. `recordings`: (cell path, run) -> what was found of the recording."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(plan, recordings))


def rows(
    plan: ImportPlan, recordings: Mapping[tuple[str, int], Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield one row per result; then the folders and JSON files that hold none."""
    for result in plan.listed:
        yield _row(result, recordings)
    for tree, other in plan.others:
        status = LEFT_OUT if other.file else "no result"
        yield {
            "tree": tree,
            "result": other.place,
            "status": status,
            "reason": other.reason,
        }


def summary(plan: ImportPlan) -> str:
    """Say in one line what became of everything that was found."""
    counts = Counter(result.status for result in plan.listed)
    imported = counts.pop(IMPORTED, 0)
    rest = "".join(f", {count} {status}" for status, count in sorted(counts.items()))
    made = (
        f" ({pluralize(len(plan.runs), 'run')} of {pluralize(len(plan.cells), 'cell')})"
        if imported
        else ""
    )
    return f"{pluralize(len(plan.listed), 'result')} found: {imported} imported{made}{rest}"


def findings(plan: ImportPlan, shown: int = 12) -> str:
    """Say for the report, in Markdown, what was found, what was left out and what does not agree; the first `shown`."""
    lines = [
        f"{summary(plan)}; `analysis/imported.csv` lists each: what its name declares, and what ran."
    ]
    single = [cell.path for cell in plan.cells if len(plan.runs_of(cell.path)) == 1]
    if single:
        lines.append(
            f"- only one run, so no verdict: {', '.join(single[:shown])}{_more(len(single) - shown)}"
        )
    refused: dict[str, list[str]] = {}
    remarks: dict[str, list[str]] = {}
    for result in plan.listed:
        if result.status not in (IMPORTED, NOT_SELECTED):
            refused.setdefault(result.status, []).append(
                f"`{result.files.place}`: {result.reason}"
            )
        for remark in result.remarks:
            remarks.setdefault(remark.text, []).append(result.files.place)
    for status, lines_of_status in refused.items():
        lines += [f"- {status}: {line}" for line in lines_of_status[:shown]]
        if len(lines_of_status) > shown:
            lines.append(f"- {status}: {len(lines_of_status) - shown} more")
    files = [other for _, other in plan.others if other.file]
    if files:
        lines.append(
            f"- JSON files that are not results: `{files[0].place}` ({files[0].reason}){_more(len(files) - 1)}"
        )
    for text, places in list(remarks.items())[:shown]:
        lines.append(f"- {text}: `{places[0]}`{_more(len(places) - 1)}")
    if len(remarks) > shown:
        lines.append(f"- {len(remarks) - shown} more remarks")
    return "\n".join(lines)


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _row(
    result: Result, recordings: Mapping[tuple[str, int], Sequence[str]]
) -> dict[str, Any]:
    facts, values = result.facts, result.settings.values
    row: dict[str, Any] = {
        "tree": result.tree,
        "result": result.files.place,
        "status": result.status,
        "reason": result.reason,
        "guidellm": facts.guidellm,
        "vllm": facts.vllm,
        "archive_files": len(result.files.archives),
        "remarks": "; ".join(remark.text for remark in result.remarks),
        "prefix_tokens": values.get("Prefix Tokens"),
        "prefix_count": values.get("Prefix Count"),
        "turns": values.get("Turns"),
        "gpu_memory_utilization": values.get("GPU Memory Utilization"),
    }
    if facts.levels:
        row |= {"start": _iso(min(level.start for level in facts.levels))}
        row |= {"end": _iso(max(level.end for level in facts.levels))}
        for ending in ("completed", "incomplete", "errored"):
            row[f"requests_{ending}"] = sum(
                getattr(level, ending) for level in facts.levels
            )
    if (declared := result.declared) is not None:
        row |= {
            name: getattr(declared, name)
            for name in ("hardware", "software", "mempress", "replicas")
        }
        row |= {
            f"declared_{name}": getattr(declared, name)
            for name in ("model", "arm", "rate")
        }
        blocks = (
            declared.cpu_blocks
            if result.declared_blocks is None
            else result.declared_blocks
        )
        row["declared_cpu_blocks"] = blocks
    if result.cell is not None:
        ran = settings_that_ran(result)
        notes = [
            note
            for run in result.runs
            for note in recordings.get((result.cell.path, run), ())
        ]
        row |= asdict(result.cell) | {
            "effective_cpu_blocks": ran["cpu_blocks"],
            "effective_said_by": ran["said_by"],
            "effective_connectors": " ".join(ran["connectors"]),
            "configuration": ran["configuration"],
            "runs": " ".join(f"i{run}" for run in result.runs),
            "levels": " ".join(str(level.level) for level in result.levels),
            "recording": "; ".join(dict.fromkeys(notes)),
        }
    return row


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
