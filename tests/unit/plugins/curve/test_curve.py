"""Reuse curves equal what caches do that are filled, block by block, by the same requests."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveval.load.trace_file import TraceRow
from kveval.plugins.curve.simulation import curve as module
from kveval.plugins.curve.simulation.curve import reuse_curve, split_by_server
from kveval.plugins.curve.simulation.distances import FIRST, Sample, reuse_distances
from kveval.plugins.curve.simulation.prompts import Prompts


class Cache:
    """A cache that drops what was used least recently, and a request's later blocks before its earlier ones."""

    def __init__(self, blocks: float) -> None:
        self.blocks, self.held = blocks, OrderedDict[object, None]()

    def found(self, keys: list[object]) -> int:
        """Return how many of the keys it has before the first that it lacks."""
        return next(
            (number for number, key in enumerate(keys) if key not in self.held),
            len(keys),
        )

    def use(self, keys: list[object]) -> None:
        """Use keys, the last one first."""
        for key in reversed(keys):
            self.held[key] = None
            self.held.move_to_end(key)
            while len(self.held) > self.blocks:
                self.held.popitem(last=False)


@st.composite
def loads(draw: st.DrawFn) -> Prompts:
    """Requests over a tree of hash ids, of random lengths, some of them not counted."""
    hash_tokens = draw(st.sampled_from([1, 3, 4, 8, 16]))
    children: dict[tuple[int, int], int] = {}
    rows = []
    for _ in range(draw(st.integers(1, 25))):
        branches = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        ids, parent = [], -1
        for branch in branches:
            parent = children.setdefault((parent, branch), len(children))
            ids.append(parent)
        last = draw(st.integers(1, hash_tokens))
        tokens = (len(ids) - 1) * hash_tokens + last
        if last < hash_tokens:
            # What is not full is another block than the full one.
            ids[-1] = children.setdefault(
                (ids[-2] if len(ids) > 1 else -1, 10 + last), len(children)
            )
        rows.append(TraceRow(0.0, tokens, draw(st.integers(0, 9)), ids))
    counted = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return Prompts.of_rows(rows, hash_tokens, counted)


def tokens_of(prompts: Prompts) -> list[tuple[list[object], list[object], bool]]:
    """Each request's prompt and its answer, token by token."""
    found: list[tuple[list[object], list[object], bool]] = []
    for number, (begin, end) in enumerate(
        zip(prompts.offsets, prompts.offsets[1:], strict=False)
    ):
        ids = prompts.hash_ids[begin:end].tolist()
        prompt = [(one, place) for one in ids for place in range(prompts.hash_tokens)]
        answer = [
            ("answer", number, place)
            for place in range(int(prompts.output_tokens[number]))
        ]
        found.append(
            (
                prompt[: int(prompts.input_tokens[number])],
                answer,
                bool(prompts.counted[number]),
            )
        )
    return found


def keys(tokens: list[object], block: int) -> list[object]:
    return [tuple(tokens[: end + 1]) for end in range(block - 1, len(tokens), block)]


def simulated(
    prompts: list[Prompts], block: int, device: float, tier: float = 0, chunk: int = 0
) -> int:
    """Prompt tokens that devices of so many blocks, and tiers of so many chunks, serve."""
    served = 0
    for own in prompts:
        on_device, behind = Cache(device), Cache(tier)
        for prompt, answer, counted in tokens_of(own):
            at_most = (len(prompt) - 1) // block * block
            found = min(at_most, block * on_device.found(keys(prompt, block)))
            if chunk:
                found = max(
                    found, min(at_most, chunk * behind.found(keys(prompt, chunk)))
                )
                behind.use(keys(prompt, chunk))
            on_device.use(keys(prompt + answer, block))
            served += found * counted
    return served


@settings(max_examples=300, deadline=None)
@given(
    loads(),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 60),
    st.integers(0, 30),
    st.sampled_from([1, 2, 3]),
)
def test_the_curves_are_those_of_caches_that_are_filled_block_by_block(
    prompts: Prompts, block: int, device: int, tier: int, blocks_of_chunk: int
) -> None:
    chunk = block * blocks_of_chunk
    alone = reuse_curve([prompts], block)
    assert round(alone.share(device * block) * alone.prompt_tokens) == simulated(
        [prompts], block, device
    )
    both = reuse_curve([prompts], block, (device * block, chunk))
    assert round(both.share(tier * chunk) * both.prompt_tokens) == simulated(
        [prompts], block, device, tier, chunk
    )


