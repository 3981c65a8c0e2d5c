"""Remedies of a comparison without a verdict: codes with facts; `templates/remedies.md.j2` has the words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveval.load.sample_sizes import MIN_RUNS
from kveval.report.data.campaign import ReportPlan
from kveval.report.data.comparisons import UNDECLARED
from kveval.report.result.model import Remedy
from kveval.tables.cells import parse_runs
from kveval.tables.levels.checks_import import no_reuse, saturated_open_loop
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import Exclusion
from kveval.verdict.findings import ground_codes, read_exclusions, read_findings

WORTHWHILE = 20
"""More runs than this are not proposed."""
# The code of a ground, of an exclusion, or of a check that a run failed -> what would remove it; the first one counts.
_OF_CAUSE = {
    "goodput_unknown": "see_reason",
    "activity_not_shown": "record_server",
    "open_loop": "closed_loop",
    "pauses": "no_pauses",
    "few_latencies": "longer_levels",
    "few_settled": "longer_levels",
    no_reuse.name: "shared_prefixes",
    "delivered_nothing": "answering_server",
    "many_failed": "repeat_failed_runs",
    "level_not_measured": "same_levels",
    "level_not_imported": "same_levels",
    saturated_open_loop.name: "lower_rates",
    "level_failed": "passing_levels",
    "server_failed": "passing_levels",
    "check_failed": "passing_levels",
    "leftover_hits": "empty_caches",
    "few_runs": "enough_runs",
    "unsteady_windows": "steady_levels",
    "no_baseline": "measure_baseline",
    "replicate": "none_of_replicate",
    "single_run": "enough_runs",
    UNDECLARED: "declare_contrast",
}
_SHORT_OF_LOAD = frozenset({"past_the_peak", "starved"})
_OF_VERDICT = {
    **dict.fromkeys((words.NOT_EXERCISED, words.IDLE), "busy_tier"),
    words.INDICATIVE_TIME: "measure_together",
}
# The input of a comparison that prevents a verdict -> what would remove the problem.
_OF_INPUT = {
    "work": "same_workload",
    "hardware": "same_machines",
    "clocks": "same_clocks",
    "tier": "tier_of_name",
    "latencies": "observed_latencies",
    "settings": "same_settings",
    "answers": "right_answers",
}
# What a run is left out for that is no fault of it: it was not measured, or the other run of its pair is left out.
_ABSENT_RUNS = frozenset({"not_measured", "not_imported", "other_of_pair", "no_pair"})


@dataclass(frozen=True)
class RunsLacking:
    """The runs that a comparison lacks for a verdict: `missing`, which the campaign asks for, and `more` than those."""

    missing: int
    more: int

    def settings(self, plan: ReportPlan) -> str:
        """The change of the campaign that asks for them, KEY=VALUE; "" if it asks for them already."""
        return f"runs={plan.runs + self.more}" if self.more else ""

    def remedy(self, plan: ReportPlan) -> Remedy:
        """How to get them, with the command if it is known."""
        command = plan.command_with(self.settings(plan))
        if not self.more:
            facts: dict[str, Any] = {"runs": self.missing, "command": command}
            return Remedy(code="missing_runs", facts=facts)
        facts = {"more": self.more, "command": command}
        if plan.measures:
            facts["runs"] = plan.runs + self.more
        return Remedy(code="more_runs", facts=facts)


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


def remedies_of(plan: ReportPlan, row: Mapping[Any, Any]) -> list[Remedy]:
    """Return what would turn an open comparison into a verdict, by its verdict, its grounds and exclusions.

    That of an idle arm is first what would make it active, then what its cost lacks.
    """
    findings = {finding.input: finding for finding in read_findings(row)}
    for name, code in _OF_INPUT.items():
        if name in findings and findings[name].severity in ("refuses", "indicates"):
            return [Remedy(code=code)]
    verdict = str(row["verdict"])
    lacking, causes = runs_lacking(plan, row), _causes(row)
    if verdict in _OF_VERDICT:
        first = Remedy(code=_OF_VERDICT[verdict])
        cost = [_remedy_of_causes(plan, lacking, causes)] if "no_cost" in causes else []
        return [first, *cost]
    if causes & _SHORT_OF_LOAD:
        return [Remedy(code="faster_generator")]
    undecided = verdict == words.INCONCLUSIVE
    if undecided and "errors" in findings:
        return [Remedy(code="answering_server")]
    if undecided and "many_failed" not in causes:
        return [_longer_levels(row)]
    return [_remedy_of_causes(plan, lacking, causes)]


def _remedy_of_causes(
    plan: ReportPlan, lacking: RunsLacking | None, causes: set[str]
) -> Remedy:
    """The runs that are lacking, or what removes the first known cause."""
    if lacking is not None:
        return lacking.remedy(plan)
    codes = (code for cause, code in _OF_CAUSE.items() if cause in causes)
    code = next(codes, "see_reason")
    facts = {"runs": MIN_RUNS} if code == "enough_runs" else {}
    return Remedy(code=code, facts=facts)


def _longer_levels(row: Mapping[Any, Any]) -> Remedy:
    """The precision that would decide a comparison, with the number of runs where so many are affordable."""
    needed = row.get("runs_to_decide")
    if needed is None or not needed > row["runs"]:
        return Remedy(code="precision")
    if needed > WORTHWHILE:
        return Remedy(code="less_spread")
    return Remedy(code="precision", facts={"runs": round(needed)})


def _causes(row: Mapping[Any, Any]) -> set[str]:
    """The codes of the grounds of a verdict, of its exclusions, and of the checks that excluded runs failed."""
    exclusions = read_exclusions(row)
    checks = {name for each in exclusions for name in each.facts.get("checks", ())}
    return {*ground_codes(row), *(each.code for each in exclusions), *checks}
