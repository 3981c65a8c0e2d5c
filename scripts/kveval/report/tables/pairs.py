"""The report's tables of arms against each other: stores, implementations, tier sizes. A percentage names its base."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kveval.analysis.cells import CellKey, blocks_label, partner
from kveval.report.data.campaign import Measured, ReportPlan, Table, cell_label
from kveval.report.data.contrasts import UNDECLARED, pair
from kveval.report.tables.results import count, emphasised


def store_table(plan: ReportPlan, measured: Measured) -> Table:
    """Valkey against Redis, for arms that differ in nothing else."""
    return _pair_table(measured, _store_pairs(plan, measured), "Valkey", "Redis")


def native_table(plan: ReportPlan, measured: Measured) -> Table:
    """LMCache with its CPU tier alone against vLLM's native offload of the same size."""
    return _pair_table(measured, _native_pairs(plan, measured), "LMCache", "native")


def undeclared(plan: ReportPlan, measured: Measured) -> dict[tuple[str, str], list[str]]:
    """Return the pairs that these tables only describe, as a campaign would declare them -> the models they are of."""
    found: dict[tuple[str, str], list[str]] = {}
    equal = [*_store_pairs(plan, measured), *_native_pairs(plan, measured)]
    named = [(one, other, one[1], other[1]) for one, other in equal]
    named += [(one, other, _sized(one), _sized(other)) for one, other in _tiers(plan, measured)]
    for one, other, declared, against in named:
        if pair(measured, one, other).reason == UNDECLARED:
            models = found.setdefault((declared, against), [])
            models += [one[0]] if one[0] not in models else []
    return found


def _sized(cell: CellKey) -> str:
    return f"{cell[1]}/{cell[2]}"


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
    """Each arm's larger CPU tier with the next smaller one."""
    for model in plan.models_by_size:
        cells = [cell for cell in measured.with_peak(plan.cells_of(model)) if cell[2]]
        yield from ((larger, smaller) for smaller, larger in itertools.pairwise(cells) if smaller[1] == larger[1])


def _equals(plan: ReportPlan, measured: Measured) -> Iterator[tuple[CellKey, CellKey]]:
    """Every two measured cells of one model with the same baseline and size, in either order."""
    for model in plan.models_by_size:
        for one, other in itertools.permutations(measured.with_peak(plan.cells_of(model)), 2):
            if one[2] == other[2] and plan.baseline_of.get(one[1]) == plan.baseline_of.get(other[1]):
                yield one, other


def _fact(plan: ReportPlan, cell: CellKey, name: str) -> object:
    return plan.scenarios[cell[1]].get(name)


def _pair_table(measured: Measured, pairs: list[tuple[CellKey, CellKey]], one: str, other: str) -> Table:
    header = ["model", one, "output tok/s", other, "output tok/s", measured.unit.heading]
    header += [f"{one} against {other}, % of {other}", "verdict", "why"]
    rows = []
    for first, second in pairs:
        found = pair(measured, first, second)
        rows.append(
            [
                *(first[0], cell_label(first), found.value, cell_label(second), found.other_value),
                *(count(found.level or float("nan")), found.difference, emphasised(found.verdict), found.reason),
            ]
        )
    return Table(header, rows, frozenset({2, 4, 5, 6}))


def tier_table(plan: ReportPlan, measured: Measured) -> Table:
    """Each larger CPU tier of an arm against the next smaller one, and both against the baseline."""
    header = ["model", "arm", "larger tier, blocks", "smaller tier, blocks", measured.unit.heading]
    header += ["larger, output tok/s", "smaller, output tok/s", "baseline, output tok/s"]
    header += ["larger against smaller, % of smaller", "verdict", "larger against baseline, % of baseline", "verdict"]
    header += ["smaller against baseline, % of baseline", "verdict"]
    rows = [_tier_row(plan, measured, larger, smaller) for larger, smaller in _tiers(plan, measured)]
    return Table(header, rows, frozenset({2, 3, 4, 5, 6, 7, 8, 10, 12}))


def _tier_row(plan: ReportPlan, measured: Measured, larger: CellKey, smaller: CellKey) -> list[str]:
    grown = pair(measured, larger, smaller)
    row = [larger[0], larger[1], blocks_label(larger[2]), blocks_label(smaller[2])]
    row += [count(grown.level or float("nan")), grown.value, grown.other_value]
    baseline = _baseline(plan, measured, larger)
    against = [] if baseline is None else [pair(measured, cell, baseline) for cell in (larger, smaller)]
    row.append(against[0].other_value if against else "not measured")
    for found in (grown, *against):
        row += [found.difference, emphasised(found.verdict)]
    return row + [""] * (14 - len(row))


def _baseline(plan: ReportPlan, measured: Measured, cell: CellKey) -> CellKey | None:
    """The measured cell that an arm is compared with."""
    name = plan.baseline_of.get(cell[1])
    return partner(cell, [other for other in measured.with_peak(plan.cells_of(cell[0])) if other[1] == name])
