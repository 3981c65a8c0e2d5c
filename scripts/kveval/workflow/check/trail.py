"""A bisection as Markdown: the first slower build, and every build that was measured on the way."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from kveval.report.data.numbers import MISSING
from kveval.workflow.check.check import CheckResult
from kveval.workflow.check.comment import effect_text
from kveval.workflow.check.commits import BisectBuild
from kveval.workflow.check.judging import Judged


@dataclass(frozen=True)
class Step:
    """A build that was compared with the good one: its number, the answer, and the check; None if not built.

    The check's comment lies in the folder of that number, beside the trail.
    """

    number: int
    answer: str
    checked: CheckResult | None


def trail(
    builds: Sequence[BisectBuild],
    steps: Sequence[Step],
    command: Sequence[str],
    effect: Judged | None = None,
    ends: tuple[int, int] = (0, 0),
) -> str:
    """Return what was found; `effect`: what is worse, None if nothing is; `ends`: the last good and first bad build."""
    good, bad = builds[0].title, builds[-1].title
    if effect is None:
        verdict = steps[0].answer
        lines = [f"## Nothing to bisect: {verdict}", "", f"{bad} was not shown to be slower than {good}."]
        lines[-1] += f" What was measured is in [its comment]({steps[0].number}/COMMENT.md)."
    else:
        lines = [f"## {_head(builds, ends)}", ""]
        what = f"{effect.claim.title} of {effect.claim.arm}"
        lines += [f"{what}, the bad build against the good one: {effect_text(effect)}. A build between is bad"]
        lines[-1] += " if at least half of that is shown, good if less than half is."
        if ends[1] - ends[0] > 1:
            known = {step.number: step.answer for step in steps}
            lines += ["", "The builds in between, with what is known (more blocks, check_blocks=, may decide them):"]
            numbers = range(ends[0] + 1, ends[1])
            lines += [f"- {builds[number].title}: {known.get(number, 'not measured')}" for number in numbers]
    lines += ["", "| build | against the good one | blocks | answer |", "|---|---|---|---|"]
    lines += [f"| {good} | | | good, as given |"]
    lines += [_row(builds, step, effect) for step in sorted(steps, key=lambda step: step.number)]
    lines += ["", f"{len(steps) + 1} of {len(builds)} builds measured, each in the same blocks as the good one."]
    return "\n".join([*lines, "", "### Reproduce it", "", "```bash", shlex.join(command), "```", ""])


def _head(builds: Sequence[BisectBuild], ends: tuple[int, int]) -> str:
    good, bad = ends
    if bad - good == 1:
        return f"First slower build: {builds[bad].title}"
    return f"The first slower build is one of {bad - good}: after {builds[good].title}, up to {builds[bad].title}"


def _row(builds: Sequence[BisectBuild], step: Step, effect: Judged | None) -> str:
    seen, blocks = MISSING, MISSING
    if step.checked is not None:
        blocks = f"[{step.checked.facts.blocks}]({step.number}/COMMENT.md)"
        same = [one for one in step.checked.found if effect and one.claim.quantity == effect.claim.quantity]
        seen = effect_text(next((one for one in same if one.claim.decides), same[0])) if same else MISSING
    return f"| {builds[step.number].title} | {seen} | {blocks} | {step.answer} |"
