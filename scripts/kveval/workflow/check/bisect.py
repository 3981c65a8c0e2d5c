"""Target `bisect_builds`: the first build slower than a good one, found with as few builds measured as possible.

The good and the bad build are checked first. The quantity of one arm with the largest loss decides all further steps: a
build in between is bad if at least half of that effect is shown, good if it is shown to have less than half.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kveval.analysis.estimators.sequential import Design
from kveval.config.campaign import ServerConfig
from kveval.host.files import write_text
from kveval.host.hashing import content_hash
from kveval.spec.builds import BuildError
from kveval.workflow.check.campaign import CheckPlan, check_plan
from kveval.workflow.check.check import CheckResult, arms_of, command_of, planned_config, until_clear, write_check
from kveval.workflow.check.commits import BisectBuild, built, candidates
from kveval.workflow.check.judging import FIRST_LOOK, BuildClaim, Judged, claims_of, design_of
from kveval.workflow.check.measuring import Places, measure_block
from kveval.workflow.check.trail import Step, trail

BLOCKS = 20
"""Default of `check_blocks`, the most blocks of each comparison: enough if runs differ by 5 %."""
MOST_OPEN = 3
"""The search ends after this many undecided builds, because further ones would probably be undecided as well."""
WHEELS = "wheels"
"""Folder in .server-builds of the wheels that `build_command` made."""
Side = Literal["good", "bad", "open"]


def search(builds: int, side: Callable[[int], Side]) -> tuple[int, int]:
    """Return the numbers of the last build known good and the first known bad; 0 is good and the last one bad.

    `side` judges a build. An undecided one is skipped, and the next nearest to the middle is tried. So the builds
    between the two numbers are undecided or, after MOST_OPEN undecided ones, were not tried.
    """
    good, bad, passed = 0, builds - 1, set[int]()
    while between := [number for number in range(good + 1, bad) if number not in passed]:
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


def side_of(checked: CheckResult) -> Side:
    """Return the answer of the one deciding claim on a build."""
    (deciding,) = (each for each in checked.found if each.claim.decides)
    answer = deciding.look.answer
    return "open" if answer == "open" else "bad" if answer == "worse" else "good"


@dataclass(frozen=True)
class _Comparison:
    """The comparison of every step: one quantity at one level of one arm, and its design."""

    arm: str
    quantity: str
    level: int
    design: Design

    def claims(self, every: Sequence[BuildClaim]) -> list[BuildClaim]:
        return [
            replace(one, decides=one.quantity == self.quantity and one.pairs[0][2] == self.level)
            for one in every
            if one.quantity == self.quantity or not one.decides
        ]


def run_bisect(
    asked: Mapping[str, Any], options: Mapping[str, Any], files: Sequence[str], places: Places
) -> tuple[bool, Iterator[str]]:
    """Bisect; return whether the bad build was slower than the good one, and the lines to print.

    `asked`: the campaign's values; `files`: its files, none for the default campaign; `options`: those of `candidates`,
    and check_arms, check_blocks, build_command. Raises a Failure for what cannot be bisected.
    """
    blocks = int(options.get("check_blocks") or BLOCKS)
    builds = candidates(options, ServerConfig.model_validate(asked["server"]).program)
    command = command_of("bisect_builds", options, files)
    folder = Path("results", "bisect", content_hash([one.build for one in builds], 8))
    good = _build(builds[0], options, places)

    def compared(number: int, arms: Sequence[str], only: _Comparison | None) -> tuple[CheckPlan, CheckResult]:
        plan = check_plan(asked, good, _build(builds[number], options, places), arms, blocks)
        config = planned_config(plan, places)
        claims = claims_of(config, plan.arms)
        claims, design = (only.claims(claims), only.design) if only else (claims, design_of(config, claims))
        print(f"{builds[number].title} against {builds[0].title}", flush=True)
        again = {"base": good, "candidate": builds[number].build, "check_arms": list(arms), "check_blocks": blocks}
        repeated = command_of("check", again, files)
        checked = until_clear(
            plan, config, claims, design, lambda block: measure_block(config, plan.values, block, places), repeated
        )
        write_check(checked, folder / str(number))
        return plan, checked

    last = len(builds) - 1
    plan, whole = compared(last, arms_of(options), None)
    worse = [each for each in whole.found if each.claim.decides and each.look.answer == "worse"]
    steps = [Step(last, whole.verdict, whole)]
    alpha = whole.design.alpha
    if worse:
        found = min(worse, key=lambda each: each.look.effect)
        only = _only(found, plan, step_design(found.look.effect, len(builds), blocks, alpha))

        def side(number: int) -> Side:
            try:
                answer = side_of(checked := compared(number, [only.arm], only)[1])
            except BuildError as error:
                steps.append(Step(number, str(error), None))
                return "open"
            steps.append(Step(number, answer if checked.verdict != "candidate fails" else checked.verdict, checked))
            return answer

        ends = search(len(builds), side)
        text = trail(builds, steps, command, found, ends)
    else:
        text = trail(builds, steps, command)
    write_text(folder / "BISECT.md", text)
    return bool(worse), iter([text, f"Written to {folder / 'BISECT.md'}"])


def _build(candidate: BisectBuild, options: Mapping[str, Any], places: Places) -> str:
    command = options.get("build_command")
    if not command:
        return candidate.build
    return built(candidate, str(command), places.server.parent / ".server-builds" / WHEELS)


def _only(found: Judged, plan: CheckPlan, design: Design) -> _Comparison:
    base, candidate, level = found.claim.pairs[0]
    arm = next(arm for arm, names in plan.arms.items() if names == (base.scenario, candidate.scenario))
    return _Comparison(arm, found.claim.quantity, level, design)
