"""The load: synthetic conversations over shared prefixes, or a trace's requests, at several levels.

One class from the catalogue's YAML to a stored run: `Workload` is what a file declares; its `definition` is what defines
a measurement, with the content of a trace in place of its path; `to_json` writes that as ids and stored runs have it,
and `workload_of` reads it. What a level counts depends on the profile, see `kveval.load.levels`.
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from kveval.host.errors import Failure
from kveval.host.values import (
    CountInt,
    Mistake,
    Number,
    PositiveInt,
    PositiveNumber,
    Strict,
)
from kveval.load import trace_file
from kveval.load.log_file import TraceError
from kveval.load.trace_file import TraceContent, TraceFile, TraceRow

_LENGTHS = (
    "prompt_tokens",
    "output_tokens",
    "prompt_spread",
    "output_spread",
    "prefix_tokens",
    "prefix_count",
)
_OF_TRACES = ("trace", "trace-streams")
_OF_USERS = ("document_tokens", "document_spread", "pause_s", "arrive_s")
# Profiles whose prefixes GuideLLM draws.
_DRAWN_PREFIXES = ("concurrent", "users", "constant", "poisson", "prefix-length")
_OMITTED = Field(exclude_if=operator.not_)
"""Of a key that is left out of ids and stored runs where it has no effect, as keys without a value are."""


class WorkloadError(Failure):
    """A stored workload is not one that this version can read."""


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


class Pause(Strict):
    """How pauses vary, from one to the next: seconds between an answer and the same user's next question."""

    mean: PositiveNumber = Field(description="mean, seconds")
    stdev: PositiveNumber = Field(description="standard deviation, seconds")
    distribution: Literal["normal", "lognormal"] = "lognormal"
    """normal, cut off at 0, or lognormal: many short pauses and a few long ones"""


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
            message = f"bursts of {self.factor:g} times the mean rate cannot take {self.share:g} of the time: with at most"
            raise ValueError(
                f"{message} {1 / self.factor:.3g} the rest has a rate of 0 or more"
            )
        return self


def _percentage(value: Any) -> Any:
    """Read "10 %" as 0.1."""
    if not isinstance(value, str):
        return value
    percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)
    return float(percent[1]) / 100 if percent else value


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


class SearchedLevels(Strict):
    """Levels that are found by a search."""

    search: PeakSearch


