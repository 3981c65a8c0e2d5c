"""Converts other forms of traces to the Mooncake trace's: agents' sessions, OpenTelemetry spans, hashes of other names.

`python -m kveval.load.trace_forms FORM IN OUT` writes OUT, which `kveval.load.trace_file` reads. No text is
kept: prompts that come as text become lengths and salted hashes.

- weka: sessions with requests of `t` in s, `in`, `out` and `hash_ids`, with those of subagents nested
  (https://github.com/callanjfox/kv-cache-tester); ids of a session with `hash_id_scope: local` are its own.
- otel: spans of language models by OpenTelemetry's GenAI conventions, one a line or as `spans` of a session, with their
  messages and the tokens that were used.
- harvard: sessions of Harvard's FreeInference traces with requests of `start_ms`, `role_tokens`, `provider_tokens` and
  `block_ids`, those of subagents nested in tool calls (https://github.com/HarvardMadSys/freeinference_agentic_trace);
  not the .lcp files of 2026_prefixcache, whose layout no release of libCacheSim documents.
- bailian: Alibaba's Qwen-Bailian traces, and others with one request per line and times in seconds.
- log: lines with `timestamp` (s), `prompt` or `messages`, and the tokens of prompt and answer.
"""

import argparse
import gzip
import hashlib
import hmac
import itertools
import json
import secrets
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kveval.load.trace_file import TraceError, TraceRow, problems

_PROMPT_TOKENS = (
    "input_length",
    "prompt_tokens",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
)
_OUTPUT_TOKENS = (
    "output_length",
    "completion_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
)
_Entries = Iterable[Mapping[str, Any]]


