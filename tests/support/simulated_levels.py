"""Made-up levels with known truth: closed loops of which a window sees a part."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kveval.estimators.spreads import Array
from kveval.load.reports import RequestRecord
from kveval.tables.levels.requests import Requests

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
TOKENS = 128


def _bimodal(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    """Prompts that a cache has, and one in twenty that it has not: a mean of 1."""
    missed = generator.random(size) < 0.05
    return (
        np.where(
            missed,
            generator.lognormal(1.6, 0.3, size),
            generator.lognormal(-0.35, 0.2, size),
        )
        / 0.97
    )


LATENCIES: dict[str, Draw] = {
    "light": lambda generator, size: generator.lognormal(-0.045, 0.3, size),
    "exponential": lambda generator, size: generator.exponential(1.0, size),
    "heavy": lambda generator, size: generator.lognormal(-0.5, 1.0, size),
    "very heavy": lambda generator, size: generator.lognormal(-1.125, 1.5, size),
    "hits and misses": _bimodal,
}
"""Latencies in seconds, of mean 1."""


@dataclass(frozen=True)
class ClosedLoop:
    """A loop of `streams` over `seconds` of a window, with requests of `latencies`, a key of LATENCIES.

    `turns` requests in a row are a conversation, whose latencies share a factor of `spread` on the ln scale. The
    server's pace goes up and down by `pace_sd` on the ln scale, over two seconds, and rises by `fill` until the end of
    the window. For `silent` of its time a request has no token yet.
    """

    latencies: str = "light"
    streams: int = 8
    seconds: float = 100.0
    turns: int = 1
    spread: float = 0.0
    pace_sd: float = 0.0
    fill: float = 0.0
    silent: float = 0.3

    def true_quantile(self, share: float, count: int = 1_000_000) -> float:
        """Return a quantile of the latencies in ms, without a changing pace."""
        generator = np.random.default_rng(0)
        return 1000 * float(
            np.quantile(self._drawn(generator, count // self.turns, self.turns), share)
        )

    def window(
        self, generator: np.random.Generator
    ) -> tuple[Requests, tuple[float, float]]:
        """Return the requests that ran within a window, cut off at its end, and the window, once the loop settled."""
        start = 20.0 * self.turns
        end = start + self.seconds
        work = self._drawn(generator, self.streams, int(1.3 * end) + 40)
        while work.sum(axis=1).min() < (1 + self.fill + 2 * self.pace_sd) * end:
            work = np.concatenate(
                [work, self._drawn(generator, self.streams, int(end))], axis=1
            )
        finish = self._at(generator, np.cumsum(work, axis=1), start, end)
        begin = np.concatenate([np.zeros((self.streams, 1)), finish[:, :-1]], axis=1)
        inside = (begin < end) & (finish >= start)
        stream, number = np.nonzero(inside)
        rows = zip(
            begin[inside].tolist(),
            finish[inside].tolist(),
            stream,
            number // self.turns,
            strict=True,
        )
        records = [
            self._record(begun, ended, f"{of}-{turn}", end)
            for begun, ended, of, turn in rows
        ]
        return Requests(records), (start, end)

    def _drawn(self, generator: np.random.Generator, streams: int, count: int) -> Array:
        conversations = -(-count // self.turns)
        shared = np.exp(
            generator.normal(
                -(self.spread**2) / 2, self.spread, (streams, conversations)
            )
        )
        return (
            LATENCIES[self.latencies](generator, (streams, count))
            * np.repeat(shared, self.turns, axis=1)[:, :count]
        )

    def _at(
        self, generator: np.random.Generator, work: Array, start: float, end: float
    ) -> Array:
        """When so much work was done by a server whose pace changes."""
        if not self.pace_sd and not self.fill:
            return work
        step = 0.1
        times = np.arange(0, 3 * end, step)
        pace = np.empty(len(times))
        value, kept = self.pace_sd * generator.standard_normal(), np.exp(-step / 2)
        for index, shock in enumerate(
            generator.normal(0, self.pace_sd * np.sqrt(1 - kept**2), len(times))
        ):
            pace[index] = value
            value = kept * value + shock
        rate = np.exp(pace) * (
            1 + self.fill * np.clip((times - start) / (end - start), 0, 1)
        )
        return np.interp(
            work,
            np.concatenate([[0.0], np.cumsum(rate * step)]),
            np.append(times, times[-1] + step),
        )

    def _record(
        self, begin: float, finish: float, name: str, end: float
    ) -> RequestRecord:
        seconds = finish - begin
        first = begin + self.silent * seconds
        if finish > end:
            tokens = (
                max(0, int(TOKENS * (end - first) / (finish - first)))
                if first < end
                else 0
            )
            seen = (first, end, end) if tokens else (None, None, end)
            ttft = 1000 * (first - begin) if tokens else None
            return RequestRecord(
                "incomplete", begin, *seen, 64, tokens, ttft, None, None, None, name, 0
            )
        latencies = (
            1000 * self.silent * seconds,
            1000 * seconds / TOKENS,
            1.0,
            1000 * seconds,
        )
        return RequestRecord(
            "completed", begin, first, finish, finish, 64, TOKENS, *latencies, name, 0
        )
