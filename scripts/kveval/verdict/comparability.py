"""Comparability by record: whatever differs between two sides and is not the arm's own is named.

`RULES` say by kind what a difference means, and why some do not matter; what no rule names qualifies the verdict.
docs/verdicts.md has them as a table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from kveval.store.conditions import (
    CONDITIONS_COLUMN,
    NO_ARGUMENTS,
    RESIZES_DEVICE,
    Conditions,
    parse_conditions,
)
from kveval.verdict.sides import number

# How much memory a server finds free for its device's cache varies a little from start to start.
_SAME_DEVICE = 0.05
_ABSENT = "(not given)"
_DEVICE_TOKENS = "tokens of the device's cache"


class Rule(NamedTuple):
    """The meaning of a difference in conditions of a kind; `because`: why, in a few words."""

    severity: Literal["sound", "unknown", "qualifies", "refuses"]
    what: str
    because: str


RULES: Mapping[str, Rule] = {
    "arm": Rule("sound", "what is the arm's own", "it is what is compared"),
    "unrelated": Rule(
        "sound",
        "addresses, names, logs, folders, versions of PCP and of this program",
        "it changes nothing that is computed; how runs are measured is in `measurement/protocol`",
    ),
    "device_cache": Rule(
        "refuses",
        "how large the device's cache is",
        "a larger cache serves more, with any arm; reported sizes may differ by 5 %",
    ),
    "batch": Rule(
        "refuses", "how many requests and tokens are computed at once", "it sets speed"
    ),
    "weights": Rule("refuses", "weights, their type and quantisation", "another model"),
    "model": Rule("refuses", "the model and its shape", "another model"),
    "kv_dtype": Rule(
        "refuses", "the type of keys and values", "it sets how much every cache holds"
    ),
    "prefix_caching": Rule(
        "refuses", "whether the device serves prefixes again", "a baseline without it"
    ),
    "speculation": Rule(
        "refuses", "speculative decoding", "it is faster, with any arm"
    ),
    "ranks": Rule(
        "refuses", "GPUs, ranks and replicas", "more of them do more, with any arm"
    ),
    "served": Rule(
        "qualifies",
        "the model's entry that a scenario `serves` in place of the cell's",
        "named; what differs between the models is the arm's own",
    ),
    "setting": Rule("qualifies", "any other argument of the server", "named"),
    "variable": Rule("qualifies", "any other variable of the environment", "named"),
    "versions": Rule("qualifies", "versions of other programs", "named"),
    "machine": Rule("qualifies", "kernel, drivers, nodes, the cluster", "named"),
    "deployment": Rule("qualifies", "how a cluster runs the server", "named"),
    "load": Rule("qualifies", "the load beyond the work of a request", "named"),
    "measurement": Rule("qualifies", "how the runs were measured", "named"),
    "unexpected": Rule("qualifies", "a connector that the arm's name denies", "named"),
    "unknown": Rule("unknown", "arguments that nobody recorded", "nothing to compare"),
}
"""Kind of a condition -> what a difference in it means."""
EXEMPT: Mapping[str, str] = {
    "load/levels": "runs are compared at one level",
    "load/seconds": "a longer level is the same work, more often",
    "load/seed": "each run draws its own prompts",
    "load/title": "words",
    "load/sweep_size": "runs are compared at one level",
    **dict.fromkeys(
        (
            *("load/prompt_tokens", "load/output_tokens", "load/prompt_spread"),
            *("load/output_spread", "load/prefix_tokens", "load/prefix_count"),
            *("load/turns", "load/prime", "load/bursts", "load/document_tokens"),
            *("load/document_spread", "load/pause_s", "load/prefix_zipf"),
            "load/profile",
        ),
        "the work of a request is compared on its own (`other_work`)",
    ),
    "deployment/release": "its images are those of the build (`other_build`)",
    "measurement/engine": "other machines are refused on their own (`other_machine`)",
}
"""Conditions, or beginnings of their names before a dot, that no rule applies to, and why."""


class Difference(NamedTuple):
    """A condition in which the two runs of a pair differ."""

    kind: str
    name: str
    arm: str
    reference: str

    @property
    def facts(self) -> dict[str, Any]:
        """The difference as facts of a finding."""
        return {"quantity": self.name, "arm": self.arm, "reference": self.reference}


def is_refused(
    arm: Mapping[str, Any], reference: Mapping[str, Any], differs: Collection[str]
) -> bool:
    """Whether the servers of two levels differ in what refuses a comparison; `differs`: in what they are meant to."""
    return any(
        RULES[difference.kind].severity == "refuses"
        and not is_declared(difference, differs)
        for difference in differences_of(arm, reference)
    )


def conditions_in(row: Mapping[str, Any]) -> Conditions:
    """Return the conditions of a level's run, {} where they are not known."""
    text = row.get(CONDITIONS_COLUMN)
    return parse_conditions(text) if isinstance(text, str) and text else {}


