"""The vocabulary of the report: six verdicts; and of its first screen at most twelve warnings, each with what removes it.

docs/verdicts.md has both as tables made from here. Every check that is not among the warnings is counted ("61 checks
passed") and listed in an appendix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import text_or_blank
from kveval.verdict import verdict_words as words
from kveval.verdict.findings import ground_codes

BETTER, WORSE = words.BETTER, words.WORSE
NO_RELEVANT_DIFFERENCE = "no relevant difference"
CANNOT_TELL_YET = "cannot tell yet"
IDLE = "idle"
NOT_COMPARABLE = "not comparable"

VERDICTS: Mapping[str, str] = {
    BETTER: "the difference was shown, and is a gain",
    WORSE: "the difference was shown, and is a loss",
    NO_RELEVANT_DIFFERENCE: "the difference was shown to be smaller than the margin",
    CANNOT_TELL_YET: "neither was shown, or too few runs count; what would show it is among the warnings",
    IDLE: "the arm's tier served next to nothing; with what it costs at most, or that it is worse all the same",
    NOT_COMPARABLE: "the two sides differ in more than the arm, or have nothing in common to compare; with the reason",
}
"""The six verdicts -> what each means. Tables for programs have the words of `verdict_words` in their place."""

_OF_COLUMN = {
    **{word: word for word in (BETTER, WORSE)},
    words.PARITY: NO_RELEVANT_DIFFERENCE,
    **dict.fromkeys((words.WORSE_IDLE, words.IDLE, words.NOT_EXERCISED), IDLE),
    words.NOT_ASSESSED: NOT_COMPARABLE,
    words.NOT_JUDGED: words.NOT_JUDGED,
}


# Grounds of no verdict that more of the same measurements remove.
_NOT_YET = frozenset({"few_runs", "unsteady_windows"})


def verdict_text(row: Mapping[Any, Any]) -> str:
    """Return the verdict of a comparison as the report words it, with the reason where that is what a reader needs."""
    stated, reason = verdict_words(row), text_or_blank(row["reason"])
    has_reason = bool(reason) and row["verdict"] not in words.VERDICTS
    return f"{stated} ({reason})" if has_reason else stated


def verdict_words(row: Mapping[Any, Any]) -> str:
    """Return the verdict of a comparison as the report words it, with what an idle arm costs.

    A verdict that is only indicated is named as such.
    """
    if row["verdict"] == words.IDLE:
        return cost_text(row)
    if row["verdict"] == words.WORSE_IDLE:
        return f"{IDLE}, and worse"
    verdict, indication = verdict_of(row), text_or_blank(row.get("indication"))
    if not indication:
        return verdict
    pointed_to = _OF_COLUMN.get(indication, indication)
    return f"{verdict}, indicates {pointed_to}"


def cost_text(row: Mapping[Any, Any]) -> str:
    """Return what an idle arm costs at most, rounded as its interval is."""
    ends = (row["low_percent"], row["high_percent"])
    most = numerals.end_of_effect(row["cost_percent"], *ends)
    return f"{IDLE}, costs at most {most} %"


def verdict_of(row: Mapping[Any, Any]) -> str:
    """Return the one of VERDICTS that a row of comparison.csv stands for; of peaks, that they are not judged."""
    not_yet = _NOT_YET.intersection(ground_codes(row))
    if row["verdict"] == words.NOT_ASSESSED and not_yet:
        return CANNOT_TELL_YET
    return _OF_COLUMN.get(str(row["verdict"]), CANNOT_TELL_YET)


@dataclass(frozen=True)
class ReaderWarning:
    """A warning of the first screen: what is the case, and what removes it, a command or a line of a campaign's YAML."""

    meaning: str
    remedy: str


WARNINGS: Mapping[str, ReaderWarning] = {
    "missing": ReaderWarning(
        "cells or runs that the campaign asks for were not measured",
        "`snakemake --cores 4 report`",
    ),
    "disturbed": ReaderWarning(
        "other programs took the host's processors during the levels",
        "`runs: N`, once the machine is quiet",
    ),
    "machines_differ": ReaderWarning(
        "the runs are of different machines",
        "`snakemake --cores 4 report` on one machine",
    ),
    "check_failed": ReaderWarning(
        "levels failed a check and enter no verdict", "`kveval show MODEL/ARM/BLOCKS`"
    ),
    "no_verdict": ReaderWarning(
        "an arm has no verdict", "the step that the warning names, for its reason"
    ),
    "slower_while_idle": ReaderWarning(
        "an arm is worse although its tier served nothing",
        "`kveval check` compares two builds of the server",
    ),
    "idle": ReaderWarning("a tier served next to nothing", "`cpu_gib: [...]`, larger"),
    "few_runs": ReaderWarning(
        "there are too few runs for a verdict, or so few that intervals are wide",
        "`runs: N`",
    ),
    "undecided": ReaderWarning(
        "a difference is neither shown nor excluded", "`runs: N`"
    ),
    "spread": ReaderWarning(
        "at this spread, it would take too many runs to decide",
        "`seconds:`, longer",
    ),
    "peak_at_edge": ReaderWarning(
        "the highest throughput lies on the first or last level",
        "`levels: [...]`, wider",
    ),
    "not_the_model": ReaderWarning(
        "a model with random weights was served in place of the named one",
        "`server: {weights: full}`",
    ),
}
