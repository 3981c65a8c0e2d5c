"""The load in the catalogue: synthetic conversations over shared prefixes, at several levels.

What a level counts depends on the profile, see `kveval.load.levels`.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import (
    BeforeValidator,
    Field,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from kveval.host.values import (
    CountInt,
    Mistake,
    Number,
    PositiveInt,
    PositiveNumber,
    Strict,
    Text,
)
from kveval.load import levels as workloads
from kveval.load import trace_file, traces
from kveval.load.trace_file import TraceRow
from kveval.load.workload import TraceSpec, WorkloadSpec

# Working sets that differ by a smaller ratio differ only by rounding to whole prefixes.
_ALIKE = 1.1
_LENGTHS = (
    "prompt_tokens",
    "output_tokens",
    "prompt_spread",
    "output_spread",
    "prefix_tokens",
    "prefix_count",
)


class PerLevel(Strict):
    """A count that grows with the level: this many per unit of the level."""

    per_level: PositiveInt


class WorkingSet(Strict):
    """A count for a constant working set: as many prefixes as make up this many tokens, at any prefix length."""

    tokens: PositiveInt


class LengthSpread(Strict):
    """How token counts vary from request to request: a normal distribution around the mean, cut off at both ends."""

    stdev: PositiveInt = Field(description="standard deviation, tokens")
    min: PositiveInt = Field(description="least tokens")
    max: PositiveInt = Field(description="most tokens")


class Bursts(Strict):
    """Arrivals in bursts: Poisson at one of two rates, which alternate at random; their mean is the level's rate."""

    factor: Annotated[Number, Field(gt=1)] = Field(
        description="rate in a burst, in multiples of the mean rate"
    )
    share: Annotated[Number, Field(gt=0, lt=1)] = Field(
        description="share of the time that bursts take"
    )
    mean_s: PositiveNumber = Field(description="mean length of a burst")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.factor * self.share > 1:
            said = f"bursts of {self.factor:g} times the mean rate cannot take {self.share:g} of the time: with at most"
            raise ValueError(
                f"{said} {1 / self.factor:.3g} the rest has a rate of 0 or more"
            )
        return self


class Replayed(Strict):
    """A file of requests in the Mooncake trace's format, which are sent with its lengths and shared prefixes."""

    file: Text = Field(
        description="path of the file, relative to config/; plain or compressed by gzip"
    )
    hash_tokens: PositiveInt = 512
    """tokens that one id of the file stands for: 512 in Mooncake's traces, 16 in Bailian's, 64 in Weka's"""
    tokens: PositiveInt | None = None
    """tokens sent for each id, hash_tokens when left out; fewer make prompts and answers shorter in proportion"""
    start_s: Annotated[Number, Field(ge=0)] = 0.0
    """seconds at the beginning of the file that are skipped"""

    @field_validator("file")
    @classmethod
    def _found(cls, file: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {}).get("folder", "."), file))


def _percentage(value: Any) -> Any:
    """Read "10 %" as 0.1."""
    matched = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)
        if isinstance(value, str)
        else None
    )
    return float(matched[1]) / 100 if matched else value


Percentage = Annotated[
    Number, BeforeValidator(_percentage, json_schema_input_type=float | str)
]


