"""Findings on a comparison, as codes with facts: on the inputs of a verdict, what keeps it from one, its grounds.

`CODES` is the complete list; docs/verdicts.md shows it. Whatever is decided follows a code; `sentences.py` has the words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from kveval.analysis.cells import parse_names
from kveval.analysis.statistics.exclusions import Exclusion
from kveval.host.findings import Finding

Severity = Literal["sound", "unknown", "qualifies", "indicates", "refuses"]
SEVERITIES: tuple[Severity, ...] = (
    "sound",
    "unknown",
    "qualifies",
    "indicates",
    "refuses",
)
"""From least to most severe: fine; not known; stated with the verdict; makes it only indicative; prevents a verdict."""
INPUTS = (
    *("work", "activity", "build", "hardware", "clocks", "tier"),
    *("runs", "blocks", "order", "errors", "replicates", "load"),
    *("visits", "latencies", "answers", "settings", "connector", "caches"),
)
"""The inputs of a verdict. The column of each in comparison.csv is `basis_INPUT`."""


class Meaning(NamedTuple):
    """The meaning of a code: the input that it is found of, "" for none, and its effect on the verdict."""

    input: str
    severity: Severity


CODES: Mapping[str, Meaning] = {
    "same_work": Meaning("work", "sound"),
    "prompts_unknown": Meaning("work", "qualifies"),
    "work_unknown": Meaning("work", "refuses"),
    "other_work": Meaning("work", "refuses"),
    "other_definitions": Meaning("work", "refuses"),
    "active": Meaning("activity", "sound"),
    "never_active": Meaning("activity", "sound"),
    "beyond_the_tier": Meaning("activity", "qualifies"),
    "activity_not_shown": Meaning("activity", "indicates"),
    "few_active": Meaning("activity", "refuses"),
    "not_active": Meaning("activity", "refuses"),
    "one_build": Meaning("build", "sound"),
    "builds_compared": Meaning("build", "sound"),
    "build_unknown": Meaning("build", "unknown"),
    "other_build": Meaning("build", "qualifies"),
    "one_machine": Meaning("hardware", "sound"),
    "one_machine_in_each_run": Meaning("hardware", "sound"),
    "machine_unknown": Meaning("hardware", "unknown"),
    "other_machine_in_some_runs": Meaning("hardware", "qualifies"),
    "other_machine": Meaning("hardware", "refuses"),
    "no_gpu": Meaning("clocks", "sound"),
    "equal_clocks": Meaning("clocks", "sound"),
    "at_power_limit": Meaning("clocks", "sound"),
    "clocks_unknown": Meaning("clocks", "unknown"),
    "other_clocks": Meaning("clocks", "qualifies"),
    "throttled_on_one_side": Meaning("clocks", "qualifies"),
    "host_speed_differs": Meaning("clocks", "qualifies"),
    "other_limits": Meaning("clocks", "refuses"),
    "no_tier": Meaning("tier", "sound"),
    "tier_as_declared": Meaning("tier", "sound"),
    "tier_size_unknown": Meaning("tier", "unknown"),
    "both_store": Meaning("tier", "qualifies"),
    "other_tier_size": Meaning("tier", "refuses"),
    "undeclared_tier": Meaning("tier", "refuses"),
    "leftover_hits": Meaning("caches", "refuses"),
    "runs_left_out": Meaning("runs", "qualifies"),
    "shared_blocks": Meaning("blocks", "sound"),
    "another_time": Meaning("blocks", "indicates"),
    "order_varied": Meaning("order", "sound"),
    "order_unknown": Meaning("order", "unknown"),
    "fixed_order": Meaning("order", "qualifies"),
    "no_errors": Meaning("errors", "sound"),
    "few_errors": Meaning("errors", "sound"),
    "errors": Meaning("errors", "qualifies"),
    "copies_alike": Meaning("replicates", "sound"),
    "copies_differ": Meaning("replicates", "qualifies"),
    "one_rate": Meaning("load", "sound"),
    "other_rates": Meaning("load", "qualifies"),
    "others_on_server": Meaning("load", "qualifies"),
    "same_visits": Meaning("visits", "sound"),
    "other_visits": Meaning("visits", "qualifies"),
    "latencies_unknown": Meaning("latencies", "refuses"),
    "wrong_answers": Meaning("answers", "refuses"),
    "same_settings": Meaning("settings", "sound"),
    "settings_unknown": Meaning("settings", "unknown"),
    "other_settings": Meaning("settings", "qualifies"),
    "other_connector": Meaning("connector", "qualifies"),
    "other_server": Meaning("settings", "refuses"),
    # What keeps from a verdict and is no input of it.
    "no_baseline": Meaning("", "refuses"),
    "single_run": Meaning("", "refuses"),
    "few_runs": Meaning("", "refuses"),
    "no_common_value": Meaning("", "refuses"),
    "no_common_level": Meaning("", "refuses"),
    "past_the_peak": Meaning("", "refuses"),
    "goodput_unknown": Meaning("", "refuses"),
    "limits_never_met": Meaning("", "refuses"),
    "replicate": Meaning("", "refuses"),
    "undeclared": Meaning("", "refuses"),
    "unsteady_windows": Meaning("", "refuses"),
    "peaks_not_judged": Meaning("", "refuses"),
    # The grounds of a verdict, or of none.
    "spread_unknown": Meaning("", "refuses"),
    "within_margin": Meaning("", "sound"),
    "more_runs": Meaning("", "unknown"),
    "missing_load": Meaning("", "unknown"),
    "not_shown": Meaning("", "refuses"),
    "many_failed": Meaning("", "refuses"),
    "other_inputs": Meaning("", "refuses"),
    "idle": Meaning("", "sound"),
    "better_though_idle": Meaning("", "refuses"),
    "no_cost": Meaning("", "refuses"),
    "starved": Meaning("", "qualifies"),
    "none_met": Meaning("", "qualifies"),
}
"""Code -> what it means; all there are."""


@dataclass(frozen=True)
class ComparisonFinding(Finding):
    """A finding on a comparison; `code`: one of CODES, `severity`: its effect on the verdict."""

    severity: Severity

    @property
    def input(self) -> str:
        """The input that it is found of, "" for none."""
        return CODES[self.code].input

    @property
    def weight(self) -> int:
        """The rank of the severity."""
        return SEVERITIES.index(self.severity)

    @property
    def bars_parity(self) -> bool:
        """Whether it rules out a verdict of parity."""
        return bool(self.facts.get("bars_parity"))

    @property
    def against(self) -> tuple[str, ...]:
        """The sides in whose favour it rules out a verdict, of "arm" and "reference"."""
        return tuple(self.facts.get("against", ()))


def new_finding(code: str, **facts: Any) -> ComparisonFinding:
    """Return a finding with the severity that its code has."""
    return ComparisonFinding(code, CODES[code].severity, facts)


def by_input(findings: Iterable[ComparisonFinding]) -> dict[str, ComparisonFinding]:
    """Return the findings of inputs by input, each input once: of several the first among the most severe."""
    strongest: dict[str, ComparisonFinding] = {}
    for finding in findings:
        known = strongest.get(finding.input)
        if finding.input and (known is None or finding.weight > known.weight):
            strongest[finding.input] = finding
    return strongest


def obstacle(findings: Iterable[ComparisonFinding]) -> ComparisonFinding | None:
    """Return what keeps a comparison from a verdict, None if nothing does: of several, the one found last.

    What is found last is the most fundamental: too few usable runs come first, wrong answers and unknown values last.
    """
    seen: dict[str, ComparisonFinding] = {}
    last = None
    for finding in findings:
        known = seen.get(finding.input) if finding.input else None
        if known is None or finding.weight > known.weight:
            seen[finding.input] = finding
            last = finding if finding.severity == "refuses" else last
    return last


def records_json(records: Iterable[ComparisonFinding] | Iterable[Exclusion]) -> str:
    """Return findings or exclusions as a cell of comparison.csv, "" for none."""
    listed = [*records]
    return msgspec.json.encode(listed).decode() if listed else ""


def read_findings(row: Mapping[Any, Any]) -> list[ComparisonFinding]:
    """Return the findings in a row of comparison.csv: those that are not sound, and the grounds of the verdict.

    Raises msgspec.DecodeError for a cell that `records_json` did not make.
    """
    text = row.get("findings")
    if not isinstance(text, str) or not text:
        return []
    return msgspec.json.decode(text, type=list[ComparisonFinding])


def read_exclusions(row: Mapping[Any, Any]) -> list[Exclusion]:
    """Return the exclusions in a row of comparison.csv.

    Raises msgspec.DecodeError for a cell that `records_json` did not make.
    """
    text = row.get("exclusions")
    if not isinstance(text, str) or not text:
        return []
    return msgspec.json.decode(text, type=list[Exclusion])


def ground_codes(row: Mapping[Any, Any]) -> list[str]:
    """Return the codes of the grounds of a verdict, or of none, in a row of comparison.csv."""
    return parse_names(row.get("grounds"))
