"""The gain from a tier: throughput and time to the first token, predicted from levels measured without one.

`simulation` simulates the requests, the caches and the server's batches. A prediction is the change between two
simulations of one server, with and without a tier, applied to what was measured without.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.load import levels as workloads
from kveval.plugins.curve.predicted.tier_copies import TierCopies
from kveval.plugins.curve.simulation.break_even import context_share
from kveval.plugins.curve.simulation.cells import demands
from kveval.plugins.curve.simulation.service import (
    Demanded,
    Floats,
    ServedLevel,
    TierSpeed,
)
from kveval.plugins.curve.simulation.speed import (
    FittedSpeed,
    ObservedLevel,
    fit_speed,
    level_figures,
)
from kveval.stacks.registry import server_of

# The number of levels that the server's speed is fitted to, and of simulations for each tier size.
_FITTED = 4
_DRAWS = 24
# Sequences of requests that are simulated, each drawn as another run would draw it.
_SEQUENCES = 8
_INTERVAL = (0.05, 0.95)
# Relative error of the logarithm of a change, because the simulated batches are more uniform than real ones.
_MODEL_ERROR = 0.1
# Requests to simulate at most: this multiple of those that the level completed without a tier, and this many more.
_MOST_TIMES, _MOST_MORE = 12, 200
_NONE = 0.0
# A level is saturated if the requests waiting at its end exceed this share of those answered.
_PILED_UP = 0.1


class Interval(NamedTuple):
    """A value, and the range that contains 90 % of its simulations."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeasuredLevel:
    """A level of a run, from the load generator's report; `window` in seconds from the level's start.

    `prompt_tokens`: the mean per request.
    """

    run: int
    window: tuple[float, float]
    requests: int
    prompt_tokens: float
    throughput_tok_s: float
    ttft_ms_mean: float
    ttft_ms_p50: float
    itl_ms: Floats
    ttft_ms: Floats


@dataclass(frozen=True)
class Benefit:
    """The effect of a tier of one size on a level.

    Attributes:
        throughput_percent: change against no tier.
        throughput_tok_s: predicted; the change applied to the throughput measured without a tier.
        ttft_ms_mean, ttft_ms_p50: predicted likewise.
        busy: share of the time in which the device works.
        saturates: in an open loop, whether more requests arrive than are answered.
    """

    throughput_percent: Interval
    throughput_tok_s: Interval
    ttft_ms_mean: Interval
    ttft_ms_p50: Interval
    busy: float
    saturates: bool

    @property
    def has_effect(self) -> bool:
        """Whether the tier changes the simulation: it serves more than the device, or the rates of its copies are known."""
        return self.throughput_percent.low != self.throughput_percent.high


