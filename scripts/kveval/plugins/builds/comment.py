"""A check as a comment for a pull request, which comment.md.j2 words, and as a figure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from kveval.estimators.sequential import Design, blocks_for_equality
from kveval.plugins.builds.judging import Evaluation, Verdict
from kveval.plugins.builds.measuring import COLD
from kveval.report.data.numbers import MISSING
from kveval.report.figures.axes import GREY, WIDTH
from kveval.report.render import filled

FIGURE = "effects.png"
# Per cent. The end of an interval beyond it, which is common after few noisy blocks, is shown as "more than" this.
_WIDEST = 1000.0
_COLOURS = {
    "better": "#0072B2",
    "worse": "#D55E00",
    "equal": "#009E73",
    "open": "#999999",
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
    failing = [
        evaluation.claim.arm
        for evaluation in checked.evaluations
        if evaluation.claim.decides and evaluation.candidate_fails(checked.design.first)
    ]
    return filled(
        Path(__file__).with_name("comment.md.j2"),
        checked=checked,
        failing_arms=dict.fromkeys(failing),
        effect=_effect_text,
        spread=_spread,
        blocks_for_equality=blocks_for_equality,
        cold=COLD,
        figure=FIGURE,
        command=shlex.join(checked.command),
    )


def _effect_text(evaluation: Evaluation) -> str:
    """Return an effect with its interval as text, in percent of the base."""
    look = evaluation.look
    high = f"{look.high:+.1f}" if look.high <= _WIDEST else f"more than {_WIDEST:+,.0f}"
    text = f"{look.effect:+.1f} % [{look.low:+.1f}, {high}]"
    return MISSING if np.isnan(look.effect) else text


def _spread(evaluations: Sequence[Evaluation]) -> float | None:
    """Return the largest standard deviation between blocks; None where there is none."""
    spreads = [evaluation.look.sd for evaluation in evaluations]
    return max((sd for sd in spreads if not np.isnan(sd)), default=None)


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
    widest = 3 * margin
    for place, evaluation in enumerate(shown):
        look, decides = evaluation.look, evaluation.claim.decides
        colour = _COLOURS[evaluation.answer if decides else "open"]
        ends = [look.low, look.high]
        axes.plot(ends, [place, place], color=colour, linewidth=1.8)
        face = colour if decides else "white"
        axes.plot(look.effect, place, "o", color=colour, markerfacecolor=face)
        far = min(100, max(map(abs, ends))) if decides else 0
        widest = max(widest, far, abs(look.effect))
    axes.set_yticks(range(len(shown)), [*map(_name, shown)])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.set_xlim(max(-1.05 * widest, -105), 1.05 * widest)
    axes.set_xlabel("effect, % of the base; grey: the margin; hollow: does not decide")
    return figure


def _name(evaluation: Evaluation) -> str:
    claim = evaluation.claim
    better = "more" if claim.more_is_better else "less"
    idle = ", idle" if evaluation.idle else ""
    return f"{claim.arm}\n{claim.title} ({better} is better){idle}"
