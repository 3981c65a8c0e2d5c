"""The report's table of arms against each other: stores, implementations, tier sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kveval.analysis.cells import THROUGHPUT, CellKey, cell_named, cell_of
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label, text
from kveval.report.data.comparisons import UNDECLARED, effect_text, pair, verdict_text


def pair_table(plan: ReportPlan, measured: Measured) -> Table:
    """Return pairs of arms that differ in one thing (Valkey, Redis; LMCache, native; tier sizes), and declared ones."""
    header = ["model", "arm", "output tok/s", "against", "output tok/s", "change, % of the latter (95 %)"]
    header += ["verdict", "why"]
    pairs = [*_store_pairs(plan, measured), *_native_pairs(plan, measured), *_tiers(plan, measured)]
    pairs = list(dict.fromkeys([*pairs, *_declared(measured)]))
    order = {model: place for place, model in enumerate(plan.models_by_size)}
    rows = []
    for one, other in sorted(pairs, key=lambda found: order[found[0][0]]):
        found = pair(measured, one, other)
        rows.append(
            [
                *(one[0], cell_label(one), found["value"], cell_label(other), found["other_value"]),
                *(effect_text(found), verdict_text(found), text(found["reason"])),
            ]
        )
    return Table(header, rows, frozenset({2, 4, 5}))


def _declared(measured: Measured) -> Iterator[tuple[CellKey, CellKey]]:
    """The pairs that the campaign declared as contrasts."""
    if len(measured.contrasts):
        for row in measured.contrasts[measured.contrasts["metric"] == THROUGHPUT].to_dict("records"):
            yield cell_of(row), cell_named(row["baseline"])


def undeclared(plan: ReportPlan, measured: Measured) -> dict[tuple[str, str], list[str]]:
    """Return the pairs without a declared contrast, named as a campaign would declare them -> their models."""
    found: dict[tuple[str, str], list[str]] = {}
    equal = [*_store_pairs(plan, measured), *_native_pairs(plan, measured)]
    named = [(one, other, one[1], other[1]) for one, other in equal]
    named += [(one, other, _sized(one), _sized(other)) for one, other in _tiers(plan, measured)]
    for one, other, declared, against in named:
        if pair(measured, one, other)["reason"] == UNDECLARED:
            models = found.setdefault((declared, against), [])
            models += [one[0]] if one[0] not in models else []
    return found


def _sized(cell: CellKey) -> str:
    return f"{cell[1]}/{cell[2]}"


def unlike(plan: ReportPlan, measured: Measured) -> Iterator[str]:
    """Yield the questions for which the campaign has no pair of arms: "stores", "native", "tiers"."""
    asked = {"stores": _store_pairs(plan, measured), "native": _native_pairs(plan, measured)}
    yield from (name for name, pairs in {**asked, "tiers": list(_tiers(plan, measured))}.items() if not pairs)


def _store_pairs(plan: ReportPlan, measured: Measured) -> list[tuple[CellKey, CellKey]]:
    return [
        (one, other)
        for one, other in _equals(plan, measured)
        if (_fact(plan, one, "store"), _fact(plan, other, "store")) == ("valkey", "redis")
        and _fact(plan, one, "arm") == _fact(plan, other, "arm")
    ]


def _native_pairs(plan: ReportPlan, measured: Measured) -> list[tuple[CellKey, CellKey]]:
    return [
        (one, other)
        for one, other in _equals(plan, measured)
        if (_fact(plan, one, "arm"), _fact(plan, other, "arm")) == ("lmcache", "native")
        and _fact(plan, one, "store") is None
    ]


def _tiers(plan: ReportPlan, measured: Measured) -> Iterator[tuple[CellKey, CellKey]]:
    """Yield each CPU tier of an arm with the next smaller one."""
    for model in plan.models_by_size:
        cells = [cell for cell in measured.with_peak(plan.cells_of(model)) if cell[2]]
        yield from ((larger, smaller) for smaller, larger in itertools.pairwise(cells) if smaller[1] == larger[1])


def _equals(plan: ReportPlan, measured: Measured) -> Iterator[tuple[CellKey, CellKey]]:
    """Yield every two measured cells of a model with the same baseline and size, in both orders."""
    for model in plan.models_by_size:
        for one, other in itertools.permutations(measured.with_peak(plan.cells_of(model)), 2):
            if one[2] == other[2] and plan.baseline_of.get(one[1]) == plan.baseline_of.get(other[1]):
                yield one, other


def _fact(plan: ReportPlan, cell: CellKey, name: str) -> object:
    return plan.scenarios[cell[1]].get(name)
