"""Other forms of traces as rows of a Mooncake trace: agents' sessions, and hashes of other names.

`kveval.plugins.traces.trace_making` writes them to a file. Ids become numbers in the order of first appearance.

- weka: sessions with requests of `t` in s, `in`, `out` and `hash_ids`, with those of subagents nested
  (https://github.com/callanjfox/kv-cache-tester); ids of a session with `hash_id_scope: local` are its own.
- harvard: sessions of Harvard's FreeInference traces with requests of `start_ms`, `role_tokens`, `provider_tokens` and
  `block_ids`, those of subagents nested in tool calls (https://github.com/HarvardMadSys/freeinference_agentic_trace);
  not the .lcp files of 2026_prefixcache, whose layout no release of libCacheSim documents.
- bailian: Alibaba's Qwen-Bailian traces, and others with one request per line and times in seconds.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kveval.load.log_file import TraceError
from kveval.load.trace_file import TraceRow
from kveval.plugins.traces.request_log import MOST_TOKENS

_PROMPT_TOKENS = ("input_length", "prompt_tokens")
_OUTPUT_TOKENS = ("output_length", "completion_tokens")
_Entries = Iterable[Mapping[str, Any]]


def weka(entries: _Entries, hash_tokens: int) -> Iterator[TraceRow]:
    """Yield the requests of agents' sessions; the rest of a prompt after its last whole block is not shared."""
    numbers, fresh = _numbering(), itertools.count()
    for session_number, session in enumerate(entries):
        scope = session_number if session.get("hash_id_scope") == "local" else None
        for request, time_s in _requests(_listed(session, "requests"), 0.0):
            tokens = int(_number(request, ("in",)))
            outputs = int(_number(request, ("out",)))
            ids = [(scope, number) for number in _listed(request, "hash_ids")]
            blocks = -(-tokens // hash_tokens)
            keys = [*ids[:blocks], *_own(blocks - len(ids), fresh)]
            if tokens % hash_tokens and len(ids) >= blocks:
                # A block in which the prompt ends is not whole.
                keys[-1] = (keys[-1], tokens)
            yield _row(time_s, tokens, outputs, _chained(keys, numbers))


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


def harvard(entries: _Entries, hash_tokens: int) -> Iterator[TraceRow]:
    """Yield the requests of sessions whose ids are of whole blocks; the rest of a prompt is not shared.

    A prompt's length is that by role, counted with the tokenizer of its blocks; an answer's is the provider's.
    """
    numbers, fresh = _numbering(), itertools.count()
    for request in itertools.chain.from_iterable(map(_with_subagents, entries)):
        ids = _listed(request, "block_ids")
        by_role = request.get("role_tokens") or {}
        tokens = sum(by_role.values()) or len(ids) * hash_tokens
        blocks = -(-tokens // hash_tokens)
        keys = [*ids, *_own(blocks - len(ids), fresh)]
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


def bailian(entries: _Entries, hash_tokens: int) -> Iterator[TraceRow]:
    """Yield requests that already have hashes, as any numbers or names."""
    numbers = _numbering()
    for entry in entries:
        tokens = int(_number(entry, _PROMPT_TOKENS))
        outputs = int(_number(entry, _OUTPUT_TOKENS))
        keys = list(_listed(entry, "hash_ids"))[: -(-tokens // hash_tokens)]
        if tokens % hash_tokens and keys:
            keys[-1] = (keys[-1], tokens)
        yield _row(float(entry["timestamp"]), tokens, outputs, _chained(keys, numbers))


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
            number = float(entry[name])
            if not 0 <= number <= MOST_TOKENS:
                message = f"{name} {number:g} is no number of tokens"
                raise TraceError(message, code="no_length")
            return number
    raise TraceError(f"a request has none of {', '.join(names)}", code="no_length")


def _listed(entry: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = entry.get(name)
    return found if isinstance(found, list) else []
