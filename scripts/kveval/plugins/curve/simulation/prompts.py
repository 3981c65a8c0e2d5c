"""The prompts of a load as sequences of blocks: equal ids for blocks that are equal and have equal beginnings."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from kveval.load.trace_file import TraceRow
from kveval.plugins.curve.simulation.distances import GROUPS, Ints, Sample, hashes

# Blocks that are computed at once, which bounds memory: few enough for a processor's cache.
_AT_ONCE = 250_000


@dataclass(frozen=True)
class Blocks:
    """The full blocks of all requests, in the order of the requests; those of request n from `offsets[n]` on.

    Attributes:
        tokens: of a block.
        ids: one for each block.
        numbers: position of each block in its request, from 0 on.
        offsets: where each request's blocks begin, and the end of the last.
        found_tokens: prompt tokens that each block saves if a cache has it: none for a block of an answer, nor for the
            block with a prompt's last token, which a server always computes.
        groups: the part of the sample that each block is in; None if there is no sample.
    """

    tokens: int
    ids: Ints
    numbers: npt.NDArray[np.int32]
    offsets: Ints
    found_tokens: npt.NDArray[np.int32]
    groups: npt.NDArray[np.uint8] | None = None

    def of_group(self, group: int) -> Self:
        """Return the blocks of one part of a sample."""
        assert self.groups is not None
        return replace(self._subset(self.groups == group), groups=None)

    def of_prompts(self, input_tokens: Ints) -> Self:
        """Return the blocks that lie in prompts of these lengths, those of all requests."""
        ends = (self.numbers + 1) * self.tokens
        limits = np.repeat(input_tokens, np.diff(self.offsets))
        return self._subset(ends <= limits)

    def _subset(self, chosen: npt.NDArray[np.bool_]) -> Self:
        before = np.concatenate(([0], np.cumsum(chosen)))
        return replace(
            self,
            ids=self.ids[chosen],
            numbers=self.numbers[chosen],
            offsets=before[self.offsets],
            found_tokens=self.found_tokens[chosen],
            groups=None if self.groups is None else self.groups[chosen],
        )


@dataclass(frozen=True)
class Prompts:
    """Requests in the order in which they come.

    Attributes:
        hash_ids: those of all prompts one after the other; each stands for the next `hash_tokens` tokens, the last of a
            prompt for the rest.
        offsets: where each prompt's ids begin, and the end of the last.
        input_tokens: of each prompt.
        output_tokens: of each answer.
        counted: whether a request is measured.
        answers_known: whether ids cover the answer, too, which is part of a later prompt.
    """

    hash_ids: Ints
    offsets: Ints
    hash_tokens: int
    input_tokens: Ints
    output_tokens: Ints
    counted: npt.NDArray[np.bool_]
    answers_known: bool = False

    @classmethod
    def of_rows(
        cls,
        rows: Sequence[TraceRow],
        hash_tokens: int,
        counted: Iterable[bool] | None = None,
    ) -> Self:
        """Make prompts of the rows of a trace, whose answers are not part of later prompts."""
        lengths = [len(row.hash_ids) for row in rows]
        return cls(
            hash_ids=np.fromiter(
                (one for row in rows for one in row.hash_ids), np.int64, sum(lengths)
            ),
            offsets=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            hash_tokens=hash_tokens,
            input_tokens=np.array([row.input_length for row in rows], np.int64),
            output_tokens=np.array([row.output_length for row in rows], np.int64),
            counted=np.ones(len(rows), bool)
            if counted is None
            else np.array([*counted], bool),
        )

    @property
    def counted_tokens(self) -> int:
        """Tokens of the prompts that are counted."""
        return int(self.input_tokens[self.counted].sum())

    @property
    def first_ids(self) -> Ints:
        """The first id of each prompt, equal for equal beginnings; arbitrary for a prompt without ids."""
        if not len(self.hash_ids):
            return np.arange(len(self.input_tokens))
        return self.hash_ids[np.minimum(self.offsets[:-1], len(self.hash_ids) - 1)]

    def subset(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Return some of the requests, as one of several replicas gets them."""
        sizes = np.diff(self.offsets)
        return replace(
            self,
            hash_ids=self.hash_ids[np.repeat(chosen, sizes)],
            offsets=np.concatenate(([0], np.cumsum(sizes[chosen]))),
            input_tokens=self.input_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            counted=self.counted[chosen],
        )

    def block_count(self, block_tokens: int, answers: bool = False) -> int:
        """Return how many full blocks of so many tokens there are."""
        return int(self._sizes(block_tokens, answers).sum())

    def found_tokens(self, block_tokens: int) -> int:
        """Return the prompt tokens that a cache which has every block would save."""
        return int(
            ((self.input_tokens[self.counted] - 1) // block_tokens * block_tokens).sum()
        )

    def blocks(
        self, block_tokens: int, answers: bool = False, sample: Sample | None = None
    ) -> Blocks:
        """Return the full blocks of so many tokens, of prompts, or of prompts and their answers; all, or a sample."""
        sizes = self._sizes(block_tokens, answers)
        ends = np.cumsum(sizes)
        cuts = np.searchsorted(
            ends,
            np.arange(_AT_ONCE, ends[-1] if len(ends) else 0, _AT_ONCE),
            side="right",
        )
        edges = [0, *np.unique(cuts).tolist(), len(sizes)]
        parts = [
            self._blocks_of(
                np.arange(begin, end), sizes[begin:end], block_tokens, sample
            )
            for begin, end in itertools.pairwise(edges)
        ]
        ids, requests, numbers, found, groups = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        offsets = np.concatenate(
            ([0], np.cumsum(np.bincount(requests, minlength=len(sizes))))
        )
        return Blocks(
            block_tokens,
            ids,
            numbers,
            offsets,
            found,
            None if sample is None else groups,
        )

    def _sizes(self, block_tokens: int, answers: bool) -> Ints:
        return (
            self.input_tokens + (self.output_tokens if answers else 0)
        ) // block_tokens

    def _blocks_of(
        self, requests: Ints, sizes: Ints, block_tokens: int, sample: Sample | None
    ) -> tuple[
        Ints,
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.int32],
        npt.NDArray[np.uint8],
    ]:
        """Ids, requests, numbers, tokens to be found and groups of the blocks of some requests."""
        request = np.repeat(requests, sizes)
        number = np.arange(len(request)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        groups = np.empty(0, np.uint8)
        if sample is not None:
            unit = number * block_tokens // sample.unit_tokens * sample.unit_tokens
            mixed = hashes(
                self._ids(request, unit + sample.part_tokens - 1, sample.part_tokens)
            )
            chosen = sample.chosen(mixed)
            request, number = request[chosen], number[chosen]
            groups = (mixed[chosen] % np.uint64(GROUPS)).astype(np.uint8)
        end = (number + 1) * block_tokens
        found = np.where(
            (end < self.input_tokens[request]) & self.counted[request], block_tokens, 0
        )
        ids = self._ids(request, end - 1, block_tokens)
        return (
            ids,
            request.astype(np.int32),
            number.astype(np.int32),
            found.astype(np.int32),
            groups,
        )

    def _ids(self, request: Ints, last_token: Ints, block_tokens: int) -> Ints:
        """Ids of the blocks of so many tokens that end with these; blocks of answers in no later prompt are unique."""
        known_tokens = self.input_tokens + (
            self.output_tokens if self.answers_known else 0
        )
        own = last_token >= known_tokens[request]
        # The hash id of a block's last token stands for all before it; `among` numbers the blocks that end in it.
        place = np.where(own, 0, last_token // self.hash_tokens)
        among = (last_token - place * self.hash_tokens) // block_tokens
        each = (self.hash_tokens - 1) // block_tokens + 1
        room = (self.input_tokens + self.output_tokens) // block_tokens + 1
        ids: Ints = -1 - (np.cumsum(room) - room)[request] - last_token // block_tokens
        if len(self.hash_ids):
            known = self.hash_ids[
                np.minimum(self.offsets[:-1][request] + place, len(self.hash_ids) - 1)
            ]
            ids = np.where(own, ids, known * each + among)
        return ids
