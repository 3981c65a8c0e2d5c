"""Reuse curves of large traces: seconds, memory, and for Mooncake's trace the known shares of blocks found.

python benchmarks/bench_curve.py [TRACE.jsonl.gz | --sample]

For Mooncake's conversation trace, block by block in order of use, a cache of 1k, 10k, 30k, 50k, 100k and all blocks
serves 4.4, 21.1, 32.6, 35.5, 36.4 and 36.6 %. Then follows a load of the size of Harvard's trace, 327,548 requests.
With --sample instead a hundred million blocks, of which a sample is simulated, and for a fifth of them the difference
between a sample and all.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts")]

from kveval.load.trace_file import read  # noqa: E402
from kveval.plugins.curve.simulation import curve as curves  # noqa: E402
from kveval.plugins.curve.simulation.distances import FIRST, reuse_distances  # noqa: E402
from kveval.plugins.curve.simulation.prompts import Prompts  # noqa: E402

SIZES = (1_000, 10_000, 30_000, 50_000, 100_000, 10**9)


def shown(name: str, distances: np.ndarray, seconds: float) -> None:
    """Print the share of blocks that are found, for each cache size."""
    found = [
        f"{100 * np.mean((distances != FIRST) & (distances < size)):.2f}"
        for size in SIZES
    ]
    print(
        f"{name}: {len(distances):,} blocks in {seconds:.2f} s; found, %: {', '.join(found)}"
    )


def popular(requests: int) -> Prompts:
    """Return prompts of some ten ids of 512 tokens each, half of them shared by a heavy-tailed popularity."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(2, 19, requests)
    group = generator.zipf(1.2, requests) % 50_000
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    request = np.repeat(np.arange(requests), sizes)
    place = np.arange(offsets[-1]) - offsets[:-1][request]
    ids = np.where(
        place < sizes[request] // 2,
        group[request] * 10 + place,
        10**6 + np.arange(offsets[-1]),
    )
    tokens, every = 512 * sizes, np.ones(requests, bool)
    return Prompts(ids, offsets, 512, tokens, np.full(requests, 300), every)


def sampled() -> None:
    """Measure a hundred million blocks of 16 tokens by a sample, then a fifth of them by a sample and in full."""
    begin = time.perf_counter(), time.process_time()
    prompts = popular(310_000)
    curve = curves.reuse_curve([prompts], 16)
    seconds = time.perf_counter() - begin[0]
    print(
        f"{prompts.block_count(16, answers=True):,} blocks, one in {1 / curve.sampled:.0f} followed: {seconds:.1f} s"
        f" ({time.process_time() - begin[1]:.1f} s of CPU), standard error {100 * curve.error:.3f} points at most"
    )
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )
    few = popular(62_000)
    exact = curves.reuse_curve([few], 16)
    curves.EXACT_UP_TO = 10_000_000
    estimate = curves.reuse_curve([few], 16)
    sizes = np.geomspace(16_000, exact.sizes[-1], 100)
    apart = [abs(exact.share(size) - estimate.share(size)) for size in sizes]
    print(
        f"{few.block_count(16, answers=True):,} blocks, one in {1 / estimate.sampled:.0f}: {100 * max(apart):.3f}"
        f" points apart at most, {100 * np.mean(apart):.3f} on average; said: {100 * estimate.error:.3f}"
    )


def main() -> None:
    """Measure."""
    if sys.argv[1:] == ["--sample"]:
        sampled()
        return
    if len(sys.argv) > 1:
        begin = time.perf_counter()
        rows = read(Path(sys.argv[1]), 512).rows
        prompts = Prompts.of_rows(rows, 512)
        print(f"{len(rows):,} requests read in {time.perf_counter() - begin:.2f} s")
        for name, offsets in (
            ("in order of use", np.arange(len(prompts.hash_ids) + 1)),
            ("as vLLM looks up and frees", prompts.offsets),
        ):
            begin = time.perf_counter()
            shown(
                name,
                reuse_distances(prompts.hash_ids, offsets),
                time.perf_counter() - begin,
            )
    generator = np.random.default_rng(0)
    count = 327_548
    sizes = generator.integers(20, 160, count)
    group = generator.zipf(1.2, count) % 20_000
    shared = (generator.random(count) * sizes).astype(int)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    request = np.repeat(np.arange(count), sizes)
    place = np.arange(offsets[-1]) - offsets[:-1][request]
    ids = np.where(
        place < shared[request],
        group[request] * 200 + place,
        10**8 + np.arange(offsets[-1]),
    )
    del request, place
    begin = time.perf_counter()
    distances = reuse_distances(ids, offsets)
    shown(f"{count:,} requests", distances, time.perf_counter() - begin)
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )


if __name__ == "__main__":
    main()
