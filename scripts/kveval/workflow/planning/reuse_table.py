"""A table of the reuse in a campaign's workload: one row for all cells and levels with the same values."""

import math
from collections.abc import Iterator, Sequence

from kveval.campaign.cell import Cell
from kveval.campaign.sizing import gib
from kveval.campaign.specification import Specification
from kveval.configuration.reuse import LevelReuse, reuse_of
from kveval.load import levels as workloads
from kveval.load.sample_sizes import window_s
from kveval.load.workload import Workload
from kveval.stacks.registry import held_bytes
from kveval.workflow.planning.costs import completed_req_s
from kveval.workflow.planning.devices import device_size
from kveval.workflow.planning.plan import Plan
from kveval.workflow.planning.stored import StoreIndex

HEADER = (
    "arm",
    "levels",
    "prefixes",
    "repeated",
    "device holds",
    "tier holds",
    "found",
    "first visits",
)
_NONE = "-"
UNKNOWN = "unknown"
BY_PAUSES = "depends on pauses: see below"
"""A hit share that whole conversations do not decide, because others come in the pauses between their questions."""


def reuse_rows(plan: Plan, store: StoreIndex) -> list[tuple[str, ...]]:
    """Return rows under HEADER: sizes in tokens, shares of the prompt tokens in percent, in the order of the matrix.

    `found`: by the device alone, and with the tier, once every prefix was visited; `first visits`: their share in the
    window, by the requests that earlier runs completed, or else at most how many tokens.
    """
    alike: dict[tuple[str, ...], dict[Cell, dict[int, str]]] = {}
    for cell in plan.config.cells:
        specification = plan.specification(cell)
        device = device_size(plan.config, cell, store)
        about = "~" if device is not None and device.estimated else ""
        for reuse in reuse_of(specification, device and device.tokens):
            row = _row(reuse, about)
            if workloads.has_pauses(specification.workload) and reuse.overflows:
                row = (*row[:-1], BY_PAUSES)
            visits = alike.setdefault(row, {}).setdefault(cell, {})
            visits[reuse.level] = _first_visits(specification, reuse, store)
    rows = []
    for row, found in alike.items():
        by_levels: dict[tuple[int, ...], list[Cell]] = {}
        for cell, visits in found.items():
            by_levels.setdefault(tuple(visits), []).append(cell)
        for levels, cells in by_levels.items():
            texts = sorted(
                {text for cell in cells for text in found[cell].values()},
                key=lambda one: (len(one), one),
            )
            of_all = texts[0] if len(texts) == 1 else f"{texts[0]} to {texts[-1]}"
            rows.append(
                (_arms(cells, plan.config.cells), _ranged(levels), *row, of_all)
            )
    return rows


def device_notes(plan: Plan, store: StoreIndex) -> Iterator[str]:
    """Yield each device cache size that the campaign does not give with its source, or that it is unknown."""
    unsized = [
        cell
        for cell in plan.config.cells
        if plan.specification(cell).budget.device_tokens is None
    ]
    sizes = {cell.model: device_size(plan.config, cell, store) for cell in unsized}
    for model, size in sizes.items():
        if size is not None:
            yield f"Device cache of {model}: {size}, {size.source}"
    unknown = [model for model, size in sizes.items() if size is None]
    if unknown:
        yield (
            f"Device cache of {', '.join(unknown)}: unknown until a server reports it, or gpu or device_gib say of"
            " which GPU to estimate it"
        )


def overflow_notes(plan: Plan) -> Iterator[str]:
    """Yield at which levels requests in progress outgrow a device of known size, so that some are preempted."""
    every = (
        reuse
        for cell in plan.config.cells
        for reuse in reuse_of(plan.specification(cell))
    )
    known = (
        one
        for one in every
        if one.caches.device is not None and one.demand.in_use_tokens is not None
    )
    levels = [*dict.fromkeys(one.level for one in known if one.overflows)]
    if levels:
        pauses = workloads.has_pauses(plan.config.workload.definition)
        exceed = "may exceed, when few users pause," if pauses else "exceed"
        yield (
            f"Requests in progress {exceed} the device's cache at level {_ranged(levels)}: preempted ones are loaded"
            " from a tier, or computed again"
        )


