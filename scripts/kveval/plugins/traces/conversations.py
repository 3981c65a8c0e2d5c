"""Requests of a log as a trace: what their prompts share follows from their sessions, by an assumption.

A prompt begins with the prompt of the request before it in its session, and with that one's answer; so a conversation
grows as its turns come, and a prompt has the whole blocks of what was there before. A prompt that is shorter than that
is the first of a new conversation. First prompts share a prefix whose length is given, or nothing.
"""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

import numpy as np
import numpy.typing as npt
import zstandard

from kveval.load.trace_file import TraceRow
from kveval.plugins.traces.request_log import LoggedRequest

Ints = npt.NDArray[np.int64]
_NONE = -1


class Sharing(StrEnum):
    """An assumption of what a prompt begins with."""

    TEXT = "text"
    """what its text has in common with others'"""
    HISTORY = "history"
    """the earlier prompt and answer of its session"""
    PROMPTS = "prompts"
    """the earlier prompt of its session, whose answer may be left out, as reasoning often is"""
    NONE = "none"
    """nothing of its session"""


@dataclass(frozen=True)
class RequestArrays:
    """Requests in order of time, in arrays; equal ones are in no particular order, as nothing tells them apart.

    Attributes:
        times_s: seconds from the first.
        sessions: a number for each session; -1 for a request that is alone.
        prompts, answers: tokens.
        texts: of prompts, packed by zstd; empty where they are not asked for.
        earlier: lines of states of a request that were written before its last one.
    """

    times_s: npt.NDArray[np.float64]
    sessions: Ints
    prompts: Ints
    answers: Ints
    texts: list[bytes]
    earlier: list[int]

    @property
    def session_count(self) -> int:
        """How many sessions there are."""
        return len(np.unique(self.sessions[self.sessions != _NONE]))

    @classmethod
    def from_log(cls, logged: Iterable[LoggedRequest], *, texts: bool = False) -> Self:
        """Collect the requests of a log, whatever their order there.

        Of those with one id, as of an answer that is written again while it grows, the time of the first counts, and
        the lengths of the last. `texts`: keep the texts of prompts, which all must have.
        """
        times = array("d")
        sessions, prompts, answers, lines, ids, sums = (array("q") for _ in range(6))
        names: dict[str, int] = {}
        packed: list[bytes] = []
        packer = zstandard.ZstdCompressor(1)
        for request in logged:
            times.append(request.seconds)
            number = _NONE
            if request.session is not None:
                number = names.setdefault(request.session, len(names))
            sessions.append(number)
            prompts.append(request.prompt)
            answers.append(request.answer)
            lines.append(request.line)
            ids.append(_NONE if request.request is None else hash(request.request))
            if texts and request.text is not None:
                packed.append(
                    packer.compress(request.text.encode(errors="surrogatepass"))
                )
            sums.append(zlib.crc32(packed[-1]) if texts else 0)
        of_time = np.array(times, np.float64)
        of_session, of_prompt, of_answer, of_line, of_id, of_text = (
            np.array(column, np.int64)
            for column in (sessions, prompts, answers, lines, ids, sums)
        )
        of_session = _ranks(names)[of_session]
        keys = (of_text, of_answer, of_prompt, of_session)
        order = np.lexsort((*keys, of_time))
        first, last = _ends_of_each(of_id[order])
        of_time[order[last]] = of_time[order[first]]
        is_kept = of_id == _NONE
        is_kept[order[last]] = True
        kept = np.lexsort((*keys, of_time))
        kept = kept[is_kept[kept]]
        return cls(
            of_time[kept] - (of_time[kept[0]] if len(kept) else 0),
            of_session[kept],
            of_prompt[kept],
            of_answer[kept],
            [packed[number] for number in kept] if texts else [],
            of_line[~is_kept].tolist(),
        )


