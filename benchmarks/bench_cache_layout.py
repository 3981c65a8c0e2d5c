"""Groups, blocks and rows of random models with windows, beside what vLLM's own functions make of them.

python benchmarks/bench_cache_layout.py [--server PYTHON] [--cases N]

PYTHON is an interpreter that has vLLM 0.29 or later; that of .server-venv when left out. No model is loaded. Prints how
many cases differ, and the first of them; the exit status is 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts")]

from kveval.campaign.cache_layout import CacheLayout, Retention  # noqa: E402
from kveval.campaign.catalogue import ModelSettings  # noqa: E402
from kveval.campaign.geometry import Geometry, SlidingWindow  # noqa: E402

_SERVER = """
import json, sys
import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

def laid_out(case):
    common = {"block_size": case["block_size"], "dtype": torch.bfloat16}
    full = FullAttentionSpec(num_kv_heads=case["kv_heads"], head_size=case["head_dim"], **common)
    window = SlidingWindowSpec(
        num_kv_heads=case["window_kv_heads"], head_size=case["window_head_dim"], sliding_window=case["window"], **common
    )
    specs = {f"full.{number}": full for number in range(case["full"])}
    specs |= {f"window.{number}": window for number in range(case["sliding"])}
    specs = kv_cache_utils.unify_kv_cache_spec_page_size(specs)
    groups = kv_cache_utils._get_kv_cache_groups_uniform_page_size(specs)
    kinds, rows, tokens = [], 0, case["tokens"]
    step = next(g.kv_cache_spec.block_size for g in groups if isinstance(g.kv_cache_spec, FullAttentionSpec))
    for group in groups:
        spec = group.kv_cache_spec
        sliding = isinstance(spec, SlidingWindowSpec)
        blocks = tokens // spec.block_size
        kinds.append(["sliding" if sliding else "full", len(group.layer_names), spec.block_size])
        mask = None
        if sliding:
            mask = SlidingWindowManager.reachable_block_mask(
                0, blocks, step, spec, False, case["interval"], (tokens - 1,)
            )
        rows += blocks if mask is None else sum(mask)
    row_bytes = max(len(g.layer_names) for g in groups) * groups[0].kv_cache_spec.page_size_bytes
    return {"groups": sorted(kinds), "rows": rows, "row_bytes": -(-row_bytes // 4096) * 4096}

print("FOUND", json.dumps([laid_out(case) for case in json.load(sys.stdin)]))
"""


def random_case(draw: random.Random) -> dict[str, Any]:
    """Return a model's shape, a server's settings and a prompt's tokens."""
    kv_heads, head_dim = draw.choice([1, 2, 4, 8]), draw.choice([64, 128, 256])
    return {
        "full": draw.randint(1, 20),
        "sliding": draw.randint(1, 60),
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "window_kv_heads": draw.choice([kv_heads, kv_heads, 2 * kv_heads]),
        "window_head_dim": draw.choice([head_dim, head_dim, 64, 128]),
        "window": draw.choice([128, 256, 513, 1024, 2000]),
        "block_size": draw.choice([16, 32, 64]),
        "tokens": draw.randint(1, 20_000),
        "interval": draw.choice([None, 0, 4096, 8192]),
    }


def layout_of(case: dict[str, Any]) -> CacheLayout:
    """Lay the case out as the workflow does."""
    window = SlidingWindow(
        layers=case["sliding"],
        tokens=case["window"],
        kv_heads=case["window_kv_heads"],
        head_dim=case["window_head_dim"],
    )
    geometry = Geometry(
        architecture="Gemma3ForCausalLM",
        layers=case["full"] + case["sliding"],
        kv_heads=case["kv_heads"],
        head_dim=case["head_dim"],
        hidden_size=256,
        attention_heads=16,
        intermediate_size=1024,
        vocab_size=4096,
        max_position_embeddings=40960,
        sliding=window,
    )
    model = ModelSettings(hf_id="a/b", geometry=geometry, max_model_len=40960)
    retention = Retention(case["interval"])
    return CacheLayout.from_model(
        model, case["block_size"], on_cpu=False, retention=retention
    )


def main() -> None:
    """Draw cases, have both lay them out, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=str(ROOT / ".server-venv/bin/python"))
    parser.add_argument("--cases", type=int, default=1500)
    given = parser.parse_args()
    draw = random.Random(1)
    cases = [random_case(draw) for _ in range(given.cases)]
    done = subprocess.run(
        [given.server, "-c", _SERVER],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    answer = next(
        (line for line in done.stdout.splitlines() if line.startswith("FOUND")), None
    )
    if answer is None:
        sys.exit(done.stderr)
    differing = []
    for case, of_server in zip(cases, json.loads(answer[5:]), strict=True):
        layout = layout_of(case)
        groups = [[one.kind, one.layers, one.block_tokens] for one in layout.groups]
        computed = {
            "groups": sorted(groups),
            "rows": layout.rows_of_conversation(case["tokens"]),
            "row_bytes": layout.row_bytes,
        }
        if computed != of_server:
            differing.append((case, computed, of_server))
    print(f"{len(cases)} models with windows, {len(differing)} differ from the server")
    if differing:
        print(*differing[0], sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
