"""One comparison on its way to a verdict: the question, the runs it rests on and what is found of them, its estimate.

A question has paired runs (`pairing.py`), of which some are usable (`exclusions.py`). With what is found of these, inputs
of the verdict and what keeps the comparison from one, they are its basis. `estimates.py` adds effect and interval, and
`verdict/verdicts.py`, where the steps follow each other, the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from kveval.campaign.cell import Cell
from kveval.estimators.intervals import Contrast
from kveval.load.sample_sizes import MIN_RUNS, MOST_FAILED
from kveval.tables.levels.goodput import GOODPUT
from kveval.verdict import limits_met
from kveval.verdict.exclusions import (
    SIDES,
    Exclusion,
    UsableRuns,
    machine,
    unknown_latency,
)
from kveval.verdict.findings import ComparisonFinding, new_finding, obstacle
from kveval.verdict.inputs import findings_of_levels, wrong_answers
from kveval.verdict.sides import Sides
from kveval.verdict.uncertainty import Starvation, starvation

Kind = Literal["baseline", "contrast", "sizes", "peak", "copies"]
_TOO_FEW = frozenset({"few_runs", "no_common_value", "no_common_level"})
# What refuses a comparison whose runs are all right.
_OF_THE_LEVEL = frozenset({"past_the_peak", "limits_never_met"})


@dataclass(frozen=True)
class Question:
    """A cell that is compared with another in a metric; no `reference` where the baseline is missing or not unique.

    `kind`: with its baseline, as a declared contrast, as neighbouring sizes of an arm, each at its own peak, or as two
    that ran the same configuration. `differs`: the settings in which the pair is declared to differ.
    """

    arm: Cell
    reference: Cell | None
    kind: Kind
    metric: str
    differs: tuple[str, ...] = ()

    @property
    def cells(self) -> frozenset[Cell | None]:
        """Both cells, whichever is compared with the other."""
        return frozenset((self.arm, self.reference))

    @property
    def labels(self) -> tuple[str, str]:
        """The names of both cells."""
        return self.arm.label, (self.reference or self.arm).label


@dataclass(frozen=True, eq=False)
class ComparisonBasis:
    """The runs that a comparison rests on, and what was found of them.

    `level`: the common level, or the cell's own peak, None where there is none; `replicate`: both cells ran the same
    configuration.
    """

    question: Question
    level: int | None
    usable: UsableRuns
    findings: tuple[ComparisonFinding, ...]
    replicate: bool = False

    @cached_property
    def sides(self) -> Sides:
        """The rows of the runs that give the effect."""
        kept = [pair.known_rows for pair in self.usable.kept]
        return Sides(
            self.question.metric,
            [reference for _, reference in kept],
            [arm for arm, _ in kept],
            self.question.differs,
        )

    @property
    def idle(self) -> bool:
        """Whether the arm was not active in any run, and is judged on what it costs."""
        return self.usable.never_active

    @property
    def not_exercised(self) -> bool:
        """Whether too few runs were active, of an arm that was active in some."""
        return self.usable.active is False and not self.idle

    @property
    def obstacle(self) -> ComparisonFinding | None:
        """The finding that keeps the comparison from a verdict, None if nothing does."""
        return obstacle(self.findings)

    @cached_property
    def starvation(self) -> Starvation:
        """By how much requests in flight fell short of those asked for, on either side."""
        return starvation(self.sides.reference, self.sides.arm)

    @property
    def levels_compared(self) -> list[int]:
        """The levels of the values, each once."""
        paired = self.usable.paired
        if self.question.kind != "peak":
            return sorted(set(self._reference_levels))
        used = {
            paired.levels[side].get(run, 0)
            for pair in paired.pairing.pairs
            for side, run in enumerate(pair)
        }
        return sorted(used)

    @property
    def _reference_levels(self) -> tuple[int, ...]:
        levels = self.usable.paired.levels[1]
        return tuple(levels.get(pair.reference_run, 0) for pair in self.usable.kept)

    @property
    def group(self) -> tuple[Any, ...]:
        """The key of the comparisons that are estimated together, with a shared residual: those of the same blocks.

        A side in which nothing met the limits has no spread over runs, so it shares none with other cells.
        """
        question = self.question
        # Runs with other numbers are blocks of this reference alone.
        apart = None if self.usable.paired.pairing.by_number else question.reference
        runs = tuple(pair.reference_run for pair in self.usable.kept)
        sound = [pair for pair in self.usable.with_values if not pair.defects]
        few = len(sound) < MIN_RUNS
        group: tuple[Any, ...] = (apart, runs, few, self._reference_levels)
        if question.kind == "peak":
            group = ("peak", question.reference, runs, few)
        of_goodput = question.metric == GOODPUT
        alone = of_goodput and limits_met.is_none_met_on_one_side(self.sides)
        return (*group, question.arm) if alone else group

    @property
    def stated_exclusions(self) -> tuple[Exclusion, ...]:
        """The runs that the reason names beside the grounds: all, unless an obstacle names them or makes them idle.

        If too few runs are usable and something else refuses the comparison, those that failed are still named.
        """
        refusing = {
            finding.code for finding in self.findings if finding.severity == "refuses"
        }
        if "latencies_unknown" in refusing:
            return ()
        together = [
            exclusion
            for exclusion in self.usable.exclusions
            if exclusion.code != "other_time"
        ]
        if refusing & _TOO_FEW:
            others = refusing - _TOO_FEW - {"goodput_unknown"}
            failed = tuple(exclusion for exclusion in together if exclusion.failed)
            return failed if others else ()
        if refusing - _OF_THE_LEVEL:
            return tuple(together)
        return self.usable.exclusions


@dataclass(frozen=True)
class Estimate:
    """A comparison with its effect.

    `contrast`: the effect with its errors, None with too few runs; `sd`: the spread of one run on the ln scale; `cells`:
    how many were measured in its blocks; `findings`: those of the basis and of the estimation.
    """

    basis: ComparisonBasis
    findings: tuple[ComparisonFinding, ...]
    contrast: Contrast | None = None
    sd: float = float("nan")
    cells: int = 2

    @property
    def question(self) -> Question:
        """The question."""
        return self.basis.question

    @property
    def sides(self) -> Sides:
        """The rows of the runs that give the effect."""
        return self.basis.sides

    @property
    def obstacle(self) -> ComparisonFinding | None:
        """The finding that keeps the comparison from a verdict, None if nothing does."""
        return obstacle(self.findings)

    @property
    def effect_ln(self) -> float | None:
        """The effect on the ln scale, None without common runs."""
        if self.contrast is not None:
            return self.contrast.theta
        measured = len(self.sides) > 0 and self.question.reference is not None
        return self.sides.difference if measured else None

    @property
    def can_have_verdict(self) -> bool:
        """Whether the comparison can have a verdict."""
        return (
            self.contrast is not None
            and self.obstacle is None
            and not self.basis.replicate
            and not self.basis.not_exercised
        )


@dataclass(frozen=True)
class Judgement:
    """The word for a comparison, one of `verdict_words`, and its grounds. `indication`: what an indicative one points to."""

    word: str
    grounds: tuple[ComparisonFinding, ...] = ()
    indication: str = ""


@dataclass(frozen=True)
class ComparisonVerdict:
    """A comparison with its verdict.

    `bound`: whether the difference is at least or at most as large as measured; `confidence`: of the interval that is
    shown, the one that decides. `p_parity`: of an idle arm, that it costs less than the margin. `runs_to_resolve`: the
    margin, whatever was measured, None for more than 1,000.
    """

    estimate: Estimate
    family: str
    judgement: Judgement
    bound: str = ""
    confidence: float = 0.95
    p_parity: float = float("nan")
    p_holm: float = float("nan")
    p_parity_holm: float = float("nan")
    cost_percent: float = float("nan")
    runs_to_resolve: int | None = None
    parity_power: float = float("nan")

    @property
    def question(self) -> Question:
        """The question."""
        return self.estimate.question

    @property
    def runs_to_decide(self) -> int | None:
        """The runs that would decide it at the measured effect, None if it is decided, or for more than 1,000."""
        for finding in self.judgement.grounds:
            if finding.code == "more_runs":
                runs: int | None = finding.facts["runs"]
                return runs
        return None

    @property
    def p_value(self) -> float:
        """The p value of no difference, not adjusted; NaN without errors, and of peaks, which are not tested."""
        contrast = self.estimate.contrast
        tested = contrast is not None and self.question.kind != "peak"
        return contrast.p_difference() if contrast and tested else float("nan")


def contrast_pairs(
    cells: Sequence[Cell], arm_name: str, reference_name: str
) -> list[tuple[Cell, Cell]]:
    """Return the pairs of a model's cells that a declared contrast means: SCENARIO/CPU_BLOCKS names one cell; SCENARIO
    alone names all sizes, each paired with the same size of the other side, or with its only cell.
    """
    pairs = []
    references = [cell for cell in cells if cell.is_named(reference_name)]
    for arm in (cell for cell in cells if cell.is_named(arm_name)):
        chosen = references
        if "/" not in reference_name and len(references) > 1:
            chosen = [cell for cell in references if cell.cpu_blocks == arm.cpu_blocks]
        pairs += [(arm, reference) for reference in chosen if reference != arm]
    return pairs


def neighbouring_sizes(cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Return each of the cells with a CPU tier beside the cell with the next smaller size of its arm, if there is one."""
    sizes: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.cpu_blocks:
            sizes.setdefault((cell.model, cell.scenario), []).append(cell)
    return [
        (larger, smaller)
        for of_arm in sizes.values()
        for smaller, larger in pairwise(sorted(of_arm))
    ]


