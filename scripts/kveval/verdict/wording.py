"""Findings and left-out runs in words, where a table is written; nothing reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from textwrap import shorten
from typing import Any

from kveval.estimators.intervals import percent
from kveval.verdict.codes import CODES
from kveval.verdict.exclusions import REASONS, SIDES, Exclusion
from kveval.verdict.failed_checks import failures_text
from kveval.verdict.findings import ComparisonFinding

_LONGEST_ERROR, _LONGEST_SETTING = 120, 60
_WHOSE = {"arm": "the arm", "reference": "the cell it is compared with"}
_SHOWN = {
    "difference": "the measured difference",
    "equality": "a difference below the margin",
}
_QUANTITIES = {
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "prompt_stdev": "standard deviation of prompt tokens",
    "output_stdev": "standard deviation of output tokens",
    "prefix_tokens": "tokens of a prefix",
    "prefix_count": "prefixes",
    "turns": "turns",
    "primed": "primed prefixes",
    "burst_factor": "rate within bursts over the mean",
    "document_tokens": "tokens of a user's document",
    "document_stdev": "standard deviation of a document's tokens",
    "pause_s": "seconds of a user's pause",
    "pause_stdev_s": "standard deviation of pauses",
    "prefix_zipf": "Zipf's exponent of the prefixes' popularity",
    "name": "model:",
    "rate_req_s": "requests/s sent",
    "request_output_tokens": "output tokens of a request",
    "request_prompt_tokens": "prompt tokens of a request",
    "gpu_power_limit_w": "power limits:",
    "gpu_clock_limit_mhz": "clock limits:",
    "gpu_clock_mhz": "clocks:",
}
"""A quantity in which two sides may differ -> its name in sentences; others are called as they are."""
_UNITS = {
    "gpu_power_limit_w": " W",
    "gpu_clock_limit_mhz": " MHz",
    "gpu_clock_mhz": " MHz",
}
# These end with what follows.
_ANNOUNCING = frozenset({"no_cost", "not_shown"})


@dataclass(frozen=True)
class SideNames:
    """The names of arm and reference, and the runs that are left out, in words."""

    labels: tuple[str, str] = ("", "")
    left_out: str = ""

    def label(self, side: str) -> str:
        """Return the name of a side."""
        return self.labels[SIDES.index("arm" if side == "arm" else "reference")]


class _Words(Formatter):
    """Templates of `str.format` with forms of their own after the colon: `{side:whose}`, `{share:percent}` and so on."""

    def __init__(self, names: SideNames) -> None:
        self.forms: Mapping[str, Callable[[Any], str]] = {
            "whose": _WHOSE.__getitem__,
            "label": names.label,
            "and": " and ".join,
            "list": lambda values: ", ".join(map(str, values)) or "nothing",
            "percent": lambda share: f"{100 * share:.2g} %" if share else "none",
            "whole": lambda share: f"{100 * share:.0f}",
            "gain": lambda ln: f"{percent(ln):.2g} %",
            "tokens": _tokens,
            "runs": lambda count: str(count or "more than 1,000"),
            "shows": _SHOWN.__getitem__,
            "after": lambda text: f": {text}" if text else "",
            "differences": lambda facts: "; ".join(
                dict.fromkeys(map(_difference, facts))
            ),
            "counts": lambda counts: ", ".join(
                f"{count['runs']} of {count['blocks']} runs of {names.label(count['side'])} "
                f"{REASONS[count['code']].summary}"
                for count in counts
            ),
            "windows": lambda windows: ", ".join(
                f"{window['change_percent']:+.0f} % in run {window['run']} of {names.label(window['side'])}"
                for window in windows
            ),
            "cause": _cause,
        }

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a fact as text."""
        form = self.forms.get(format_spec)
        return form(value) if form else str(super().format_field(value, format_spec))


