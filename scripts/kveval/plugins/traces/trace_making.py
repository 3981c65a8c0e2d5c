"""Makes a trace of a file with requests: of a log, or of another form of trace; and sums up what is in it."""

import contextlib
import gzip
import hashlib
import io
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np
import zstandard

from kveval.host.files import replacing
from kveval.load import trace_file
from kveval.load.log_file import DAMAGED, Entry, TraceError, entries, opened
from kveval.load.trace_file import BLOCK_SIZES, TraceRow, fitting_block_sizes, problems
from kveval.plugins.traces import conversations, trace_forms
from kveval.plugins.traces.conversations import Conversations, RequestArrays, Sharing
from kveval.plugins.traces.request_log import (
    Dropped,
    LogFacts,
    LoggedRequest,
    RequestLog,
)
from kveval.plugins.traces.text_blocks import Guess, PromptTexts

LOG, MOONCAKE = "log", "mooncake"
_CONVERTERS: Mapping[
    str, Callable[[Iterable[Mapping[str, Any]], int], Iterator[TraceRow]]
] = {
    "bailian": trace_forms.bailian,
    "harvard": trace_forms.harvard,
    "weka": trace_forms.weka,
}
BLOCK_TOKENS: Mapping[str, int] = {
    "log": 32,
    "mooncake": 512,
    "bailian": 16,
    "harvard": 16,
    "weka": 64,
}
"""Form of a file -> the tokens of a block in its trace, where nothing else is given."""
MOST_BLOCKS = 20_000_000
"""Blocks of a trace, above which larger blocks are chosen."""
# Texts say where prompts part, so that blocks may be as small as those of servers.
_TEXT_BLOCK_TOKENS = 16
_LOOKED_AT = 1_000
_WRITTEN_AT_ONCE = 2**18


@dataclass(frozen=True)
class TraceOptions:
    """How a file becomes a trace.

    Attributes:
        form: a key of BLOCK_TOKENS; "" to recognise it.
        hash_tokens: tokens of a block; None for those of the form.
        sharing: of a log: what prompts are assumed to begin with; None for their text, or for their history without.
        prefix_tokens: of a log without text: tokens with which all first prompts begin.
        fields, time_unit: of a log, see `RequestLog`.
    """

    form: str = ""
    hash_tokens: int | None = None
    sharing: Sharing | None = None
    prefix_tokens: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    time_unit: str = ""


@dataclass(frozen=True)
class Lengths:
    """Lengths of all prompts or answers, tokens."""

    total: int
    p50: float
    p95: float
    most: int

    @classmethod
    def of(cls, lengths: "array[int]") -> Self:
        """Sum up lengths, of which there is one at least."""
        values = np.frombuffer(lengths, np.int64)
        p50, p95 = np.percentile(values, (50, 95))
        return cls(int(values.sum()), float(p50), float(p95), int(values.max()))


@dataclass(frozen=True)
class TextFacts:
    """How the texts of prompts were counted.

    `characters_per_token`: the median of prompts that are text as a whole; `unclear`: prompts with parts that cannot be
    counted, of which follows that prompts share `least_share` to `most_share` of all tokens; None if there are none.
    """

    characters_per_token: float
    unclear: int
    least_share: float | None
    most_share: float | None


@dataclass(frozen=True)
class LogSummary:
    """The facts about a log, beside its requests, and the assumptions that its trace rests on.

    `sessions`: None without a field for them; `conversations`: None where text says what prompts share, and `texts` how.
    """

    facts: LogFacts
    sharing: Sharing
    prefix_tokens: int
    sessions: int | None = None
    conversations: Conversations | None = None
    texts: TextFacts | None = None


