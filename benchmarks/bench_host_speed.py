"""Campaigns on hosts that change their speed: within windows, and between runs with a speed that is measured.

    python benchmarks/bench_host_speed.py [REPETITIONS]

A host has two speeds, as a virtual machine whose neighbours come and go. The first table has the share of campaigns in
which any of the equal arms is called better or worse, and of arms with a real effect that get a verdict: with the bound
of windows of two states, and with such runs left out. The second tries the measured speed as a covariate: ln throughput
less b times ln speed, where b is 1, or the slope of what arms and blocks leave of both. Its width is the median of half
the 95 % intervals.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kveval.estimators.intervals import (
    Contrast,
    contrasts,
    holm,
)
from kveval.estimators.spreads import Array, residuals
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.noise import state_bound
from kveval.verdict.sides import Rows, Sides
from kveval.verdict.uncertainty import (
    unsteady_refusals,
    widen_by_noise,
)

# A change by 63 % of the mean rate, as was seen: states of 1 and 1.92.
FASTER = 1.92
RUN_SD, BLOCK_SD, DRIFT_SE = 0.03, 0.03, 0.03
SLOTS, MIN_RUNS = 60, 3
Rule = Callable[[Array, Array], list[Contrast | None]]
"""Returns the contrast of each arm with the first cell, None without a verdict, from ln throughput and drifts."""


def windows(
    generator: np.random.Generator,
    shape: tuple[int, int],
    switches: float,
    faster: float = FASTER,
) -> tuple[Array, Array]:
    """Return ln of the mean speed, and `throughput_drift`, of windows in which the host changes its state at random.

    `shape`: runs x cells. `switches`: how often a host changes from one state to the other within a window, on average.
    """
    first = generator.random((*shape, 1)) < 0.5
    changes = generator.random((*shape, SLOTS)) < switches / SLOTS
    fast = (first + np.cumsum(changes, axis=-1)) % 2
    speeds = np.where(fast, faster, 1.0)
    thirds = speeds.reshape(*shape, 3, SLOTS // 3).mean(axis=-1)
    middle = (thirds[..., 0] + thirds[..., 2]) / 2
    return np.log(speeds.mean(axis=-1)), (thirds[..., 2] - thirds[..., 0]) / middle


def rows_of(logs: Array, drifts: Array) -> Rows:
    """Return the rows of a cell's runs."""
    return [
        {
            "run": run,
            THROUGHPUT: float(np.exp(log)),
            "throughput_drift": float(drift),
            "throughput_drift_se": DRIFT_SE,
        }
        for run, (log, drift) in enumerate(zip(logs, drifts, strict=True), start=1)
    ]


def with_bounds(logs: Array, drifts: Array) -> list[Contrast | None]:
    """All runs count; windows of two states widen, and refuse what they may have made."""
    cells = [rows_of(logs[:, cell], drifts[:, cell]) for cell in range(logs.shape[1])]
    found: list[Contrast | None] = []
    for arm, contrast in zip(cells[1:], contrasts(logs), strict=True):
        refused = [*unsteady_refusals(Sides(THROUGHPUT, cells[0], arm))]
        widened = widen_by_noise(contrast, cells[0], arm, THROUGHPUT)
        found.append(None if refused else widened)
    return found


def left_out(logs: Array, drifts: Array) -> list[Contrast | None]:
    """Runs whose window has two states are left out, with the run that they are paired with."""
    steady = np.vectorize(state_bound)(drifts, DRIFT_SE) == 0
    found: list[Contrast | None] = []
    for arm in range(1, logs.shape[1]):
        kept = steady[:, 0] & steady[:, arm]
        if kept.sum() < MIN_RUNS:
            found.append(None)
            continue
        pair = [0, arm]
        rows = [rows_of(logs[kept, cell], drifts[kept, cell]) for cell in pair]
        contrast = contrasts(logs[np.ix_(kept, pair)])[0]
        found.append(widen_by_noise(contrast, *rows, THROUGHPUT))
    return found


def verdicts_of_windows(
    rule: Rule,
    runs: int,
    cells: int,
    switches: float,
    effect: float,
    count: int,
    faster: float = FASTER,
) -> tuple[float, float]:
    """Return the share of campaigns in which any arm is called different, and of arms that are.

    All arms have the same effect, on the ln scale; with 0 every such verdict is wrong.
    """
    generator = np.random.default_rng(5)
    effects = np.r_[0.0, np.full(cells - 1, effect)]
    some, shown = 0, 0
    for _ in range(count):
        speeds, drifts = windows(generator, (runs, cells), switches, faster)
        blocks = generator.normal(0, BLOCK_SD, (runs, 1))
        noise = generator.normal(0, RUN_SD, (runs, cells))
        known = [*filter(None, rule(effects + blocks + speeds + noise, drifts))]
        significant = [
            p < 0.05 for p in holm([contrast.p_difference() for contrast in known])
        ]
        some += any(significant)
        shown += sum(significant)
    return some / count, shown / count / (cells - 1)


