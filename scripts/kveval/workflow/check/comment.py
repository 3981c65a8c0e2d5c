"""A check as a comment for a pull request: verdict, effects with intervals, their basis, how to repeat it."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from kveval.analysis.estimators.sequential import Design, blocks_for_equality
from kveval.report.data.numbers import MISSING, significant
from kveval.report.figures.axes import GREY, WIDTH
from kveval.workflow.check.judging import Judged, Verdict
from kveval.workflow.check.measuring import COLD

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
    found: Sequence[Judged]
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
    lines += [_row(each) for each in checked.found]
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
    deciding = [each for each in checked.found if each.claim.decides]
    if verdict == "candidate fails":
        arms = dict.fromkeys(
            each.claim.arm for each in deciding if each.candidate_fails(design.first)
        )
        said = f"In {blocks} blocks no run of the candidate gave a result"
        return (
            f"{said} ({', '.join(arms)}); the base's runs did. The reasons are below."
        )
    if verdict == "nothing measured":
        return f"In {blocks} blocks no run of either build gave a result. The reasons are below."
    telling = {"regression": "worse", "improvement": "better"}.get(verdict, "open")
    shown = [
        each
        for each in deciding
        if each.answer == telling and not each.ahead_although_idle
    ]
    named = "; ".join(map(_named, shown))
    margin = f"{100 * design.margin:.3g} %"
    if verdict == "no difference that matters":
        return f"Every deciding quantity is within ±{margin} of the base, after {blocks} blocks."
    if verdict != "not enough":
        return f"{named[:1].upper()}{named[1:]}, after {blocks} of at most {design.budget} blocks."
    ahead = [each for each in deciding if each.ahead_although_idle]
    if ahead and not named:
        return f"Measured faster: {'; '.join(map(_named, ahead))}. Its tier served nothing and cannot be why."
    said = f"After {blocks} blocks neither a difference beyond {margin} nor its absence is shown"
    return f"{said}: {named}. {_what_it_takes(shown, design)}" if named else f"{said}."


def _named(each: Judged) -> str:
    name = f"{each.claim.title.lower()} of {each.claim.arm} {effect_text(each)}"
    return f"{name}, although idle" if each.idle else name


def _what_it_takes(shown: Sequence[Judged], design: Design) -> str:
    spreads = [each.look.sd for each in shown if not np.isnan(each.look.sd)]
    if not spreads:
        return "Too few blocks have a result of both builds; the reasons are below."
    told = f"from block to block the difference varies by {100 * max(spreads):.0f} % (standard deviation)"
    needed = blocks_for_equality(max(spreads), design)
    if needed is None:
        return f"{told.capitalize()}: a quieter machine, longer levels or fewer arms would settle it."
    return f"{told.capitalize()}: if the builds are equal, about {needed} blocks show it (check_blocks={needed})."


def _row(each: Judged) -> str:
    means = [significant(each.base, 3), significant(each.candidate, 3)]
    cells = [each.claim.arm, each.claim.title, *means, effect_text(each)]
    return (
        f"| {' | '.join([*cells, _answer(each) if each.claim.decides else 'shown'])} |"
    )


def _answer(each: Judged) -> str:
    """The answer on a deciding quantity in words; that on an idle arm is about what it costs."""
    if not each.idle:
        return _ANSWERS[each.answer]
    if each.ahead_although_idle:
        return "idle: the tier cannot be why"
    if each.answer == "equal":
        return f"idle, costs at most {each.most_cost:.1f} %"
    return "**worse although idle**" if each.answer == "worse" else "idle: not enough"


def effect_text(each: Judged) -> str:
    """Return an effect with its interval as text, in percent of the base."""
    look = each.look
    high = f"{look.high:+.1f}" if look.high <= _WIDEST else f"more than {_WIDEST:+,.0f}"
    return (
        MISSING
        if np.isnan(look.effect)
        else f"{look.effect:+.1f} % [{look.low:+.1f}, {high}]"
    )


def _basis(facts: CheckResult) -> list[str]:
    design = facts.design
    told = ", ".join(
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
        f"{facts.host}; {told}.",
    ]
    idle = dict.fromkeys(
        each.claim.arm
        for each in facts.found
        if each.idle and each.claim.quantity != COLD
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


def draw_check(found: Sequence[Judged], design: Design) -> Figure:
    """Return a figure of the effects with their intervals, and the margin."""
    shown = [each for each in found if not np.isnan(each.look.effect)]
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
        for each in shown
        if each.claim.decides
        for end in (each.look.low, each.look.high)
    ]
    widest = 1.05 * max(
        3 * margin,
        min(100, max(ends_shown, default=0)),
        *(abs(each.look.effect) for each in shown),
    )
    for place, each in enumerate(shown):
        colour = _COLOURS[each.answer] if each.claim.decides else _COLOURS["open"]
        axes.plot(
            [each.look.low, each.look.high], [place, place], color=colour, linewidth=1.8
        )
        face = colour if each.claim.decides else "white"
        axes.plot(each.look.effect, place, "o", color=colour, markerfacecolor=face)
    names = [
        f"{each.claim.title} ({'more' if each.claim.more_is_better else 'less'} is better)"
        for each in shown
    ]
    names = [
        f"{name}, idle" if each.idle else name
        for each, name in zip(shown, names, strict=True)
    ]
    axes.set_yticks(
        range(len(shown)),
        [f"{each.claim.arm}\n{name}" for each, name in zip(shown, names, strict=True)],
    )
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xlim(max(-widest, -105), widest)
    axes.set_xlabel("effect, % of the base; grey: the margin; hollow: does not decide")
    return figure
