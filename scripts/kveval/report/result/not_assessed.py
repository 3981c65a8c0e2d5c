"""Gaps of the campaign: what was not assessed, why, and what would settle it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveval.campaign.cell import Cell
from kveval.load.sample_sizes import MIN_RUNS
from kveval.report.data.arm_links import arm_link, plain_text
from kveval.report.data.campaign import (
    Measured,
    ReportPlan,
    text_or_blank,
)
from kveval.report.data.comparisons import UNDECLARED
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.figures.names import find_figure
from kveval.report.result.model import ComparedCells, Gap
from kveval.report.result.pairs import pairs_of, undeclared_pairs
from kveval.tables.cells import baseline_of, models_by_size, parse_runs
from kveval.tables.levels.checks_import import no_reuse, saturated_open_loop
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import Exclusion
from kveval.verdict.findings import (
    ground_codes,
    read_exclusions,
    read_findings,
)

WORTHWHILE = 20
"""More runs than this are not proposed."""
_ANSWERS = "a server that answers every request: see its log"
_MORE_RUNS = f"`runs: {MIN_RUNS}` or more; what is measured already is kept"
_PASSING = "levels that pass the checks: the appendix Checks says what was found"
_SAME_LEVELS = "the same levels for both"
_KEEPING_UP = (
    "rates that the server keeps up with, or a closed loop (`profile: concurrent`)"
)
# The code of a ground, of an exclusion, or of a check that a run failed -> what would remove it; the first one counts.
_STEP_FOR_CAUSE = {
    "goodput_unknown": "see the reason",
    "activity_not_shown": "a recording of the server's metrics",
    "open_loop": "nothing: see the verdicts on latency; a closed loop (`profile: concurrent`) compares throughput",
    "pauses": "nothing: see the verdicts on latency; users without pauses (`pause_s: 0`) compare throughput",
    "few_latencies": "longer levels",
    "few_settled": "longer levels",
    no_reuse.name: "prompts with shared prefixes or several turns: without any, no tier can serve anything",
    "delivered_nothing": _ANSWERS,
    "many_failed": "the runs that failed: see their logs, and measure them again",
    "level_not_measured": _SAME_LEVELS,
    "level_not_imported": _SAME_LEVELS,
    saturated_open_loop.name: _KEEPING_UP,
    "level_failed": _PASSING,
    "server_failed": _PASSING,
    "check_failed": _PASSING,
    "leftover_hits": "caches that are emptied before each level (`reset_caches: restart`)",
    "few_runs": _MORE_RUNS,
    "unsteady_windows": "longer levels (`seconds:`), or a quieter machine",
    "no_baseline": "measure its baseline",
    "replicate": "nothing: it shows the size of differences by noise alone",
    "single_run": _MORE_RUNS,
    UNDECLARED: "these two arms in `contrasts` under `comparison`; nothing is measured again for it",
}
_SHORT_OF_LOAD = frozenset({"past_the_peak", "starved"})

TO_BE_ACTIVE = (
    "a larger tier, or prompts that exceed the device's cache and fit into the tier"
)
_STEP_FOR_VERDICT = {
    **dict.fromkeys((words.NOT_EXERCISED, words.IDLE), TO_BE_ACTIVE),
    words.INDICATIVE_TIME: "measure it and its baseline again, together: list both cells under `bridges`",
}
# The input of a comparison that prevents a verdict -> what would remove the problem.
_STEP_FOR_INPUT = {
    "work": "one workload for both",
    "hardware": "both on machines of one kind",
    "clocks": "one power limit and one clock on all GPUs (nvidia-smi -pl, -lgc)",
    "tier": "a tier of the size that the cell's name says",
    "latencies": "longer levels if requests were cut off, else a report of latencies that were observed, in ms",
    "settings": "the same settings on both sides, or `differs` of a declared pair",
    "answers": "caches that give right answers: the appendix Checks says which did not",
}


# What a run is left out for that is no fault of it: it was not measured, or the other run of its pair is left out.
_ABSENT_RUNS = frozenset({"not_measured", "not_imported", "other_of_pair", "no_pair"})

# A cell, and the one that it is compared with.
_Pair = tuple[Cell, Cell | None]


@dataclass(frozen=True)
class RunsLacking:
    """The runs that a comparison lacks for a verdict: `missing`, which the campaign asks for, and `more` than those."""

    missing: int
    more: int

    def settings(self, plan: ReportPlan) -> str:
        """The change of the campaign that asks for them, KEY=VALUE; "" if it asks for them already."""
        return f"runs={plan.runs + self.more}" if self.more else ""

    def in_words(self, plan: ReportPlan) -> str:
        """How to get them, with the command if it is known."""
        command = plan.command_with(self.settings(plan))
        if not self.more:
            count = "" if self.missing == 1 else f"{self.missing} "
            runs = f"the {count}missing run{'s' * (self.missing > 1)}"
            return f"{runs}, which `{command or 'report'}` measures"
        number = "one" if self.more == 1 else str(self.more)
        what = f"{number} more run{'s' * (self.more > 1)} of each cell"
        if not plan.measures:
            return what
        how = command or f"runs: {plan.runs + self.more}"
        return f"{what}: `{how}`; what is measured already is kept"


def runs_lacking(plan: ReportPlan, row: Mapping[Any, Any]) -> RunsLacking | None:
    """Return the runs that a comparison lacks for a verdict; None if it lacks none, or if others would not help.

    They would not where runs failed, which is a result, or where all or several are left out for something to be
    removed.
    """
    usable = _usable_runs(row)
    if usable is None:
        return None
    exclusions = read_exclusions(row)
    causes = [each for each in exclusions if each.code not in _ABSENT_RUNS]
    runs_left_out = {cause.run for cause in causes}
    has_cause = len(runs_left_out) > 1 or (bool(runs_left_out) and usable == 0)
    if has_cause or any(cause.failed for cause in causes):
        return None
    missing = len(_missing_runs(plan, row, exclusions))
    return RunsLacking(missing, max(MIN_RUNS - usable - missing, 0))


def _missing_runs(
    plan: ReportPlan, row: Mapping[Any, Any], exclusions: Sequence[Exclusion]
) -> set[int]:
    """The runs that the campaign asks for and that were not measured on either side."""
    if not plan.measures:
        return set()
    numbers = {*parse_runs(row.get("runs_kept")), *(each.run for each in exclusions)}
    missing = {each.run for each in exclusions if each.code == "not_measured"}
    return missing | ({*range(1, plan.runs + 1)} - numbers)


def _usable_runs(row: Mapping[Any, Any]) -> int | None:
    """The number of runs that a comparison could rest on, None unless they are too few for a verdict."""
    if row["verdict"] == words.SINGLE_RUN:
        return 1
    if "few_runs" not in ground_codes(row):
        return None
    few = (finding for finding in read_findings(row) if finding.code == "few_runs")
    return next((int(finding.facts["usable"]) for finding in few), None)


def gaps_of(
    plan: ReportPlan, measured: Measured, empty: Mapping[str, str]
) -> list[Gap]:
    """Return cells, comparisons and figures without a verdict or data; `empty`: figure -> reason."""
    step = "measure it: `report` measures only what is missing"
    missing = [cell for cell in plan.cells if not measured.runs_of(cell)]
    gaps = [
        _gap_of([(cell, None)], [], measured.why_missing(cell), step)
        for cell in missing
    ]
    gaps += [
        *_open_comparisons(plan, measured),
        *_undeclared(plan, measured),
        *_scope(plan, measured),
    ]
    models = models_by_size(list(measured.levels["model"]), plan.parameters)
    for name, reason in empty.items():
        figure = find_figure(name, models)
        title = figure.title if figure else name
        step = "record it; see config/metrics.yaml"
        gaps.append(Gap(what=f"figure: {title}", why=reason, settled_by=step))
    return gaps


def _open_comparisons(plan: ReportPlan, measured: Measured) -> Iterator[Gap]:
    """Yield comparisons without a deciding verdict; those of one model with the same reason are grouped."""
    groups: dict[tuple[str, str, str], dict[str, list[_Pair]]] = {}
    for row in filter(is_open, measured.all_comparisons.to_dict("records")):
        reason = text_or_blank(row["reason"])
        pair = Cell.from_row(row), baseline_of(row)
        step = next_step_for(plan, row)
        metrics = groups.setdefault((str(row["model"]), reason, step), {})
        metrics.setdefault(
            METRIC_TITLES.get(row["metric"], str(row["metric"])), []
        ).append(pair)
    for (_, reason, settling), metrics in groups.items():
        # A gap in many metrics is listed once.
        titles: dict[tuple[_Pair, ...], list[str]] = {}
        for title, pairs in metrics.items():
            titles.setdefault(tuple(dict.fromkeys(pairs)), []).append(title)
        for compared, quantities in titles.items():
            yield _gap_of(compared, quantities, reason or "no verdict", settling)


def _gap_of(
    pairs: Iterable[_Pair], quantities: Sequence[str], why: str, step: str
) -> Gap:
    """The gap of cells of one model, or of their comparisons in some quantities."""
    cells = [
        ComparedCells.model_validate(
            {"cell": cell.row, "against": against and against.row}
        )
        for cell, against in pairs
    ]
    return Gap(
        what=plain_text(_named(cells, quantities)),
        why=why,
        settled_by=step,
        cells=cells,
        quantities=[*quantities],
    )


def _named(cells: Sequence[ComparedCells], quantities: Sequence[str]) -> str:
    """The model that a gap is about, its cells with links to their runs, and the quantities."""
    names = []
    for each in cells:
        against = f" against {arm_link(each.against)}" if each.against else ""
        names.append(f"{arm_link(each.cell)}{against}")
    compared = f": {', '.join(quantities)}" if quantities else ""
    return f"{cells[0].cell.model}, {'; '.join(names)}{compared}"


def is_open(row: Mapping[Any, Any]) -> bool:
    """Return whether a comparison has no deciding verdict; what an idle arm would gain is open, whatever it costs."""
    settled = {*words.DECIDED, words.NOT_JUDGED} - {words.IDLE}
    return row["verdict"] not in settled


def next_step_for(plan: ReportPlan, row: Mapping[Any, Any]) -> str:
    """Return the step that would turn an open comparison into a verdict, by its verdict, its grounds and exclusions."""
    findings = {finding.input: finding for finding in read_findings(row)}
    for name, step in _STEP_FOR_INPUT.items():
        if name in findings and findings[name].severity in ("refuses", "indicates"):
            return step
    verdict = str(row["verdict"])
    more, causes = runs_lacking(plan, row), _causes(row)
    more_runs = "" if more is None else more.in_words(plan)
    if verdict in _STEP_FOR_VERDICT:
        cost = "no_cost" in causes
        also = f"; for its cost: {more_runs or _cause_removed(causes)}" if cost else ""
        return f"{_STEP_FOR_VERDICT[verdict]}{also}"
    if causes & _SHORT_OF_LOAD:
        return "a load generator that keeps up: processors of its own, or a lower level"
    undecided = verdict == words.INCONCLUSIVE
    if undecided and "errors" in findings:
        return _ANSWERS
    if undecided and "many_failed" not in causes:
        return _longer_levels(row)
    return more_runs or _cause_removed(causes)


def _longer_levels(row: Mapping[Any, Any]) -> str:
    """The step that would decide a comparison, with the number of runs where so many are affordable."""
    needed = row.get("runs_to_decide")
    if needed is None or not needed > row["runs"]:
        return "longer levels, or more runs"
    if needed > WORTHWHILE:
        return "longer levels, or a quieter machine: more runs would not be enough"
    return f"longer levels, or more runs ({needed:.0f} at this effect and spread)"


def _causes(row: Mapping[Any, Any]) -> set[str]:
    """The codes of the grounds of a verdict, of its exclusions, and of the checks that excluded runs failed."""
    exclusions = read_exclusions(row)
    checks = {name for each in exclusions for name in each.facts.get("checks", ())}
    return {*ground_codes(row), *(each.code for each in exclusions), *checks}


def _cause_removed(causes: set[str]) -> str:
    """The step that removes the first known cause."""
    steps = (step for code, step in _STEP_FOR_CAUSE.items() if code in causes)
    return next(steps, "see the reason")


def _undeclared(plan: ReportPlan, measured: Measured) -> Iterator[Gap]:
    """Yield pairs of arms that have no verdict because the campaign does not declare them as contrasts."""
    for names, models in undeclared_pairs(plan, measured).items():
        arm, reference = (_label(plan, name) for name in names)
        how = f"`contrasts: [[{', '.join(names)}]]` under `comparison`; nothing is measured again for it"
        yield Gap(
            what=f"{arm} against {reference}: {', '.join(models)}",
            why="described, and not declared as a contrast",
            settled_by=how,
        )


def _label(plan: ReportPlan, name: str) -> str:
    """The label of an arm that is named as in campaign files: SCENARIO or SCENARIO/CPU_BLOCKS."""
    labels = {cell.arm: cell.label for cell in plan.cells}
    return labels.get(name, name)


_ABSENT = {
    "stores": Gap(
        what="Redis against Valkey",
        why="no two measured arms differ in this alone",
        settled_by="scenarios such as lmcache-redis and lmcache-valkey in the matrix",
    ),
    "native": Gap(
        what="native offload against LMCache",
        why="they were not both measured with the same number of blocks",
        settled_by="scenarios native-offload and lmcache-local in the matrix",
    ),
    "tiers": Gap(
        what="the effect of the tier's size",
        why="no arm was measured with two sizes",
        settled_by="a second entry in `cpu_blocks`",
    ),
}


def _scope(plan: ReportPlan, measured: Measured) -> Iterator[Gap]:
    yield from (
        _ABSENT[what] for what, pairs in pairs_of(plan, measured).items() if not pairs
    )
    if {run.replicas for run in measured.runs} == {1}:
        yield Gap(
            what="routing over replicas, and indexing for it",
            why="one replica was measured, so there was nothing to choose",
            settled_by="more replicas behind llm-d's endpoint picker",
        )
    alone = [run for run in measured.runs if run.recorded_by_exporters]
    if alone:
        runs = f"{len(alone)} of {len(measured.runs)} runs"
        yield Gap(
            what=f"what else Performance Co-Pilot records of a host ({runs})",
            why="it was not installed: the server's exporters and the host's main counters were recorded without it",
            settled_by="Performance Co-Pilot (bash scripts/setup.sh pcp)",
        )