@dataclass(frozen=True)
class MadeTrace:
    """A trace and what is in it.

    Attributes:
        file: the trace's; the source itself, if that is a trace already.
        state: written; unchanged, where the same was there; or as it is, where the source is a trace.
        hash_tokens: tokens of a block, which a workload declares.
        span_s, longest_pause_s: seconds from the first request to the last, and the longest without one.
        empty_answers: how many answers have 0 tokens.
        longest: most tokens of a prompt with its answer.
        shared_tokens: of prompts, in blocks that earlier prompts have: what a cache of any size would serve.
        log: None for other forms.
    """

    source: Path
    file: Path
    state: str
    form: str
    hash_tokens: int
    requests: int
    span_s: float
    longest_pause_s: float
    prompts: Lengths
    answers: Lengths
    empty_answers: int
    longest: int
    shared_tokens: int
    log: LogSummary | None

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Lines of a log that became no request, by reason."""
        return () if self.log is None else tuple(self.log.facts.dropped.values())

    @property
    def hit_share(self) -> float:
        """The share of the prompt tokens that a cache of any size would serve."""
        return self.shared_tokens / self.prompts.total


def make_trace(
    source: Path, output: Path | None, options: TraceOptions, default_output: Path
) -> MadeTrace:
    """Make a trace of a file and sum it up.

    `output`: its suffix says how it is compressed: .gz, .zst, or not; None for `default_output`, or for no file at all
    where the source is a trace already. Raises TraceError: for what cannot be read, with its line, and for another
    file that is there.
    """
    form = options.form or recognised_form(source)
    if form == MOONCAKE and output is None:
        size, rows = _converted(source, form, options.hash_tokens)
        totals = _Totals(size)
        for row in _renumbered(rows):
            totals.add(row)
        return totals.summary(source, source, "as it is", form)
    output = output or default_output
    _refuse_output(source, output)
    if form == LOG:
        return _make_of_log(source, output, options)
    size, rows = _converted(source, form, options.hash_tokens)
    totals = _Totals(size)
    state = _write(map(totals.add, _renumbered(rows)), output)
    return totals.summary(source, output, state, form)


def _make_of_log(source: Path, output: Path, options: TraceOptions) -> MadeTrace:
    log = RequestLog(source, options.fields, options.time_unit)
    sharing = options.sharing or (Sharing.TEXT if log.has_text else Sharing.HISTORY)
    usual = _TEXT_BLOCK_TOKENS if sharing is Sharing.TEXT else BLOCK_TOKENS[LOG]
    size = options.hash_tokens or usual
    summary = LogSummary(log.facts, sharing, options.prefix_tokens)
    if sharing is Sharing.TEXT and not log.has_text:
        message = (
            f"{source} has no text of prompts; --sharing history goes by the sessions"
        )
        raise TraceError(message, code="no_text", path=source)
    by_text = sharing is Sharing.TEXT
    requests = RequestArrays.from_log(_of_text(log) if by_text else log, texts=by_text)
    for line in requests.earlier:
        log.facts.drop(line, "an earlier state of a request, or the same again")
    if not options.hash_tokens:
        size = _block_tokens(int(requests.prompts.sum()), size)
    if by_text:
        texts = PromptTexts(requests)
        summary = replace(summary, texts=_text_facts(texts, size))
        rows = texts.rows(size, Guess.LIKELY)
    else:
        counts = Conversations()
        sessions = requests.session_count if log.has_sessions else None
        summary = replace(summary, sessions=sessions, conversations=counts)
        rows = conversations.rows(
            requests, size, sharing, options.prefix_tokens, counts
        )
    totals = _Totals(size)
    state = _write(_not_empty(map(totals.add, rows), source, log.facts), output)
    return totals.summary(source, output, state, LOG, summary)


def _of_text(log: RequestLog) -> Iterator[LoggedRequest]:
    """Yield requests whose prompts are text; the others are dropped, which the log's facts say."""
    for request in log:
        if request.text is None:
            log.facts.drop(request.line, "no text of the prompt")
        else:
            yield request


def _text_facts(texts: PromptTexts, hash_tokens: int) -> TextFacts:
    """Return how texts are counted and, where parts of them cannot be, which shares are possible."""
    shares = []
    for guess in Guess if texts.unclear else ():
        totals = _Totals(hash_tokens)
        for row in texts.rows(hash_tokens, guess):
            totals.add(row)
        shares.append(totals.hit_share)
    least, most = min(shares, default=None), max(shares, default=None)
    return TextFacts(texts.characters_per_token, texts.unclear, least, most)


def _block_tokens(prompt_tokens: int, size: int) -> int:
    """Return the tokens of a block: larger ones where a trace would have too many of them to be read in memory."""
    while prompt_tokens > size * MOST_BLOCKS and size < BLOCK_SIZES[-1]:
        size *= 2
    return size


def recognised_form(source: Path) -> str:
    """Return the form of a file by its first object, `log` for anything that is no known form of trace."""
    for entry in islice(entries(source), _LOOKED_AT):
        if entry.values is not None:
            return _form_of(entry.values)
    return LOG