def differences_of(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield the differences between the servers of two levels."""
    arm, reference = conditions_in(ours), conditions_in(theirs)
    sizes = _device_sizes(ours, theirs)
    if sizes is not None and not _is_alike(*sizes):
        resized = RESIZES_DEVICE in arm or RESIZES_DEVICE in reference
        kind = "setting" if resized else "device_cache"
        own, other = (f"{size:,.0f}" for size in sizes)
        yield Difference(kind, _DEVICE_TOKENS, own, other)
    if arm and reference:
        yield from differences_between(arm, reference)
    else:
        yield Difference("unknown", "", "", "")


def _device_sizes(
    ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[float, float] | None:
    """The tokens that the devices hold, as reported, None where a side does not know."""
    sizes = number(ours, "device_tokens"), number(theirs, "device_tokens")
    return sizes if min(sizes) > 0 else None


def _is_alike(ours: float, theirs: float) -> bool:
    return abs(math.log(ours / theirs)) <= math.log1p(_SAME_DEVICE)


def differences_between(arm: Conditions, reference: Conditions) -> Iterator[Difference]:
    """Yield what differs between two records and is neither an arm's own nor unrelated; first that one is incomplete."""
    own = {_name(key) for key in (*arm, *reference) if key.startswith("arm/")}
    unrecorded = NO_ARGUMENTS in arm or NO_ARGUMENTS in reference
    if unrecorded:
        yield Difference("unknown", "", "", "")
    for key in dict.fromkeys((*arm, *reference)):
        kind, name = key.split("/", 1)
        if RULES[kind].severity in ("sound", "unknown") or kind == "unexpected":
            continue
        if name in own or key in EXEMPT or key.partition(".")[0] in EXEMPT:
            continue
        # What is not given is absent, unless nobody recorded it; other conditions are not known where they are absent.
        told_by_absence = _is_given(name) and not unrecorded
        if not told_by_absence and not (key in arm and key in reference):
            continue
        ours, theirs = arm.get(key, _ABSENT), reference.get(key, _ABSENT)
        if ours != theirs:
            yield Difference(kind, name, ours, theirs)


def _is_given(name: str) -> bool:
    """Whether a condition is an argument or a variable, which is not given where it is absent."""
    return name.startswith("-") or name.isupper()


def _name(key: str) -> str:
    return key.split("/", 1)[1]


def is_declared(difference: Difference, declared: Collection[str]) -> bool:
    """Whether a pair is declared to differ in this, or in what this follows from: the device's size, from most."""
    plain = {plain_name(name) for name in declared}
    if plain_name(difference.name) in plain:
        return True
    return bool(plain) and difference.name == _DEVICE_TOKENS


def plain_name(name: str) -> str:
    """Return the name of a setting as campaigns write it: max_num_seqs for --max-num-seqs, lower case for variables."""
    return name.lstrip("-").replace("-", "_").lower()


def distinct(differences: Collection[Difference]) -> list[Difference]:
    """Differences of other names each once: model and argument may say the same."""
    return list({plain_name(each.name): each for each in differences}.values())
