"""Traces of requests in the Mooncake trace's form: when each came, how long it is, which blocks its prompt is made of.

One JSON object a line, plain or gzip-compressed: `timestamp` in ms, `input_length` and `output_length` in tokens, and
`hash_ids`, one number for each block of a prompt, the last for the rest. Equal numbers are equal blocks after equal
beginnings, so that prompts share what their ids have in common from the first on
(https://github.com/kvcache-ai/Mooncake, FAST25-release). `kveval.load.trace_forms` converts other forms to it.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from kveval.host.errors import Failure


class TraceError(Failure):
    """A trace cannot be read, or is not valid."""


class TraceRow(msgspec.Struct):
    """A request: time, ms in a file or seconds from a level's start; lengths, tokens; ids of its prompt's blocks."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


class Trace(NamedTuple):
    """A file's requests in order of time, and the SHA-256 of its lines."""

    rows: Sequence[TraceRow]
    sha256: str


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
        content = path.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(
            f"trace {path} cannot be read: {error}", code="unreadable", path=path
        ) from error
    decoder = msgspec.json.Decoder(TraceRow)
    rows: list[TraceRow] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            rows.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            said = f"{path} line {number}: {error}; each has timestamp, input_length, output_length and hash_ids"
            raise TraceError(
                said, code="not_a_request", path=path, line=number
            ) from error
    if not rows:
        raise TraceError(f"trace {path} has no requests", code="empty", path=path)
    for wrong in problems(rows, hash_tokens):
        raise TraceError(f"{path} {wrong}", code="inconsistent", path=path)
    rows.sort(key=lambda row: row.timestamp)
    return Trace(rows, hashlib.sha256(text).hexdigest())


def problems(rows: Iterable[TraceRow], hash_tokens: int) -> Iterator[str]:
    """Yield what is wrong with requests: lengths that do not fit their ids, negative ids, ids after different ids."""
    before: dict[int, int] = {}
    for number, row in enumerate(rows, 1):
        if (
            row.input_length < 1
            or row.output_length < 0
            or not 0 <= row.timestamp < float("inf")
        ):
            yield f"request {number}: needs a time from 0 on, a prompt of a token or more, an answer of 0 or more"
        elif -(-row.input_length // hash_tokens) != len(row.hash_ids):
            yield (
                f"request {number}: {row.input_length} tokens are {-(-row.input_length // hash_tokens)} blocks of"
                f" {hash_tokens}, it has {len(row.hash_ids)} hash_ids: is this block size right?"
            )
        last = -1
        for one in row.hash_ids:
            if one < 0:
                yield f"request {number}: id {one} is negative; ids count from 0"
                break
            if before.setdefault(one, last) != last:
                yield f"request {number}: id {one} stands after {last}, elsewhere after {before[one]}"
                break
            last = one


def scaled(row: TraceRow, hash_tokens: int, tokens: int) -> TraceRow:
    """Return a request with `tokens` for each id in place of `hash_tokens`; the blocks it shares stay the same."""
    whole, rest = divmod(row.input_length, hash_tokens)
    return TraceRow(
        row.timestamp,
        whole * tokens + -(-rest * tokens // hash_tokens),
        max(1, round(row.output_length * tokens / hash_tokens)),
        row.hash_ids,
    )
