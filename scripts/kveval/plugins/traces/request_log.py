"""Requests of a log: when each came, its session, the tokens of prompt and answer, and the prompt's text if it is there.

Fields are recognised by the names that gateways, servers and published traces give them, at any depth of an entry:

- OpenAI's usage objects (`usage.prompt_tokens`, `usage.completion_tokens`) and Anthropic's (`usage.input_tokens`, to
  which `cache_read_input_tokens` and `cache_creation_input_tokens` are added: https://docs.claude.com/en/api/messages);
- LiteLLM's spend logs: `startTime`, `session_id`, `prompt_tokens`, `completion_tokens`, `request_id`
  (https://github.com/BerriAI/litellm, schema.prisma);
- Azure's LLM inference traces of 2023 and 2024: `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`
  (https://github.com/Azure/AzurePublicDataset);
- BurstGPT: `Timestamp` in s, `Session ID`, `Request tokens`, `Response tokens` (https://github.com/HPMLL/BurstGPT);
- OpenTelemetry's GenAI conventions, as attributes of spans or of access logs: `gen_ai.usage.input_tokens`,
  `gen_ai.usage.output_tokens`, `gen_ai.conversation.id`, `gen_ai.input.messages`
  (https://opentelemetry.io/docs/specs/semconv/gen-ai/).

Times are ISO 8601, seconds, milliseconds, microseconds or nanoseconds since 1970, or from a start of the log's own.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kveval.load.log_file import FORMS, Entry, TraceError, entries
from kveval.plugins.traces.prompt_text import plain_text
from kveval.plugins.traces.usage_exports import RowTime, is_end, plain_name, why_sums

TIME, SESSION, PROMPT, ANSWER, REQUEST, TEXT = (
    "time",
    "session",
    "prompt",
    "answer",
    "request",
    "text",
)
KINDS = (TIME, SESSION, PROMPT, ANSWER, REQUEST, TEXT)
"""Kinds of values that a log has in fields."""
_NEEDED: Mapping[str, str] = {
    TIME: "times",
    PROMPT: "lengths of prompts",
    ANSWER: "lengths of answers",
}
FieldPath = tuple[str, ...]

# Names of fields, without case and punctuation, the better ones first: when a request came, not when it ended.
_NAMES: Mapping[str, Sequence[str]] = {
    TIME: (
        *("arrivaltime", "arrivaltimestamp", "arrivedat", "arrival", "requesttime"),
        *("requesttimestamp", "requeststarttime", "requestcreatedat", "starttime"),
        *("starttimestamp", "startedat", "start", "begintime", "submittime"),
        *("submittedat", "timestamp", "time", "ts", "datetime", "createdat", "created"),
        *("createtime", "timegenerated", "date", "t"),
    ),
    SESSION: (
        *("sessionid", "conversationid", "chatid", "threadid", "dialogid"),
        *("dialogueid", "session", "conversation", "litellmsessionid"),
        "heliconesessionid",
    ),
    PROMPT: (
        *("prompttokens", "inputtokens", "contexttokens", "requesttokens"),
        *("promptlength", "inputlength", "promptlen", "inputlen", "tokensprompt"),
        *("tokensinput", "tokensin", "numprompttokens", "numinputtokens"),
        *("prompttokencount", "inputtokencount", "llminputtoken", "genaitokensinput"),
    ),
    ANSWER: (
        *("completiontokens", "outputtokens", "generatedtokens", "responsetokens"),
        *("generationtokens", "outputlength", "completionlength", "outputlen"),
        *("tokenscompletion", "tokensoutput", "tokensout", "numcompletiontokens"),
        *("numoutputtokens", "numgeneratedtokens", "numgenerationtokens"),
        *("completiontokencount", "candidatestokencount", "outputtokencount"),
        *("llmoutputtoken", "genaitokensoutput"),
    ),
    REQUEST: (
        *("requestid", "rid", "generationid", "completionid", "responseid"),
        "messageid",
    ),
    TEXT: ("inputmessages", "messages", "prompt"),
}
# A field that is only called id may be anything's; these begin the ids of answers.
_ANSWER_ID = re.compile("(chatcmpl|cmpl|resp|msg|gen)[-_]")
_LISTS = ("spans", "data", "results")
# As chat templates have them; tokens of these are counted, too.
_BEFORE_TEXT = ("tools", "functions", "system", "instructions")
# What else has such a name counts a part of the tokens.
_PARTS = re.compile("cache|details|limit|max")
_CACHED_BY_ANTHROPIC = ("cache_read_input_tokens", "cache_creation_input_tokens")

UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of times, and how many of them a second has."""
_UNIT_WORDS: Mapping[str, str] = {
    **{"s": "s", "sec": "s", "secs": "s", "second": "s", "seconds": "s"},
    **{"ms": "ms", "msec": "ms", "millis": "ms", "milliseconds": "ms"},
    **{"us": "us", "micros": "us", "microseconds": "us"},
    **{"ns": "ns", "nanos": "ns", "nanoseconds": "ns", "unixnano": "ns"},
}
# Numbers from 2001 on, in s, are times since 1970.
_EPOCH_S = 1e9
MOST_TOKENS = 10_000_000
"""Tokens of a prompt or an answer, more than any model takes; larger numbers count something else, such as bytes."""
# Entries in which the fields are looked for: all have the same, apart from those that are no requests.
_LOOKED_AT = 1_000
_LINES_NAMED = 5
# With so many times on another clock a log has two clocks; fewer are mistakes.
_OTHER_CLOCKS = 0.1
_FAILED = (2, "2", "ERROR", "STATUS_CODE_ERROR")

