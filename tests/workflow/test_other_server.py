"""A server that is not vLLM is served, measured, proven active and reported, for one file and one entry."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from tests.support.fault_chain import CAMPAIGN, PATIENCE_S, merged, needs_pcp
from tests.support.paths import REPOSITORY
from tests.support.report_text import whole_report
from tests.support.tree import Tree

pytestmark = [pytest.mark.workflow, needs_pcp]
OTHER = REPOSITORY / "tests" / "support" / "other_server"
ENTRY = "SERVERS['toy'] = toy.Toy()"
ARMS = (("no-offload", 0), ("native-offload", 2000))
SERVER = {"program": "toy", "version": "1.5", "build": "toy-cpu"}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    campaign = merged(
        CAMPAIGN,
        {
            "server": SERVER,
            "min_samples": 1,
            "workloads": {"short": {"seconds": 6}},
            "matrix": [
                {
                    "models": ["Qwen3-0.6B"],
                    "scenarios": [scenario],
                    "cpu_blocks": [blocks],
                }
                for scenario, blocks in ARMS
            ],
        },
    )
    del campaign["server"]["vllm"], campaign["server"]["env"]
    made = Tree(tmp_path / "repository", campaign, lock=tmp_path / "lock")
    stacks = made.folder / "scripts" / "kveval" / "stacks"
    shutil.copy2(OTHER / "adapter.py", stacks / "toy.py")
    with (stacks / "registry.py").open("a") as registry:
        registry.write(f"\nfrom kveval.stacks import toy\n\n{ENTRY}\n")
    shutil.copy2(
        OTHER / "server.py", made.folder / ".server-venv" / "bin" / "server.py"
    )
    yield made
    assert made.left() == []


def test_another_server_is_measured_proven_active_and_reported(tree: Tree) -> None:
    # All figures are drawn as well.
    code, output = tree.run("report", limit_s=10 * PATIENCE_S)
    assert code == 0, output
    cell = tree.results / "Qwen3-0.6B" / "native-offload" / "2000"
    run = tree.run_json("Qwen3-0.6B/native-offload/2000")
    assert run["versions"]["toy"] == "1.5"
    assert "vllm" not in run["versions"]
    assert run["server"]["argv"][-2:] == [
        "--tier-bytes",
        str(run["budget"]["tier_bytes"]),
    ]
    assert run["server"]["facts"] == {
        "kv_cache_tokens": 17920,
        "tier_bytes": run["budget"]["tier_bytes"],
    }
    proof = run["exercised"]
    assert proof["exercised"] is True
    assert [entry["counter"] for entry in proof["required"]] == [
        "toy_tier_found_tokens_total",
        'toy_moved_bytes_total{way="in"}',
    ]
    peak = pd.read_csv(cell / "peak.csv").iloc[0]
    assert peak["server_generation_tok_s"] > 0
    assert peak["kv_cache_usage_percent"] == pytest.approx(50)
    levels = pd.read_csv(cell / "levels.csv").iloc[0]
    assert levels["server_generation_tokens"] > 0
    assert levels["prefix_hit_ratio"] == pytest.approx(0.5)
    assert levels["offload_load_bytes"] > 0
    assert bool(levels["exercised"]) is True
    report = whole_report(tree.results)
    assert "| Toy | 1.5 |" in report
    assert "vLLM 1.5" not in report
    assert "`toy_tier_found_tokens_total`" in report
