"""`kveval bisect`: the first build slower than a good one, found with as few builds measured as possible.

The good and the bad build are checked first. The quantity of one arm with the largest loss decides all further steps: a
build in between is bad if at least half of that effect is shown, good if it is shown to have less than half.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
    CheckRequest,
    check_words,
    planned_config,
    until_clear,
    write_check,
)
from kveval.workflow.check.comment import CheckResult, effect_text
from kveval.workflow.check.commits import (
    BisectBuild,
    BuildRange,
    built,
    candidates,
)
from kveval.workflow.check.judging import (
    FIRST_LOOK,
    BuildClaim,
    Evaluation,
    Verdict,
    claims_of,
    design_of,
)
from kveval.workflow.check.measuring import Places

BLOCKS = 20
"""The most blocks of each comparison by default: enough if runs differ by 5 %."""
MOST_OPEN = 3
"""The search ends after this many undecided builds, because further ones would probably be undecided as well."""
WHEELS = "wheels"
"""Folder in .server-builds of the wheels that a build command made."""
Side = Literal["good", "bad", "open"]
_SIDES: Mapping[str, Side] = {"open": "open", "worse": "bad"}


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


def deciding(claims: Sequence[BuildClaim], claim: BuildClaim) -> list[BuildClaim]:
    """Return the claims on a build in between: that quantity at that level decides, and no other one."""
    return [
        replace(
            other,
            decides=other.quantity == claim.quantity
            and other.pairs[0][2] == claim.pairs[0][2],
        )
        for other in claims
        if other.quantity == claim.quantity or not other.decides
    ]


@dataclass(frozen=True)
class BisectRequest:
    """A search as it was asked for: the builds, the arms as SCENARIO/CPU_BLOCKS, and the most blocks of each build."""

    builds: BuildRange
    arms: Sequence[str] = ()
    blocks: int = BLOCKS


@dataclass(frozen=True)
class Bisection:
    """The outcome of a search: the verdict on the bad build against the good one, the trail as text, and its file."""

    verdict: Verdict
    text: str
    file: Path


def bisect_words(campaign: Sequence[str], request: BisectRequest) -> list[str]:
    """Return the command that repeats a search; `campaign`: the words that name its campaign."""
    words = ["kveval", "bisect", *campaign]
    builds = request.builds
    options = [("--good", builds.good), ("--bad", builds.bad)]
    options += [("--build", build) for build in builds.listed]
    options += [("--build-command", builds.command)]
    options += [("--arm", arm) for arm in request.arms]
    for option, value in options:
        words += [option, value] if value else []
    if request.blocks != BLOCKS:
        words += ["--blocks", str(request.blocks)]
    return words


def run_bisect(
    values: Mapping[str, Any],
    request: BisectRequest,
    places: Places,
    campaign: Sequence[str],
    say: Callable[[str], None],
) -> Bisection:
    """Find the first slower build, and write the trail.

    `values`: the campaign's; `campaign`: the words that name it in commands; `say` gets a line for each build and
    block. Raises a Failure for what cannot be bisected.
    """
    program = ServerConfig.model_validate(values["server"]).program
    builds = candidates(request.builds, program)
    folder = Path(
        "results", "bisect", content_hash([build.build for build in builds], 8)
    )
    comparisons = BuildComparisons(
        values, request, places, campaign, say, builds, folder
    )
    last = len(builds) - 1
    plan, whole = comparisons.compare(last, request.arms)
    steps = [Step(last, whole.verdict, whole)]
    command = bisect_words(campaign, request)
    losses = [
        evaluation
        for evaluation in whole.evaluations
        if evaluation.claim.decides and evaluation.look.answer == "worse"
    ]
    if losses:
        largest = min(losses, key=lambda evaluation: evaluation.look.effect)
        arm = _arm_of(plan, largest)
        design = step_design(
            largest.look.effect, len(builds), request.blocks, whole.design.alpha
        )

        def side(number: int) -> Side:
            step, answer = comparisons.step(number, arm, largest.claim, design)
            steps.append(step)
            return answer

        ends = search(len(builds), side)
        text = _trail(builds, steps, command, largest, ends)
    else:
        text = _trail(builds, steps, command)
    file = folder / "BISECT.md"
    write_text(file, text)
    return Bisection(whole.verdict, text, file)


@dataclass(frozen=True)
class BuildComparisons:
    """The comparisons of a search, each of a build with the good one; comments are written into `folder`.

    The other attributes are the parameters of `run_bisect`, and the builds to search.
    """

    values: Mapping[str, Any]
    request: BisectRequest
    places: Places
    campaign: Sequence[str]
    say: Callable[[str], None]
    builds: Sequence[BisectBuild]
    folder: Path

    @cached_property
    def good(self) -> str:
        """The good build, as --base names it. Raises BuildError if it cannot be built."""
        return self._built(0)

    def compare(
        self,
        number: int,
        arms: Sequence[str],
        claim: BuildClaim | None = None,
        design: Design | None = None,
    ) -> tuple[CheckPlan, CheckResult]:
        """Check a build in some arms; `claim`: what alone decides, with `design`. Raises BuildError."""
        good, build = self.good, self.builds[number]
        plan = check_plan(
            self.values, good, self._built(number), arms, self.request.blocks
        )
        config = planned_config(plan, self.places)
        claims = claims_of(config, plan.cells)
        claims = claims if claim is None else deciding(claims, claim)
        self.say(f"{build.title} against {self.builds[0].title}")
        repeated = CheckRequest(build.build, good, arms, self.request.blocks)
        result = until_clear(
            plan,
            config,
            claims,
            design or design_of(config, claims),
            self.places,
            check_words(self.campaign, repeated),
            self.say,
        )
        write_check(result, self.folder / str(number))
        return plan, result

    def step(
        self, number: int, arm: str, claim: BuildClaim, design: Design
    ) -> tuple[Step, Side]:
        """Judge a build in between by one claim; one that cannot be built stays open."""
        try:
            _, result = self.compare(number, [arm], claim, design)
        except BuildError as error:
            return Step(number, str(error), None), "open"
        (look,) = (
            evaluation.look
            for evaluation in result.evaluations
            if evaluation.claim.decides
        )
        answer = _SIDES.get(look.answer, "good")
        failed = result.verdict == "candidate fails"
        return Step(number, result.verdict if failed else answer, result), answer

    def _built(self, number: int) -> str:
        build, command = self.builds[number], self.request.builds.command
        if not command:
            return build.build
        return built(
            build, command, self.places.server.parent / ".server-builds" / WHEELS
        )


def _arm_of(plan: CheckPlan, evaluation: Evaluation) -> str:
    """Return the arm, SCENARIO/CPU_BLOCKS, in which a claim was judged; of a scenario in several sizes, the first."""
    base, candidate, _ = evaluation.claim.pairs[0]
    return next(
        cell.arm for cell, sides in plan.cells.items() if sides == (base, candidate)
    )


def _trail(
    builds: Sequence[BisectBuild],
    steps: Sequence[Step],
    command: Sequence[str],
    effect: Evaluation | None = None,
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
                "The builds in between, with what is known (more blocks, --blocks, may decide them):",
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


def _row(builds: Sequence[BisectBuild], step: Step, effect: Evaluation | None) -> str:
    seen: str = MISSING
    blocks: str = MISSING
    if step.checked is not None:
        blocks = f"[{step.checked.blocks}]({step.number}/COMMENT.md)"
        same = [
            evaluation
            for evaluation in step.checked.evaluations
            if effect and evaluation.claim.quantity == effect.claim.quantity
        ]
        seen = (
            effect_text(
                next(
                    (evaluation for evaluation in same if evaluation.claim.decides),
                    same[0],
                )
            )
            if same
            else MISSING
        )
    return f"| {builds[step.number].title} | {seen} | {blocks} | {step.answer} |"