Clock = Literal["absolute", "without a zone", "relative"]


class LoggedRequest(NamedTuple):
    """A request as a log has it.

    `seconds`: since 1970, or from the log's own start; `prompt`, `answer`: tokens; `session`, `request`, `text`: None
    where the log has none.
    """

    line: int
    seconds: float
    session: str | None
    prompt: int
    answer: int
    request: str | None
    text: str | None


@dataclass
class Dropped:
    """Lines of a log that became no request, for one reason; `lines` has the first of them."""

    reason: str
    count: int = 0
    lines: list[int] = field(default_factory=list)


@dataclass
class LogFacts:
    """Facts about a log that become known while it is read.

    `fields`: what each kind of value was read from; `dropped`: by reason; `clock`: what the times are; `units`: keys of
    UNITS, or ISO 8601; `entries`: how many the log has.
    """

    fields: dict[str, list[str]] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    clock: Clock | None = None
    units: set[str] = field(default_factory=set)
    entries: int = 0

    def drop(self, line: int, reason: str) -> None:
        """Note that a line became no request."""
        dropped = self.dropped.setdefault(reason, Dropped(reason))
        dropped.count += 1
        if len(dropped.lines) < _LINES_NAMED:
            dropped.lines.append(line)


class _Unusable(Exception):
    """An entry that is no request; the message is the reason."""


