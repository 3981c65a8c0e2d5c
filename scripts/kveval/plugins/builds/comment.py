"""A check as a comment for a pull request: verdict, effects with intervals, their basis, how to repeat it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from kveval.estimators.sequential import Design, blocks_for_equality
from kveval.plugins.builds.judging import Evaluation, Verdict
from kveval.plugins.builds.measuring import COLD
from kveval.report.data.numbers import MISSING, significant
from kveval.report.figures.axes import GREY, WIDTH

FIGURE = "effects.png"
# Per cent. The end of an interval beyond it, which is common after few noisy blocks, is shown as "more than" this.
_WIDEST = 1000.0
_ANSWERS = {
    "better": "**better**",
    "worse": "**worse**",
    "equal": "within the margin",
    "open": "not enough",
}
_COLOURS = {
    "better": "#0072B2",
    "worse": "#D55E00",
    "equal": "#009E73",
    "open": "#999999",
}
_HEADS: Mapping[Verdict, str] = {
    "regression": "The candidate is slower",
    "candidate fails": "The candidate fails",
    "nothing measured": "Nothing could be measured",
    "improvement": "The candidate is faster",
    "no difference that matters": "No difference that matters",
    "not enough": "Not enough to tell",
}


@dataclass(frozen=True)
class CheckResult:
    """The outcome of a check, and what its comment says besides the numbers.

    `builds`: titles of base and candidate; `identical`: whether their content is the same; `blocks`: how many were
    measured; `minutes`: the time this took; `host`: the machine; `software`: versions by program; `failed`: why values
    are missing; `command`: the words of the command that repeats the check.
    """

    verdict: Verdict
    evaluations: Sequence[Evaluation]
    design: Design
    builds: tuple[str, str]
    identical: bool
    blocks: int
    minutes: float
    host: str
    software: Mapping[str, str]
    failed: Sequence[str]
    command: Sequence[str]


def comment(checked: CheckResult) -> str:
    """Return the comment as Markdown."""
    lines = [
        f"## {_HEADS[checked.verdict]}: {checked.builds[1]} against {checked.builds[0]}",
        "",
    ]
    lines += [_summary(checked), ""]
    lines += [
        "| arm | quantity | base | candidate | effect | |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_row(evaluation) for evaluation in checked.evaluations]
    lines += ["", f"![effects with their intervals]({FIGURE})", "", "### Basis", ""]
    lines += [f"- {line}" for line in _basis(checked)]
    lines += [
        "",
        "### Reproduce it",
        "",
        "```bash",
        shlex.join(checked.command),
        "```",
        "",
    ]
    return "\n".join(lines)


def _summary(checked: CheckResult) -> str:
    verdict, design, blocks = checked.verdict, checked.design, checked.blocks
    deciding = [
        evaluation for evaluation in checked.evaluations if evaluation.claim.decides
    ]
    if verdict == "candidate fails":
        arms = dict.fromkeys(
            evaluation.claim.arm
            for evaluation in deciding
            if evaluation.candidate_fails(design.first)
        )
        text = f"In {blocks} blocks no run of the candidate gave a result"
        return (
            f"{text} ({', '.join(arms)}); the base's runs did. The reasons are below."
        )
    if verdict == "nothing measured":
        return f"In {blocks} blocks no run of either build gave a result. The reasons are below."
    telling = {"regression": "worse", "improvement": "better"}.get(verdict, "open")
    shown = [
        evaluation
        for evaluation in deciding
        if evaluation.answer == telling and not evaluation.ahead_although_idle
    ]
    named = "; ".join(map(_named, shown))
    margin = f"{100 * design.margin:.3g} %"
    if verdict == "no difference that matters":
        return f"Every deciding quantity is within ±{margin} of the base, after {blocks} blocks."
    if verdict != "not enough":
        return f"{named[:1].upper()}{named[1:]}, after {blocks} of at most {design.budget} blocks."
    ahead = [evaluation for evaluation in deciding if evaluation.ahead_although_idle]
    if ahead and not named:
        return f"Measured faster: {'; '.join(map(_named, ahead))}. Its tier served nothing and cannot be why."
    text = f"After {blocks} blocks neither a difference beyond {margin} nor its absence is shown"
    return f"{text}: {named}. {_what_it_takes(shown, design)}" if named else f"{text}."


def _named(evaluation: Evaluation) -> str:
    name = f"{evaluation.claim.title.lower()} of {evaluation.claim.arm} {_effect_text(evaluation)}"
    return f"{name}, although idle" if evaluation.idle else name


def _what_it_takes(shown: Sequence[Evaluation], design: Design) -> str:
    spreads = [
        evaluation.look.sd for evaluation in shown if not np.isnan(evaluation.look.sd)
    ]
    if not spreads:
        return "Too few blocks have a result of both builds; the reasons are below."
    variation = f"from block to block the difference varies by {100 * max(spreads):.0f} % (standard deviation)"
    needed = blocks_for_equality(max(spreads), design)
    if needed is None:
        return f"{variation.capitalize()}: a quieter machine, longer levels or fewer arms would settle it."
    return f"{variation.capitalize()}: if the builds are equal, about {needed} blocks show it (`--blocks {needed}`)."


def _row(evaluation: Evaluation) -> str:
    means = [significant(evaluation.base, 3), significant(evaluation.candidate, 3)]
    cells = [
        evaluation.claim.arm,
        evaluation.claim.title,
        *means,
        _effect_text(evaluation),
    ]
    return f"| {' | '.join([*cells, _answer(evaluation) if evaluation.claim.decides else 'shown'])} |"


def _answer(evaluation: Evaluation) -> str:
    """The answer on a deciding quantity in words; that on an idle arm is about what it costs."""
    if not evaluation.idle:
        return _ANSWERS[evaluation.answer]
    if evaluation.ahead_although_idle:
        return "idle: the tier cannot be why"
    if evaluation.answer == "equal":
        return f"idle, costs at most {evaluation.most_cost:.1f} %"
    return (
        "**worse although idle**"
        if evaluation.answer == "worse"
        else "idle: not enough"
    )


def _effect_text(evaluation: Evaluation) -> str:
    """Return an effect with its interval as text, in percent of the base."""
    look = evaluation.look
    high = f"{look.high:+.1f}" if look.high <= _WIDEST else f"more than {_WIDEST:+,.0f}"
    return (
        MISSING
        if np.isnan(look.effect)
        else f"{look.effect:+.1f} % [{look.low:+.1f}, {high}]"
    )


def _basis(facts: CheckResult) -> list[str]:
    design = facts.design
    versions = ", ".join(
        f"{name} {version}" for name, version in sorted(facts.software.items())
    )
    lines = [
        f"{facts.blocks} blocks in {facts.minutes:.0f} minutes: base and candidate in each, in random order, every run"
        " on a fresh server, with the same requests.",
        f"Evaluated after {design.first} blocks and each later one, at most {design.budget}; bounds by alpha"
        f" spending (Lan and DeMets, after O'Brien and Fleming), error rate {design.alpha:g} over {design.comparisons}"
        " deciding quantities. Intervals hold simultaneously over all evaluations.",
        f"Slower or faster: significant, and the estimate is beyond ±{100 * design.margin:.3g} %."
        " Latencies are shown but do not decide.",
        f"{facts.host}; {versions}.",
    ]
    idle = dict.fromkeys(
        evaluation.claim.arm
        for evaluation in facts.evaluations
        if evaluation.idle and evaluation.claim.quantity != COLD
    )
    if idle:
        lines.append(
            f"By its own counters the arm served next to nothing on either build ({', '.join(idle)}): this is what it"
            " costs while idle, not what it gains."
        )
    if facts.identical:
        lines.insert(
            0, "Both builds have the same content: a difference would be noise."
        )
    return [*lines, *facts.failed]


def draw_check(evaluations: Sequence[Evaluation], design: Design) -> Figure:
    """Return a figure of the effects with their intervals, and the margin."""
    shown = [
        evaluation for evaluation in evaluations if not np.isnan(evaluation.look.effect)
    ]
    height = 1.5 + 0.4 * max(len(shown), 1)
    figure = Figure(
        figsize=(WIDTH, height),
        layout=ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - 0.4 / height)),
    )
    axes = figure.subplots()
    margin = 100 * design.margin
    axes.axvspan(-margin, margin, color="#000000", alpha=0.07, linewidth=0)
    axes.axvline(0, color=GREY, linewidth=0.9)
    ends_shown = [
        abs(end)
        for evaluation in shown
        if evaluation.claim.decides
        for end in (evaluation.look.low, evaluation.look.high)
    ]
    widest = 1.05 * max(
        3 * margin,
        min(100, max(ends_shown, default=0)),
        *(abs(evaluation.look.effect) for evaluation in shown),
    )
    for place, evaluation in enumerate(shown):
        colour = (
            _COLOURS[evaluation.answer]
            if evaluation.claim.decides
            else _COLOURS["open"]
        )
        axes.plot(
            [evaluation.look.low, evaluation.look.high],
            [place, place],
            color=colour,
            linewidth=1.8,
        )
        face = colour if evaluation.claim.decides else "white"
        axes.plot(
            evaluation.look.effect, place, "o", color=colour, markerfacecolor=face
        )
    names = [
        f"{evaluation.claim.title} ({'more' if evaluation.claim.more_is_better else 'less'} is better)"
        for evaluation in shown
    ]
    names = [
        f"{name}, idle" if evaluation.idle else name
        for evaluation, name in zip(shown, names, strict=True)
    ]
    axes.set_yticks(
        range(len(shown)),
        [
            f"{evaluation.claim.arm}\n{name}"
            for evaluation, name in zip(shown, names, strict=True)
        ],
    )
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xlim(max(-widest, -105), widest)
    axes.set_xlabel("effect, % of the base; grey: the margin; hollow: does not decide")
    return figure