def weka(entries: _Entries, hash_tokens: int, _salt: bytes) -> Iterator[TraceRow]:
    """Yield the requests of agents' sessions; the rest of a prompt after its last whole block is not shared."""
    numbers, fresh = _numbering(), itertools.count()
    for session_number, session in enumerate(entries):
        scope = session_number if session.get("hash_id_scope") == "local" else None
        for request, time_s in _requests(_listed(session, "requests"), 0.0):
            tokens = int(_number(request, ("in",)))
            ids = [(scope, one) for one in _listed(request, "hash_ids")]
            wanted = -(-tokens // hash_tokens)
            keys = [*ids[:wanted], *_own(wanted - len(ids), fresh)]
            if tokens % hash_tokens and len(ids) >= wanted:
                # A block in which the prompt ends is not whole.
                keys[-1] = (keys[-1], tokens)
            yield _row(
                time_s, tokens, int(_number(request, ("out",))), _chained(keys, numbers)
            )


def _requests(
    entries: Sequence[Mapping[str, Any]], spawned_s: float
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Requests with their times in the session, s; a subagent's are given from its start or from the session's."""
    times = [float(entry["t"]) for entry in entries if entry.get("type") != "subagent"]
    offset = spawned_s if times and times[0] < spawned_s else 0.0
    for entry in entries:
        if entry.get("type") == "subagent":
            yield from _requests(
                _listed(entry, "requests"), offset + float(entry.get("t", 0.0))
            )
        else:
            yield entry, offset + float(entry["t"])


def harvard(entries: _Entries, hash_tokens: int, _salt: bytes) -> Iterator[TraceRow]:
    """Yield the requests of sessions whose ids are of whole blocks; the rest of a prompt is not shared.

    A prompt's length is that by role, counted with the tokenizer of its blocks; an answer's is the provider's.
    """
    numbers, fresh = _numbering(), itertools.count()
    for request in itertools.chain.from_iterable(map(_with_subagents, entries)):
        ids = _listed(request, "block_ids")
        tokens = (
            sum((request.get("role_tokens") or {}).values()) or len(ids) * hash_tokens
        )
        keys = [*ids, *_own(-(-tokens // hash_tokens) - len(ids), fresh)]
        # The answer of a request that failed was not counted.
        outputs = request["provider_tokens"]["completion"] or 0
        yield _row(request["start_ms"] / 1000, tokens, outputs, _chained(keys, numbers))


def _with_subagents(session: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Requests of a session and of those that its tool calls started."""
    for request in _listed(session, "requests"):
        yield request
        for call in _listed(request, "tool_calls"):
            yield from _with_subagents(call.get("subagent") or {})


def _own(count: int, fresh: Iterator[int]) -> list[Any]:
    """Ids of so many blocks that no other prompt has."""
    return [("own", next(fresh)) for _ in range(count)]


def bailian(entries: _Entries, hash_tokens: int, _salt: bytes) -> Iterator[TraceRow]:
    """Yield requests that already have hashes, as any numbers or names."""
    numbers = _numbering()
    for entry in entries:
        tokens, outputs = (
            int(_number(entry, _PROMPT_TOKENS)),
            int(_number(entry, _OUTPUT_TOKENS)),
        )
        keys = list(_listed(entry, "hash_ids"))[: -(-tokens // hash_tokens)]
        if tokens % hash_tokens and keys:
            keys[-1] = (keys[-1], tokens)
        yield _row(float(entry["timestamp"]), tokens, outputs, _chained(keys, numbers))


def otel(entries: _Entries, hash_tokens: int, salt: bytes) -> Iterator[TraceRow]:
    """Yield the calls of language models among the spans, if they succeeded and have their messages."""
    numbers = _numbering()
    for entry in entries:
        for span in _listed(entry, "spans") or [entry]:
            attributes = span.get("attributes") or {}
            messages = attributes.get("gen_ai.input.messages")
            failed = (span.get("status") or {}).get("code") in (
                2,
                "ERROR",
                "STATUS_CODE_ERROR",
            )
            if (
                messages is None
                or failed
                or not any(name in attributes for name in _PROMPT_TOKENS)
            ):
                continue
            text = (
                messages
                if isinstance(messages, str)
                else json.dumps(messages, ensure_ascii=False)
            )
            start = str(span["start_time"]).replace("Z", "+00:00")
            moment = datetime.fromisoformat(start)
            seconds = (
                moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            ).timestamp()
            yield _of_text(seconds, text, attributes, hash_tokens, salt, numbers)


def log(entries: _Entries, hash_tokens: int, salt: bytes) -> Iterator[TraceRow]:
    """Yield the requests of a log of prompts."""
    numbers = _numbering()
    for entry in entries:
        prompt = entry.get("prompt", entry.get("messages"))
        if prompt is None:
            raise TraceError("a line has neither prompt nor messages", code="no_prompt")
        text = (
            prompt
            if isinstance(prompt, str)
            else json.dumps(prompt, ensure_ascii=False)
        )
        yield _of_text(
            float(entry["timestamp"]), text, entry, hash_tokens, salt, numbers
        )


def _of_text(
    seconds: float,
    text: str,
    counts: Mapping[str, Any],
    hash_tokens: int,
    salt: bytes,
    numbers: dict[Any, int],
) -> TraceRow:
    """Make a request of a text, with a hash for each block of `hash_tokens` tokens of four characters.

    The fixed four characters give equal beginnings equal hashes whatever follows them; the request's length is the one
    that was counted.
    """
    tokens, outputs = (
        int(_number(counts, _PROMPT_TOKENS)),
        int(_number(counts, _OUTPUT_TOKENS)),
    )
    wanted, each = -(-tokens // hash_tokens), 4 * hash_tokens
    keys: list[Any] = []
    running = hmac.new(salt, digestmod=hashlib.sha256)
    for place in range(wanted):
        piece = text[place * each : (place + 1) * each]
        running.update(piece.encode(errors="surrogatepass"))
        # The last block has the lengths in its key, so that no longer prompt shares it.
        whole = len(piece) == each and (place + 1) * hash_tokens <= tokens
        keys.append(
            running.digest() if whole else (running.digest(), place, tokens, len(text))
        )
    return _row(seconds, tokens, outputs, _chained(keys, numbers))


def _numbering() -> dict[Any, int]:
    """Return numbers for ids of any kind, in the order in which they are asked for."""
    return defaultdict(itertools.count().__next__)


def _chained(keys: Iterable[Any], numbers: dict[Any, int]) -> list[int]:
    """Numbers for ids, different if anything before them differs."""
    found: list[int] = []
    for key in keys:
        found.append(numbers[found[-1] if found else -1, key])
    return found


def _row(seconds: float, tokens: int, outputs: int, ids: list[int]) -> TraceRow:
    return TraceRow(round(1000 * seconds, 3), tokens, outputs, ids)


def _number(entry: Mapping[str, Any], names: Sequence[str]) -> float:
    for name in names:
        if isinstance(entry.get(name), int | float):
            return float(entry[name])
    raise TraceError(f"a request has none of {', '.join(names)}", code="no_length")


def _listed(entry: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = entry.get(name)
    return found if isinstance(found, list) else []


def _entries(path: Path) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a file, one a line, or a list of them."""
    with path.open("rb") as file:
        opened = gzip.open if file.read(2) == b"\x1f\x8b" else open
    with opened(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if number == 1 and line.lstrip()[:1] == b"[":
                yield from json.loads(line + file.read())
                return
            try:
                entry = json.loads(line)
            except ValueError as error:
                raise TraceError(
                    f"{path} line {number} is not JSON: {error}",
                    code="no_json",
                    line=number,
                ) from error
            if not isinstance(entry, Mapping):
                raise TraceError(
                    f"{path} line {number} is not an object",
                    code="no_json",
                    line=number,
                )
            yield entry


# Form -> its converter, and the tokens of a block.
_FORMS: Mapping[
    str, tuple[Callable[[_Entries, int, bytes], Iterator[TraceRow]], int]
] = {
    "bailian": (bailian, 16),
    "harvard": (harvard, 16),
    "log": (log, 32),
    "otel": (otel, 32),
    "weka": (weka, 64),
}


def convert(
    form: str, source: Path, output: Path, hash_tokens: int, salt: bytes
) -> int:
    """Convert a trace to the Mooncake trace's form, from time 0 on; return how many requests it has."""
    requests_of, _ = _FORMS[form]
    try:
        found = requests_of(_entries(source), hash_tokens, salt)
        rows = sorted(
            (row for row in found if row.input_length), key=lambda row: row.timestamp
        )
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        EOFError,
        zlib.error,
    ) as error:
        raise TraceError(
            f"{source} is not a trace of form {form}: {error!r}",
            code="other_form",
            path=source,
        ) from error
    if not rows:
        raise TraceError(
            f"{source} has no requests of form {form}", code="empty", path=source
        )
    begin = rows[0].timestamp
    for row in rows:
        row.timestamp = round(row.timestamp - begin, 3)
    for wrong in problems(rows, hash_tokens):
        raise TraceError(f"{source} {wrong}", code="inconsistent", path=source)
    content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    output.write_bytes(
        gzip.compress(content, mtime=0) if output.suffix == ".gz" else content
    )
    return len(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 written, 1 not such a trace."""
    parser = argparse.ArgumentParser(
        prog="python -m kveval.load.trace_forms",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("form", choices=_FORMS)
    parser.add_argument("source", type=Path, metavar="IN")
    parser.add_argument(
        "output", type=Path, metavar="OUT", help=".jsonl, or .jsonl.gz to be compressed"
    )
    parser.add_argument(
        "--hash-tokens", type=int, help="tokens of a block; by default the form's"
    )
    parser.add_argument(
        "--salt",
        help="salt of the hashes of text; random by default, so that texts cannot be guessed",
    )
    given = parser.parse_args(argv)
    tokens = given.hash_tokens or _FORMS[given.form][1]
    salt = given.salt.encode() if given.salt else secrets.token_bytes(32)
    try:
        count = convert(given.form, given.source, given.output, tokens, salt)
    except (TraceError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{given.output}: {count:,} requests, hash_tokens: {tokens}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