def pinned_notes(plan: Plan) -> Iterator[str]:
    """Yield how much more host memory than its size a tier takes, for the tier with the largest ratio."""
    each = [plan.specification(cell) for cell in plan.config.cells]
    more = [one for one in each if held_bytes(one) > one.budget.host_bytes]
    if more:
        worst = max(more, key=lambda one: held_bytes(one) / one.budget.host_bytes)
        size = f"a buffer of {gib(worst.budget.host_bytes):.3g} GiB"
        if worst.cell.cpu_blocks:
            size = f"a tier of {worst.budget.size}"
        yield (
            f"Pinned tensors are rounded up to powers of two: {worst.cell.path} takes up to"
            f" {gib(held_bytes(worst)):.3g} GiB of host memory for {size}"
            + (f"; so do {len(more) - 1} more cells" if len(more) > 1 else "")
        )


def _row(reuse: LevelReuse, about: str) -> tuple[str, ...]:
    """Return a row's cells; `about` marks those that rest on an estimate."""
    demand, caches = reuse.demand, reuse.caches
    return (
        f"{demand.working_set_tokens:,}" if demand.working_set_tokens else _NONE,
        _percent(demand.reused),
        UNKNOWN
        if caches.device is None
        else about + _held(caches.device, demand.working_set_tokens),
        _held(caches.tier, demand.working_set_tokens) if caches.tier else _NONE,
        about + _found(reuse),
    )


def _found(reuse: LevelReuse) -> str:
    """Return the hit share of the device, and with a tier; if the device's size is unknown, that of the tier alone."""
    if not reuse.demand.reused:
        return _percent(0.0)
    with_tier = _percent(reuse.served)
    if reuse.device is None:
        bounded = reuse.caches.tier and reuse.demand.in_use_tokens is not None
        return f"{UNKNOWN}; at least {with_tier} with tier" if bounded else UNKNOWN
    return (
        f"{_percent(reuse.device)}; {with_tier} with tier"
        if reuse.caches.tier
        else _percent(reuse.device)
    )


def _held(tokens: float, working_set: int) -> str:
    if math.isinf(tokens):
        return "all"
    return f"{tokens:,.0f}" + (
        f" ({_percent(min(1.0, tokens / working_set))})" if working_set else ""
    )


def _first_visits(
    specification: Specification, reuse: LevelReuse, store: StoreIndex
) -> str:
    workload: Workload = specification.workload
    if not reuse.demand.prefixes:
        return _NONE
    if workload.prime:
        return "primed"
    requests_s = completed_req_s(specification, reuse.level, store)
    if requests_s is None:
        return f"up to {reuse.demand.working_set_tokens:,}"
    servers = (
        1 if specification.deployment is None else specification.deployment.replicas
    )
    conversations_s, window = (
        requests_s / workload.turns / servers,
        window_s(workload.seconds, workload.warmup_s),
    )
    return _percent(
        reuse.demand.first_visits(
            (workload.seconds - window) * conversations_s, window * conversations_s
        )
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _arms(cells: Sequence[Cell], matrix: Sequence[Cell]) -> str:
    """Name cells by arm and size, and by model if other models have these arms too."""
    arms = dict.fromkeys(cell.arm for cell in cells)
    models = dict.fromkeys(cell.model for cell in cells)
    named = ", ".join(arms)
    everywhere = {cell for cell in matrix if cell.arm in arms} == set(cells)
    return named if everywhere else f"{', '.join(models)}: {named}"


def _ranged(levels: Sequence[int]) -> str:
    return (
        ", ".join(map(str, levels))
        if len(levels) < 4
        else f"{levels[0]} to {levels[-1]} ({len(levels)})"
    )
