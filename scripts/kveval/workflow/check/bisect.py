"""Target `bisect_builds`: the first build slower than a good one, found with as few builds measured as possible.

The good and the bad build are checked first. The quantity of one arm with the largest loss decides all further steps: a
build in between is bad if at least half of that effect is shown, good if it is shown to have less than half.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kveval.analysis.estimators.sequential import Design
from kveval.campaign.builds import BuildError
from kveval.campaign.campaign_file import ServerConfig
from kveval.host.files import write_text
from kveval.host.hashing import content_hash
from kveval.report.data.numbers import MISSING
from kveval.workflow.check.campaign import CheckPlan, check_plan
from kveval.workflow.check.check import (
    arms_of,
    command_of,
    planned_config,
    until_clear,
    write_check,
)
from kveval.workflow.check.comment import CheckResult, effect_text
from kveval.workflow.check.commits import BisectBuild, built, candidates
from kveval.workflow.check.judging import (
    FIRST_LOOK,
    BuildClaim,
    Judged,
    claims_of,
    design_of,
)
from kveval.workflow.check.measuring import Places

BLOCKS = 20
"""Default of `check_blocks`, the most blocks of each comparison: enough if runs differ by 5 %."""
MOST_OPEN = 3
"""The search ends after this many undecided builds, because further ones would probably be undecided as well."""
WHEELS = "wheels"
"""Folder in .server-builds of the wheels that `build_command` made."""
Side = Literal["good", "bad", "open"]


@dataclass(frozen=True)
class Step:
    """A build that was compared with the good one: its number, the answer, and the check; None if not built.

    The check's comment lies in the folder of that number, beside the trail.
    """

    number: int
    answer: str
    checked: CheckResult | None


def search(builds: int, side: Callable[[int], Side]) -> tuple[int, int]:
    """Return the numbers of the last build known good and the first known bad; 0 is good and the last one bad.

    `side` judges a build. An undecided one is skipped, and the next nearest to the middle is tried. So the builds
    between the two numbers are undecided or, after MOST_OPEN undecided ones, were not tried.
    """
    good, bad, passed = 0, builds - 1, set[int]()
    while between := [
        number for number in range(good + 1, bad) if number not in passed
    ]:
        tried = min(between, key=lambda number: abs(2 * number - good - bad))
        answer = side(tried)
        if answer == "bad":
            bad = tried
        elif answer == "good":
            good = tried
        else:
            passed.add(tried)
            if len(passed) == MOST_OPEN:
                break
    return good, bad


def step_design(effect: float, builds: int, blocks: int, alpha: float) -> Design:
    """Return the design for builds in between: the margin is half of `effect` (% of the good build), in logarithms.

    The error rate `alpha` is divided among the steps of a search over `builds` builds.
    """
    steps = max(1, math.ceil(math.log2(max(builds - 1, 1))))
    margin = 1 - math.sqrt(1 + effect / 100)
    return Design(min(FIRST_LOOK, blocks), blocks, margin, alpha / steps)


def deciding(every: Sequence[BuildClaim], claim: BuildClaim) -> list[BuildClaim]:
    """Return the claims on a build in between: that quantity at that level decides, and no other one."""
    return [
        replace(
            one,
            decides=one.quantity == claim.quantity
            and one.pairs[0][2] == claim.pairs[0][2],
        )
        for one in every
        if one.quantity == claim.quantity or not one.decides
    ]


def run_bisect(
    asked: Mapping[str, Any],
    options: Mapping[str, Any],
    files: Sequence[str],
    places: Places,
) -> tuple[bool, str]:
    """Bisect; return whether the bad build was slower than the good one, and the text to print.

    `asked`: the campaign's values; `files`: its files, none for the default campaign; `options`: those of `candidates`,
    and check_arms, check_blocks, build_command. Raises a Failure for what cannot be bisected.
    """
    blocks = int(options.get("check_blocks") or BLOCKS)
    builds = candidates(options, ServerConfig.model_validate(asked["server"]).program)
    command = command_of("bisect_builds", options, files)
    folder = Path("results", "bisect", content_hash([one.build for one in builds], 8))
    good = _build(builds[0], options, places)

    def compared(
        number: int,
        arms: Sequence[str],
        claim: BuildClaim | None = None,
        design: Design | None = None,
    ) -> tuple[CheckPlan, CheckResult]:
        plan = check_plan(
            asked, good, _build(builds[number], options, places), arms, blocks
        )
        config = planned_config(plan, places)
        claims = claims_of(config, plan.arms)
        claims = claims if claim is None else deciding(claims, claim)
        print(f"{builds[number].title} against {builds[0].title}", flush=True)
        again = {
            "base": good,
            "candidate": builds[number].build,
            "check_arms": list(arms),
            "check_blocks": blocks,
        }
        repeated = command_of("check", again, files)
        checked = until_clear(
            plan, config, claims, design or design_of(config, claims), places, repeated
        )
        write_check(checked, folder / str(number))
        return plan, checked

    last = len(builds) - 1
    plan, whole = compared(last, arms_of(options))
    worse = [
        each
        for each in whole.found
        if each.claim.decides and each.look.answer == "worse"
    ]
    steps = [Step(last, whole.verdict, whole)]
    if worse:
        found = min(worse, key=lambda each: each.look.effect)
        base, candidate, _ = found.claim.pairs[0]
        named = [
            arm
            for arm, names in plan.arms.items()
            if names == (base.scenario, candidate.scenario)
        ]
        arm = next(arm for arm in named if arm.endswith(f"/{base.cpu_blocks}"))
        design = step_design(found.look.effect, len(builds), blocks, whole.design.alpha)

        def side(number: int) -> Side:
            try:
                _, checked = compared(number, [arm], found.claim, design)
            except BuildError as error:
                steps.append(Step(number, str(error), None))
                return "open"
            (shown,) = (
                each.look.answer for each in checked.found if each.claim.decides
            )
            answer: Side = (
                "open" if shown == "open" else "bad" if shown == "worse" else "good"
            )
            steps.append(
                Step(
                    number,
                    answer if checked.verdict != "candidate fails" else checked.verdict,
                    checked,
                )
            )
            return answer

        ends = search(len(builds), side)
        text = _trail(builds, steps, command, found, ends)
    else:
        text = _trail(builds, steps, command)
    write_text(folder / "BISECT.md", text)
    return bool(worse), f"{text}\nWritten to {folder / 'BISECT.md'}"


def _build(candidate: BisectBuild, options: Mapping[str, Any], places: Places) -> str:
    command = options.get("build_command")
    if not command:
        return candidate.build
    return built(
        candidate, str(command), places.server.parent / ".server-builds" / WHEELS
    )


def _trail(
    builds: Sequence[BisectBuild],
    steps: Sequence[Step],
    command: Sequence[str],
    effect: Judged | None = None,
    ends: tuple[int, int] = (0, 0),
) -> str:
    """Return a bisection as Markdown.

    `effect`: what is worse, None if nothing is; `ends`: the last good and the first bad build.
    """
    good, bad = builds[0].title, builds[-1].title
    if effect is None:
        verdict = steps[0].answer
        lines = [
            f"## Nothing to bisect: {verdict}",
            "",
            f"{bad} was not shown to be slower than {good}.",
        ]
        lines[-1] += (
            f" What was measured is in [its comment]({steps[0].number}/COMMENT.md)."
        )
    else:
        lines = [f"## {_head(builds, ends)}", ""]
        what = f"{effect.claim.title} of {effect.claim.arm}"
        lines += [
            f"{what}, the bad build against the good one: {effect_text(effect)}. A build between is bad"
        ]
        lines[-1] += " if at least half of that is shown, good if less than half is."
        if ends[1] - ends[0] > 1:
            known = {step.number: step.answer for step in steps}
            lines += [
                "",
                "The builds in between, with what is known (more blocks, check_blocks=, may decide them):",
            ]
            numbers = range(ends[0] + 1, ends[1])
            lines += [
                f"- {builds[number].title}: {known.get(number, 'not measured')}"
                for number in numbers
            ]
    lines += [
        "",
        "| build | against the good one | blocks | answer |",
        "|---|---|---|---|",
    ]
    lines += [f"| {good} | | | good, as given |"]
    lines += [
        _row(builds, step, effect)
        for step in sorted(steps, key=lambda step: step.number)
    ]
    lines += [
        "",
        f"{len(steps) + 1} of {len(builds)} builds measured, each in the same blocks as the good one.",
    ]
    return "\n".join(
        [*lines, "", "### Reproduce it", "", "```bash", shlex.join(command), "```", ""]
    )


def _head(builds: Sequence[BisectBuild], ends: tuple[int, int]) -> str:
    good, bad = ends
    if bad - good == 1:
        return f"First slower build: {builds[bad].title}"
    return f"The first slower build is one of {bad - good}: after {builds[good].title}, up to {builds[bad].title}"


def _row(builds: Sequence[BisectBuild], step: Step, effect: Judged | None) -> str:
    seen, blocks = MISSING, MISSING
    if step.checked is not None:
        blocks = f"[{step.checked.blocks}]({step.number}/COMMENT.md)"
        same = [
            one
            for one in step.checked.found
            if effect and one.claim.quantity == effect.claim.quantity
        ]
        seen = (
            effect_text(next((one for one in same if one.claim.decides), same[0]))
            if same
            else MISSING
        )
    return f"| {builds[step.number].title} | {seen} | {blocks} | {step.answer} |"