class PeakSearch(Strict):
    """Levels to be found: a pilot searches the baseline's peak, and every arm is measured at the levels it fixed."""

    start: PositiveInt = Field(alias="from", description="lowest level")
    stop: PositiveInt = Field(alias="to", description="highest level")
    resolution: Percentage = Field(
        0.1, description="the search ends when the peak's neighbours are this close"
    )
    seconds: PositiveNumber | None = None
    """length of a level of the pilot; that of the workload when left out"""
    budget: PositiveInt = Field(10, description="most levels that the pilot tries")
    keep: Annotated[StrictInt, Field(ge=3)] = 5
    """number of levels at which every arm is then measured"""
    noise: Percentage = Field(
        0.02, description="relative difference of throughputs that counts as none"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.start >= self.stop:
            raise ValueError(
                f"a search goes from a level up, not from {self.start} to {self.stop}"
            )
        if self.resolution <= 0:
            raise ValueError(f"resolution {self.resolution} is not above 0")
        if self.budget < 3:
            raise ValueError(
                f"a budget of {self.budget} levels cannot bracket a peak, which takes 3"
            )
        if not 0 <= self.noise < 1:
            raise ValueError(f"noise {self.noise} is not from 0 to below 1")
        return self


class Searched(Strict):
    """Levels that are found by a search."""

    search: PeakSearch


class Workload(Strict):
    """The load: synthetic conversations over shared prefixes, or a trace's requests, at several levels."""

    title: str = Field("", description="the load in words, for the report")
    profile: Literal[
        "concurrent",
        "constant",
        "poisson",
        "bursts",
        "trace",
        "trace-streams",
        "prefix-length",
        "sweep",
    ] = Field(
        "concurrent",
        description="what a level means and when requests are sent: see the table above",
    )
    levels: tuple[PositiveInt, ...] | Searched = ()
    """profiles concurrent and trace-streams: numbers of streams; constant, poisson and bursts: requests per minute;
    trace: percent of the trace's rate; prefix-length: tokens of the prefix. Or {search: ...}, to have them found around
    the baseline's peak"""
    bursts: Bursts | None = Field(
        None,
        description="profile bursts: how large, how frequent and how long bursts are",
    )
    trace: Replayed | None = Field(
        None, description="profiles trace and trace-streams: the trace"
    )
    sweep_size: Annotated[StrictInt, Field(ge=3)] | None = Field(
        None, description="profile sweep: number of rates"
    )
    seconds: PositiveNumber = Field(description="length of a level, seconds")
    warmup_s: Annotated[Number, Field(ge=0)] = 0.0
    """seconds at a level's beginning that are not measured"""
    request_timeout_s: PositiveNumber = Field(
        120.0, description="seconds after which a request has failed"
    )
    prompt_tokens: CountInt = Field(
        0,
        description="tokens of a turn's prompt, without the prefix; a trace has its own",
    )
    prompt_spread: LengthSpread | None = Field(
        None, description="how prompt_tokens vary; not at all when left out"
    )
    output_tokens: CountInt = Field(
        0, description="tokens of a turn's answer; a trace has its own"
    )
    output_spread: LengthSpread | None = Field(
        None, description="how output_tokens vary; not at all when left out"
    )
    turns: PositiveInt = Field(
        1, description="questions, with their answers, of a conversation"
    )
    prefix_tokens: CountInt = 0
    """tokens of a shared prefix; with profile prefix-length that is the level"""
    prefix_count: CountInt | PerLevel | WorkingSet = 0
    """number of distinct prefixes; {per_level: 2}: twice the level; {tokens: 200000}: what makes up 200,000 tokens"""
    prime: bool = False
    """send every prefix once before each level, unmeasured, so that the level measures a cache in use"""
    seed: CountInt = Field(description="seed of prompts, draws and arrivals")

    @model_validator(mode="after")
    def _arrivals_consistent(self) -> Self:
        if self.profile == "sweep":
            if self.levels or self.sweep_size is None:
                raise Mistake(
                    "profile sweep takes sweep_size and no levels", "sweep_with_levels"
                )
            if not isinstance(self.prefix_count, int):
                raise ValueError(
                    "a sweep has no levels for prefix_count to follow; give a number"
                )
        elif not self.levels or self.sweep_size is not None:
            raise Mistake(
                f"profile {self.profile} takes levels (at least one) and no sweep_size",
                "no_levels",
            )
        if self.searched is not None and self.profile != "concurrent":
            raise ValueError(
                f"a search is only for profile concurrent, not {self.profile}: it maximises throughput"
            )
        if len(set(self.fixed_levels)) < len(self.fixed_levels):
            raise Mistake(
                "levels repeat; each is measured once per run", "levels_repeat"
            )
        if self.warmup_s >= self.seconds:
            raise Mistake(
                f"warmup_s {self.warmup_s:g} leaves nothing of the level's {self.seconds:g} s",
                "all_warmup",
            )
        if (self.profile == "bursts") != (self.bursts is not None):
            raise ValueError(
                "profile bursts needs the section bursts, and that section needs profile bursts"
            )
        if self.profile == "bursts" and self.turns > 1:
            raise ValueError("profile bursts sends single requests: turns must be 1")
        return self

    @model_validator(mode="after")
    def _requests_consistent(self) -> Self:
        if self.profile == "prefix-length":
            if self.prefix_tokens or not self.prefix_count:
                raise ValueError(
                    "profile prefix-length takes prefix_count and no prefix_tokens: that is the level"
                )
        elif bool(self.prefix_tokens) != bool(self.prefix_count):
            raise Mistake(
                "prefix_tokens and prefix_count go together: both 0, or both above 0",
                "prefix_half_given",
            )
        if (
            self.prime
            and not self.trace
            and (not self.prefix_count or self.profile in ("bursts", "sweep"))
        ):
            said = f"prime sends every prefix once before each level: profile {self.profile} with prefix_count"
            raise Mistake(
                f"{said} {self.prefix_count} has none to send", "nothing_to_prime"
            )
        if (
            isinstance(self.prefix_count, WorkingSet)
            and self.prefix_count.tokens < self.longest_prefix
        ):
            said = f"a working set of {self.prefix_count.tokens} tokens holds no prefix of {self.longest_prefix}"
            raise ValueError(said)
        of_trace = self.profile in ("trace", "trace-streams")
        if of_trace != (self.trace is not None):
            raise Mistake(
                "trace needs profile trace or trace-streams, and these need trace",
                "trace_half_given",
            )
        given = {name for name in _LENGTHS if getattr(self, name)}
        if of_trace and (given or self.turns > 1 or self.prime):
            said = ", ".join(sorted(given)) or "turns above 1 or prime"
            raise Mistake(
                f"a trace has its own lengths, prefixes and turns: leave out {said}",
                "trace_and_lengths",
            )
        if not of_trace and not {"prompt_tokens", "output_tokens"} <= given:
            raise Mistake(
                "prompt_tokens and output_tokens are needed, each 1 or more",
                "no_lengths",
            )
        for name in ("prompt", "output"):
            mean, spread = (
                getattr(self, f"{name}_tokens"),
                getattr(self, f"{name}_spread"),
            )
            if spread is not None and not spread.min <= mean <= spread.max:
                raise ValueError(
                    f"{name}_tokens {mean} is not between {spread.min} and {spread.max}"
                )
        return self

    @property
    def specification(self) -> WorkloadSpec:
        """The part of the workload that defines the load, without title."""
        declared = self.model_dump(
            mode="json", exclude={"title", "trace"}, exclude_none=True
        )
        found = msgspec.convert(declared, WorkloadSpec)
        if self.replayed is None:
            return found
        rows = self.requests
        return msgspec.structs.replace(
            found,
            trace=self.replayed,
            prompt_tokens=round(sum(row.input_length for row in rows) / len(rows)),
            output_tokens=round(sum(row.output_length for row in rows) / len(rows)),
        )

    @cached_property
    def replayed(self) -> TraceSpec | None:
        """The definition of a trace's requests. Raises TraceError if it cannot be read or is too short."""
        if self.trace is None:
            return None
        asked = self.trace
        whole = TraceSpec(
            file=asked.file,
            sha256=trace_file.read(Path(asked.file), asked.hash_tokens).sha256,
            hash_tokens=asked.hash_tokens,
            tokens=asked.tokens or asked.hash_tokens,
            start_s=float(asked.start_s),
        )
        times = [row.timestamp for row in traces.from_start(whole)]
        if self.profile == "trace-streams":
            return whole
        lasting, most = times[-1] if times else 0.0, max(self.fixed_levels)
        if lasting < (needed := self.seconds * most / 100):
            said = f"{asked.file} has {lasting:.0f} s after start_s {asked.start_s:g}; a level of {self.seconds:g} s at"
            said += f" {most} % needs {needed:.0f} s of it"
            raise trace_file.TraceError(said, code="trace_too_short", seconds=lasting)
        counts = (
            sum(time < self.seconds * level / 100 for time in times)
            for level in self.fixed_levels
        )
        return msgspec.structs.replace(whole, requests=tuple(counts))

    @cached_property
    def requests(self) -> Sequence[TraceRow]:
        """The trace's requests from start_s on, as they are sent; none for a synthetic load."""
        return [] if self.replayed is None else traces.from_start(self.replayed)

    @property
    def searched(self) -> PeakSearch | None:
        """The search that finds the levels, None if they are given."""
        return self.levels.search if isinstance(self.levels, Searched) else None

    @property
    def fixed_levels(self) -> tuple[int, ...]:
        """The levels that are given; for a search, its lowest and highest level."""
        return (
            self.levels
            if isinstance(self.levels, tuple)
            else (self.levels.search.start, self.levels.search.stop)
        )

    @property
    def longest_prefix(self) -> int:
        """Tokens of the longest prefix."""
        return (
            max(self.fixed_levels, default=0)
            if self.profile == "prefix-length"
            else self.prefix_tokens
        )

    @property
    def working_set_tokens(self) -> int:
        """Tokens of all distinct prefixes at the largest level, which a cache must hold to serve every reuse."""
        return workloads.working_set_tokens_at(
            self.specification, max(self.fixed_levels, default=1)
        )

    @property
    def varying_working_set(self) -> bool:
        """Whether the working set differs between levels by more than rounding, so that levels differ in two ways."""
        load = self.specification
        sizes = [
            workloads.working_set_tokens_at(load, level) for level in self.fixed_levels
        ]
        return max(sizes, default=0) > _ALIKE * min(sizes, default=0)

    @property
    def conversation_tokens(self) -> int:
        """Tokens of the longest conversation at its end, for which the server's max_model_len must be large enough."""
        if self.replayed is not None:
            return max(row.input_length + row.output_length for row in self.requests)
        prompt = (
            self.prompt_tokens if self.prompt_spread is None else self.prompt_spread.max
        )
        output = (
            self.output_tokens if self.output_spread is None else self.output_spread.max
        )
        return self.longest_prefix + self.turns * (prompt + output)