@dataclass(frozen=True)
class Basis:
    """A measured cell without a tier, and the server's speed fitted to it."""

    specification: Specification
    device_tokens: int
    levels: Mapping[int, Sequence[MeasuredLevel]]
    batch_tokens: int
    speed: FittedSpeed
    copies: TierCopies

    @property
    def cell(self) -> Cell:
        """The cell that was measured."""
        return self.specification.cell

    @property
    def runs(self) -> list[int]:
        """The numbers of its runs that were read."""
        return sorted({seen.run for levels in self.levels.values() for seen in levels})

    def benefits(
        self,
        specification: Specification,
        level: int,
        tier_tokens: Sequence[tuple[float, float]],
    ) -> list[Benefit]:
        """Return the effect of each tier on a level; `tier_tokens`: the least and the most tokens each has in use."""
        measured = self.levels[level]
        sizes = [_NONE, *sorted({size for both in tier_tokens for size in both})]
        most = max(_most(seen.requests) for seen in measured)
        # A trace is replayed as it is; all else is drawn anew for each run.
        runs = 1 if specification.workload.trace is not None else _SEQUENCES
        sequences = [
            demands(specification, level, run, most, self.device_tokens, sizes)
            for run in range(1, runs + 1)
        ]
        observed = [
            _observed(
                self.specification,
                self.device_tokens,
                self.batch_tokens,
                level,
                seen,
                [],
            )
            for seen in measured
        ]
        draws: list[dict[float, Floats]] = []
        for number, speed in enumerate(self.speed.draws(_DRAWS)):
            tier = self._tier(specification, number)
            observed_level = observed[number % len(observed)]
            figures = {}
            for size, requests in zip(
                sizes, sequences[number % len(sequences)], strict=True
            ):
                copies = tier if size else TierSpeed()
                servers = observed_level.simulate(speed, copies, requests)
                figures[size] = _figures(servers)
            draws.append(figures)
        return [self._benefit(level, draws, both) for both in tier_tokens]

    def _tier(self, specification: Specification, number: int) -> TierSpeed:
        """The copy rates for simulation `number`: those of one of the levels in which they were measured."""

        def tokens_s(rates: Sequence[float]) -> float:
            per_token = specification.model.kv_bytes_per_token
            return rates[number % len(rates)] / per_token if rates else math.inf

        return TierSpeed(
            tokens_s(self.copies.load_bytes_s),
            tokens_s(self.copies.store_bytes_s),
            blocks=specification.on_cpu,
        )

    def _benefit(
        self,
        level: int,
        draws: Sequence[Mapping[float, Floats]],
        sizes: tuple[float, float],
    ) -> Benefit:
        changes = np.array(
            [
                np.log(draw[size][:3] / draw[_NONE][:3])
                for draw in draws
                for size in sizes
            ]
        )
        ratios = np.exp(
            np.outer((1 - _MODEL_ERROR, 1.0, 1 + _MODEL_ERROR), changes).reshape(-1, 3)
        )
        predicted = {}
        quantities = ("throughput_tok_s", "ttft_ms_mean", "ttft_ms_p50")
        for place, name in enumerate(quantities):
            measured = [getattr(seen, name) for seen in self.levels[level]]
            predicted[name] = _interval(ratios[:, place] * float(np.mean(measured)))
        busy, piled_up = np.median(
            [draw[size][3:] for draw in draws for size in sizes], axis=0
        )
        closed_loop = (
            workloads.streams_at(self.specification.workload, level) is not None
        )
        return Benefit(
            throughput_percent=_interval(100 * (ratios[:, 0] - 1)),
            **predicted,
            busy=float(busy),
            saturates=not closed_loop and bool(piled_up > 0.5),
        )


def basis_of(
    specification: Specification,
    device_tokens: int,
    levels: Mapping[int, Sequence[MeasuredLevel]],
    copies: TierCopies,
    hardware: Mapping[str, Any],
) -> Basis:
    """Return the basis from the levels of a cell without a tier; `device_tokens`: what each server's device holds.

    `hardware`: of its runs, which decides what a server computes in one batch.
    """
    batch_tokens = server_of(specification.versions).batch_tokens(
        specification.argv, hardware.get("gpus") or ()
    )
    pairs = [(level, seen) for level in levels for seen in levels[level]]
    chosen = [
        pairs[place]
        for place in np.unique(np.linspace(0, len(pairs) - 1, _FITTED).astype(int))
    ]
    observed = [
        _observed(specification, device_tokens, batch_tokens, level, seen, requests)
        for level, seen in chosen
        for requests in demands(
            specification, level, seen.run, _most(seen.requests), device_tokens, [_NONE]
        )
    ]
    fitted = fit_speed(observed, context_share(specification.model.geometry))
    return Basis(specification, device_tokens, levels, batch_tokens, fitted, copies)


def _observed(
    specification: Specification,
    device_tokens: int,
    batch_tokens: int,
    level: int,
    measured: MeasuredLevel,
    requests: Sequence[Demanded],
) -> ObservedLevel:
    return ObservedLevel(
        demanded=requests,
        window=measured.window,
        streams=workloads.streams_at(specification.workload, level),
        device_tokens=device_tokens,
        batch_tokens=batch_tokens,
        throughput_tok_s=measured.throughput_tok_s,
        itl_ms=measured.itl_ms,
        ttft_ms=measured.ttft_ms,
    )


def _most(requests: int) -> int:
    return _MOST_TIMES * requests + _MOST_MORE


def _figures(served: Sequence[ServedLevel]) -> Floats:
    """Throughput, mean and median TTFT, share of the time in which the device works, 1.0 if requests pile up."""
    throughput, _, ttft_ms = level_figures(served)
    mean, median = (
        (float(ttft_ms.mean()), float(np.median(ttft_ms)))
        if len(ttft_ms)
        else (math.nan, math.nan)
    )
    busy = float(np.mean([server.busy for server in served]))
    waiting, answered = sum(server.waiting for server in served), len(ttft_ms)
    return np.array(
        [throughput, mean, median, busy, waiting > _PILED_UP * max(1, answered)], float
    )


def _interval(values: Floats) -> Interval:
    known = values[np.isfinite(values)]
    return Interval(
        *(
            float(np.quantile(known, share)) if len(known) else math.nan
            for share in (0.5, *_INTERVAL)
        )
    )
