"""Simulations of whole campaigns with misleading designs, from tables to verdicts: rows for bench_statistics.py.

All effects are 0 unless stated, so that every "better" and "worse" is wrong.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from kveval.campaign.campaign_file import Comparison
from kveval.estimators.intervals import percent
from kveval.estimators.power import parity_power
from kveval.estimators.spreads import Array
from kveval.verdict.comparison import ComparisonVerdict
from kveval.verdict.verdicts import Verdicts, judge_all

THROUGHPUT = {"throughput_tok_s": True}
# Hours that a run takes.
_RUN = 0.2


def compared(
    logs: Array, starts: Array, same: tuple[int, ...] = (), peaks: bool = False
) -> Verdicts:
    """Compare cells with the first. `logs`: runs x cells (x levels); `starts`: hours, runs x cells.

    `same`: the cells that ran one configuration; `peaks`: whether peaks are compared with peaks as well.
    """
    table = logs.reshape(*logs.shape[:2], -1)
    run, cell, level = (index.ravel() for index in np.indices(table.shape))
    begun = pd.Timestamp("2026-01-01T00:00Z") + pd.to_timedelta(
        starts[run, cell], unit="h"
    )
    frame = pd.DataFrame(
        {
            **{
                "model": "m",
                "scenario": [f"c{number}" for number in cell],
                "cpu_blocks": 0,
                "run": run + 1,
            },
            **{
                "level": level + 1,
                "throughput_tok_s": 500 * np.exp(table.ravel()),
                "exercised": None,
            },
            **{
                "checks_failed": "",
                "output_tokens": 1e5,
                "ttft_count": 1e4,
                "requests_completed": 1e4,
            },
            "workload": "prompt_tokens=64;output_tokens=64",
            "configuration": [
                "same" if number in same else f"c{number}" for number in cell
            ],
            "run_started": begun.map(pd.Timestamp.isoformat),
            "run_finished": (begun + pd.Timedelta(hours=0.9 * _RUN)).map(
                pd.Timestamp.isoformat
            ),
        }
    )
    baselines = {
        f"c{number}": "c0" if number else None for number in range(table.shape[1])
    }
    return judge_all(frame, baselines, Comparison(), THROUGHPUT, peaks=peaks)


def in_order(runs: int, cells: int) -> Array:
    """Start times in hours, runs x cells, of blocks that are all measured in the same order."""
    return _RUN * (np.arange(runs)[:, None] * cells + np.arange(cells))


def at_random(generator: np.random.Generator, runs: int, cells: int) -> Array:
    """Start times in hours, runs x cells, of blocks that are each measured in a random order."""
    return _RUN * (
        np.arange(runs)[:, None] * cells
        + generator.permuted(np.tile(np.arange(cells), (runs, 1)), axis=1)
    )


def _differ(found: Sequence[ComparisonVerdict]) -> list[bool]:
    return [verdict.judgement.word in ("better", "worse") for verdict in found]


def _covered(found: Sequence[ComparisonVerdict]) -> float:
    """The share of 95 % intervals that contain 0, by the p value, because for parity a verdict has the 90 % interval."""
    return float(np.mean([verdict.p_value >= 0.05 for verdict in found]))


def with_drift(
    runs: int,
    cells: int,
    slowing: float,
    count: int,
    fixed: bool = True,
    effect: float = 0.0,
) -> tuple[float, float]:
    """Share of campaigns in which any arm but the last is called different, and in which the last is.

    The machine slows down by `slowing` over a block; the last arm has `effect`.
    """
    generator, wrong, last = np.random.default_rng(21), 0, 0
    for _ in range(count):
        starts = in_order(runs, cells) if fixed else at_random(generator, runs, cells)
        logs = generator.normal(0, 0.02, (runs, cells)) + generator.normal(
            0, 0.01, (runs, 1)
        )
        logs -= slowing * starts / (_RUN * cells)
        logs[:, -1] += effect
        differ = _differ(compared(logs, starts).baseline)
        wrong, last = wrong + any(differ[:-1]), last + differ[-1]
    return wrong / count, last / count


def later_day(count: int, days: float = 0.04) -> tuple[float, float]:
    """Share of campaigns in which an arm added on a later day is called different, and any of the earlier arms.

    Three runs of four cells; on another day two more runs, and five of a new arm. `days`: SD of the days' difference.
    """
    generator, new, old = np.random.default_rng(22), 0, 0
    for _ in range(count):
        starts = np.vstack(
            [at_random(generator, 3, 4), at_random(generator, 2, 4) + 30]
        )
        starts = np.column_stack(
            [starts, np.r_[27 + _RUN * np.arange(3), starts[3:].max(axis=1) + _RUN]]
        )
        logs = generator.normal(0, 0.02, (5, 5)) + np.where(
            starts > 20, generator.normal(0, days), 0.0
        )
        differ = _differ(compared(logs, starts).baseline)
        new, old = new + differ[-1], old + any(differ[:-1])
    return new / count, old / count


def with_pauses(
    cells: int, groups: tuple[int, ...], share: float, count: int, pause: float = 20.0
) -> dict[str, float]:
    """Coverage and family-wise error where runs between two pauses have the part `share` of their variance in common.

    `groups`: runs between pauses of `pause` hours.
    """
    generator, runs = np.random.default_rng(23), sum(groups)
    of = np.repeat(np.arange(len(groups)), groups)
    held = wrong = 0.0
    for _ in range(count):
        starts = at_random(generator, runs, cells) + pause * of[:, None]
        logs = generator.normal(0, 0.02 * np.sqrt(share), (len(groups), cells))[of]
        logs = logs + generator.normal(0, 0.02 * np.sqrt(1 - share), (runs, cells))
        found = compared(logs, starts).baseline
        held += _covered(found)
        wrong += any(_differ(found))
    return {"coverage": held / count, "error": wrong / count}


def copies(apart: float, effect: float, count: int) -> tuple[float, float]:
    """Share of campaigns in which an arm without effect, and one with `effect`, is called different.

    The campaigns also have two cells with one configuration that differ by `apart`; 5 runs, SD 1.5 %.
    """
    generator, wrong, right = np.random.default_rng(24), 0, 0
    for _ in range(count):
        # The third cell, without an effect, is about as far from the baseline as the copies are from each other.
        logs = np.array([0.0, effect, 0.9 * apart, 0.0, apart]) + generator.normal(
            0, 0.015, (5, 5)
        )
        differ = _differ(
            compared(logs, at_random(generator, 5, 5), same=(3, 4)).baseline
        )
        wrong, right = wrong + differ[1], right + differ[0]
    return wrong / count, right / count


def flat_peaks(arms: int, levels: int, runs: int, count: int) -> float:
    """Coverage of the intervals of peaks against peaks, where all levels of all cells are equal."""
    generator, held = np.random.default_rng(25), 0
    for _ in range(count):
        logs = generator.normal(0, 0.02, (runs, arms + 1, levels)) + generator.normal(
            0, 0.03, (runs, 1, 1)
        )
        found = compared(logs, at_random(generator, runs, arms + 1), peaks=True).peaks
        for verdict in found:
            contrast = verdict.estimate.contrast
            assert contrast is not None
            held += contrast.p_difference() >= 0.05
    return held / count / arms


def found_beside_others(count: int) -> tuple[float, float, float]:
    """Share of campaigns in which +12.7 % and -7.7 % among seven arms are found, 5 runs, SD 2 %; mean half width of 95 %."""
    generator, found, width = np.random.default_rng(26), np.zeros(2), 0.0
    effects = np.log([1, 1.127, 0.923, 1, 1, 1, 1, 1])
    for _ in range(count):
        logs = (
            effects
            + generator.normal(0, 0.02, (5, 8))
            + generator.normal(0, 0.03, (5, 1))
        )
        verdicts = compared(logs, at_random(generator, 5, 8)).baseline
        found += _differ(verdicts)[:2]
        contrast = verdicts[0].estimate.contrast
        assert contrast is not None
        low, high = contrast.interval(0.95)
        width += (percent(high) - percent(low)) / 2
    return float(found[0]) / count, float(found[1]) / count, width / count


def parity_said(arms: int, runs: int, sd: float, count: int) -> tuple[float, float]:
    """Chance of parity as planned from the true spread, and the share of equal arms at parity."""
    generator, shown = np.random.default_rng(27), 0.0
    for _ in range(count):
        verdicts = compared(
            generator.normal(0, sd, (runs, arms + 1)),
            at_random(generator, runs, arms + 1),
        ).baseline
        words = [verdict.judgement.word for verdict in verdicts]
        shown += words.count("parity") / arms
    return parity_power(sd, 0.05, runs, arms + 1, comparisons=arms), shown / count


def rows(count: int) -> Iterator[tuple[str, str, str]]:
    """The table, row by row: what, measured, promised."""

    def per_cent(*values: float) -> str:
        return ", ".join(f"{100 * value:.1f} %" for value in values)

    for cells, runs in ((2, 5), (4, 5), (4, 3)):
        for slowing in (0.02, 0.06, 0.12):
            wrong = with_drift(runs, cells, slowing, count)
            text = f"fixed order, {100 * slowing:g} % slower a block, R = {runs}, K = {cells}: called different"
            yield text, per_cent(max(wrong)), "at most 6 %"
    for runs in (3, 5):
        text = f"fixed order, no drift, R = {runs}, K = 4: +12.7 % found"
        yield (
            text,
            per_cent(with_drift(runs, 4, 0.0, count, effect=np.log(1.127))[1]),
            "above 80 %",
        )
    wrong = with_drift(5, 4, 0.06, count, fixed=False)
    yield (
        "random order, 6 % slower a block, R = 5, K = 4: called different",
        per_cent(max(wrong)),
        "at most 6 %",
    )
    yield (
        "new arm and runs of a later day: new arm, others called different",
        per_cent(*later_day(count)),
        "at most 6 %",
    )
    for cells, groups in ((8, (2, 2, 2)), (3, (2, 2, 2)), (8, (3, 2))):
        for share in (0.0, 0.3, 0.6):
            found = with_pauses(cells, groups, share, count)
            text = f"pauses between {' + '.join(map(str, groups))} runs, {100 * share:g} % shared, K = {cells}"
            yield (
                f"{text}: coverage, error",
                per_cent(*found.values()),
                "93 to 97 %, at most 6 %",
            )
    text = "copies 7.6 % apart: an arm that far off, one of +20 % called different"
    yield text, per_cent(*copies(0.073, np.log(1.2), count)), "at most 6 %, above 90 %"
    for arms, levels, runs in ((18, 8, 5), (18, 3, 5), (7, 4, 3)):
        found = flat_peaks(arms, levels, runs, count // 2)
        text = f"peaks of {levels} equal levels, {arms} arms, R = {runs}: coverage"
        yield text, per_cent(found), "93 to 98 %"
    *found, width = found_beside_others(count)
    text = f"{per_cent(*found)}; +-{width:.2f} %"
    yield (
        "+12.7 %, -7.7 % among 7 arms found; half width of the first",
        text,
        "above 95 %; below 3.56 %",
    )
    for arms, runs, sd in ((8, 5, 0.02), (8, 5, 0.025), (8, 3, 0.02), (1, 5, 0.02)):
        said = parity_said(arms, runs, sd, count)
        yield (
            f"parity of {arms} equal arms, R = {runs}, SD {100 * sd:g} %: said, true",
            per_cent(*said),
            "alike",
        )
