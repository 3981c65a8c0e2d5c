"""What the seven arms deploy on a cluster stays the same: manifests/ARM.yaml has every document that an arm has.

measurements/ holds digests of all documents, names included, of these and of every other cell; here one reads what changed.
Names, cells and ids are masked, and what all arms have alike is in every-arm.yaml. KVEVAL_UPDATE_GOLDEN=1 holds what is made
now.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.gates import golden
from tests.gates.cells import groups
from tests.gates.library import manifests

HELD = Path(__file__).with_name("manifests")
GROUP, MODEL = "cells-llm-d-0.8.0", "Qwen3-14B"
ARMS = {
    "no-offload": 0,
    "native-offload": 10_000,
    "lmcache-local": 10_000,
    "lmcache-redis": 10_000,
    "lmcache-valkey": 10_000,
    "llm-d-redis": 0,
    "llm-d-valkey": 0,
}
"""Arm -> blocks of its tier."""
MASKS = {
    rf"{MODEL.lower()}-[a-z0-9-]+?-r1-([a-z0-9-]+?)-[0-9a-f]{{8}}": r"NAME-\1",
    rf"{MODEL}\.[a-z0-9.-]+-[0-9a-f]{{8}}": "CELL",
    rf"{MODEL}/[a-z-]+/\d+": "CELL",
    r"(kveval\.dev/measurement: )\S+": r"\1ID",
}


def test_an_arm_deploys_what_it_did() -> None:
    campaign, _ = groups(Path())[GROUP]
    made = {
        arm: [
            golden.masked(document, MASKS)
            for document in manifests(campaign, f"{MODEL}/{arm}/{blocks}")
        ]
        for arm, blocks in ARMS.items()
    }
    shared = [
        document
        for document in made["no-offload"]
        if all(document in documents for documents in made.values())
    ]
    texts = {
        f"{arm}.yaml": yaml_of(one for one in documents if one not in shared)
        for arm, documents in made.items()
    } | {"every-arm.yaml": yaml_of(shared)}
    if os.environ.get("KVEVAL_UPDATE_GOLDEN"):
        HELD.mkdir(exist_ok=True)
        for name, text in texts.items():
            (HELD / name).write_text(text, encoding="utf-8")
    held = {path.name: path.read_text("utf-8") for path in HELD.glob("*.yaml")}
    if said := golden.difference(held, texts):
        pytest.fail(said, pytrace=False)


def yaml_of(documents: Iterable[str]) -> str:
    return "".join(f"---\n{document}" for document in documents)
