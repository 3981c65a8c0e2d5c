"""Whether the caches still filled within a window."""

import numpy as np
import pytest

from kveval.tables.system.checks_system import (
    DEVICE_HITS,
    HIT_RATIO_DRIFT,
    hit_ratio_drift,
)
from kveval.tables.system.windows import Window

SECOND = 10**9
LEVEL = {"e2e_ms_mean": 2000.0}


class Recorded:
    """Prompts of 1000 tokens, `rate` a second, found in a cache with a probability that goes from one to another."""

    def __init__(
        self,
        first: float,
        last: float,
        seed: int = 1,
        rate: float = 5.0,
        seconds: int = 120,
    ) -> None:
        generator = np.random.default_rng(seed)
        self.window = (0, seconds * SECOND)
        self._times = (
            np.sort(generator.uniform(0, seconds, int(rate * seconds))) * SECOND
        )
        chance = first + (last - first) * self._times / self.window[1]
        self._hits = generator.random(len(chance)) < chance

    def percent(self, key: str, part: Window) -> float:
        inside = (self._times >= part[0]) & (self._times < part[1])
        return 100 * float(self._hits[inside].mean()) if key == DEVICE_HITS else np.nan


def flagged(first: float, last: float) -> float:
    found = []
    for seed in range(100):
        recorded = Recorded(first, last, seed)
        change, error = hit_ratio_drift(
            recorded.percent, recorded.window, LEVEL
        ).values()
        found.append(abs(change) > max(0.1, 2 * error))
    return float(np.mean(found))


def test_a_cache_that_fills_is_found_and_one_in_its_lasting_state_is_not() -> None:
    assert flagged(0.5, 0.5) <= 0.06
    assert flagged(0.3, 0.7) >= 0.95
    assert flagged(0.5, 0.75) >= 0.7


def test_what_is_not_on_the_device_is_asked_of_the_tier() -> None:
    def percent(key: str, part: Window) -> float:
        return 60.0 if key == DEVICE_HITS else 100.0 * (part[0] >= 60 * SECOND)

    change, _ = hit_ratio_drift(percent, (0, 120 * SECOND), LEVEL).values()
    assert change == pytest.approx(0.4)


def test_what_was_not_recorded_is_not_known() -> None:
    found = hit_ratio_drift(lambda key, part: np.nan, (0, 120 * SECOND), LEVEL)
    assert list(found) == list(HIT_RATIO_DRIFT)
    assert np.isnan(list(found.values())).all()
