"""Effects of arms from the values of single runs: at other levels than the compared one, and of quiet runs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kveval.estimators.intervals import mean_interval
from kveval.report.result.model import (
    CampaignResult,
    ReportedCell,
    ReportedComparison,
    ReportedInterval,
)
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import METRICS

_JUDGED = (words.BETTER, words.WORSE, words.PARITY, words.INCONCLUSIVE)


@dataclass(frozen=True)
class LevelEffect:
    """The effect of an arm at a level: per cent of its baseline, with its interval; whether it is a gain."""

    comparison: ReportedComparison
    level: int
    effect_percent: ReportedInterval
    is_gain: bool


def effects_elsewhere(
    result: CampaignResult, compared: Sequence[ReportedComparison]
) -> list[LevelEffect]:
    """Return the effects at other levels that differ from what the verdicts at the compared level say.

    A gain of an arm without one there, or a loss of an arm without one there, beyond the margin and with an interval that
    excludes none. The intervals are Student's over the runs that both sides have at the level and whose checks passed,
    95 % for all of them together (Bonferroni). Arms that cannot be compared, and idle ones, are left out.
    """
    compared = [
        comparison
        for comparison in compared
        if comparison.verdict in _JUDGED and not words.is_of_idle_arm(comparison.row)
    ]
    at_levels = [
        (comparison, level, logs)
        for comparison in compared
        for level, logs in _ratios(result, comparison)
    ]
    confidence = 1 - 0.05 / max(len(at_levels), 1)
    differing = []
    for comparison, level, logs in at_levels:
        low, high = (100 * (end - 1) for end in mean_interval(logs, confidence))
        value = 100 * float(np.expm1(logs.mean()))
        beyond = abs(value) > 100 * result.campaign.margin
        if not beyond or not (low > 0 or high < 0):
            continue
        is_gain = (value > 0) == METRICS[comparison.metric]
        stated = words.BETTER if is_gain else words.WORSE
        if not comparison.verdict.startswith(stated):
            interval = ReportedInterval(value=value, low=low, high=high)
            differing.append(LevelEffect(comparison, level, interval, is_gain))
    return differing


def _ratios(
    result: CampaignResult, comparison: ReportedComparison
) -> list[tuple[int, np.ndarray]]:
    """Level -> the logarithms of the ratios of an arm to its baseline, a run each, of other levels with several runs."""
    if comparison.against is None:
        return []
    arm = result.by_cell[comparison.cell]
    baseline = result.by_cell[comparison.against.cell]
    ratios = []
    for at in arm.levels:
        if at.level == comparison.level or "none" in at.activity:
            continue
        values = _usable(arm, at.level, comparison.metric)
        others = _usable(baseline, at.level, comparison.metric)
        runs = sorted({*values} & {*others})
        if len(runs) > 1:
            logs = [np.log(values[run] / others[run]) for run in runs]
            ratios.append((at.level, np.array(logs)))
    return ratios


@dataclass(frozen=True)
class QuietEffect:
    """The effect of an arm over the runs that no other program disturbed, and how many these are; None with none."""

    effect_percent: ReportedInterval | None
    runs: int


def effect_of_quiet_runs(
    result: CampaignResult, comparison: ReportedComparison
) -> QuietEffect:
    """Return the effect of a comparison without disturbed runs of either side, with Student's 95 % interval over runs."""
    if comparison.against is None:
        return QuietEffect(None, 0)
    sides = comparison.cell, comparison.against.cell
    disturbed = {run.run for run in result.runs if run.disturbed and run.cell in sides}
    runs = [run for run in comparison.runs_kept if run not in disturbed]
    values = [
        result.by_cell[side].values(comparison.level, comparison.metric, runs)
        for side in sides
    ]
    if not runs or len(values[0]) != len(values[1]):
        return QuietEffect(None, 0)
    logs = np.log(values[0]) - np.log(values[1])
    low, high = (100 * (end - 1) for end in mean_interval(logs))
    value = 100 * float(np.expm1(logs.mean()))
    interval = ReportedInterval(value=value, low=low, high=high)
    return QuietEffect(interval, len(runs))


def _usable(cell: ReportedCell, level: int, metric: str) -> dict[int, float]:
    """Run -> its value at a level, of the runs that passed the checks there and delivered something."""
    at = cell.at(level)
    if at is None:
        return {}
    return {
        run: value
        for run, value in at.by_run_of(metric).items()
        if value > 0 and run not in at.failed_runs
    }