def _form_of(values: Mapping[str, Any]) -> str:
    requests = values.get("requests")
    if isinstance(requests, list) and requests and isinstance(requests[0], Mapping):
        return "harvard" if "start_ms" in requests[0] else "weka"
    ids = values.get("hash_ids")
    if not isinstance(ids, list):
        return LOG
    # Bailian's have more fields, and times in s.
    own = {"timestamp", "input_length", "output_length", "hash_ids"}
    whole = all(isinstance(number, int) for number in ids)
    return MOONCAKE if whole and values.keys() <= own else "bailian"


def _declared_block_tokens(source: Path) -> int:
    """Return the tokens of a block that the numbers of ids in a trace's first requests fit, 512 if several do."""
    sizes = set(BLOCK_SIZES)
    for entry in islice(entries(source), _LOOKED_AT):
        values = entry.values or {}
        length, ids = values.get("input_length"), values.get("hash_ids")
        if isinstance(length, int) and isinstance(ids, list):
            sizes &= set(fitting_block_sizes(length, len(ids)))
    usual = BLOCK_TOKENS[MOONCAKE]
    return usual if usual in sizes or not sizes else max(sizes)


class _Entries:
    """The entries of a file, and the line of the one that was read last."""

    def __init__(self, source: Path) -> None:
        self.source, self.line = source, 0

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for entry in entries(self.source):
            self.line = entry.line
            yield self._values(entry)

    def _values(self, entry: Entry) -> Mapping[str, Any]:
        if entry.values is None:
            message = f"{self.source} line {entry.line} is no JSON object"
            raise TraceError(message, code="no_json", path=self.source, line=entry.line)
        return entry.values


def _converted(
    source: Path, form: str, hash_tokens: int | None
) -> tuple[int, Sequence[TraceRow]]:
    """Return a block's tokens and the requests of a trace of another form, in order of time from 0 on."""
    if form == MOONCAKE:
        size = hash_tokens or _declared_block_tokens(source)
        return size, trace_file.read(source, size).rows
    size = hash_tokens or BLOCK_TOKENS[form]
    read = _Entries(source)
    try:
        rows = [row for row in _CONVERTERS[form](read, size) if row.input_length]
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        others = ", ".join(name for name in BLOCK_TOKENS if name != form)
        message = f"{source} line {read.line} is not of form {form}: {why}"
        raise TraceError(
            f"{message}; if it is of another, --form says so: {others}",
            code="other_form",
            path=source,
            line=read.line,
        ) from error
    except TraceError as error:
        if error.code in ("no_json", "unreadable"):
            raise
        message = f"{source} line {read.line}: {error}"
        raise TraceError(
            message, code=error.code, path=source, line=read.line
        ) from error
    if not rows:
        message = f"{source} has no requests of form {form}; --form chooses another"
        raise TraceError(message, code="empty", path=source)
    rows.sort(key=lambda row: row.timestamp)
    for problem in problems(rows, size):
        message = f"{source} request {problem.place + 1:,} in order of time: {problem.message}"
        raise TraceError(message, code="inconsistent", path=source)
    return size, _from_zero(rows)


def _from_zero(rows: Sequence[TraceRow]) -> Sequence[TraceRow]:
    """Return rows in order of time with times from the first one on."""
    begin = rows[0].timestamp if rows else 0.0
    for row in rows:
        row.timestamp = round(row.timestamp - begin, 3)
    return rows


