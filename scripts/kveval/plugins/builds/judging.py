"""The state of a check after some blocks: the evaluation of every claim, and the verdict from all of them."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kveval.campaign.cell import Cell
from kveval.configuration.config import Config
from kveval.estimators.sequential import Answer, Design, Look, evaluate_look
from kveval.plugins.builds.measuring import COLD, IDLE, SHOWN, Values
from kveval.report.data.metric_titles import METRIC_TITLES

Verdict = Literal[
    "regression",
    "candidate fails",
    "nothing measured",
    "improvement",
    "no difference that matters",
    "not enough",
]
FIRST_LOOK = 3
_MORE_IS_BETTER = ("throughput_tok_s", COLD)
_TITLES = {**METRIC_TITLES, COLD: "Prompts taken in cold"}


@dataclass(frozen=True)
class BuildClaim:
    """One quantity to compare between base and candidate, over one or more pairs of cells.

    `pairs`: base's cell, candidate's cell, level; `decides`: whether the verdict rests on it.
    """

    arm: str
    quantity: str
    pairs: tuple[tuple[Cell, Cell, int], ...]
    decides: bool

    @property
    def title(self) -> str:
        """Name of the quantity."""
        return _TITLES[self.quantity]

    @property
    def more_is_better(self) -> bool:
        """Whether a larger value is better."""
        return self.quantity in _MORE_IS_BETTER


@dataclass(frozen=True)
class Evaluation:
    """A claim with its evaluation.

    `base`, `candidate`: geometric means over the blocks with both; `usable`: number of blocks with a value of each;
    `idle`: whether the arm was not active in these blocks, on either build.
    """

    claim: BuildClaim
    look: Look
    base: float
    candidate: float
    usable: tuple[int, int]
    idle: bool = False

    @property
    def answer(self) -> Answer:
        """The answer of the look; an idle arm is never better, because its tier cannot be why."""
        return "open" if self.ahead_although_idle else self.look.answer

    @property
    def ahead_although_idle(self) -> bool:
        """Whether an idle arm measured better on the candidate."""
        return self.idle and self.look.answer == "better"

    @property
    def most_cost(self) -> float:
        """The most that the candidate costs, in per cent of the base, by the end of the interval; 0 if nothing."""
        return max(0.0, -self.look.low if self.claim.more_is_better else self.look.high)

    def candidate_fails(self, first: int) -> bool:
        """Whether the base gave a value in `first` blocks or more, and the candidate in none."""
        return self.usable[0] >= first and self.usable[1] == 0


def claims_of(
    config: Config, cells: Mapping[Cell, tuple[Cell, Cell]]
) -> list[BuildClaim]:
    """Return what a check compares: throughput, latencies of each arm at each level; cold prompts of each scenario.

    `cells`: requested cell -> the cells of the base and of the candidate.
    """
    claims: list[BuildClaim] = []
    cold: dict[str, list[tuple[Cell, Cell, int]]] = {}
    for cell, (base, candidate) in cells.items():
        for level in config.workload.given_levels:
            pair = (base, candidate, level)
            where = (
                cell.arm
                if len(config.workload.given_levels) == 1
                else f"{cell.arm}, level {level}"
            )
            claims += [
                BuildClaim(where, name, (pair,), name == SHOWN[0])
                for name in SHOWN
                if name != COLD
            ]
            if config.workload.prime:
                cold.setdefault(cell.scenario, []).append(pair)
    return claims + [
        BuildClaim(scenario, COLD, tuple(pairs), True)
        for scenario, pairs in cold.items()
    ]


def design_of(config: Config, claims: Sequence[BuildClaim]) -> Design:
    """Return the sequential design of a check: a look after FIRST_LOOK blocks and after each later one."""
    comparison, deciding = (
        config.campaign.comparison,
        sum(claim.decides for claim in claims),
    )
    first = min(FIRST_LOOK, config.campaign.runs)
    return Design(
        first, config.campaign.runs, comparison.margin, comparison.alpha, deciding
    )


def evaluate_claims(
    claims: Sequence[BuildClaim], blocks: Sequence[Values], design: Design
) -> list[Evaluation]:
    """Evaluate every claim; `blocks`: the values of each block, which counts for a claim if both builds have values.

    Blocks in which the arm was idle on both builds count if it was active on both in none: they show what it costs.
    """
    evaluations = []
    for claim in claims:
        active = _pairs(claim, blocks, idle=False)
        at_rest = _pairs(claim, blocks, idle=True)
        base, candidate = np.array(active or at_rest).reshape(-1, 2).T
        seen = evaluate_look(
            base, candidate, design, more_is_better=claim.more_is_better
        )
        means = [
            float(np.exp(side.mean())) if len(side) else math.nan
            for side in (base, candidate)
        ]
        usable = [_blocks_with(claim, blocks, side) for side in (0, 1)]
        idle = bool(at_rest) and not active
        evaluations.append(
            Evaluation(claim, seen, means[0], means[1], (usable[0], usable[1]), idle)
        )
    return evaluations


def _pairs(
    claim: BuildClaim, blocks: Sequence[Values], *, idle: bool
) -> list[tuple[float, float]]:
    """The pairs of all blocks that have one, as `_pair` gives them.

    Prompts are taken in cold before an arm can be active: these count whether it was, and are those of an idle arm if
    it was active in no block.
    """
    if claim.quantity == COLD:
        ever_active = any(
            _is_active(claim, block, side) for block in blocks for side in (0, 1)
        )
        both = [
            _pair(claim, block, (False, True))
            for block in blocks
            if ever_active != idle
        ]
    else:
        both = [_pair(claim, block, (idle,)) for block in blocks]
    return [pair for pair in both if pair is not None]


def _pair(
    claim: BuildClaim, block: Values, idle: Collection[bool]
) -> tuple[float, float] | None:
    """Return the mean ln values of base and candidate in a block, over the pairs of cells that have both.

    `idle`: whether an arm may have been idle on both builds, on neither, or anything if both are given.
    """
    name = claim.quantity
    there = []
    for base, candidate, level in claim.pairs:
        at_base, at_candidate = (base, level, name), (candidate, level, name)
        if at_base not in block or at_candidate not in block:
            continue
        at_rest = {(base, level, IDLE) in block, (candidate, level, IDLE) in block}
        if len(idle) > 1 or at_rest == set(idle):
            there.append((math.log(block[at_base]), math.log(block[at_candidate])))
    if not there:
        return None
    base, candidate = np.mean(there, axis=0)
    return float(base), float(candidate)


def _is_active(claim: BuildClaim, block: Values, side: int) -> bool:
    """Whether a build has a value in a block of an arm that was not idle."""
    cells = [(pair[side], pair[2]) for pair in claim.pairs]
    return any(
        (*at, claim.quantity) in block and (*at, IDLE) not in block for at in cells
    )


def _has(claim: BuildClaim, block: Values, side: int) -> bool:
    """Whether a build has a value in a block; that of an idle arm is none where it was active on the other build."""
    some = any((pair[side], pair[2], claim.quantity) in block for pair in claim.pairs)
    left_out = _is_active(claim, block, 1 - side) and not _is_active(claim, block, side)
    return some and (claim.quantity == COLD or not left_out)


def _blocks_with(claim: BuildClaim, blocks: Sequence[Values], side: int) -> int:
    return sum(_has(claim, block, side) for block in blocks)


def verdict_of(
    evaluations: Sequence[Evaluation], blocks: int, design: Design
) -> Verdict:
    """Return the verdict after some blocks: one worse claim is a regression; other verdicts need all claims decided.

    A candidate fails if it gave no value of a deciding claim, and the base as many as the first look needs.
    """
    deciding = [evaluation for evaluation in evaluations if evaluation.claim.decides]
    ahead = [evaluation for evaluation in deciding if evaluation.ahead_although_idle]
    answers = {evaluation.answer for evaluation in deciding if evaluation not in ahead}
    if "worse" in answers:
        return "regression"
    if any(evaluation.candidate_fails(design.first) for evaluation in deciding):
        return "candidate fails"
    if blocks >= design.first and not any(
        sum(evaluation.usable) for evaluation in deciding
    ):
        return "nothing measured"
    if "open" in answers or not answers:
        return "not enough"
    if "better" in answers:
        return "improvement"
    return "not enough" if ahead else "no difference that matters"
