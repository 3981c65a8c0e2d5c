"""The report's table of what each verdict rests on: one row per comparison of throughput, a few words per input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kveval.analysis.cells import THROUGHPUT, cell_of
from kveval.analysis.statistics.evidence import SEVERITIES
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label, text
from kveval.report.data.comparisons import baseline_label, is_against_baseline

# Heading -> the inputs that share a column of the page.
_COLUMNS = {
    "same work": ("work",),
    "arm active": ("activity",),
    "server and machine": ("build", "hardware", "clocks"),
    "tier": ("tier",),
    "blocks and order": ("blocks", "order"),
    "failed requests": ("errors",),
    "A/A": ("replicates",),
}
_MARKS = {"qualifies": "*", "indicates": "*", "refuses": "**"}


def basis_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return every comparison of throughput with its inputs: in bold those that prevent a verdict, in italics those
    that weaken or qualify it.
    """
    rows = []
    order = {model: place for place, model in enumerate(plan.models_by_size)}
    known = measured.compared[measured.compared["metric"] == THROUGHPUT].to_dict("records")
    for row in sorted(known, key=lambda row: order.get(row["model"], len(order))):
        if "basis_work" in row and row["baseline"]:
            against = "" if is_against_baseline(plan, row) else f" against {baseline_label(row)}"
            cells = ["; ".join(filter(None, (_word(row, name) for name in names))) for names in _COLUMNS.values()]
            rows.append([row["model"], f"{cell_label(cell_of(row))}{against}", *cells])
    return Table(["model", "arm", *_COLUMNS], rows)


def _word(row: Mapping[Any, Any], name: str) -> str:
    said = text(row.get(f"basis_{name}"))
    severity, found, rest = said.partition(": ")
    severity, words = (severity, rest) if found and severity in SEVERITIES else ("sound", said)
    # "varied" alone would be unclear, since the column is shared.
    words = f"order {words}" if name == "order" and words and "order" not in words else words
    mark = _MARKS.get(severity, "")
    return f"{mark}{words}{mark}"
