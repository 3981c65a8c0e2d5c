"""The report's table of arms against each other: stores, implementations, tier sizes."""

from __future__ import annotations

import itertools

from kveval.analysis.cells import THROUGHPUT, CellKey, cell_named, cell_of
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    Table,
    cell_label,
    text_or_blank,
)
from kveval.report.data.comparisons import (
    UNDECLARED,
    comparison_of,
    effect_text,
    verdict_text,
)


def pair_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return pairs of arms that differ in one thing (Valkey, Redis; LMCache, native; tier sizes), and declared ones."""
    header = [
        "model",
        "arm",
        "output tok/s",
        "against",
        "output tok/s",
        "change, % of the latter (95 %)",
    ]
    header += ["verdict", "why"]
    declared = [
        row
        for row in measured.contrasts.to_dict("records")
        if row["metric"] == THROUGHPUT
    ]
    pairs = dict.fromkeys(itertools.chain(*pairs_of(plan, measured).values()))
    pairs |= {(cell_of(row), cell_named(row["baseline"])): None for row in declared}
    order = {model: place for place, model in enumerate(plan.models_by_size)}
    rows = []
    for one, other in sorted(pairs, key=lambda found: order[found[0][0]]):
        found = comparison_of(measured, one, other)
        row = [
            one[0],
            cell_label(one),
            found["value"],
            cell_label(other),
            found["other_value"],
        ]
        rows.append(
            [
                *row,
                effect_text(found),
                verdict_text(found),
                text_or_blank(found["reason"]),
            ]
        )
    return Table(header, rows, frozenset({2, 4, 5}))


def pairs_of(
    plan: ReportPlan, measured: Measured
) -> dict[str, list[tuple[CellKey, CellKey]]]:
    """Return the measured pairs of arms of a model that differ in one thing, by what that is.

    "stores": Valkey and Redis; "native": LMCache and the native tier, both of equal size and with the same baseline;
    "tiers": a CPU tier of an arm and the next smaller one.
    """
    found: dict[str, list[tuple[CellKey, CellKey]]] = {
        "stores": [],
        "native": [],
        "tiers": [],
    }
    for model in plan.models_by_size:
        cells = measured.cells_with_peak(plan.cells_of(model))
        for both in itertools.permutations(cells, 2):
            one, other = (plan.scenarios[scenario] for _, scenario, _ in both)
            if both[0][2] != both[1][2] or one.get("baseline") != other.get("baseline"):
                continue
            arms, stores = (
                (one.get(fact), other.get(fact)) for fact in ("arm", "store")
            )
            if stores == ("valkey", "redis") and arms[0] == arms[1]:
                found["stores"].append(both)
            if arms == ("lmcache", "native") and stores[0] is None:
                found["native"].append(both)
        steps = itertools.pairwise(cell for cell in cells if cell[2])
        found["tiers"] += [
            (larger, smaller) for smaller, larger in steps if smaller[1] == larger[1]
        ]
    return found


def undeclared_pairs(
    plan: ReportPlan, measured: Measured
) -> dict[tuple[str, str], list[str]]:
    """Return the pairs without a declared contrast, named as a campaign would declare them -> their models."""
    found: dict[tuple[str, str], list[str]] = {}
    for what, pairs in pairs_of(plan, measured).items():
        for one, other in pairs:
            if comparison_of(measured, one, other)["reason"] == UNDECLARED:
                names = [
                    f"{cell[1]}/{cell[2]}" if what == "tiers" else cell[1]
                    for cell in (one, other)
                ]
                models = found.setdefault((names[0], names[1]), [])
                models += [one[0]] if one[0] not in models else []
    return found
