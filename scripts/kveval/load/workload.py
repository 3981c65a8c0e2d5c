"""A workload as specifications have it: the fields that define the load, without descriptions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from kveval.host.errors import Failure


class WorkloadError(Failure):
    """A stored workload is not one that this version can read."""


class PrefixCount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A number of prefixes that follows the level: so many per unit of it, or as many as make up so many tokens."""

    per_level: int | None = None
    tokens: int | None = None


class SpreadSpec(msgspec.Struct, frozen=True):
    """How token counts vary: normally around their mean, cut off at both ends."""

    stdev: int
    min: int
    max: int


class BurstSpec(msgspec.Struct, frozen=True):
    """Arrivals in bursts: a burst's rate over the mean rate, the share of time in bursts, a burst's mean seconds."""

    factor: float
    share: float
    mean_s: float


class TraceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of requests, identified by its content.

    Attributes:
        file: where it lies on this host; not part of what defines a measurement.
        sha256: of its lines, unpacked.
        hash_tokens: tokens that an id in it stands for.
        tokens: tokens that are sent for each id.
        start_s: time in the file at which levels begin.
        requests: number that each level sends in its time, in the order of the levels; empty in a closed loop.
    """

    file: str = ""
    sha256: str
    hash_tokens: int
    tokens: int
    start_s: float = 0.0
    requests: tuple[int, ...] = ()


class SearchSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A search for levels: whole ones from `start` to `stop`, at most `budget`, of which so many are to `keep`.

    Attributes:
        resolution: how close to the peak its tried neighbours have to be, as a ratio minus one (0.1: 10 %).
        seconds: length of a level, that of the workload for None.
        noise: relative difference of throughputs that counts as none: the lowest level of a plateau is the peak.
    """

    start: int
    stop: int
    resolution: float
    seconds: float | None = None
    budget: int
    keep: int
    noise: float


class SearchedLevels(msgspec.Struct, frozen=True):
    """Levels that a search finds."""

    search: SearchSpec


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The load of a measurement; what is None is not in its JSON. `kveval.load.levels` says what a level counts."""

    profile: str
    levels: tuple[int, ...] | SearchedLevels
    bursts: BurstSpec | None = None
    trace: TraceSpec | None = None
    sweep_size: int | None = None
    seconds: float
    warmup_s: float
    request_timeout_s: float
    prompt_tokens: int
    prompt_spread: SpreadSpec | None = None
    output_tokens: int
    output_spread: SpreadSpec | None = None
    turns: int
    prefix_tokens: int
    prefix_count: int | PrefixCount
    prime: bool = False
    seed: int

    @property
    def searched(self) -> SearchSpec | None:
        """The search that finds the levels; None where they are given."""
        return self.levels.search if isinstance(self.levels, SearchedLevels) else None

    @property
    def given_levels(self) -> tuple[int, ...]:
        """The levels as they are given; of a search, the ends, between which all of its levels lie."""
        if isinstance(self.levels, SearchedLevels):
            return (self.levels.search.start, self.levels.search.stop)
        return self.levels

    @property
    def level_count(self) -> int:
        """How many levels a run has; of a search, the most that it may try."""
        return (
            self.levels.search.budget
            if isinstance(self.levels, SearchedLevels)
            else len(self.levels)
        )

    @property
    def first_prompt_tokens(self) -> int:
        """Tokens of a conversation's first prompt, its prefix included."""
        return self.prefix_tokens + self.prompt_tokens


# Results that were measured elsewhere do not say everything.
_UNSAID: Mapping[str, Any] = {
    "profile": "concurrent",
    "levels": (),
    "turns": 1,
    **dict.fromkeys(("seconds", "warmup_s", "request_timeout_s"), 0.0),
    **dict.fromkeys(
        ("prompt_tokens", "output_tokens", "prefix_tokens", "prefix_count", "seed"), 0
    ),
}


def workload_of(stored: Mapping[str, Any]) -> WorkloadSpec:
    """Read the workload of a stored run. What it does not say is a closed loop, one turn, and 0 of everything else.

    Raises WorkloadError for values of another kind.
    """
    said = {name: value for name, value in stored.items() if value is not None}
    try:
        # Not strictly: what others wrote may have whole numbers as 8.0.
        return msgspec.convert({**_UNSAID, **said}, WorkloadSpec, strict=False)
    except msgspec.ValidationError as error:
        raise WorkloadError(
            f"the workload of a stored run cannot be read: {error}"
        ) from error
