"""Traces of requests in the Mooncake trace's form: when each came, how long it is, which blocks its prompt is made of.

One JSON object a line, plain or compressed by gzip or zstd: `timestamp` in ms, `input_length` and `output_length` in
tokens, and `hash_ids`, one number for each block of a prompt, the last for the rest. Equal numbers are equal blocks
after equal beginnings, so that prompts share what their ids have in common from the first on
(https://github.com/kvcache-ai/Mooncake, FAST25-release). The plug-in `traces` makes traces of logs and other forms.

A workload names a `TraceFile`; what defines a measurement is its `TraceContent`.
"""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from kveval.host.values import Number, PositiveInt, Strict, Text
from kveval.load.log_file import DAMAGED, TraceError, opened, unreadable

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)
"""Sizes of blocks that traces have, tokens."""


class TraceRow(msgspec.Struct):
    """A request: time, ms in a file or seconds from a level's start; lengths, tokens; ids of its prompt's blocks."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class Problem(NamedTuple):
    """A mistake in a request: its place among the others, from 0 on, and a message."""

    place: int
    message: str


class Trace(NamedTuple):
    """A file's requests in order of time, and the SHA-256 of its lines."""

    rows: Sequence[TraceRow]
    sha256: str


class TraceFile(Strict):
    """A file of requests in the Mooncake trace's format, which are sent with its lengths and shared prefixes."""

    file: Text = Field(
        description="path of the file, relative to config/; plain or compressed by gzip or zstd"
    )
    hash_tokens: PositiveInt = 512
    """tokens that one id of the file stands for: 512 in Mooncake's traces, 16 in Bailian's, 64 in Weka's"""
    tokens: PositiveInt | None = None
    """tokens sent for each id, hash_tokens when left out; fewer make prompts and answers shorter in proportion"""
    start_s: Annotated[Number, Field(ge=0)] = 0.0
    """seconds at the beginning of the file that are skipped"""

    @field_validator("file")
    @classmethod
    def _below_folder(cls, file: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {}).get("folder", "."), file))


class TraceContent(TraceFile):
    """A trace by the content of its file: what defines a measurement, wherever the file lies.

    Attributes:
        file: where it lies on this host; "" in a stored run.
        tokens: tokens that are sent for each id.
        sha256: of its lines, unpacked.
        requests: number that each level sends in its time, in the order of the levels; empty in a closed loop.
    """

    file: str = ""
    tokens: PositiveInt
    sha256: str
    requests: tuple[int, ...] = ()

    @classmethod
    def from_file(cls, trace: TraceFile) -> Self:
        """Read the file of a trace. Raises TraceError."""
        content = read(Path(trace.file), trace.hash_tokens)
        return cls(
            file=trace.file,
            hash_tokens=trace.hash_tokens,
            tokens=trace.tokens or trace.hash_tokens,
            start_s=trace.start_s,
            sha256=content.sha256,
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as ids and stored runs have it: without its place, and without `requests` where there are none."""
        absent = {"file"} if self.requests else {"file", "requests"}
        return self.model_dump(mode="json", exclude=absent)


def read(path: Path, hash_tokens: int) -> Trace:
    """Read a trace whose ids stand for `hash_tokens` tokens each. Raises TraceError with the line that is wrong."""
    try:
        stamp = path.stat()
    except OSError as error:
        raise TraceError(
            f"no trace {path}: {error.strerror}", code="no_trace", path=path
        ) from error
    return _read(path, hash_tokens, stamp.st_mtime_ns, stamp.st_size)


@cache
def _read(path: Path, hash_tokens: int, _modified: int, _size: int) -> Trace:
    try:
        with opened(path) as file:
            text = file.read()
    except DAMAGED as error:
        raise unreadable(path, error) from error
    decoder = msgspec.json.Decoder(TraceRow)
    rows: list[TraceRow] = []
    lines = array("q")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
            lines.append(number)
        except msgspec.DecodeError as error:
            message = f"{path} line {number}: {error}; each has timestamp, input_length, output_length and hash_ids;"
            if b'"hash_ids"' not in line:
                message += f" `kveval trace {path}` makes a trace of a log"
            raise TraceError(
                message, code="not_a_request", path=path, line=number
            ) from error
    if not rows:
        raise TraceError(f"trace {path} has no requests", code="empty", path=path)
    for problem in problems(rows, hash_tokens):
        at = lines[problem.place]
        message = f"{path} line {at}: {problem.message}"
        raise TraceError(message, code="inconsistent", path=path, line=at)
    rows.sort(key=lambda row: row.timestamp)
    return Trace(rows, hashlib.sha256(text).hexdigest())


def problems(rows: Sequence[TraceRow], hash_tokens: int) -> Iterator[Problem]:
    """Yield what is wrong with requests: lengths that do not fit their ids, negative ids, ids after different ids."""
    before: dict[int, int] = {}
    for place, row in enumerate(rows):
        if (
            row.input_length < 1
            or row.output_length < 0
            or not 0 <= row.timestamp < float("inf")
        ):
            right = (
                "a time from 0 on, a prompt of a token or more, an answer of 0 or more"
            )
            yield Problem(place, f"needs {right}")
        elif -(-row.input_length // hash_tokens) != len(row.hash_ids):
            yield Problem(place, _wrong_count(row, hash_tokens))
        last = -1
        for number in row.hash_ids:
            if number < 0:
                yield Problem(place, f"id {number} is negative; ids count from 0")
                break
            if before.setdefault(number, last) != last:
                message = (
                    f"id {number} stands after {last}, elsewhere after {before[number]}"
                )
                yield Problem(place, message)
                break
            last = number


def _wrong_count(row: TraceRow, hash_tokens: int) -> str:
    """Return that a request has too many ids or too few, and which block sizes would fit."""
    blocks = -(-row.input_length // hash_tokens)
    fitting = fitting_block_sizes(row.input_length, len(row.hash_ids))
    right = "no usual hash_tokens fits"
    if fitting:
        right = f"hash_tokens {' or '.join(map(str, fitting))} would fit"
    return f"{row.input_length} tokens are {blocks} blocks of {hash_tokens}, it has {len(row.hash_ids)} hash_ids; {right}"


def fitting_block_sizes(tokens: int, count: int) -> list[int]:
    """Return the usual sizes of blocks, tokens, of which so many tokens fill this number."""
    return [size for size in BLOCK_SIZES if -(-tokens // size) == count]


def scaled(row: TraceRow, hash_tokens: int, tokens: int) -> TraceRow:
    """Return a request with `tokens` for each id in place of `hash_tokens`; the blocks it shares stay the same."""
    whole, rest = divmod(row.input_length, hash_tokens)
    return TraceRow(
        row.timestamp,
        whole * tokens + -(-rest * tokens // hash_tokens),
        max(1, round(row.output_length * tokens / hash_tokens)),
        row.hash_ids,
    )


def requests_of(content: TraceContent) -> Sequence[TraceRow]:
    """Return copies of the requests of a trace's file from its start on, scaled, with times in seconds from there.

    Raises TraceError where the file is not the one that the specification was made with.
    """
    trace = read(Path(content.file), content.hash_tokens)
    if trace.sha256 != content.sha256:
        raise TraceError(
            f"{content.file} has changed since planning",
            code="other_trace",
            path=content.file,
        )
    start_ms = 1000 * content.start_s
    rows = [
        scaled(row, content.hash_tokens, content.tokens)
        for row in trace.rows
        if row.timestamp >= start_ms
    ]
    for row in rows:
        row.timestamp = (row.timestamp - start_ms) / 1000
    return rows
