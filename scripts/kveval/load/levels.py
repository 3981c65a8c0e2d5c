"""What a level of a workload is: how many requests are in flight, or how many come, and over which prefixes.

A level is a whole number, and what it counts depends on the workload's profile:

- concurrent: streams. Each sends its next request when the last one is answered (closed loop).
- constant, poisson, bursts: requests per minute, whether or not earlier ones were answered (open loop); evenly spaced,
  at random, or at random in bursts.
- prefix-length: tokens of the shared prefix, one request at a time.

Functions take a workload as specifications have it, a mapping of plain values. Those of results that were measured
elsewhere may lack keys.
"""

from collections.abc import Mapping
from typing import Any

from kveval.load.peak_search import Search

OPEN_LOOP = ("constant", "poisson", "bursts")
"""Profiles that send at a rate of their own."""
_UNITS = {"prefix-length": "prefix tokens", **dict.fromkeys(OPEN_LOOP, "requests/min")}
_AXES = {
    "streams": "concurrent streams",
    "requests/min": "requests sent per minute",
    "prefix tokens": "tokens of the prefix, one request at a time",
}
_ARRIVALS = {
    "constant": "come evenly spaced, whatever became of earlier ones",
    "poisson": "come at random, whatever became of earlier ones",
    "bursts": "come in random bursts, whatever became of earlier ones",
    "sweep": "come as each strategy of the sweep sends them",
}


def _profile(workload: Mapping[str, Any]) -> str:
    return str(workload.get("profile", "concurrent"))


def streams_at(workload: Mapping[str, Any], level: int) -> int | None:
    """Return how many requests are kept in flight at a level; None where requests come at a rate of their own."""
    if _profile(workload) in (*OPEN_LOOP, "sweep"):
        return None
    return 1 if _profile(workload) == "prefix-length" else level


def rate_req_s_at(workload: Mapping[str, Any], level: int) -> float | None:
    """Return the mean requests per second that are sent at a level; None where that follows from the answers."""
    return level / 60 if _profile(workload) in OPEN_LOOP else None


def in_words(workload: Mapping[str, Any]) -> str:
    """Return how the requests are made and how they come, as the end of a sentence."""
    varied = any(workload.get(f"{name}_spread") for name in ("prompt", "output"))
    lengths = "lengths drawn at random" if varied else "fixed lengths"
    arrivals = _ARRIVALS.get(_profile(workload), "follow each other without pause")
    return f"prompts and answers have {lengths}, prefixes and turns are alike, and requests {arrivals}"


def searched(workload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the settings of the search that finds the levels; None where they are given."""
    levels = workload.get("levels")
    return levels["search"] if isinstance(levels, Mapping) else None


def search_of(settings: Mapping[str, Any]) -> Search:
    """Return the search that these settings describe."""
    return Search(**{name: settings[name] for name in ("start", "stop", "resolution", "budget", "noise")})


def given_levels(workload: Mapping[str, Any]) -> list[int]:
    """Return the levels as they are given; of a search, the ends, between which all of its levels lie."""
    search = searched(workload)
    return list(workload["levels"]) if search is None else [search["start"], search["stop"]]


def level_count(workload: Mapping[str, Any]) -> int:
    """Return how many levels a run has; of a search, the most that it may try."""
    search = searched(workload)
    return len(workload["levels"]) if search is None else int(search["budget"])


def prefix_tokens_at(workload: Mapping[str, Any], level: int) -> int:
    """Return the tokens of a shared prefix at a level; 0 without prefixes."""
    return level if _profile(workload) == "prefix-length" else int(workload.get("prefix_tokens") or 0)


def prefix_count_at(workload: Mapping[str, Any], level: int) -> int:
    """Return how many distinct prefixes there are at a level: fixed, so many per unit of it, or for so many tokens."""
    count = workload.get("prefix_count") or 0
    if not isinstance(count, Mapping):
        return int(count)
    if "per_level" in count:
        return int(count["per_level"]) * level
    tokens = prefix_tokens_at(workload, level)
    return max(1, int(count["tokens"]) // tokens) if tokens else 0


def working_set_tokens_at(workload: Mapping[str, Any], level: int) -> int:
    """Return the tokens of all distinct prefixes at a level: what a cache must hold to serve every reuse."""
    return prefix_tokens_at(workload, level) * prefix_count_at(workload, level)


def level_unit(workload: Mapping[str, Any]) -> str:
    """Return what a level counts: "streams", "requests/min" or "prefix tokens"."""
    return _UNITS.get(_profile(workload), "streams")


def axis_title(workload: Mapping[str, Any]) -> str:
    """Return the title of an axis of levels."""
    return _AXES[level_unit(workload)]
