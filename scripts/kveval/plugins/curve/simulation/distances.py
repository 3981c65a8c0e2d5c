"""Reuse distances: how many other blocks were used since a block was used last.

A cache with LRU eviction has a block exactly if it holds more blocks than this distance (Mattson,
Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970), so that one
pass gives the hits of every size.

Of very many blocks a sample is enough: those whose ids have a hash below a threshold, with all of their uses.
Distances counted among them are a known share of the true ones (Waldspurger, Park, Garthwaite and Ahmad, "Efficient
MRC construction with SHARDS", FAST'15). Blocks can be counted one by one although a prompt's hits end at its first
miss: distances rise along a prompt, so that a cache that holds a block holds all blocks before it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Unsigned = npt.NDArray[np.uint64]
FIRST = -1
"""The distance of a block that was never used before."""

GROUPS = 8
"""Parts of a sample, each a smaller sample of its own: their spread gives the error of the whole."""

# High bits of a hash that are compared with the threshold; the groups come from other bits.
_HASH_BITS = 40


@dataclass(frozen=True)
class Sample:
    """A share `rate` of all blocks, chosen by a hash of their content: the same on every server and at every use.

    Blocks in the same `unit_tokens` of a prompt are chosen together, by the hash of the first `part_tokens` there, so
    that block sizes which divide the first and are multiples of the second are sampled alike.
    """

    rate: float
    unit_tokens: int
    part_tokens: int

    def chosen(self, mixed: Unsigned) -> npt.NDArray[np.bool_]:
        """Return for each hash whether it is in the sample."""
        return (mixed >> np.uint64(64 - _HASH_BITS)) < np.uint64(
            round(self.rate * 2**_HASH_BITS)
        )


def hashes(ids: Ints) -> Unsigned:
    """Return well-mixed 64 bits for each id: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def reuse_distances(blocks: Ints, offsets: Ints) -> Ints:
    """Return for each block of each request the distinct blocks used between its last use and this request.

    `blocks`: those of all requests in order; request n has those from `offsets[n]` to `offsets[n + 1]`. No block is
    twice in a request, or after different beginnings. A request looks up all its blocks before it uses any, and uses
    the last one first, so that an old prompt is evicted from its end: vLLM frees blocks, and its CPU tier and LMCache
    touch them, in this order. A cache that holds a block therefore holds all blocks before it.

    Blocks that are only ever used one after the other are a run, which is looked up once: along it, the distance rises
    by one for each block. FIRST for a first use.
    """
    if not len(blocks):
        return np.empty(0, np.int64)
    heads = _run_heads(blocks, offsets)
    lengths = np.diff(heads, append=len(blocks))
    of_runs = _run_distances(blocks[heads], lengths, np.searchsorted(heads, offsets))
    distances = np.repeat(of_runs - heads, lengths)
    distances += np.arange(len(blocks))
    distances[np.repeat(of_runs == FIRST, lengths)] = FIRST
    return distances


def _run_heads(blocks: Ints, offsets: Ints) -> Ints:
    """Positions at which runs begin: at blocks that do not always follow one same block that is used as often."""
    numbers, count = _numbered(blocks)
    before = np.empty_like(numbers)
    before[1:] = numbers[:-1]
    before[offsets[:-1][offsets[:-1] < len(blocks)]] = -1
    uses = np.bincount(numbers, minlength=count)
    preceding = np.full(count, -1, dtype=numbers.dtype)
    preceding[numbers] = before
    follows = (preceding >= 0) & (uses[preceding] == uses)
    follows[numbers[preceding[numbers] != before]] = False
    return np.flatnonzero(~follows[numbers])


def _numbered(blocks: Ints) -> tuple[npt.NDArray[np.signedinteger], int]:
    """Numbers from 0 on for the blocks' ids, and one more than the largest of them."""
    low, high = int(blocks.min()), int(blocks.max())
    kind = (
        np.int32 if max(len(blocks), high - low) < np.iinfo(np.int32).max else np.int64
    )
    if high - low < 2 * len(blocks):
        return (blocks - low).astype(kind), high - low + 1
    found, numbers = np.unique(blocks, return_inverse=True)
    return numbers.astype(kind), len(found)


def _run_distances(names: Ints, lengths: Ints, offsets: Ints) -> Ints:
    """The distance of each run's first block: the total length of the other runs used since; FIRST at a first use."""
    count = len(names)
    sizes = np.diff(offsets)
    # The position of each use once those of every request are reversed; reversing twice restores them.
    turned = np.repeat(offsets[:-1] + offsets[1:] - 1, sizes) - np.arange(count)
    lengths = lengths[turned]
    last = _last_uses(
        names[turned], np.int32 if count < np.iinfo(np.int32).max else np.int64
    )
    ends = np.cumsum(lengths)
    again = np.flatnonzero(last >= 0)
    before = last[again]
    # Other runs used since: the earlier uses whose own last use is before this one's ...
    distances = _smaller_before(before, lengths[again])
    # ... plus first uses, less those before the last use itself, and less those of this request.
    distances += np.cumsum(np.where(last < 0, lengths, 0))[again] - ends[before]
    begins = ends - lengths
    distances -= begins[again] - begins[np.repeat(offsets[:-1], sizes)[again]]
    result = np.full(count, FIRST, dtype=np.int64)
    result[again] = distances
    return result[turned]


def _last_uses(
    names: Ints, kind: type[np.signedinteger]
) -> npt.NDArray[np.signedinteger]:
    """The position of each run's use before this one, -1 at the first."""
    order = np.argsort(names, kind="stable").astype(kind)
    same = np.flatnonzero(np.diff(names[order]) == 0)
    last = np.full(len(names), -1, dtype=kind)
    last[order[same + 1]] = order[same]
    return last


def _smaller_before(values: npt.NDArray[np.signedinteger], weights: Ints) -> Ints:
    """Return for each of some distinct values the sum of the weights of the smaller ones before it.

    Works bit by bit, from the highest. Values that agree in the bits so far are adjacent, in their original order. Of
    two that differ in the next bit, the smaller has it unset; then those with it unset move before the others.
    """
    kind = values.dtype.type
    sums = np.zeros(len(values), dtype=np.int64)
    if not len(values):
        return sums
    position = np.arange(len(values), dtype=kind)
    begin = np.zeros(len(values), dtype=kind)
    for bit in range(int(values.max()).bit_length() - 1, -1, -1):
        is_set = (values >> bit & 1).astype(bool)
        unset = np.zeros(len(values) + 1, dtype=kind)
        np.cumsum(~is_set, out=unset[1:], dtype=kind)
        unset_weight = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(np.where(is_set, 0, weights), out=unset_weight[1:])
        sums[position[is_set]] += (unset_weight[:-1] - unset_weight[begin])[is_set]
        unset_before_group = unset[begin]
        begin = np.where(
            is_set, unset[-1] + begin - unset_before_group, unset_before_group
        )
        order = np.concatenate((np.flatnonzero(~is_set), np.flatnonzero(is_set)))
        values, weights, position, begin = (
            values[order],
            weights[order],
            position[order],
            begin[order],
        )
    return sums