def _ranks(names: dict[str, int]) -> Ints:
    """Return for each number of a session its place among the sorted names; -1 for -1, which is behind them all."""
    ranks = np.full(len(names) + 1, _NONE)
    ranks[[names[name] for name in sorted(names)]] = np.arange(len(names))
    return ranks


def _ends_of_each(ids: Ints) -> tuple[Ints, Ints]:
    """Return the first place of each id, and the last; of those without one none."""
    names, first = np.unique(ids, return_index=True)
    last = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
    return first[names != _NONE], last[names != _NONE]


@dataclass
class Conversations:
    """The conversations into which requests were put, and how many prompts are shorter than what is assumed.

    `shorter`: than what their session's earlier request had; `much_shorter`: those of them that are shorter than the
    earlier prompt alone; `below_prefix`: first prompts that are shorter than the prefix of all.
    """

    count: int = 0
    shorter: int = 0
    much_shorter: int = 0
    below_prefix: int = 0


@dataclass
class _Conversation:
    prompt: int
    answer: int
    ids: list[int] = field(default_factory=list)


def rows(
    requests: RequestArrays,
    hash_tokens: int,
    sharing: Sharing,
    prefix_tokens: int,
    conversations: Conversations,
) -> Iterator[TraceRow]:
    """Yield the requests as rows of a trace, with times in ms; ids are numbered as they come, and count from 0.

    `hash_tokens`: tokens of a block; `prefix_tokens`: with which every conversation begins; what they do not fill of a
    block is not shared, nor is the rest of a prompt behind its last whole block. `conversations` is filled meanwhile.
    """
    last_turns = _last_turns(requests.sessions)
    prefix: list[int] = []
    prefix_blocks = prefix_tokens // hash_tokens
    fresh = 0
    open_conversations: dict[int, _Conversation] = {}
    columns = (
        requests.times_s.tolist(),
        requests.sessions.tolist(),
        requests.prompts.tolist(),
        requests.answers.tolist(),
        last_turns.tolist(),
    )
    for time_s, session, prompt, answer, is_last in zip(*columns, strict=True):
        earlier = open_conversations.get(session)
        if earlier is not None and _is_shorter(prompt, earlier, sharing, conversations):
            earlier = None
        whole = prompt // hash_tokens
        if earlier is None:
            conversations.count += 1
            conversations.below_prefix += prompt < prefix_tokens
            shared = min(prefix_blocks, whole)
            while len(prefix) < shared:
                prefix.append(fresh)
                fresh += 1
            earlier = _Conversation(prompt, answer, prefix[:shared])
        ids = earlier.ids
        missing = whole - len(ids)
        if missing > 0:
            ids.extend(range(fresh, fresh + missing))
            fresh += missing
        row_ids = ids[:whole]
        if prompt % hash_tokens:
            # Only whole blocks are shared: the load generator makes an id's tokens once, at its first length.
            row_ids = [*row_ids, fresh]
            fresh += 1
        earlier.prompt, earlier.answer = prompt, answer
        if is_last or sharing is Sharing.NONE:
            open_conversations.pop(session, None)
        elif session != _NONE:
            open_conversations[session] = earlier
        yield TraceRow(round(1000 * time_s, 3), prompt, answer, row_ids)


def _is_shorter(
    prompt: int,
    earlier: _Conversation,
    sharing: Sharing,
    conversations: Conversations,
) -> bool:
    """Return whether a prompt is too short to begin with what it should, and count it."""
    least = earlier.prompt
    if sharing is Sharing.HISTORY:
        least += earlier.answer
    if prompt >= least:
        return False
    conversations.shorter += 1
    conversations.much_shorter += prompt < earlier.prompt
    return True


def _last_turns(sessions: Ints) -> npt.NDArray[np.bool_]:
    """Return for each request whether it is the last of its session."""
    last = np.zeros(len(sessions), bool)
    last[len(sessions) - 1 - np.unique(sessions[::-1], return_index=True)[1]] = True
    last[sessions == _NONE] = True
    return last