class RequestLog:
    """The requests of a log, read as they are needed; `facts` is complete when all are read."""

    def __init__(
        self, path: Path, fields: Mapping[str, str], time_unit: str = ""
    ) -> None:
        """Look for the fields in the first entries.

        `fields`: names of fields that are not to be recognised by themselves, by what they hold: `{"time": "at"}`;
        `time_unit`: a key of UNITS, of times that are numbers. Raises TraceError where a needed field is not there.
        """
        self.path, self.facts = path, LogFacts()
        single = _single(entries(path))
        first = list(islice(single, _LOOKED_AT))
        self._entries: Iterator[Entry] = chain(first, single)
        self._paths = _paths(first, fields)
        for kind, paths in self._paths.items():
            if paths:
                self.facts.fields[kind] = _names(paths)
        self._unit = time_unit
        self._refuse_sums(first)
        self._require_fields(first, fields)
        self._other_clock: tuple[int, Clock, str] | None = None
        self._other_clocks = 0
        self._line_session: str | None = None
        self._has_own_sessions = False
        self.facts.clock = self._usual_clock(first)

    @property
    def has_text(self) -> bool:
        """Whether prompts come as text."""
        return bool(self._paths[TEXT])

    @property
    def has_sessions(self) -> bool:
        """Whether there is a field for sessions, or a line that names one."""
        return bool(self._paths[SESSION]) or self._line_session is not None

    def __iter__(self) -> Iterator[LoggedRequest]:
        """Yield the requests in the order of the file. Raises TraceError for a damaged file and for mixed clocks."""
        for entry in self._entries:
            self.facts.entries += 1
            try:
                yield self._request(entry)
            except _Unusable as unusable:
                self.facts.drop(entry.line, str(unusable))
                self._note_session(entry.values or {})
        if self._other_clocks > _OTHER_CLOCKS * self.facts.entries:
            self._refuse_clocks()

    def _request(self, entry: Entry) -> LoggedRequest:
        values = entry.values
        if values is None:
            raise _Unusable("not whole: no JSON object, or not as many values as names")
        status = values.get("status")
        if isinstance(status, dict) and status.get("code") in _FAILED:
            raise _Unusable("a span that failed")
        prompt = self._tokens(values, PROMPT)
        if not prompt:
            raise _Unusable("a prompt of 0 tokens, as failed requests have it")
        answer = self._tokens(values, ANSWER)
        return LoggedRequest(
            entry.line,
            self._seconds(entry.line, values),
            self._session(values),
            prompt,
            answer,
            self._request_id(values),
            self._text(values),
        )

    def _session(self, values: Mapping[str, Any]) -> str | None:
        """Return a request's session: its own, or in a log whose requests name none that of the line above them."""
        own = self._word(values, SESSION)
        self._has_own_sessions = self._has_own_sessions or own is not None
        return own if self._has_own_sessions else self._line_session

    def _note_session(self, values: Mapping[str, Any]) -> None:
        """Keep the session of a line that is no request, as it begins the log of an agent."""
        found = self._word(values, SESSION)
        if found is None and str(values.get("type")).startswith("session"):
            payload = values.get("payload")
            inner = payload if isinstance(payload, dict) else values
            found = str(inner["id"]) if inner.get("id") else None
        self._line_session = found or self._line_session

    def _request_id(self, values: Mapping[str, Any]) -> str | None:
        """Return the id of a request; where it has none, what the same event has when it is written again."""
        word = self._word(values, REQUEST)
        if word is not None:
            return word
        _, path = self._value(values, PROMPT)
        around = _at(values, path[:-2])
        if len(path) > 1 and isinstance(around, dict):
            # A running total stays when nothing was asked meanwhile.
            for name, total in around.items():
                if "total" in name.lower() and isinstance(total, dict):
                    return f"{self._session(values)} {total}"
        time, _ = self._value(values, TIME)
        is_fine = "." in str(time) and self.facts.clock != "relative"
        return str(values) if is_fine or values.get("uuid") else None

    def _tokens(self, values: Mapping[str, Any], kind: str) -> int:
        value, path = self._value(values, kind)
        if value is None:
            raise _Unusable(f"no length of the {kind}")
        number = _number(value)
        if number is None or number != math.floor(number):
            raise _Unusable(f"a length of the {kind} that is no whole number")
        if number < 0:
            raise _Unusable(f"a negative length of the {kind}")
        if kind == PROMPT and path[-1] == "input_tokens":
            # Anthropic counts what its cache served apart.
            for name in _CACHED_BY_ANTHROPIC:
                number += _number(_at(values, (*path[:-1], name))) or 0
        if number > MOST_TOKENS:
            raise _Unusable(f"a length of the {kind} above {MOST_TOKENS:,}: no tokens?")
        return int(number)

    def _seconds(self, line: int, values: Mapping[str, Any]) -> float:
        value, _ = self._value(values, TIME)
        if value is None:
            raise _Unusable("no time")
        moment = self._moment(values)
        if moment is None:
            raise _Unusable("a time that is neither ISO 8601 nor a number")
        seconds, clock, unit = moment
        if clock != self.facts.clock:
            self._other_clock = self._other_clock or (line, clock, str(value))
            self._other_clocks += 1
            raise _Unusable(f"a time that is {clock}, unlike most")
        self.facts.units.add(unit)
        return seconds

    def _moment(self, values: Mapping[str, Any]) -> tuple[float, Clock, str] | None:
        value, path = self._value(values, TIME)
        return None if value is None else _moment(value, self._unit or _unit_of(path))

    def _usual_clock(self, first: Sequence[Entry]) -> Clock | None:
        """Return the clock of most times in some entries; None if no time can be read."""
        moments = [self._moment(entry.values) for entry in first if entry.values]
        clocks = Counter(moment[1] for moment in moments if moment is not None)
        return max(sorted(clocks), key=lambda clock: clocks[clock], default=None)

    def _refuse_clocks(self) -> None:
        assert self._other_clock is not None
        line, clock, value = self._other_clock
        message = (
            f"{self.path} line {line}: the time {value!r} is {clock}, other times are {self.facts.clock}; a trace has one"
            " clock: name the field with --field time=NAME, or the unit with --time-unit"
        )
        raise TraceError(message, code="mixed_times", path=self.path, line=line)

    def _word(self, values: Mapping[str, Any], kind: str) -> str | None:
        value, _ = self._value(values, kind)
        return str(value) if isinstance(value, str | int | float) else None

    def _text(self, values: Mapping[str, Any]) -> str | None:
        """Return the prompt's text, with the tools and instructions of the request in front of it."""
        for path in self._paths[TEXT]:
            text = plain_text(_at(values, path))
            if text:
                named = (_at(values, (*path[:-1], name)) for name in _BEFORE_TEXT)
                return "\n".join([*map(plain_text, filter(None, named)), text])
        return None

    def _value(self, values: Mapping[str, Any], kind: str) -> tuple[Any, FieldPath]:
        """Return the value of the first field of a kind that an entry has, and where it is; None without one."""
        for path in self._paths[kind]:
            value = _at(values, path)
            if value is not None and value != "":
                return value, path
        return None, ()

    def _refuse_sums(self, first: Sequence[Entry]) -> None:
        rows = [entry.values for entry in first if entry.values]
        every = _all_paths(first)
        ends = [path for path in every if is_end(path[-1])][:1]
        values = {".".join(path): _column(rows, path) for path in every}
        timed = [row for row in rows if self._value(row, TIME)[0] is not None]
        times = [self._row_time(row, self._paths[TIME]) for row in timed]
        why = why_sums(values, times, [self._row_time(row, ends) for row in timed])
        if why:
            message = (
                f"{self.path} sums up usage: {why}; a trace is made of a log with a row for each request, such as a"
                " gateway's log or LiteLLM's spend logs"
            )
            raise TraceError(message, code="sums", path=self.path)

    def _row_time(self, row: Mapping[str, Any], paths: Sequence[FieldPath]) -> RowTime:
        for path in paths:
            value = _at(row, path)
            if value is None or value == "":
                continue
            moment = _moment(value, self._unit or _unit_of(path))
            is_absolute = moment is not None and moment[1] != "relative"
            return RowTime(str(value), moment[0] if moment and is_absolute else None)
        return RowTime("", None)

    def _require_fields(
        self, first: Sequence[Entry], fields: Mapping[str, str]
    ) -> None:
        names = _names(_all_paths(first))
        if not names:
            message = f"{self.path} has no entry with values; {FORMS}"
            raise TraceError(message, code="no_entry", path=self.path)
        known = f"the fields are {', '.join(names[:12])}"
        known += ", ..." if len(names) > 12 else ""
        for kind, name in fields.items():
            if not self._paths[kind]:
                message = f"{self.path} has no field {name} for --field {kind}; {known}"
                raise TraceError(message, code="no_field", missing=[kind])
        missing = [kind for kind in _NEEDED if not self._paths[kind]]
        if missing:
            words = " and ".join(_NEEDED[kind] for kind in missing)
            options = " ".join(f"--field {kind}=NAME" for kind in missing)
            message = f"{self.path}: no field is known to hold {words}; name it with {options}; {known}"
            raise TraceError(message, code="no_field", missing=missing)


