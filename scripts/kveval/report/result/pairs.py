"""Pairs of arms that the report sets against each other: stores, implementations, tier sizes."""

from __future__ import annotations

import itertools

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.comparisons import UNDECLARED, comparison_of
from kveval.tables.cells import THROUGHPUT
from kveval.verdict.comparison import neighbouring_sizes
from kveval.verdict.findings import ground_codes


def listed_pairs(plan: ReportPlan, measured: Measured) -> list[tuple[Cell, Cell]]:
    """Return the pairs of arms that the report lists, by model: those that differ in one thing, then declared ones."""
    declared = [
        (Cell.from_row(row), Cell.from_path(row["baseline"]))
        for row in measured.contrasts.to_dict("records")
        if row["metric"] == THROUGHPUT
    ]
    alike = itertools.chain(*pairs_of(plan, measured).values())
    order = {model: place for place, model in enumerate(plan.models_by_size)}
    pairs = dict.fromkeys((*alike, *declared))
    return sorted(pairs, key=lambda pair: order[pair[0].model])


def pairs_of(
    plan: ReportPlan, measured: Measured
) -> dict[str, list[tuple[Cell, Cell]]]:
    """Return the measured pairs of arms of a model that differ in one thing, by what that is.

    "stores": Valkey and Redis; "native": LMCache and the native tier, both of equal size and with the same baseline;
    "tiers": neighbouring sizes of an arm's CPU tier, which are always compared, whether they delivered anything or not.
    """
    pairs: dict[str, list[tuple[Cell, Cell]]] = {
        "stores": [],
        "native": [],
        "tiers": [],
    }
    for model in plan.models_by_size:
        cells = measured.cells_with_peak(plan.cells_of(model))
        for pair in itertools.permutations(cells, 2):
            first, second = (plan.scenarios[cell.scenario] for cell in pair)
            same_size = pair[0].cpu_blocks == pair[1].cpu_blocks
            if not same_size or first.get("baseline") != second.get("baseline"):
                continue
            arms = first.get("arm"), second.get("arm")
            stores = first.get("store"), second.get("store")
            if stores == ("valkey", "redis") and arms[0] == arms[1]:
                pairs["stores"].append(pair)
            if arms == ("lmcache", "native") and stores[0] is None:
                pairs["native"].append(pair)
        compared = (
            cell for cell in plan.cells_of(model) if len(measured.levels_of(cell))
        )
        pairs["tiers"] += neighbouring_sizes(compared)
    return pairs


def undeclared_pairs(
    plan: ReportPlan, measured: Measured
) -> dict[tuple[str, str], list[str]]:
    """Return the pairs without a declared contrast, named as a campaign would declare them -> their models.

    Sizes of one arm are none of them.
    """
    pairs = pairs_of(plan, measured)
    models_by_pair: dict[tuple[str, str], list[str]] = {}
    for cell, reference in (*pairs["stores"], *pairs["native"]):
        if UNDECLARED in ground_codes(comparison_of(measured, cell, reference)):
            names = cell.scenario, reference.scenario
            models = models_by_pair.setdefault(names, [])
            models += [cell.model] if cell.model not in models else []
    return models_by_pair