def estimated_slope(logs: Array, speeds: Array) -> tuple[list[Contrast], float]:
    """Return the contrasts of an analysis of covariance of runs x cells, and the slope (Snedecor and Cochran 1989, 18).

    All cells share one spread, and the slope takes one of the (R - 1)(K - 1) degrees of freedom.
    """
    runs, cells = logs.shape
    about, of_speed = residuals(logs), residuals(speeds)
    squares = float((of_speed**2).sum())
    slope = float((about * of_speed).sum()) / squares
    df = (runs - 1) * (cells - 1) - 1
    variance = float(((about - slope * of_speed) ** 2).sum()) / df
    means, apart = (table.mean(axis=0) for table in (logs - slope * speeds, speeds))
    found = []
    for arm in range(1, cells):
        error = variance * (2 / runs + (apart[arm] - apart[0]) ** 2 / squares)
        theta = float(means[arm] - means[0])
        found.append(Contrast(theta, float(np.sqrt(error)), df))
    return found, slope


def covariate(
    method: str,
    runs: int,
    cells: int,
    *,
    speed_sd: float,
    slope: float,
    error_sd: float,
    count: int,
    drifting: bool = False,
) -> tuple[float, float]:
    """Return the share of null campaigns in which any arm is called different, and the median half width, ln.

    ln throughput is `slope` times ln speed, and noise; the measured ln speed is the true one with an error of
    `error_sd`. `drifting`: the speed is a random walk over the campaign's runs, in random order within blocks.
    """
    generator = np.random.default_rng(6)
    wrong, widths = 0, []
    for _ in range(count):
        speeds = generator.normal(0, speed_sd, (runs, cells))
        if drifting:
            walk = np.cumsum(speeds.ravel()).reshape(runs, cells)
            speeds = generator.permuted(walk, axis=1)
        blocks = generator.normal(0, BLOCK_SD, (runs, 1))
        noise = generator.normal(0, RUN_SD, (runs, cells))
        logs = blocks + slope * speeds + noise
        measured = speeds + generator.normal(0, error_sd, (runs, cells))
        if method == "estimated":
            found, _ = estimated_slope(logs, measured)
        else:
            found = contrasts(logs - (measured if method == "1" else 0))
        wrong += min(holm([each.p_difference() for each in found])) < 0.05
        for each in found:
            low, high = each.interval(0.95)
            widths.append((high - low) / 2)
    return wrong / count, float(np.median(widths))


CASES: tuple[tuple[str, dict[str, float]], ...] = (
    ("a steady host", {"speed_sd": 0.0, "slope": 1.0, "error_sd": 0.03}),
    ("speed SD 15 %, exact", {"speed_sd": 0.15, "slope": 1.0, "error_sd": 0.0}),
    ("15 %, measured to 5 %", {"speed_sd": 0.15, "slope": 1.0, "error_sd": 0.05}),
    ("15 %, measured to 15 %", {"speed_sd": 0.15, "slope": 1.0, "error_sd": 0.15}),
    ("15 %, counts for half", {"speed_sd": 0.15, "slope": 0.5, "error_sd": 0.05}),
    ("15 %, unrelated", {"speed_sd": 0.15, "slope": 0.0, "error_sd": 0.05}),
)


def main(count: int) -> None:
    """Print both tables."""
    print(f"windows of two states, {FASTER:g} times apart, {count} campaigns each\n")
    print("| runs | cells | changes a window | effect | bounds | left out |")
    print("| ---: | ---: | ---: | --- | ---: | ---: |")
    sizes = [(3, 2), (3, 3), (5, 3), (5, 8)]
    for runs, cells in sizes:
        for switches in (0.1, 0.3, 1.0):
            for name, effect in (("none", 0.0), ("+15 %", 0.14), ("+210 %", 1.13)):
                shares = [
                    verdicts_of_windows(rule, runs, cells, switches, effect, count)
                    for rule in (with_bounds, left_out)
                ]
                # Without an effect any such verdict of a campaign is wrong.
                of_rules = [any_arm if not effect else arms for any_arm, arms in shares]
                said = " | ".join(f"{100 * share:.1f} %" for share in of_rules)
                print(
                    f"| {runs} | {cells} | {switches} | {name} | {said} |", flush=True
                )
    print(f"\nthe speed as a covariate, {count} null campaigns each\n")
    print("| host | order | runs | cells | none | b = 1 | b estimated |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, facts in CASES:
        for drifting in (False, True):
            for runs, cells in sizes:
                found = [
                    covariate(
                        method, runs, cells, **facts, count=count, drifting=drifting
                    )
                    for method in ("none", "1", "estimated")
                ]
                said = " | ".join(
                    f"{100 * wrong:.1f} %, {100 * width:.0f}" for wrong, width in found
                )
                order = "a walk" if drifting else "independent"
                print(f"| {name} | {order} | {runs} | {cells} | {said} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
