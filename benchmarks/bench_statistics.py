"""Coverage and error rates of the statistics: simulations with known truth, as a table; tests run fewer of them.

    python benchmarks/bench_statistics.py [REPETITIONS]

Coverage is the share of nominal 95 % intervals that hold the truth; the family-wise error is the share of campaigns of
seven scenarios, all equal to their baseline, in which any is called better or worse.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import bench_designs

from kveval.campaign.campaign_file import Comparison
from kveval.estimators.intervals import (
    contrasts,
    holm,
    mean_interval,
    welch,
)
from kveval.estimators.spreads import Array
from kveval.estimators.survival import ObservedTimes, quantiles
from kveval.tables.level_selection import cross_fit
from kveval.verdict.uncertainty import widen_by_noise
from kveval.verdict.verdicts import judge_all

MARGIN = 0.05
BLOCK_SD = 0.03


def campaigns(
    runs: int, sds: Array, effects: Array, count: int, seed: int = 1
) -> Iterator[Array]:
    """Made-up ln throughput, runs x cells: blocks differ by 3 %, cell k by effects[k] and, run by run, by sds[k]."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        blocks = generator.normal(0, BLOCK_SD, (runs, 1))
        yield effects + blocks + generator.normal(0, 1, (runs, len(sds))) * sds


def block_coverage(runs: int, sds: Array, count: int) -> float:
    """Coverage of the contrasts of all cells with the first."""
    return float(coverage_by_cell(runs, sds, count).mean())


def coverage_by_cell(runs: int, sds: Array, count: int) -> Array:
    """Coverage of the contrast of each cell with the first."""
    effects = np.linspace(0.0, 0.1, len(sds))
    held = np.zeros(len(sds) - 1)
    for logs in campaigns(runs, sds, effects, count):
        intervals = np.array([contrast.interval(0.95) for contrast in contrasts(logs)])
        held += (intervals[:, 0] <= effects[1:]) & (effects[1:] <= intervals[:, 1])
    return held / count


def floor_coverage(
    runs: int, cells: int, between: float, count: int, within: float = 0.02
) -> float:
    """Coverage where every run knows its own noise, and runs differ by a further `between` times as much."""
    generator = np.random.default_rng(10)
    rows = [{"throughput_se": within}] * runs
    held = 0
    for _ in range(count):
        spread = within * np.hypot(1.0, between)
        logs = generator.normal(0, BLOCK_SD, (runs, 1)) + generator.normal(
            0, spread, (runs, cells)
        )
        for contrast in contrasts(logs):
            low, high = widen_by_noise(
                contrast, rows, rows, "throughput_tok_s"
            ).interval(0.95)
            held += low <= 0 <= high
    return held / count / (cells - 1)


def starved_verdicts(
    shortfall: float, saturated: bool, count: int
) -> tuple[float, float]:
    """Share of campaigns of two equal cells in which an arm with too few requests is called different, or at parity.

    If `saturated`, throughput stays the same with fewer requests in flight; else it falls in proportion.
    """
    generator = np.random.default_rng(11)
    short, full = (
        [{"concurrency_shortfall": shortfall}] * 3,
        [{"concurrency_shortfall": 0.0}] * 3,
    )
    found = np.zeros(2)
    for _ in range(count):
        logs = generator.normal(
            [0.0, 0.0 if saturated else np.log1p(-shortfall)], 0.02, (3, 2)
        )
        contrast = widen_by_noise(contrasts(logs)[0], full, short, "throughput_tok_s")
        found += contrast.p_difference() < 0.05, contrast.p_equivalence(MARGIN) < 0.05
    return float(found[0]) / count, float(found[1]) / count


def family_wise_error(runs: int, sds: Array, count: int) -> float:
    """Share of null campaigns with any significant difference after Holm's correction."""
    wrong = 0
    for logs in campaigns(runs, sds, np.zeros(len(sds)), count):
        wrong += (
            min(holm([contrast.p_difference() for contrast in contrasts(logs)])) < 0.05
        )
    return wrong / count


def parity_found(runs: int, sd: float, cells: int, count: int) -> float:
    """Share of true nulls for which both one-sided tests are significant after Holm's correction."""
    found = 0
    for logs in campaigns(runs, np.full(cells, sd), np.zeros(cells), count):
        found += sum(
            p < 0.05
            for p in holm(
                [contrast.p_equivalence(MARGIN) for contrast in contrasts(logs)]
            )
        )
    return found / count / (cells - 1)


def false_parity(runs: int, sd: float, cells: int, count: int) -> float:
    """Share of campaigns with any parity found, although all scenarios are exactly on the margin."""
    effects = np.r_[0.0, np.full(cells - 1, np.log1p(MARGIN))]
    wrong = 0
    for logs in campaigns(runs, np.full(cells, sd), effects, count):
        wrong += (
            min(holm([contrast.p_equivalence(MARGIN) for contrast in contrasts(logs)]))
            < 0.05
        )
    return wrong / count