def _renumbered(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Yield rows with ids that are numbered as they appear."""
    numbers: dict[int, int] = {}
    for row in rows:
        ids = [numbers.setdefault(one, len(numbers)) for one in row.hash_ids]
        yield TraceRow(row.timestamp, row.input_length, row.output_length, ids)


def _not_empty(
    rows: Iterator[TraceRow], source: Path, facts: LogFacts
) -> Iterator[TraceRow]:
    first = next(rows, None)
    if first is None:
        reasons = [
            f"{dropped.reason} ({dropped.count:,}, the first in line {dropped.lines[0]:,})"
            for dropped in facts.dropped.values()
        ]
        why = f": {'; '.join(reasons[:3])}" if reasons else ""
        raise TraceError(f"{source} has no request{why}", code="empty", path=source)
    yield first
    yield from rows


class _Totals:
    """Sums up the rows of a trace whose ids are numbered as they appear."""

    def __init__(self, hash_tokens: int) -> None:
        self._hash_tokens = hash_tokens
        self._prompts, self._answers = array("q"), array("q")
        self._seen = self._shared_tokens = self._longest = 0
        self._first_ms: float | None = None
        self._last_ms = self._pause_ms = 0.0

    def add(self, row: TraceRow) -> TraceRow:
        """Take a row into account; return it."""
        if self._first_ms is None:
            self._first_ms = self._last_ms = row.timestamp
        self._pause_ms = max(self._pause_ms, row.timestamp - self._last_ms)
        self._last_ms = row.timestamp
        self._prompts.append(row.input_length)
        self._answers.append(row.output_length)
        self._longest = max(self._longest, row.input_length + row.output_length)
        ids = row.hash_ids
        shared = len(ids)
        if ids and ids[-1] >= self._seen:
            # Nothing is shared behind the first new id, and new ones follow one another.
            shared -= ids[-1] - self._seen + 1
            self._seen = ids[-1] + 1
        self._shared_tokens += min(shared * self._hash_tokens, row.input_length)
        return row

    @property
    def hit_share(self) -> float:
        """The share of the prompt tokens that are in blocks of earlier prompts."""
        return self._shared_tokens / sum(self._prompts)

    def summary(
        self,
        source: Path,
        file: Path,
        state: str,
        form: str,
        log: LogSummary | None = None,
    ) -> MadeTrace:
        """Sum up what was added."""
        assert self._first_ms is not None
        return MadeTrace(
            source=source,
            file=file,
            state=state,
            form=form,
            hash_tokens=self._hash_tokens,
            requests=len(self._prompts),
            span_s=(self._last_ms - self._first_ms) / 1000,
            longest_pause_s=self._pause_ms / 1000,
            prompts=Lengths.of(self._prompts),
            answers=Lengths.of(self._answers),
            empty_answers=self._answers.count(0),
            longest=self._longest,
            shared_tokens=self._shared_tokens,
            log=log,
        )


def _refuse_output(source: Path, output: Path) -> None:
    if output.is_dir():
        file = output / "mine.jsonl.gz"
        message = f"{output} is a folder; name a file, such as {file}"
        raise TraceError(message, code="folder", path=output)
    if output.exists() and output.samefile(source):
        message = f"{output} is the log itself; name another file with --out"
        raise TraceError(message, code="same_file", path=output)


def _write(rows: Iterable[TraceRow], output: Path) -> str:
    """Write rows to a file; return `unchanged` where it had them already. Raises TraceError if it has others."""
    digest = hashlib.sha256()
    with _written(output) as partial:
        _write_packed(rows, partial, output.suffix, digest)
        if not output.exists():
            return "written"
        if _digest(output) != digest.hexdigest():
            message = f"{output} is there with another content; remove it, or name another file with --out"
            raise TraceError(message, code="other_content", path=output)
    return "unchanged"


@contextlib.contextmanager
def _written(output: Path) -> Iterator[Path]:
    """Yield the path of a new file in place of `output`. Raises TraceError where none can be written."""
    try:
        with replacing(output) as partial:
            yield partial
    except OSError as error:
        message = (
            f"{output} cannot be written: {error.strerror}; --out names another file"
        )
        raise TraceError(message, code="not_written", path=output) from error


def _write_packed(
    rows: Iterable[TraceRow], path: Path, suffix: str, digest: Any
) -> None:
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file, _packed(file, suffix) as packed:
        content = bytearray()
        for row in rows:
            content += encoder.encode(row) + b"\n"
            if len(content) >= _WRITTEN_AT_ONCE:
                digest.update(content)
                packed.write(content)
                content.clear()
        digest.update(content)
        packed.write(content)


@contextlib.contextmanager
def _packed(file: BinaryIO, suffix: str) -> Iterator[Any]:
    """Yield what compresses into a file as its suffix says, the same bytes for the same content."""
    if suffix == ".gz":
        # Six times as fast as the usual level 6, and a tenth larger.
        with gzip.GzipFile("", "wb", 2, file, mtime=0) as packed:
            yield packed
    elif suffix == ".zst":
        with zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed:
            yield packed
    else:
        yield file


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file's lines, unpacked; "" for one that is damaged."""
    digest = hashlib.sha256()
    try:
        with opened(path) as file:
            while chunk := file.read(io.DEFAULT_BUFFER_SIZE * 32):
                digest.update(chunk)
    except DAMAGED:
        return ""
    return digest.hexdigest()