def _names(paths: Iterable[FieldPath]) -> list[str]:
    return [".".join(path) for path in paths]


def _single(whole: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries, and in place of one that holds a list of spans, or of data as APIs return it, each of these."""
    for entry in whole:
        values = entry.values or {}
        parts = next((values[name] for name in _LISTS if name in values), None)
        if not isinstance(parts, list):
            yield entry
            continue
        # What an API returns of a time has this around its results.
        around = {
            name: values[name]
            for name in values
            if "results" in values and name not in _LISTS
        }
        for part in parts:
            one = {**around, **part} if isinstance(part, Mapping) else None
            yield from _single([Entry(entry.line, one)])


def _all_paths(some: Iterable[Entry]) -> list[FieldPath]:
    """Return the places of all values of some entries, each once, sorted."""
    paths: set[FieldPath] = set()
    for entry in some:
        if entry.values is not None:
            paths.update(_places(entry.values, ()))
    return sorted(paths)


def _places(values: Mapping[str, Any], begin: FieldPath) -> Iterator[FieldPath]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            if len(begin) < 6:
                yield from _places(value, (*begin, name))
        else:
            yield (*begin, name)


def _paths(
    first: Sequence[Entry], fields: Mapping[str, str]
) -> dict[str, list[FieldPath]]:
    """Return where each kind of value is, the best places first."""
    every = _all_paths(first)
    places: dict[str, list[FieldPath]] = {}
    for kind in _NAMES:
        if kind in fields:
            places[kind] = [path for path in every if ".".join(path) == fields[kind]]
            continue
        ranks = {path: _rank(kind, path) for path in every}
        known = [path for path in every if ranks[path] is not None]
        places[kind] = sorted(known, key=lambda path: (ranks[path] or 0, len(path)))
    places[TEXT] = [path for path in places[TEXT] if _is_text(first, path)]
    if "request" not in fields and _has_answer_ids(first):
        places[REQUEST].append(("id",))
    return places


def _rank(kind: str, path: FieldPath) -> int | None:
    """Return how good a field is for a kind of value, 0 for the best; None for one that does not hold it."""
    parts = [part for name in path for part in name.split(".")]
    if kind in (PROMPT, ANSWER) and any(_PARTS.search(part.lower()) for part in parts):
        return None
    names = _NAMES[kind]
    for name in (plain_name(parts[-1]), plain_name("".join(parts[-2:]))):
        if name in names:
            return names.index(name)
    if kind == TIME and (base := _without_unit(parts[-1])) in names:
        return names.index(base)
    return None


def _without_unit(name: str) -> str:
    """Return the name of a time without the unit at its end."""
    plain = plain_name(name)
    for word in sorted(_UNIT_WORDS, key=len, reverse=True):
        if plain.endswith(word) and len(plain) > len(word):
            return plain.removesuffix(word)
    return plain


@cache
def _unit_of(path: FieldPath) -> str:
    """Return the unit that a time's field names, "" if it names none."""
    plain = plain_name(path[-1].rpartition(".")[2])
    if plain in _NAMES[TIME]:
        return ""
    base = _without_unit(path[-1].rpartition(".")[2])
    return _UNIT_WORDS.get(plain.removeprefix(base), "")


def _is_text(first: Sequence[Entry], path: FieldPath) -> bool:
    """Return whether a field holds prompts: text, or messages with text."""
    values = (_at(entry.values, path) for entry in first if entry.values is not None)
    return any(
        isinstance(value, list) or (isinstance(value, str) and _number(value) is None)
        for value in values
        if value
    )


def _has_answer_ids(first: Sequence[Entry]) -> bool:
    ids = [
        entry.values["id"] for entry in first if entry.values and "id" in entry.values
    ]
    return any(isinstance(one, str) and _ANSWER_ID.match(one) for one in ids)


def _column(rows: Iterable[Mapping[str, Any]], path: FieldPath) -> list[Any]:
    return [_at(row, path) for row in rows]


def _at(values: Mapping[str, Any], path: FieldPath) -> Any:
    value: Any = values
    for name in path:
        # A dict, as JSON and CSV give it; whether a value is any Mapping takes ten times as long.
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _number(value: Any) -> float | None:
    """Return a finite number, also one that is written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _moment(value: Any, unit: str) -> tuple[float, Clock, str] | None:
    """Read a time: seconds, on which clock, and the unit of a number; None where it is none."""
    number = _number(value)
    if number is None:
        return _iso_moment(value) if isinstance(value, str) else None
    unit = unit or _unit_by_size(number)
    seconds = number / UNITS[unit]
    return seconds, "absolute" if seconds >= _EPOCH_S else "relative", unit


def _unit_by_size(number: float) -> str:
    """Return the unit in which a number is a time since 1970, seconds for small ones."""
    for unit in ("ns", "us", "ms"):
        # 1e17 ns, 1e14 us and 1e11 ms are in 1973; 1e11 s would be in the year 5138.
        if number >= UNITS[unit] * 1e8:
            return unit
    return "s"


def _iso_moment(text: str) -> tuple[float, Clock, str] | None:
    plain = text.strip().removesuffix(" UTC").strip()
    zone = "+00:00" if len(plain) < len(text.strip()) else ""
    try:
        moment = datetime.fromisoformat(plain + zone)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC).timestamp(), "without a zone", "ISO 8601"
    return moment.timestamp(), "absolute", "ISO 8601"
