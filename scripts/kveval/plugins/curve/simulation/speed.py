"""How fast a server is, from levels that were measured without a tier: the speed at which `service` gives the same
throughput, gaps between tokens and times to first token, and how certain that is.

Speeds are drawn in proportion to their likelihood, by a random walk from the best (Metropolis, Rosenbluth, Rosenbluth,
Teller and Teller, 1953). Parameters that the levels do not determine keep their prior spread.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import least_squares

from kveval.plugins.curve.simulation.service import (
    Demanded,
    Floats,
    ServedLevel,
    ServerSpeed,
    Service,
    TierSpeed,
)

# Relative errors: runs of one server differ, and the simulated batches are simplified; more for parts of a
# distribution, which hold few requests.
_ERROR, _PART_ERROR = 0.05, 0.1
_PARTS = 8
_SHORT = 0.05
# Prior standard deviations of the logarithms of a speed's fields.
_SPREADS = np.array([2.0, 0.7, 1.5, 1.5, 1.5])
# For the guess: so many answers take as long as the batch by itself does.
_ANSWERS = 32
_DIFFERENCE = 0.03
_LIKELY, _EVALUATIONS, _STEPS = 2, 15, 240
_FAR, _FEW = 5.0, 2.0
# Factors of the guess at which the search starts: its result depends on them, since requests are whole numbers.
_STARTS = tuple(itertools.product((0.4, 1.0, 2.0), (0.3, 1.0, 3.0)))


@dataclass(frozen=True)
class ObservedLevel:
    """A level that was measured: its requests and settings, as those of `Service`, and its results."""

    demanded: Sequence[Demanded]
    window: tuple[float, float]
    streams: int | None
    device_tokens: float
    batch_tokens: int
    throughput_tok_s: float
    itl_ms: Floats
    ttft_ms: Floats

    def simulate(
        self,
        speed: ServerSpeed,
        tier: TierSpeed,
        demanded: Sequence[Demanded] | None = None,
    ) -> list[ServedLevel]:
        """Simulate the level, or other requests in its place, on each of its servers."""
        each = demanded or self.demanded
        streams = (
            None if self.streams is None else max(1, round(self.streams / len(each)))
        )
        settings = self.window, streams, self.device_tokens, self.batch_tokens
        return [Service(one, speed, tier, *settings).simulate() for one in each]


@dataclass(frozen=True)
class FittedSpeed:
    """The best speed, others drawn by their likelihood, and the RMS misfit of the best in units of expected errors."""

    best: ServerSpeed
    likely: Sequence[ServerSpeed]
    misfit: float

    def draws(self, count: int) -> list[ServerSpeed]:
        """Return some of the likely speeds."""
        return [
            self.likely[place]
            for place in np.linspace(0, len(self.likely) - 1, count).astype(int)
        ]


def fit_speed(levels: Sequence[ObservedLevel], context_share: float) -> FittedSpeed:
    """Fit the speed at which simulated levels are as these were measured; `context_share` is its expected value."""
    center = np.log(astuple(_guess(levels, context_share)))
    seen = np.concatenate(
        [_moments(one.throughput_tok_s, one.itl_ms, one.ttft_ms) for one in levels]
    )
    known = np.isfinite(seen)
    errors = np.tile([_ERROR, *[_PART_ERROR] * 2 * _PARTS], len(levels))[known]

    def misses(logs: Floats) -> Floats:
        speed = ServerSpeed(*np.exp(logs))
        found = np.concatenate(
            [
                _moments(*level_figures(one.simulate(speed, TierSpeed())))
                for one in levels
            ]
        )
        # A speed at which nothing is served at all is far from any that was measured.
        apart = np.nan_to_num(
            (found - seen)[known], nan=_FAR, posinf=_FAR, neginf=-_FAR
        )
        # Large deviations count by size, not square (Huber's loss): they occur at jumps of the distribution.
        size = np.abs(apart / errors)
        counted: Floats = np.copysign(
            np.where(
                size < _FEW, size, np.sqrt(np.maximum(0, 2 * _FEW * size - _FEW**2))
            ),
            apart,
        )
        return counted

    def residuals(logs: Floats) -> Floats:
        return np.concatenate((misses(logs), (logs - center) / _SPREADS))

    starts = [
        center + np.log([token, 1.0, batch, batch, 1.0]) for token, batch in _STARTS
    ]
    likely = sorted(starts, key=lambda logs: float(np.sum(residuals(logs) ** 2)))[
        :_LIKELY
    ]
    tried = [
        least_squares(
            residuals,
            logs,
            diff_step=_DIFFERENCE,
            x_scale=_SPREADS,
            max_nfev=_EVALUATIONS,
        )
        for logs in likely
    ]
    best = min(tried, key=lambda one: float(one.cost))
    mean_square = float(np.mean(misses(best.x) ** 2))
    # The less the simulation is like the server, the larger all errors are taken to be.
    scale = max(1.0, mean_square)

    def badness(logs: Floats) -> float:
        return float(np.sum(misses(logs) ** 2)) / scale + float(
            np.sum(((logs - center) / _SPREADS) ** 2)
        )

    data = best.jac[: -len(center)]
    walk = _walk(
        badness, best.x, np.linalg.inv(data.T @ data / scale + np.diag(_SPREADS**-2))
    )
    return FittedSpeed(
        ServerSpeed(*np.exp(best.x)),
        [ServerSpeed(*np.exp(one)) for one in walk],
        mean_square**0.5,
    )


def _walk(
    badness: Callable[[Floats], float], start: Floats, covariance: Floats
) -> list[Floats]:
    """Metropolis walk: go to a place worse by d with probability exp(-d / 2); the first quarter is left out."""
    generator = np.random.default_rng(0)
    # The length of steps with which a walk in so many dimensions converges fastest (Gelman, Roberts and Gilks, 1996).
    steps = generator.multivariate_normal(
        np.zeros(len(start)), covariance * 2.4**2 / len(start), _STEPS, method="eigh"
    )
    here, bad, places = start, badness(start), []
    for step, threshold in zip(steps, generator.exponential(2.0, _STEPS), strict=True):
        there = here + step
        worse = badness(there)
        if worse - bad < threshold:
            here, bad = there, worse
        places.append(here)
    return places[_STEPS // 4 :]


def _guess(levels: Sequence[ObservedLevel], context_share: float) -> ServerSpeed:
    """A speed of the right magnitude: that of prompts from TTFT, that of answers from the gaps between tokens."""
    unit = ServerSpeed(1.0, context_share, 1.0, 1.0, 1.0)
    works = [
        unit.prefill_s(before, end)
        for one in levels
        for part in one.demanded
        for before, end in zip(
            part.on_device.tolist(), part.input_tokens.tolist(), strict=True
        )
    ]
    ttft_s = min(float(np.median(one.ttft_ms)) for one in levels) / 1000
    # The shortest gaps are of batches without prompts, the shortest TTFT of prompts that the device holds.
    gaps_s = [
        float(np.quantile(one.itl_ms, _SHORT)) / 1000
        for one in levels
        if len(one.itl_ms)
    ]
    batch_s = 0.9 * min(gaps_s) if gaps_s else ttft_s / 10
    shortest_s = min(float(np.quantile(one.ttft_ms, _SHORT)) for one in levels) / 1000
    request_s = max(0.5 * (shortest_s - batch_s), 0.1 * batch_s)
    return ServerSpeed(
        0.5 * ttft_s / float(np.mean(works)),
        context_share,
        batch_s,
        batch_s / _ANSWERS,
        request_s,
    )


def _moments(throughput_tok_s: float, itl_ms: Floats, ttft_ms: Floats) -> Floats:
    """The logarithms of what is fitted: throughput, and the mean of each eighth of the gaps and of TTFT."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: Floats = np.log(
            np.array([throughput_tok_s, *_eighths(itl_ms), *_eighths(ttft_ms)])
        )
    return logs


def _eighths(values: Floats) -> Floats:
    ordered = np.sort(values[np.isfinite(values) & (values > 0)])
    if len(ordered) < 2:
        return np.full(_PARTS, np.nan)
    if len(ordered) < _PARTS:
        few: Floats = np.quantile(ordered, (np.arange(_PARTS) + 0.5) / _PARTS)
        return few
    return np.array([part.mean() for part in np.array_split(ordered, _PARTS)])


def level_figures(served: Sequence[ServedLevel]) -> tuple[float, Floats, Floats]:
    """Return what several servers have together: throughput in tok/s, the gaps of answers and all TTFT in ms."""
    gaps_ms = np.concatenate([level.itl_ms for level in served])
    first_ms = np.concatenate([level.ttft_ms for level in served])
    return sum(level.throughput_tok_s for level in served), gaps_ms, first_ms