class Workload(Strict):
    """The load: synthetic conversations over shared prefixes, or a trace's requests, at several levels."""

    other_words: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("think_s", "think_time", "think_time_s"), "pause_s"),
        **dict.fromkeys(("pause", "pauses", "delay", "idle_s"), "pause_s"),
        **dict.fromkeys(("users", "user_count", "sessions", "streams"), "levels"),
        **dict.fromkeys(("document", "documents", "context_tokens"), "document_tokens"),
        **dict.fromkeys(("questions", "rounds"), "turns"),
        **dict.fromkeys(("question_tokens", "input_tokens"), "prompt_tokens"),
        **dict.fromkeys(("answer_tokens", "answers"), "output_tokens"),
        **dict.fromkeys(("duration", "duration_s"), "seconds"),
        **dict.fromkeys(("zipf", "popularity"), "prefix_zipf"),
    }
    """Words that people try for a key, which are refused with that key."""
    title: str = Field("", description="the load in words, for the report")
    profile: Literal[
        "concurrent",
        "users",
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
    levels: tuple[PositiveInt, ...] | SearchedLevels = ()
    """profiles concurrent and trace-streams: numbers of streams; users: numbers of users who are present at once;
    constant, poisson and bursts: requests per minute; trace: percent of the trace's rate; prefix-length: tokens of the
    prefix. Or {search: ...}, to have them found around the baseline's peak"""
    bursts: Bursts | None = Field(
        None,
        description="profile bursts: how large, how frequent and how long bursts are",
    )
    trace: TraceFile | None = Field(
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
    document_tokens: Annotated[CountInt, _OMITTED] = 0
    """profile users: tokens of each user's own document, which the first question brings along; shared documents are
    prefixes"""
    document_spread: LengthSpread | None = Field(
        None, description="how document_tokens vary; not at all when left out"
    )
    pause_s: Annotated[Annotated[Number, Field(ge=0)] | Pause, _OMITTED] = 0.0
    """profile users: seconds between an answer and the same user's next question: a number, or {mean: 20, stdev: 15},
    which are drawn for each pause"""
    arrive_s: Annotated[Number, Field(ge=0)] | None = None
    """profile users: seconds over which the first users arrive, evenly; a mean pause when left out"""
    prefix_tokens: CountInt = 0
    """tokens of a shared prefix; with profile prefix-length that is the level"""
    prefix_count: CountInt | PerLevel | WorkingSet = 0
    """number of distinct prefixes; {per_level: 2}: twice the level; {tokens: 200000}: what makes up 200,000 tokens"""
    prefix_zipf: Annotated[Number, Field(ge=0, le=3), _OMITTED] = 0.0
    """how unequal the popularity of prefixes is: conversations draw the k-th in proportion to 1 / k^prefix_zipf (Zipf's
    law; around 1 for much of what people read); 0: all equally often"""
    prime: Annotated[bool, _OMITTED] = False
    """send every prefix once before each level, unmeasured, so that the level measures a cache in use"""
    seed: CountInt = Field(description="seed of prompts, draws and arrivals")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        mistakes = (
            self._level_mistakes,
            self._arrival_mistakes,
            self._prefix_mistakes,
            self._user_mistakes,
            self._trace_mistakes,
            self._length_mistakes,
        )
        for of_kind in mistakes:
            for mistake in of_kind():
                raise mistake
        return self

    def _level_mistakes(self) -> Iterator[ValueError]:
        if self.profile == "sweep":
            if self.levels or self.sweep_size is None:
                message = "profile sweep takes sweep_size and no levels"
                yield Mistake(message, "sweep_with_levels")
            if not isinstance(self.prefix_count, int):
                yield ValueError(
                    "a sweep has no levels for prefix_count to follow; give a number"
                )
        elif not self.levels or self.sweep_size is not None:
            message = (
                f"profile {self.profile} takes levels (at least one) and no sweep_size"
            )
            yield Mistake(message, "no_levels")
        if self.searched is not None and self.profile != "concurrent":
            yield ValueError(
                f"a search is only for profile concurrent, not {self.profile}: it maximises throughput"
            )
        if len(set(self.given_levels)) < len(self.given_levels):
            message = "levels repeat; each is measured once per run"
            yield Mistake(message, "levels_repeat")

    def _arrival_mistakes(self) -> Iterator[ValueError]:
        if self.warmup_s >= self.seconds:
            message = f"warmup_s {self.warmup_s:g} leaves nothing of the level's {self.seconds:g} s"
            yield Mistake(message, "all_warmup")
        if (self.profile == "bursts") != (self.bursts is not None):
            yield ValueError(
                "profile bursts needs the section bursts, and that section needs profile bursts"
            )
        if self.profile == "bursts" and self.turns > 1:
            yield ValueError("profile bursts sends single requests: turns must be 1")

    def _prefix_mistakes(self) -> Iterator[ValueError]:
        if self.profile == "prefix-length":
            if self.prefix_tokens or not self.prefix_count:
                yield ValueError(
                    "profile prefix-length takes prefix_count and no prefix_tokens: that is the level"
                )
        elif bool(self.prefix_tokens) != bool(self.prefix_count):
            message = (
                "prefix_tokens and prefix_count go together: both 0, or both above 0"
            )
            yield Mistake(message, "prefix_half_given")
        unprimed = not self.prefix_count or self.profile in ("bursts", "sweep")
        if self.prime and not self.trace and unprimed:
            message = f"prime sends every prefix once before each level: profile {self.profile} with prefix_count"
            yield Mistake(
                f"{message} {self.prefix_count} has none to send", "nothing_to_prime"
            )
        if self.prefix_zipf:
            yield from self._popularity_mistakes()
        if (
            isinstance(self.prefix_count, WorkingSet)
            and self.prefix_count.tokens < self.longest_prefix
        ):
            message = f"a working set of {self.prefix_count.tokens} tokens holds no prefix of {self.longest_prefix}"
            yield ValueError(message)

    def _popularity_mistakes(self) -> Iterator[ValueError]:
        if not self.prefix_count:
            yield Mistake("prefix_zipf needs prefix_count", "no_prefixes")
        if self.profile not in _DRAWN_PREFIXES:
            message = f"prefix_zipf is for profiles {', '.join(_DRAWN_PREFIXES)}"
            yield Mistake(f"{message}, not {self.profile}", "no_popularity")
        if self.prime:
            message = "prime sends every prefix, those that hardly anyone draws, too:"
            yield Mistake(
                f"{message} leave out prime or prefix_zipf", "popularity_and_prime"
            )

    def _user_mistakes(self) -> Iterator[ValueError]:
        if self.profile != "users":
            given = sorted(name for name in _OF_USERS if self._is_given(name))
            if given:
                message = f"{', '.join(given)}: only profile users has users with documents and pauses of their own"
                yield Mistake(
                    f"{message}; its levels are numbers of users", "not_of_users"
                )
            return
        if self.mean_pause_s and self.turns == 1:
            message = "pause_s is between the questions of a conversation: turns must be 2 or more"
            yield Mistake(message, "pause_without_turns")
        if self.arrival_s >= self.seconds:
            message = f"the first users arrive over {self.arrival_s:g} s, the level has only {self.seconds:g} s"
            yield Mistake(
                f"{message}: longer levels, or a smaller arrive_s", "too_late"
            )

    def _is_given(self, name: str) -> bool:
        """Return whether a key has another value than its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def _trace_mistakes(self) -> Iterator[ValueError]:
        of_trace = self.profile in _OF_TRACES
        if of_trace != (self.trace is not None):
            message = "trace needs profile trace or trace-streams, and these need trace"
            yield Mistake(message, "trace_half_given")
        own = sorted(name for name in _LENGTHS if getattr(self, name))
        if of_trace and (own or self.turns > 1 or self.prime):
            superfluous = ", ".join(own) or "turns above 1 or prime"
            message = f"a trace has its own lengths, prefixes and turns: leave out {superfluous}"
            yield Mistake(message, "trace_and_lengths")

    def _length_mistakes(self) -> Iterator[ValueError]:
        if self.profile in _OF_TRACES:
            return
        if not self.prompt_tokens or not self.output_tokens:
            message = "prompt_tokens and output_tokens are needed, each 1 or more"
            yield Mistake(message, "no_lengths")
        for name, mean, spread in (
            ("prompt_tokens", self.prompt_tokens, self.prompt_spread),
            ("output_tokens", self.output_tokens, self.output_spread),
            ("document_tokens", self.document_tokens, self.document_spread),
        ):
            if spread is not None and not spread.min <= mean <= spread.max:
                yield ValueError(
                    f"{name} {mean} is not between {spread.min} and {spread.max}"
                )

    def replace(self, **changes: Any) -> Self:
        """Return the load with other values, which are not checked."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return self.model_construct(**(values | changes))

    @cached_property
    def definition(self) -> "Workload":
        """The load that defines a measurement: without its title, with the content of a trace in place of its path.

        Raises TraceError if a trace cannot be read or is too short for the levels.
        """
        if self.trace is None:
            return self.replace(title="")
        content = TraceContent.from_file(self.trace)
        rows = trace_file.requests_of(content)
        if not rows:
            message = (
                f"{self.trace.file} has no request after start_s {self.trace.start_s:g}"
            )
            raise TraceError(message, code="trace_too_short", seconds=0.0)
        if self.profile == "trace":
            counts = self._requests_by_level(rows)
            content = content.model_copy(update={"requests": counts})
        return self.replace(
            title="",
            trace=content,
            prompt_tokens=round(sum(row.input_length for row in rows) / len(rows)),
            output_tokens=round(sum(row.output_length for row in rows) / len(rows)),
        )

    def _requests_by_level(self, rows: Sequence[TraceRow]) -> tuple[int, ...]:
        """How many of a trace's requests each level sends in its time. Raises TraceError."""
        assert self.trace is not None
        lasting_s = rows[-1].timestamp
        fastest = max(self.given_levels)
        needed_s = self.seconds * fastest / 100
        # Up to the end of the second in which the last request comes.
        if int(lasting_s) + 1 < needed_s:
            message = f"{self.trace.file} has {lasting_s:.0f} s after start_s {self.trace.start_s:g}; a level of"
            message += (
                f" {self.seconds:g} s at {fastest} % needs {needed_s:.0f} s of it"
            )
            raise TraceError(message, code="trace_too_short", seconds=lasting_s)
        counts = []
        for level in self.given_levels:
            end_s = self.seconds * level / 100
            counts.append(sum(row.timestamp < end_s for row in rows))
        return tuple(counts)

    def to_json(self) -> dict[str, Any]:
        """Return a definition as ids and stored runs have it: plain JSON values, without what is left out."""
        content = self.model_dump(
            mode="json", exclude={"title", "trace"}, exclude_none=True
        )
        if self.content is not None:
            content["trace"] = self.content.to_json()
        return content

    @property
    def content(self) -> TraceContent | None:
        """A definition's trace; None for a synthetic load."""
        assert self.trace is None or isinstance(self.trace, TraceContent)
        return self.trace

    @property
    def searched(self) -> PeakSearch | None:
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
        if isinstance(self.levels, SearchedLevels):
            return self.levels.search.budget
        return len(self.levels)

    @property
    def mean_pause_s(self) -> float:
        """The mean pause between an answer and the same user's next question, seconds; 0 without pauses."""
        return self.pause_s.mean if isinstance(self.pause_s, Pause) else self.pause_s

    @property
    def arrival_s(self) -> float:
        """The seconds over which the first users arrive."""
        return self.mean_pause_s if self.arrive_s is None else self.arrive_s

    @property
    def first_prompt_tokens(self) -> int:
        """Tokens of a conversation's first prompt, its prefix and its document included."""
        return self.prefix_tokens + self.document_tokens + self.prompt_tokens

    @property
    def longest_prefix(self) -> int:
        """Tokens of the longest prefix."""
        if self.profile == "prefix-length":
            return max(self.given_levels, default=0)
        return self.prefix_tokens

    @cached_property
    def conversation_tokens(self) -> int:
        """Tokens of the longest conversation at its end, for which the server's max_model_len must be large enough.

        Of a definition, where the load is a trace's.
        """
        if self.content is not None:
            rows = trace_file.requests_of(self.content)
            return max(row.input_length + row.output_length for row in rows)
        prompt, output = self.prompt_tokens, self.output_tokens
        document = self.document_tokens
        if self.document_spread is not None:
            document = self.document_spread.max
        if self.prompt_spread is not None:
            prompt = self.prompt_spread.max
        if self.output_spread is not None:
            output = self.output_spread.max
        return self.longest_prefix + document + self.turns * (prompt + output)


# Results that were measured elsewhere do not say everything.
_UNSAID: Mapping[str, Any] = {"seconds": 0.0, "request_timeout_s": 0.0, "seed": 0}
# Types of stored values, where bounds are inside the type of what is written, or that type is another.
_STORED_KINDS: Mapping[str, Any] = {
    "levels": tuple[int, ...] | SearchedLevels,
    "trace": TraceContent,
    "sweep_size": int,
    "prefix_count": int | PerLevel | WorkingSet,
    "pause_s": float | Pause,
    "arrive_s": float,
}


def workload_of(stored: Mapping[str, Any]) -> Workload:
    """Read the workload of a stored run. What it does not say is a closed loop, one turn, and 0 of everything else.

    Values are read by their types alone: the rules for what is written do not hold for what has been measured. Raises
    WorkloadError for values of another kind.
    """
    values = dict(_UNSAID)
    for name, reader in _readers().items():
        value = stored.get(name)
        if value is None:
            continue
        try:
            values[name] = reader.validate_python(
                _with_whole_numbers(value), by_alias=False, by_name=True
            )
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            message = f"the workload of a stored run cannot be read: {name}: {why}"
            raise WorkloadError(message) from error
    return Workload.model_construct(**values)


@cache
def _readers() -> dict[str, TypeAdapter[Any]]:
    """Return a reader of each value of a stored workload: by the field's type, without its bounds."""
    fields = Workload.model_fields.items()
    declared: dict[str, Any] = {name: field.annotation for name, field in fields}
    return {
        name: TypeAdapter(kind) for name, kind in {**declared, **_STORED_KINDS}.items()
    }


def _with_whole_numbers(value: Any) -> Any:
    """Return a value of JSON with 8 where others wrote 8.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _with_whole_numbers(item) for name, item in value.items()}
    return value
