"""Imported results built to mislead, from their files to the verdict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.described import run_tables
from tests.support.guidellm_reports import START
from tests.support.import_sheets import plan
from tests.support.result_trees import HOUR, LMCACHE, native, write_level

from kveval.plugins.imports.run import import_run
from kveval.store.run_file import stored_run
from kveval.store.store import Store
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import compare_all

BASELINES = {"no-offload": None, "native-offload": "no-offload"}
STREAMS = 4


def judged(
    folder: Path, baseline: Mapping[str, Any] | None = None, **arm: Any
) -> pd.Series:
    """Import a baseline and an arm that answers in 1.7 s instead of 2, and compare five runs like them.

    `baseline`, `arm`: what is different about its results, see `write_level`.
    """
    tree = folder / "tree"
    # A level lasts ten minutes, so that one request more or less is no effect.
    story = {"seconds": 600.0}
    write_level(
        tree,
        "Qwen3-0.6B",
        "no-offload",
        STREAMS,
        **{"hits": 0.0, **story, **(baseline or {})},
    )
    options = {
        "args": native(10_000),
        "start": START + HOUR,
        "latency_s": 1.7,
        **story,
        **arm,
    }
    write_level(tree, "Qwen3-0.6B", "native-offload-10k", STREAMS, **options)
    levels = []
    for number, planned in enumerate(plan(tree).runs):
        import_run(planned, Store(folder / "store"), folder / f"{number}.json")
        levels.append(run_tables(stored_run(folder / f"{number}.json"))[0])
    # Runs take place by turns, and differ by a per cent.
    table = pd.concat(levels, ignore_index=True)
    generator = np.random.default_rng(5)
    runs = []
    for run in range(1, 6):
        again = table.assign(run=run, checks_failed="")
        again["throughput_tok_s"] *= np.exp(generator.normal(0, 0.01, len(again)))
        for name in ("run_started", "run_finished"):
            moved = pd.to_datetime(again[name], utc=True) + pd.Timedelta(hours=3 * run)
            again[name] = [time.isoformat() for time in moved]
        runs.append(again)
    return compare_all(pd.concat(runs, ignore_index=True), BASELINES).baseline.iloc[0]


def test_an_arm_that_did_the_same_work_is_better(tmp_path: Path) -> None:
    row = judged(tmp_path)
    assert (row["verdict"], row["basis_work"]) == (words.BETTER, "the same")
    assert row["basis_activity"] == "active in 5 of 5 runs"


@pytest.mark.parametrize(
    "arm",
    [{"tokens": 18}, {"prompt_tokens": 32}, {"config": {"Prefix Count": 80}}],
    ids=["half the answer", "half the prompt", "ten times the prefixes"],
)
def test_results_of_other_work_are_not_compared(
    arm: dict[str, Any], tmp_path: Path
) -> None:
    row = judged(tmp_path, **arm)
    assert row["verdict"] == words.NOT_ASSESSED
    assert row["basis_work"].startswith("refuses: ")


def test_an_arm_without_a_recording_is_only_indicated(tmp_path: Path) -> None:
    row = judged(tmp_path, archive=False)
    assert (row["verdict"], row["indication"]) == (
        words.INDICATIVE_ACTIVITY,
        words.BETTER,
    )


# --- servers that differ in more than the arm


@pytest.mark.parametrize(
    "args",
    ["--no-enable-prefix-caching", "--max-num-seqs 2", "--gpu-memory-utilization 0.4"],
)
def test_a_baseline_that_was_held_back_refuses(args: str, tmp_path: Path) -> None:
    assert judged(tmp_path, {"args": args})["verdict"] == words.NOT_ASSESSED


@pytest.mark.parametrize(
    "args",
    [
        "--quantization fp8",
        "--kv-cache-dtype fp8",
        "--speculative-config '{\"num_speculative_tokens\": 3}'",
    ],
)
def test_an_arm_with_another_model_or_cache_refuses(args: str, tmp_path: Path) -> None:
    assert (
        judged(tmp_path, args=f"{native(10_000)} {args}")["verdict"]
        == words.NOT_ASSESSED
    )


def test_an_arm_with_twice_the_replicas_refuses(tmp_path: Path) -> None:
    assert judged(tmp_path, config={"Replicas": 2})["verdict"] == words.NOT_ASSESSED


@pytest.mark.parametrize(
    ("baseline", "name"),
    [
        ({"args": "--enforce-eager"}, "enforce-eager"),
        ({"env": "VLLM_USE_V1=0 HOME=/tmp"}, "VLLM_USE_V1"),
    ],
)
def test_a_setting_that_differs_is_named_beside_the_verdict(
    baseline: dict[str, Any], name: str, tmp_path: Path
) -> None:
    row = judged(tmp_path, baseline)
    assert row["verdict"] == words.BETTER
    assert name in row["qualifier"]


def test_an_arm_with_another_connector_than_its_name_says_is_named(
    tmp_path: Path,
) -> None:
    row = judged(tmp_path, args=f"--kv-transfer-config '{LMCACHE}'")
    assert "LMCacheConnectorV1" in f"{row['qualifier']} {row['reason']}"
