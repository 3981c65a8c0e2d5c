"""Accuracy of the numbers of single levels: simulated windows with known truth, as tables; tests run fewer of them.

    python benchmarks/bench_levels.py [REPETITIONS]

A window cuts a closed loop at both ends: requests that run when it opens are seen from then on, and requests that run
when it closes until then. The first table is about p99 latency, the second about the levels called unsteady.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from tests.support.simulated_levels import LATENCIES, ClosedLoop  # noqa: E402

from kveval.tables.levels.noise import is_unsteady, rate_drift  # noqa: E402
from kveval.tables.levels.records import window_columns  # noqa: E402


def tails(
    loop: ClosedLoop, count: int, seed: int = 1
) -> tuple[float, float, float, float]:
    """Return mean and median relative error of e2e_ms_p99, and the shares of its intervals that hold and are known."""
    generator = np.random.default_rng(seed)
    truth = loop.true_quantile(0.99)
    rows = [
        window_columns(requests, *window)
        for requests, window in (loop.window(generator) for _ in range(count))
    ]
    found, low, high = (
        np.array([row[f"e2e_ms_p99{end}"] for row in rows])
        for end in ("", "_low", "_high")
    )
    # An unknown end counts as infinite.
    held = (np.nan_to_num(low) <= truth) & (
        truth <= np.where(np.isnan(high), np.inf, high)
    )
    known = ~np.isnan(low) & ~np.isnan(high)
    return (
        np.nanmean(found) / truth - 1,
        np.nanmedian(found) / truth - 1,
        held.mean(),
        known.mean(),
    )


def unsteady(loop: ClosedLoop, count: int, seed: int = 1) -> float:
    """Return the share of windows whose rate is called uneven."""
    generator = np.random.default_rng(seed)
    windows = (loop.window(generator) for _ in range(count))
    return float(
        np.mean(
            [
                is_unsteady(*rate_drift(requests, *window, loop.streams))
                for requests, window in windows
            ]
        )
    )


def main(count: int) -> None:
    """Print both tables."""
    print(f"p99 of E2E, {count} windows each\n")
    print(
        f"{'latencies':<16} {'turns':>5} {'streams':>7} {'window':>7}   bias  median  interval holds  is known"
    )
    for name in LATENCIES:
        for streams, seconds in (
            (8, 20.0),
            (64, 2.0),
            (8, 80.0),
            (32, 20.0),
            (128, 10.0),
            (8, 250.0),
        ):
            found = tails(ClosedLoop(name, streams, seconds), count)
            print(
                f"{name:<16} {1:>5} {streams:>7} {seconds:>5.0f} s",
                *(f"{100 * each:+7.1f} %" for each in found),
            )
    for turns, spread in ((4, 0.5), (8, 1.0)):
        found = tails(ClosedLoop("light", 32, 200.0, turns, spread), count)
        print(
            f"{'light, alike':<16} {turns:>5} {32:>7} {200:>5} s",
            *(f"{100 * each:+7.1f} %" for each in found),
        )
    print(f"\nwindows called unsteady, of {count}\n")
    print(
        f"{'latencies':<16} {'pace SD':>7} {'rise':>5}"
        + "".join(f"{f'{n} x {s} s':>12}" for n, s in _SIZES)
    )
    cases = [(name, 0.0, 0.0) for name in LATENCIES]
    cases += [
        ("light", 0.05, 0.0),
        ("light", 0.1, 0.0),
        ("light", 0.0, 0.2),
        ("light", 0.0, 0.5),
    ]
    for name, pace_sd, fill in cases:
        loops = (
            ClosedLoop(name, n, float(s), pace_sd=pace_sd, fill=fill) for n, s in _SIZES
        )
        shares = "".join(f"{100 * unsteady(loop, count):>10.0f} %" for loop in loops)
        print(f"{name:<16} {pace_sd:>7} {fill:>5}{shares}")


_SIZES = ((1, 30), (8, 12), (8, 30), (8, 100), (32, 30), (32, 100))

if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