def findings_of(usable: UsableRuns, sides: Sides) -> Iterator[ComparisonFinding]:
    """Yield what is found of the runs of a comparison, each input in turn; what refuses it, the most fundamental last."""
    if not usable.enough:
        yield _too_few(usable)
    yield from _hardware(usable)
    yield from _activity(usable)
    blocks = "shared_blocks" if usable.paired.pairing.together else "another_time"
    yield new_finding(blocks)
    yield from findings_of_levels(sides)
    yield from _runs(usable)
    rows = (row for pair in usable.pairs for row in pair.rows if row is not None)
    if changed := wrong_answers(list(rows)):
        yield changed
    yield from _latencies(usable)
    if sides.metric == GOODPUT:
        failed = any(exclusion.failed for exclusion in usable.exclusions)
        if not sides.arm and not failed:
            yield new_finding("goodput_unknown")


def _too_few(usable: UsableRuns) -> ComparisonFinding:
    """Return why too few blocks are fit for a verdict."""
    exclusions = [each for each in usable.exclusions if each.has_words]
    fit = len(usable.usable)
    if not usable.with_values:
        some = any(exclusion.summary for exclusion in exclusions)
        return new_finding("no_common_value" if some else "no_common_level")
    absent = ("not_measured", "not_imported")
    if fit == 1 and all(exclusion.code in absent for exclusion in exclusions):
        return new_finding("single_run")
    return new_finding("few_runs", usable=fit, blocks=usable.blocks)


