"""Lists at the end of the body: what is missing, what was measured again, and how far the results reach."""

from __future__ import annotations

from collections.abc import Iterator

from kveval.load.levels import describe_requests
from kveval.load.workload import workload_of
from kveval.report.data.arm_links import NamedArm, arm_link
from kveval.report.data.campaign import abbreviate
from kveval.report.data.run_facts import WEIGHTS
from kveval.report.result.model import (
    CampaignResult,
    MissingRuns,
    RepeatedRuns,
    ReportedDefect,
)

# Whether the workload replays a trace -> what it is.
_WORKLOADS = {False: "is synthetic", True: "replays a trace, whose words are made up"}
_ONE_WORKLOAD = (
    "One workload was measured, at the levels listed; nothing is known of other levels."
)
_FEW_RUNS = "With so few runs small differences cannot be told yet, and that a difference is not relevant is seldom shown."
_MACHINES = "The runs are from different machines."


def missing_sentences(result: CampaignResult) -> list[str]:
    """Return how many runs there are of each cell that lacks some, and why there are no more."""
    return [
        f"{_named(cell)}: {'; '.join(filter(None, (_count(cell), cell.reason)))}"
        for cell in result.missing_runs
    ]


def _count(cell: MissingRuns) -> str:
    """How many runs of a cell there are, "" for none."""
    return f"{cell.runs} of {cell.runs_requested} runs" if cell.runs else ""


def defect_sentences(result: CampaignResult) -> list[str]:
    """Return a sentence for each known defect that ended runs: which were measured again, and how that may affect
    comparisons.
    """
    return [_defect_sentence(defect) for defect in result.known_defects]


def _defect_sentence(defect: ReportedDefect) -> str:
    again = "; ".join(map(_repeated, defect.scenarios))
    return f"[{defect.defect}]({defect.link}): {defect.title}. Measured again: {again}. {defect.effect}"


def _repeated(runs: RepeatedRuns) -> str:
    times = "once" if runs.attempts == 1 else f"{runs.attempts} times"
    return f"{runs.scenario}: {runs.repeated} of {runs.runs} runs, {times} in all"


def limitation_sentences(result: CampaignResult) -> Iterator[str]:
    """Yield what limits the results: the workload, the weights, the levels, the number of runs, the machines."""
    loads = map(workload_of, result.workloads)
    yield from dict.fromkeys(
        f"The workload {_WORKLOADS[load.trace is not None]}: {describe_requests(load)}."
        for load in loads
    )
    if result.weights == "random":
        yield f"{WEIGHTS['random'].capitalize()}: lengths of answers and what they say are not the model's."
    yield _ONE_WORKLOAD
    if result.peaks_at_edge:
        edge = [*map(_named, result.peaks_at_edge)]
        yield f"The highest throughput lies on the first or last level measured: {abbreviate(edge, separator='; ')}."
    if result.campaign.runs < 5:
        yield _FEW_RUNS
    for cells in result.same_configurations:
        names = " and ".join(map(arm_link, cells))
        yield f"{cells[0].model}: {names} ran the same configuration: a difference between them is noise."
    if len(result.origin.machines) > 1:
        yield _MACHINES


def _named(cell: NamedArm) -> str:
    return f"{cell.model}, {arm_link(cell)}"
