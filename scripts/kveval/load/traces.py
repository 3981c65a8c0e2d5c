"""Requests that come in bursts, as a trace for GuideLLM to replay: when each comes, its length, its prefix.

Arrivals are a Poisson process whose rate alternates between a burst's and the rest's, each for a random, exponentially
distributed time (a Markov-modulated Poisson process of two states). Everything follows from the seed, so that all arms
of a block get the same requests.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kveval.load import levels as workloads
from kveval.load.workload import BurstSpec, SpreadSpec, WorkloadSpec

# A last request so long past the end of the level, so that the level ends by its time and not for lack of requests.
_MARGIN_S = 10.0
# Without prefixes a prompt is made of blocks of its own, of so many tokens.
_BLOCK_TOKENS = 512


def arrivals(rate_req_s: float, seconds: float, bursts: BurstSpec, generator: random.Random) -> Iterator[float]:
    """Yield the times of arrivals, seconds from the start, for `seconds`, at `rate_req_s` in the mean."""
    factor, share = bursts.factor, bursts.share
    rates = {True: factor * rate_req_s, False: rate_req_s * (1 - factor * share) / (1 - share)}
    lengths = {True: bursts.mean_s, False: bursts.mean_s * (1 - share) / share}
    bursting = generator.random() < share
    begin = 0.0
    while begin < seconds:
        end = min(seconds, begin + generator.expovariate(1 / lengths[bursting]))
        now = begin
        # A Poisson process has no memory: it may start anew with every state.
        while rates[bursting] > 0 and (now := now + generator.expovariate(rates[bursting])) < end:
            yield now
        begin, bursting = end, not bursting


def tokens(mean: int, spread: SpreadSpec | None, generator: random.Random) -> int:
    """Draw a token count as GuideLLM does: normal around the mean, cut off at both ends; the mean without a spread."""
    if spread is None:
        return mean
    return round(max(spread.min, min(spread.max, generator.gauss(mean, spread.stdev))))


def block_tokens(workload: WorkloadSpec, level: int) -> int:
    """Return the tokens that one id of the trace's `hash_ids` stands for: a whole prefix, where there are prefixes."""
    return workloads.prefix_tokens_at(workload, level) or _BLOCK_TOKENS


def rows(workload: WorkloadSpec, level: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the requests of a level with profile bursts in the Mooncake trace's form.

    Equal ids of `hash_ids` are equal tokens: the first is the shared prefix, the others are the request's own.
    """
    generator = random.Random(f"kveval/{seed}")
    rate = workloads.rate_req_s_at(workload, level) or 0.0
    prefix, count = workloads.prefix_tokens_at(workload, level), workloads.prefix_count_at(workload, level)
    block = block_tokens(workload, level)
    fresh = count
    end = workload.seconds + _MARGIN_S
    assert workload.bursts is not None
    for time in itertools.chain(arrivals(rate, end, workload.bursts, generator), [end]):
        own = tokens(workload.prompt_tokens, workload.prompt_spread, generator)
        output = tokens(workload.output_tokens, workload.output_spread, generator)
        needed = -(-own // block)
        shared = [generator.randrange(count)] if prefix else []
        yield {
            "timestamp": round(time, 6),
            "input_length": prefix + own,
            "output_length": output,
            "hash_ids": [*shared, *range(fresh, fresh + needed)],
        }
        fresh += needed


def write(workload: WorkloadSpec, level: int, seed: int, path: Path) -> None:
    """Write a level's trace, one request a line."""
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows(workload, level, seed))
