"""The load as the catalogue has it: synthetic conversations over shared prefixes, at several levels.

What a level counts depends on the profile, see `kveval.workloads`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from kveval import workloads
from kveval.config_types import CountInt, Number, PositiveInt, PositiveNumber, Strict

# As many whole prefixes as make up a number of tokens differ by less.
_ALIKE = 1.1


class PerLevel(Strict):
    """A count that grows with the level: so many per unit of it."""

    per_level: PositiveInt


class WorkingSet(Strict):
    """A count that keeps the working set: as many prefixes as so many tokens make, at every length of the prefix."""

    tokens: PositiveInt


class Spread(Strict):
    """How token counts vary from request to request: normally around their mean, cut off at both ends."""

    stdev: PositiveInt
    min: PositiveInt
    max: PositiveInt


class Bursts(Strict):
    """Arrivals that come in bursts: Poisson at one of two rates, which alternate at random; the mean is the level's."""

    factor: Annotated[Number, Field(gt=1)] = Field(description="rate in a burst, in multiples of the mean rate")
    share: Annotated[Number, Field(gt=0, lt=1)] = Field(description="share of the time that bursts take")
    mean_s: PositiveNumber = Field(description="mean length of a burst")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.factor * self.share > 1:
            raise ValueError(
                f"bursts of {self.factor:g} times the mean rate cannot take {self.share:g} of the time: with at most"
                f" {1 / self.factor:.3g} the rest has a rate of 0 or more"
            )
        return self


class Workload(Strict):
    """The load: synthetic conversations over shared prefixes, at several levels."""

    title: str = ""
    profile: Literal["concurrent", "constant", "poisson", "bursts", "prefix-length", "sweep"] = "concurrent"
    levels: tuple[PositiveInt, ...] = Field(
        (),
        description="profile concurrent: numbers of concurrent streams; constant, poisson, bursts: requests per minute;"
        " prefix-length: tokens of the prefix, one request at a time",
    )
    bursts: Bursts | None = Field(None, description="profile bursts: how arrivals come in bursts")
    sweep_size: Annotated[StrictInt, Field(ge=3)] | None = Field(None, description="profile sweep: number of rates")
    seconds: PositiveNumber = Field(description="length of a level")
    warmup_s: Annotated[Number, Field(ge=0)] = Field(0.0, description="of those seconds, how many are not measured")
    request_timeout_s: PositiveNumber = 120.0
    prompt_tokens: PositiveInt = Field(description="per turn, without the prefix")
    prompt_spread: Spread | None = Field(None, description="how prompt_tokens vary; all alike when left out")
    output_tokens: PositiveInt = Field(description="per turn")
    output_spread: Spread | None = Field(None, description="how output_tokens vary; all alike when left out")
    turns: PositiveInt = 1
    prefix_tokens: CountInt = Field(0, description="of the prefix; profile prefix-length: the level, and left out here")
    prefix_count: CountInt | PerLevel | WorkingSet = Field(
        0,
        description="distinct prefixes: fixed, {per_level: 2} for 2 x level, or {tokens: 200000} for as many as make up"
        " so many tokens",
    )
    seed: CountInt

    @model_validator(mode="after")
    def _levels_consistent(self) -> Self:
        if self.profile == "sweep":
            if self.levels or self.sweep_size is None:
                raise ValueError("profile sweep takes sweep_size and no levels")
            if not isinstance(self.prefix_count, int):
                raise ValueError("a sweep has no levels for prefix_count to follow; give a number")
        elif not self.levels or self.sweep_size is not None:
            raise ValueError(f"profile {self.profile} takes levels (at least one) and no sweep_size")
        if len(set(self.levels)) < len(self.levels):
            raise ValueError("levels repeat; each is measured once per run")
        if self.warmup_s >= self.seconds:
            raise ValueError(f"warmup_s {self.warmup_s:g} leaves nothing of the level's {self.seconds:g} s")
        return self

    @model_validator(mode="after")
    def _prefixes_consistent(self) -> Self:
        if self.profile == "prefix-length":
            if self.prefix_tokens or not self.prefix_count:
                raise ValueError("profile prefix-length takes prefix_count and no prefix_tokens: that is the level")
        elif bool(self.prefix_tokens) != bool(self.prefix_count):
            raise ValueError("prefix_tokens and prefix_count go together: both 0, or both more")
        if isinstance(self.prefix_count, WorkingSet) and self.prefix_count.tokens < self.longest_prefix:
            raise ValueError(
                f"a working set of {self.prefix_count.tokens} tokens holds no prefix of {self.longest_prefix}"
            )
        return self

    @model_validator(mode="after")
    def _arrivals_consistent(self) -> Self:
        if (self.profile == "bursts") != (self.bursts is not None):
            raise ValueError("profile bursts and bursts with its keys go together")
        if self.profile == "bursts" and self.turns > 1:
            raise ValueError("profile bursts sends single requests: turns must be 1")
        for name in ("prompt", "output"):
            mean, spread = getattr(self, f"{name}_tokens"), getattr(self, f"{name}_spread")
            if spread is not None and not spread.min <= mean <= spread.max:
                raise ValueError(f"{name}_tokens {mean} is not between {spread.min} and {spread.max}")
        return self

    @property
    def longest_prefix(self) -> int:
        """Tokens of the longest prefix."""
        return max(self.levels, default=0) if self.profile == "prefix-length" else self.prefix_tokens

    @property
    def working_set_tokens(self) -> int:
        """Tokens of all distinct prefixes at the largest level: what a cache must hold to serve every reuse."""
        return int(workloads.working_set_tokens_at(self.model_dump(), max(self.levels, default=1)))

    @property
    def varying_working_set(self) -> bool:
        """Whether the working set differs between levels by more than a rounding, so that levels differ in two ways."""
        sizes = [workloads.working_set_tokens_at(self.model_dump(), level) for level in self.levels]
        return max(sizes, default=0) > _ALIKE * min(sizes, default=0)

    @property
    def conversation_tokens(self) -> int:
        """Most tokens of one conversation at its end: what the server's max_model_len must take."""
        prompt = self.prompt_tokens if self.prompt_spread is None else self.prompt_spread.max
        output = self.output_tokens if self.output_spread is None else self.output_spread.max
        return self.longest_prefix + self.turns * (prompt + output)