def _cause(facts: Mapping[str, Any]) -> str:
    """Why a latency is not known, from the exclusion of a run."""
    exclusion = Exclusion(**facts)
    if exclusion.code == "not_reached":
        return (
            f"{exclusion.facts['latency']} is longer than anything observed: too many "
            "requests were cut off"
        )
    return exclusion_words(exclusion)


def _tokens(count: float | None) -> str:
    return f"{count:,.0f} tokens" if count else "an unknown number of tokens"


def _difference(facts: Mapping[str, Any]) -> str:
    """A quantity that differs, with the values of both sides."""
    quantity = facts["quantity"]
    arm, reference = (_value(facts[side]) for side in SIDES)
    name, unit = _QUANTITIES.get(quantity, quantity), _UNITS.get(quantity, "")
    return f"{name} {arm} against {reference}{unit}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(f"{end:,.0f}" for end in sorted({min(value), max(value)}))
    if isinstance(value, float):
        return f"{value:,.4g}"
    return shorten(str(value), _LONGEST_SETTING, placeholder="...")


def write(template: str, facts: Mapping[str, Any], names: SideNames) -> str:
    """Return a template of `codes` filled with the facts of a finding."""
    everything = {"left_out": names.left_out, **facts}
    return _Words(names).vformat(template, (), everything)


def summary(finding: ComparisonFinding, names: SideNames = SideNames()) -> str:
    """Return a finding of an input in a few words."""
    return write(CODES[finding.code].summary, finding.facts, names)


def explanation(finding: ComparisonFinding, names: SideNames = SideNames()) -> str:
    """Return what is wrong and how to avoid it, or why a verdict is what it is; "" if there is nothing to say."""
    meaning = CODES[finding.code]
    joint = "; " if ": " in meaning.why else ": "
    words = joint.join(filter(None, (meaning.why, meaning.remedy)))
    return write(words, finding.facts, names)


def reasons_text(grounds: Iterable[ComparisonFinding], names: SideNames) -> str:
    """Return the grounds of a verdict as one text."""
    text = ""
    for finding in grounds:
        words = explanation(finding, names)
        ending = ": " if finding.code in _ANNOUNCING else "; "
        text += f"{words}{ending}" if words else ""
    return text.removesuffix("; ").removesuffix(": ")


def exclusion_words(exclusion: Exclusion) -> str:
    """Return why a run is left out, "" where the reason of another run says it."""
    return REASONS[exclusion.code].words.format_map(_as_text(exclusion.facts))


def _as_text(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts for a template, with failed checks and errors in words."""
    errors = (f" ({shorten(text, _LONGEST_ERROR)})" for text in facts.get("errors", ()))
    checks = failures_text(facts.get("checks", ()))
    return {**facts, "checks": checks, "errors": "".join(errors)}


def exclusions_text(
    exclusions: Iterable[Exclusion],
    labels: tuple[str, str],
    of_both: Collection[int] = (),
) -> str:
    """Return which runs are left out and why; those `of_both` have a value in both cells, and name none.

    `labels`: names of arm and reference.
    """
    words = [(exclusion, exclusion_words(exclusion)) for exclusion in exclusions]
    late: dict[str, dict[int, None]] = {}
    both: dict[tuple[int, str], None] = {}
    sided: dict[tuple[str, str], list[int]] = {}
    for exclusion, text in words:
        if not text:
            continue
        if exclusion.code == "other_time":
            late.setdefault(text, {})[exclusion.run] = None
        elif exclusion.run in of_both:
            both[exclusion.run, text] = None
        else:
            label = labels[SIDES.index(exclusion.side)]
            sided.setdefault((label, text), []).append(exclusion.run)
    parts = [f"run {run}: {text}" for run, text in sorted(both)]
    parts += [
        f"{_runs(numbers)} of {label}: {text}"
        for (label, text), numbers in sided.items()
    ]
    parts += [f"{_runs(numbers)}: {text}" for text, numbers in late.items()]
    return "; ".join(parts)


def _runs(numbers: Collection[int]) -> str:
    return f"run{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