def other_time_coverage(runs: int, count: int) -> float:
    """Coverage of the difference of cells that share no blocks."""
    generator = np.random.default_rng(2)
    held = 0
    for _ in range(count):
        arm, reference = (
            generator.normal(0.05, 0.036, runs),
            generator.normal(0.0, 0.036, runs),
        )
        low, high = welch(arm, reference).interval(0.95)
        held += low <= 0.05 <= high
    return held / count


def run_coverage(runs: int, count: int) -> float:
    """Coverage of a geometric mean over runs."""
    generator = np.random.default_rng(4)
    intervals = (mean_interval(generator.normal(6.0, 0.03, runs)) for _ in range(count))
    return float(np.mean([low <= np.exp(6.0) <= high for low, high in intervals]))


def peak_bias(sd: float, count: int, runs: int = 4) -> tuple[float, float]:
    """Mean bias, in per cent, of the best of eight equal levels: of its own mean, and cross-fitted."""
    generator = np.random.default_rng(7)
    tables = [
        pd.DataFrame(generator.normal(0, sd, (runs, 8)), columns=range(1, 9))
        for _ in range(count)
    ]
    own = [float(table.mean().max()) for table in tables]
    crossed = [float(np.log(cross_fit(table))) for table in tables]
    return float(100 * np.mean(own)), float(100 * np.mean(crossed))


def whole_campaigns(
    count: int, runs: int = 5, levels: int = 4, sd: float = 0.02
) -> dict[str, float]:
    """Coverage, family-wise error and parity of whole campaigns, tables in and verdicts out, on a flat top.

    Seven scenarios equal to their baseline, `levels` equal levels, so that the choice of the common level matters.
    """
    generator = np.random.default_rng(8)
    scenarios = ["no-offload", *(f"arm-{number}" for number in range(7))]
    baselines = {
        name: None if name == "no-offload" else "no-offload" for name in scenarios
    }
    grid = pd.MultiIndex.from_product(
        [scenarios, range(1, runs + 1), range(1, levels + 1)]
    )
    table = pd.DataFrame(grid.to_list(), columns=["scenario", "run", "level"])
    table = table.assign(
        model="m",
        cpu_blocks=0,
        exercised=None,
        checks_failed="",
        output_tokens=1e5,
        ttft_count=1e4,
    )
    table = table.assign(requests_completed=10_000, configuration=table["scenario"])
    table = table.assign(workload="prompt_tokens=64;output_tokens=64")
    held = wrong = parity = 0
    for _ in range(count):
        blocks = generator.normal(0, BLOCK_SD, runs + 1)[table["run"]]
        rates = 500 * np.exp(blocks + generator.normal(0, sd, len(table)))
        found = judge_all(
            table.assign(throughput_tok_s=rates),
            baselines,
            Comparison(),
            {"throughput_tok_s": True},
            peaks=False,
        ).baseline
        # The 95 % interval; beside parity a verdict has that of 90 %.
        held += sum(verdict.p_value >= 0.05 for verdict in found)
        words = [verdict.judgement.word for verdict in found]
        wrong += not {"better", "worse"}.isdisjoint(words)
        parity += words.count("parity")
    return {
        "coverage": held / count / 7,
        "error": wrong / count,
        "parity": parity / count / 7,
    }


def latency_bias(window: float, count: int) -> tuple[float, float]:
    """Relative bias of the 90th percentile of latency in a window that is `window` mean latencies long.

    First by the requests that began and ended in the window, then estimated with those that it cut off as well.
    """
    generator = np.random.default_rng(9)
    truth = float(np.exp(-0.5 + 1.2816))
    whole, estimated = [], []
    for _ in range(count):
        edges = np.cumsum(generator.lognormal(-0.5, 1.0, (200, 200)), axis=1)
        begin, finish = edges[:, :-1].ravel(), edges[:, 1:].ravel()
        start, end = 20.0, 20.0 + window
        seen = (begin < end) & (finish >= start)
        done = finish[seen] < end
        leave = np.where(done, finish[seen] - begin[seen], end - begin[seen])
        estimated.append(
            quantiles(
                ObservedTimes(np.maximum(start - begin[seen], 0), leave, done), [0.9]
            )[0]
        )
        inside = (begin >= start) & (finish < end)
        whole.append(float(np.quantile((finish - begin)[inside], 0.9)))
    return float(np.mean(whole)) / truth - 1, float(np.nanmean(estimated)) / truth - 1


def _per_cent(*values: float) -> str:
    return ", ".join(f"{100 * value:.1f} %" for value in values)


