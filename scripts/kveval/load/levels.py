"""Levels of a workload: how many requests are in flight, or how many come, and over which prefixes.

A level is a whole number, and what it counts depends on the workload's profile:

- concurrent: streams. Each sends its next request when the last one is answered (closed loop).
- users: users who are present. Each asks the questions of a conversation, with a pause after each answer; when it ends, the
  next one begins.
- constant, poisson, bursts: requests per minute, whether or not earlier ones were answered (open loop); evenly spaced,
  at random, or at random in bursts.
- trace: percent of the rate at which the requests of a file came (open loop).
- trace-streams: streams, which send the requests of a file one after the other.
- prefix-length: tokens of the shared prefix, one request at a time.

"""

import math
from collections import Counter
from functools import cache

from kveval.load.workload import PerLevel, Workload

OPEN_LOOP = ("constant", "poisson", "bursts", "trace")
"""Profiles that send at given times, whether or not earlier requests were answered."""
REPLAYS = ("bursts", "trace", "trace-streams")
"""Profiles whose requests GuideLLM reads from a file."""
# Weights of the most and the least popular prefix.
_FINEST, _COARSEST = 100_000, 4
# Working sets that differ by a smaller ratio differ only by rounding to whole prefixes.
_ALIKE = 1.1
_UNITS = {
    "users": "users",
    "prefix-length": "prefix tokens",
    **dict.fromkeys(OPEN_LOOP, "requests/min"),
    "trace": "% of the trace's rate",
}
_AXES = {
    "streams": "concurrent streams",
    "users": "users present at once",
    "requests/min": "requests sent per minute",
    "prefix tokens": "tokens of the prefix, one request at a time",
    "% of the trace's rate": "percent of the rate at which the trace's requests came",
}
_ARRIVALS = {
    "constant": "come evenly spaced, whether or not earlier ones were answered",
    "poisson": "come at random, whether or not earlier ones were answered",
    "bursts": "come in random bursts, whether or not earlier ones were answered",
    "trace": "come as in the trace, at a multiple of its rate, whether or not earlier ones were answered",
    "sweep": "come as each strategy of the sweep sends them",
}


def streams_at(workload: Workload, level: int) -> int | None:
    """Return how many conversations are in progress at a level; None in an open loop.

    Each has a request in flight, except in a user's pauses, see `has_pauses`.
    """
    if workload.profile in (*OPEN_LOOP, "sweep"):
        return None
    return 1 if workload.profile == "prefix-length" else level


def has_pauses(workload: Workload) -> bool:
    """Whether users pause between questions, so that they and not the server alone set the throughput."""
    return workload.mean_pause_s > 0


def rate_req_s_at(workload: Workload, level: int) -> float | None:
    """Return the mean requests per second that are sent at a level; None if they follow from the answers."""
    if workload.profile == "trace":
        requests = () if workload.content is None else workload.content.requests
        if not requests or level not in workload.given_levels:
            return None
        return requests[workload.given_levels.index(level)] / workload.seconds
    return level / 60 if workload.profile in OPEN_LOOP else None


def describe_requests(workload: Workload) -> str:
    """Return how the requests are made and how they arrive, as the end of a sentence."""
    arrivals = _ARRIVALS.get(workload.profile, "follow each other without pause")
    if has_pauses(workload):
        pause = f"{workload.mean_pause_s:g} s"
        if not isinstance(workload.pause_s, float):
            pause = f"{pause} in the mean"
        arrivals = f"come after a pause of {pause} from each answer on"
    if workload.trace is not None:
        return f"prompts, answers and what they share are a trace's, and requests {arrivals}"
    spreads = (workload.prompt_spread, workload.output_spread, workload.document_spread)
    fixed = not any(spreads)
    lengths = "fixed lengths" if fixed else "lengths drawn at random"
    return f"prompts and answers have {lengths}, prefixes and turns are alike, and requests {arrivals}"


def prefix_tokens_at(workload: Workload, level: int) -> int:
    """Return the tokens of a shared prefix at a level; 0 without prefixes."""
    return level if workload.profile == "prefix-length" else workload.prefix_tokens


def prefix_count_at(workload: Workload, level: int) -> int:
    """Return how many distinct prefixes there are at a level: fixed, so many per unit of it, or for so many tokens."""
    count = workload.prefix_count
    if isinstance(count, int):
        return count
    if isinstance(count, PerLevel):
        return count.per_level * level
    tokens = prefix_tokens_at(workload, level)
    return max(1, count.tokens // tokens) if tokens else 0


@cache
def popularity(count: int, zipf: float) -> tuple[tuple[int, int], ...]:
    """Return how often prefixes are drawn, most popular first, as pairs: a whole number for one of them, how many.

    The k-th in proportion to 1 / k^zipf, rounded: the least popular of them has at least 4 of a resolution that
    100,000 bounds.
    """
    if not zipf or count < 2:
        return ((1, count),) if count else ()
    most = min(_FINEST, math.ceil(_COARSEST * count**zipf))
    weights = Counter(max(1, round(most / k**zipf)) for k in range(1, count + 1))
    return tuple(sorted(weights.items(), reverse=True))


def working_set_tokens_at(workload: Workload, level: int) -> int:
    """Return the tokens of all distinct prefixes at a level: what a cache must hold to serve every reuse."""
    return prefix_tokens_at(workload, level) * prefix_count_at(workload, level)


def working_set_tokens(workload: Workload) -> int:
    """Return the tokens of all distinct prefixes at the largest level."""
    return working_set_tokens_at(workload, max(workload.given_levels, default=1))


def working_set_varies(workload: Workload) -> bool:
    """Whether the working set differs between levels by more than rounding, so that levels differ in two ways."""
    sizes = [working_set_tokens_at(workload, level) for level in workload.given_levels]
    return max(sizes, default=0) > _ALIKE * min(sizes, default=0)


def level_unit(workload: Workload) -> str:
    """Return what a level counts: "streams", "requests/min" or "prefix tokens"."""
    return _UNITS.get(workload.profile, "streams")


def axis_title(workload: Workload) -> str:
    """Return the title of an axis of levels."""
    return _AXES[level_unit(workload)]