@given(loads(), st.integers(1, 3), st.booleans(), st.integers(0, 20))
def test_replicas_are_servers_of_their_own(
    prompts: Prompts, servers: int, by_prefix: bool, device: int
) -> None:
    parts = split_by_server(prompts, servers, by_prefix)
    assert sum(len(part.input_tokens) for part in parts) == len(prompts.input_tokens)
    curve = reuse_curve(parts, 2)
    assert round(curve.share(2 * device) * curve.prompt_tokens) == simulated(
        parts, 2, device
    )


@given(st.lists(st.integers(0, 12), max_size=60))
def test_single_blocks_have_the_classic_stack_distances(blocks: list[int]) -> None:
    expected = []
    for number, block in enumerate(blocks):
        before = blocks[:number]
        since = (
            before[len(before) - before[::-1].index(block) :]
            if block in before
            else None
        )
        expected.append(FIRST if since is None else len(set(since)))
    found = reuse_distances(np.array(blocks, np.int64), np.arange(len(blocks) + 1))
    assert found.tolist() == expected


@given(loads())
def test_a_curve_rises_to_its_ceiling(prompts: Prompts) -> None:
    curve = reuse_curve([prompts], 2)
    shares = [curve.share(size) for size in [0, *curve.sizes.tolist(), np.inf]]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (curve.base, curve.ceiling)
    size = curve.size_for(0.9)
    assert (size is None) == (curve.ceiling == curve.base)
    if size is not None:
        assert (
            curve.share(size) - curve.base >= 0.9 * (curve.ceiling - curve.base) - 1e-12
        )


@pytest.mark.parametrize(("seed", "chunk"), [(1, 4), (2, 8), (3, 16)])
def test_a_sample_tells_the_curve_within_its_error(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes of a heavy-tailed popularity before suffixes of their own; a thirtieth of the blocks is looked at."""
    generator = np.random.default_rng(seed)
    drawn = zip(
        (generator.zipf(1.3, 4000) % 400).tolist(),
        generator.integers(4, 30, 4000).tolist(),
        strict=True,
    )
    rows = [
        TraceRow(
            0.0,
            8 * length,
            9,
            [*range(60 * prefix, 60 * prefix + length), *range(own, own + length)],
        )
        for own, (prefix, length) in zip(range(10**6, 10**7, 60), drawn, strict=False)
    ]
    prompts = [Prompts.of_rows(rows, 4)]
    exactly = reuse_curve(prompts, 4), reuse_curve(prompts, 4, (4000, chunk))
    monkeypatch.setattr(
        module, "EXACT_UP_TO", prompts[0].block_count(4, answers=True) // 6
    )
    of_samples = reuse_curve(prompts, 4), reuse_curve(prompts, 4, (4000, chunk))
    for exact, sampled in zip(exactly, of_samples, strict=True):
        assert (exact.sampled, exact.error) == (1.0, 0.0)
        assert sampled.sampled == pytest.approx(1 / 30, rel=0.01)
        sizes = [*np.geomspace(400, 4 * exact.sizes[-1], 30).tolist(), np.inf]
        apart = max(abs(exact.share(size) - sampled.share(size)) for size in sizes)
        assert apart < 4 * sampled.error < 0.3


def test_a_sample_is_the_same_blocks_at_every_use_and_of_every_size() -> None:
    rows = [
        TraceRow(0.0, 64, 16, [*range(8), *range(100 * own, 100 * own + 8)])
        for own in range(1, 200)
    ]
    prompts = Prompts.of_rows(rows, 4)
    sample = Sample(0.3, unit_tokens=12, part_tokens=2)
    chosen = []
    for tokens in (4, 6):
        kind = prompts.blocks(tokens, answers=False, sample=sample)
        ends = zip(kind.offsets.tolist(), kind.offsets[1:].tolist(), strict=False)
        chosen.append(
            [
                {*(kind.numbers[begin:end] * tokens // 12).tolist()}
                for begin, end in ends
            ]
        )
    blocks, chunks = chosen
    # The last unit has one whole block and no whole chunk.
    assert [units - {5} for units in blocks] == chunks
    assert len({frozenset(units & {0, 1, 2}) for units in blocks}) == 1
    assert 0.2 < sum(len(units & {3, 4, 5}) for units in blocks) / (3 * len(rows)) < 0.4


@given(st.lists(st.integers(0, 40), min_size=2, max_size=6), st.integers(1, 8))
def test_no_two_requests_have_a_block_of_an_answer_in_common(
    lengths: list[int], block: int
) -> None:
    # A prompt of one token: every full block has a part of an answer, but for blocks of one token the first.
    rows = [TraceRow(0.0, 1, length, [0]) for length in lengths]
    ids = Prompts.of_rows(rows, 9).blocks(block, answers=True).ids
    own = ids if block > 1 else ids[ids != 0]
    assert len(set(own.tolist())) == len(own)
