"""The reuse curve of a Mooncake trace beside those of LMCache's cache-simulator and of llmtrafficlens.

python benchmarks/bench_curve_tools.py TRACE.jsonl.gz --lmcache PYTHON --llmtrafficlens PYTHON

Each PYTHON is an interpreter that has the tool; this repository does not install them. Prints the shares of the prompt
tokens that caches of whole blocks of 512 tokens serve. The tools differ in the order in which a request's blocks are
used; and here the block with a prompt's last token is always computed. The second row is without both rules.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts")]

from kveval.load.trace_file import TraceRow, read  # noqa: E402
from kveval.plugins.curve.simulation.curve import reuse_curve  # noqa: E402
from kveval.plugins.curve.simulation.distances import FIRST, reuse_distances  # noqa: E402
from kveval.plugins.curve.simulation.prompts import Prompts  # noqa: E402

BLOCK = 512
SIZES = (1_000, 10_000, 30_000, 50_000, 100_000, 10**7)

_LMCACHE = """
import json, sys
from lmcache.tools.cache_simulator.simulator import simulate
given = json.load(sys.stdin)
found = [simulate(given["events"], size, 1, fast=True)["token_hit_rate"] for size in given["sizes"]]
print("FOUND", json.dumps(found))
"""

_LLMTRAFFICLENS = """
import json, sys
from llmtrafficlens.metrics import hit_rate
from llmtrafficlens.model import Request
given = json.load(sys.stdin)
requests = [
    Request(ts_ms=one["timestamp"], input_tokens=one["seq_len"], output_tokens=0, blocks=one["chunk_hashes"])
    for one in given["events"]
]
block = given["events"][0]["chunk_size"]
print("FOUND", json.dumps([hit_rate(requests, block, size * block, warmup=0.0) for size in given["sizes"]]))
"""


def asked(python: str, program: str, given: object) -> list[float]:
    """Run a program with another interpreter, and return the list that it prints last."""
    argv = [python, "-c", program]
    done = subprocess.run(
        argv, input=json.dumps(given), capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    if done.returncode or not lines:
        raise SystemExit(f"{python} failed: {done.stderr[-2000:]}")
    return [float(one) for one in json.loads(lines[-1].removeprefix("FOUND "))]


def events(rows: Sequence[TraceRow]) -> list[dict[str, object]]:
    """Return the lookups that LMCache logs of these prompts: hashes of whole chunks."""
    return [
        {
            "timestamp": number,
            "seq_len": row.input_length,
            "chunk_size": BLOCK,
            "chunk_hashes": [
                str(one) for one in row.hash_ids[: row.input_length // BLOCK]
            ],
        }
        for number, row in enumerate(rows)
    ]


def shown(name: str, shares: Sequence[float]) -> None:
    """Print a tool's shares by size, as a row of the table in docs/tier-size.md."""
    print(f"| {name} | {' | '.join(f'{100 * share:.2f}' for share in shares)} |")


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--lmcache", metavar="PYTHON")
    parser.add_argument("--llmtrafficlens", metavar="PYTHON")
    given = parser.parse_args()
    rows = read(given.trace, BLOCK).rows
    prompts = Prompts.of_rows(rows, BLOCK)
    curve = reuse_curve([prompts], BLOCK, behind=(0, BLOCK))
    shown("a tier, as computed here", [curve.share(size * BLOCK) for size in SIZES])
    ids = prompts.blocks(BLOCK).ids
    distances = reuse_distances(ids, np.arange(len(ids) + 1))
    found = [
        BLOCK * int(((distances != FIRST) & (distances < size)).sum()) for size in SIZES
    ]
    shown(
        "here, every block by itself", [one / prompts.counted_tokens for one in found]
    )
    load = {"events": events(rows), "sizes": SIZES}
    if given.lmcache:
        shown("LMCache", asked(given.lmcache, _LMCACHE, load))
    if given.llmtrafficlens:
        shown("llmtrafficlens", asked(given.llmtrafficlens, _LLMTRAFFICLENS, load))


if __name__ == "__main__":
    main()