def _hardware(usable: UsableRuns) -> Iterator[ComparisonFinding]:
    """Yield what the machines of the pairs with values were; nothing without a pair."""
    pairs = [tuple(map(machine, pair.known_rows)) for pair in usable.with_values]
    if not pairs:
        return
    unlike = sum(arm != reference for arm, reference in pairs)
    fit = len(usable.usable)
    if unlike:
        all_unlike = unlike == len(pairs)
        refused = all_unlike or fit < MIN_RUNS <= fit + unlike
        code = "other_machine" if refused else "other_machine_in_some_runs"
        yield new_finding(code, unlike=unlike, pairs=len(pairs))
        return
    machines = {name for pair in pairs for name in pair}
    if "" in machines:
        yield new_finding("machine_unknown")
    else:
        one = len(machines) == 1
        yield new_finding("one_machine" if one else "one_machine_in_each_run")


def _activity(usable: UsableRuns) -> Iterator[ComparisonFinding]:
    """Yield whether the arms were active; nothing where that is not known."""
    if usable.never_active:
        yield new_finding("never_active")
        return
    pairs = usable.of_known_activity
    if not pairs:
        return
    arm_idle = any(pair.activity[0] is False for pair in pairs)
    side = "arm" if arm_idle else "reference"
    active = len(pairs) - len(usable.idle)
    if not active:
        yield new_finding("not_active", side=side)
    else:
        code = "few_active" if usable.too_idle else "active"
        yield new_finding(code, side=side, active=active, known=len(pairs))


def _runs(usable: UsableRuns) -> Iterator[ComparisonFinding]:
    """Yield how many runs are left out; nothing if no run is, or if it says nothing of either cell."""
    exclusions = [each for each in usable.exclusions if each.summary]
    if not exclusions:
        return
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for exclusion in exclusions:
        count = counts.setdefault(
            (exclusion.side, exclusion.summary),
            {
                "side": exclusion.side,
                "code": exclusion.code,
                "runs": 0,
                "blocks": usable.blocks,
            },
        )
        count["runs"] += 1
    failed = Counter(
        exclusion.side for exclusion in usable.exclusions if exclusion.failed
    )
    many = [side for side in SIDES if failed[side] > MOST_FAILED * usable.blocks]
    yield new_finding("runs_left_out", counts=[*counts.values()], against=many)


def _latencies(usable: UsableRuns) -> Iterator[ComparisonFinding]:
    """Yield that too few runs have a known latency, if so."""
    unknown = []
    for pair in usable.pairs:
        causes = (
            unknown_latency(row, usable.paired.metric, side)
            for side, row in zip(SIDES, pair.rows, strict=True)
            if row is not None
        )
        unknown += list(filter(None, causes))[:1]
    pairs = len(usable.pairs)
    if unknown and pairs - len(unknown) < MIN_RUNS:
        yield new_finding(
            "latencies_unknown",
            side=unknown[0].side,
            first=asdict(unknown[0]),
            unknown=len(unknown),
            pairs=pairs,
        )
