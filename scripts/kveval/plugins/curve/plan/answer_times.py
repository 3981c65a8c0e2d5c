"""How long answers to users who pause take: as stored runs of the same load measured it, else as assumed.

With the pauses, that decides whose questions come between two of one user, and so what a cache must hold.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.host.errors import Failure
from kveval.load import levels as workloads
from kveval.load.reports.reading import read_report
from kveval.plugins.curve.plan.loading import compute_times
from kveval.plugins.curve.simulation.cells import assumed_answer_s, mean_prompt_tokens
from kveval.workflow.planning.stored import StoreIndex, facts_of

# Each run's report is read, which takes up to a second.
_RUNS_READ = 3


class AnswerTime(NamedTuple):
    """Seconds from a question to the end of its answer, at least and at most; `source`: what they rest on, in words."""

    least_s: float
    most_s: float
    source: str


class _Measured(NamedTuple):
    """Means over the requests of a level: until the end of the answer, and from the first token to the end, seconds."""

    answer_s: float
    tokens_s: float


def answer_times(
    config: Config, cells: Sequence[Cell], level: int, store: StoreIndex
) -> dict[Cell, AnswerTime]:
    """Return the answer times of a model's cells at a level; empty for a load without pauses.

    A cell's own runs are believed before those of its baseline, and those before the ones of another cell of the model.
    """
    if not workloads.has_pauses(config.specification(cells[0]).workload):
        return {}
    measured = {
        cell: times
        for cell in cells
        if (times := _measured(config, cell, level, store)) is not None
    }
    return {cell: _answer_time(config, cell, level, measured, store) for cell in cells}


def _answer_time(
    config: Config,
    cell: Cell,
    level: int,
    measured: Mapping[Cell, _Measured],
    store: StoreIndex,
) -> AnswerTime:
    own = measured.get(cell)
    if own is not None:
        return AnswerTime(own.answer_s, own.answer_s, "as measured in runs of the same")
    base = config.last_baseline(cell)
    if base is not None and base in measured:
        times = measured[base]
        # A tier can spare a request no more than its time to the first token.
        text = (
            f"as measured in {base.path}, without and with the time to the first token"
        )
        return AnswerTime(times.tokens_s, times.answer_s, text)
    for other, times in measured.items():
        return AnswerTime(
            times.answer_s, times.answer_s, f"as measured in {other.path}"
        )
    return _assumed(config, cell, level, store)


def _assumed(config: Config, cell: Cell, level: int, store: StoreIndex) -> AnswerTime:
    workload = config.specification(cell).workload
    answer_s = assumed_answer_s(workload)
    text = "assumed: 20 ms a token"
    known = compute_times(config, cell, store)
    if known is None:
        return AnswerTime(answer_s, answer_s, f"{text}, nothing for the prompt")
    _, compute, source = known
    prompt_s = compute.seconds(mean_prompt_tokens(workload, level))
    text = f"{text}, after computing nothing or all of the prompt, {source}"
    return AnswerTime(answer_s, answer_s + prompt_s, text)


def _measured(
    config: Config, cell: Cell, level: int, store: StoreIndex
) -> _Measured | None:
    """Return the times in the first stored runs of a cell; None if it has none of the level."""
    seen = [*_each_run(config, cell, level, store)][:_RUNS_READ]
    if not seen:
        return None
    return _Measured(
        statistics.mean(one.answer_s for one in seen),
        statistics.mean(one.tokens_s for one in seen),
    )


def _each_run(
    config: Config, cell: Cell, level: int, store: StoreIndex
) -> Iterator[_Measured]:
    for places in store.get(config.measurement_id(cell)).places.values():
        run = facts_of(places[0])
        for entry in () if run is None else run.levels:
            if entry.level != level or entry.report is None:
                continue
            try:
                report = read_report(places[0] / entry.report)
            except Failure:
                continue
            requests = report.levels[entry.benchmark or 0].requests
            times_ms = [
                (one.e2e_ms, one.ttft_ms)
                for one in requests
                if one.e2e_ms is not None and one.ttft_ms is not None
            ]
            if times_ms:
                answer_ms, first_ms = map(statistics.mean, zip(*times_ms, strict=True))
                yield _Measured(answer_ms / 1000, (answer_ms - first_ms) / 1000)