def _many_cells(count: int) -> Iterator[tuple[str, str, str]]:
    """The rows of 20 cells."""
    for runs, cells in ((3, 20), (5, 20)):
        for name, spread in (("", 1.0), (", baseline 4 x the spread", 4.0)):
            sds = np.r_[0.02 * spread, np.full(cells - 1, 0.02)]
            text = f"R = {runs}, K = {cells}{name}: coverage, family-wise error"
            found = (
                block_coverage(runs, sds, count // 2),
                family_wise_error(runs, sds, count),
            )
            yield text, _per_cent(*found), "93 to 97 %, at most 6 %"


def rows(count: int) -> Iterator[tuple[str, str, str]]:
    """The table, row by row: what, measured, promised."""

    even, wide_arm, wide_baseline = (
        np.full(8, 0.02),
        np.r_[np.full(7, 0.02), 0.08],
        np.r_[0.08, np.full(7, 0.02)],
    )
    quiet_baseline = np.r_[0.005, np.full(7, 0.02)]
    spreads = {
        **{"": even, ", one arm 4 x the spread": wide_arm},
        **{
            ", baseline 4 x the spread": wide_baseline,
            ", baseline 1/4 of the spread": quiet_baseline,
        },
    }
    for name, sds in spreads.items():
        for runs in (3, 5, 10):
            found = coverage_by_cell(runs, sds, count)
            text = f"coverage, blocks, R = {runs}, K = 8{name}: of all, of the last arm"
            yield (
                text,
                f"{_per_cent(float(found.mean()))}, {_per_cent(float(found[-1]))}",
                "93 to 97 %",
            )
    yield from _many_cells(count)
    yield (
        "coverage, blocks, R = 5, K = 2",
        _per_cent(block_coverage(5, np.full(2, 0.02), 4 * count)),
        "93 to 97 %",
    )
    for runs in (3, 5, 10):
        yield (
            f"coverage, t over R = {runs} runs",
            _per_cent(run_coverage(runs, 4 * count)),
            "93 to 97 %",
        )
    for cells in (2, 3, 8):
        for between in (0.0, 1.0, 3.0):
            text = f"coverage, noise within known, {between:g} x as much between, R = 3, K = {cells}"
            yield (
                text,
                _per_cent(floor_coverage(3, cells, between, count)),
                "93 to 97 %",
            )
    for saturated in (False, True):
        different, alike = starved_verdicts(0.15, saturated, count)
        text = f"equal cells, one 15 % short of requests{' at saturation' if saturated else ''}: different, alike"
        yield text, f"{_per_cent(different)}, {_per_cent(alike)}", "at most 5 %, -"
    yield (
        "coverage, measured at another time, R = 5",
        _per_cent(other_time_coverage(5, 4 * count)),
        "93 to 97 %",
    )
    for name, sds in spreads.items():
        for runs in (3, 5):
            text, error = (
                f"family-wise error, R = {runs}{name}",
                family_wise_error(runs, sds, 2 * count),
            )
            yield text, _per_cent(error), "at most 6 %"
    yield (
        "any parity on the margin, R = 5",
        _per_cent(false_parity(5, 0.02, 8, 2 * count)),
        "at most 6 %",
    )
    for runs, cells, promise in (
        (3, 8, "little"),
        (5, 8, "above 85 %"),
        (5, 9, "above 85 %"),
        (5, 3, "above 85 %"),
    ):
        found = parity_found(runs, 0.02, cells, count)
        yield (
            f"parity of true nulls, SD 2 %, R = {runs}, K = {cells}",
            _per_cent(found),
            promise,
        )
    yield from bench_designs.rows(count // 5)
    whole = whole_campaigns(count // 4)
    for name, promise in (
        ("coverage", "93 to 97 %"),
        ("error", "at most 6 %"),
        ("parity", "above 85 %"),
    ):
        yield (
            f"whole campaigns, 4 equal levels: {name}",
            _per_cent(whole[name]),
            promise,
        )
    own, crossed = peak_bias(0.06, count, runs=2)
    yield (
        "bias of a peak of 8 equal levels, SD 6 %",
        f"{own:+.1f} %, cross-fitted {crossed:+.1f} %",
        "0 %",
    )
    for window in (3.0, 10.0):
        naive, estimated = latency_bias(window, count // 10)
        text = f"{100 * naive:+.0f} %, estimated {100 * estimated:+.1f} %"
        yield f"bias of p90 in a window of {window:g} mean latencies", text, "0 %"


def main(count: int) -> None:
    """Print the table."""
    print(
        f"{count} repetitions, run SD 2 % unless said, blocks {100 * BLOCK_SD:g} %, margin {100 * MARGIN:g} %\n"
    )
    print("| what | measured | promised |\n| --- | ---: | --- |")
    for row in rows(count):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
