"""A level's requests as a trace for GuideLLM to replay: when each comes, its length, what it shares with others.

Of profile bursts they are drawn: arrivals are a Poisson process whose rate alternates between a burst's and the rest's,
each for a random, exponentially distributed time (a Markov-modulated Poisson process of two states), and everything
follows from the seed. Of profiles trace and trace-streams they are those of a file. All arms get the same requests.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kveval.load import levels as workloads
from kveval.load import trace_file
from kveval.load.trace_file import TraceContent, TraceRow
from kveval.load.workload import Bursts, LengthSpread, Workload

# A last request comes this long after the level's end, so that the level ends by its time, not for lack of requests.
_MARGIN_S = 10.0
# Without prefixes a prompt is made of blocks of its own, of so many tokens.
_BLOCK_TOKENS = 512


def arrivals(
    rate_req_s: float, seconds: float, bursts: Bursts, generator: random.Random
) -> Iterator[float]:
    """Yield the times of arrivals, seconds from the start, for `seconds`, at `rate_req_s` in the mean."""
    factor, share = bursts.factor, bursts.share
    rates = {
        True: factor * rate_req_s,
        False: rate_req_s * (1 - factor * share) / (1 - share),
    }
    lengths = {True: bursts.mean_s, False: bursts.mean_s * (1 - share) / share}
    bursting = generator.random() < share
    begin = 0.0
    while begin < seconds:
        end = min(seconds, begin + generator.expovariate(1 / lengths[bursting]))
        now = begin
        # A Poisson process has no memory: it may start again with every state.
        while (
            rates[bursting] > 0
            and (now := now + generator.expovariate(rates[bursting])) < end
        ):
            yield now
        begin, bursting = end, not bursting


def tokens(mean: int, spread: LengthSpread | None, generator: random.Random) -> int:
    """Draw a token count as GuideLLM does: normal around the mean, cut off at both ends; the mean without a spread."""
    if spread is None:
        return mean
    return round(max(spread.min, min(spread.max, generator.gauss(mean, spread.stdev))))


def block_tokens(workload: Workload, level: int) -> int:
    """Return the tokens that one id of the trace's `hash_ids` stands for: a whole prefix, where there are prefixes."""
    if workload.content is not None:
        return workload.content.tokens
    return workloads.prefix_tokens_at(workload, level) or _BLOCK_TOKENS


def rows(workload: Workload, level: int, seed: int) -> Iterator[TraceRow]:
    """Yield the requests of a level that replays, in order, with times in seconds from its start."""
    if workload.content is None:
        yield from _drawn(workload, level, seed)
    else:
        yield from _replayed(workload, workload.content, level)


def _drawn(workload: Workload, level: int, seed: int) -> Iterator[TraceRow]:
    """Requests of profile bursts. The first id of a prompt is its shared prefix, the others are its own."""
    generator = random.Random(f"kveval/{seed}")
    rate = workloads.rate_req_s_at(workload, level) or 0.0
    prefix, count = (
        workloads.prefix_tokens_at(workload, level),
        workloads.prefix_count_at(workload, level),
    )
    block = block_tokens(workload, level)
    fresh = count
    end = workload.seconds + _MARGIN_S
    assert workload.bursts is not None
    for time in itertools.chain(arrivals(rate, end, workload.bursts, generator), [end]):
        own = tokens(workload.prompt_tokens, workload.prompt_spread, generator)
        output = tokens(workload.output_tokens, workload.output_spread, generator)
        needed = -(-own // block)
        shared = [generator.randrange(count)] if prefix else []
        yield TraceRow(
            round(time, 6),
            prefix + own,
            output,
            [*shared, *range(fresh, fresh + needed)],
        )
        fresh += needed


def _replayed(
    workload: Workload, trace: TraceContent, level: int
) -> Iterator[TraceRow]:
    """Requests of a file: those of a level's time at its rate, or all of them in a closed loop."""
    requests = trace_file.requests_of(trace)
    if workload.profile == "trace-streams":
        yield from requests
        return
    speed, after_s = level / 100, workload.seconds + _MARGIN_S
    for row in requests:
        row.timestamp = round(row.timestamp / speed, 6)
        if row.timestamp >= workload.seconds:
            # One more, after the end.
            row.timestamp = max(row.timestamp, after_s)
            yield row
            return
        yield row
    # The file ends with the level.
    yield msgspec.structs.replace(requests[-1], timestamp=after_s)


def write(workload: Workload, level: int, seed: int, path: Path) -> None:
    """Write a level's trace, one request a line."""
    with path.open("wb") as file:
        file.writelines(
            msgspec.json.encode(row) + b"\n" for row in rows(workload, level, seed)
        )
