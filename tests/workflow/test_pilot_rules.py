"""The pilot in the workflow: every arm waits for it, takes its levels, and is measured again only when they change."""

import re

import pytest
import yaml
from tests.support.fault_chain import ADOPTED, workflow_copy
from tests.support.loaded import snakemake

from kveval.configuration.config import measurement_id
from kveval.configuration.loading import load_config
from kveval.host import hardware
from kveval.host.files import write_json
from kveval.store.store import Key, Store

pytestmark = pytest.mark.workflow
CAMPAIGN = "config/campaigns/laptop-peak-search.yaml"
OPTIONS = ("--configfile", CAMPAIGN)


def seal(folder, specification, levels):
    """Put a run into the store, as one that was measured."""
    host = hardware.probe()
    store, key = (
        Store(folder / "results" / "measurements"),
        Key(measurement_id(specification), 1, host["fingerprint"]),
    )
    scratch = store.scratch(key)
    description = {
        **{
            "schema": 1,
            "measurement": key.measurement,
            "run": 1,
            "hardware": host,
            "engine": "local",
        },
        **{
            "weights": "miniature",
            "cell": specification["cell"],
            "specification": specification,
        },
        **{"started": "", "finished": "", "levels": levels},
    }
    write_json(scratch / "run.json", description)
    store.commit(scratch, key)


def tried(curve):
    return [
        {"level": level, "throughput_tok_s": value} for level, value in curve.items()
    ]


def planned(folder):
    return sorted(
        re.findall(
            r"Measuring [^/]+/([^/]+)/", snakemake(folder, "-n", "report", *OPTIONS)
        )
    )


def test_arms_take_the_levels_of_their_baselines_pilot(tmp_path):
    folder = workflow_copy(tmp_path / "repository")
    config = load_config(folder / CAMPAIGN, folder / "config")
    baseline, native = config.cells
    before = snakemake(folder, "-n", "report", *OPTIONS)
    assert re.search(r"Searching the .* Qwen3-0\.6B/no-offload", before)
    seal(
        folder,
        config.pilot_specification(baseline).to_json(),
        tried({1: 10.0, 4: 30.0, 15: 60.0, 48: 50.0}),
    )
    for cell in (baseline, native):
        seal(
            folder,
            config.specification(cell, (4, 15, 48)).to_json(),
            tried({4: 30.0, 15: 60.0, 48: 50.0}),
        )
    output = snakemake(folder, "report", "--until", "benchmark", *OPTIONS)
    assert output.count(ADOPTED) == 3
    assert planned(folder) == []
    # A longer search finds another level: the pilot is another measurement, and so is every arm.
    text = (folder / CAMPAIGN).read_text()
    (folder / CAMPAIGN).write_text(text.replace("keep: 3", "keep: 4"))
    assert "Searching the levels" in snakemake(folder, "-n", "report", *OPTIONS)
    assert planned(folder) == ["native-offload", "no-offload"]


def test_a_search_of_every_baseline_of_its_own(tmp_path):
    campaign = yaml.safe_load(
        (workflow_copy(tmp_path / "repository") / CAMPAIGN).read_text()
    )
    folder = tmp_path / "repository"
    campaign["matrix"] = [
        {
            "models": ["Qwen3-0.6B", "Qwen3-8B"],
            "scenarios": ["no-offload"],
            "cpu_blocks": [0],
        },
        {
            "models": ["Qwen3-0.6B", "Qwen3-8B"],
            "scenarios": ["native-offload"],
            "cpu_blocks": [2000],
        },
    ]
    (folder / CAMPAIGN).write_text(yaml.safe_dump(campaign))
    output = snakemake(folder, "-n", "report", *OPTIONS)
    assert sorted(re.findall(r"around the peak of (\S+)", output)) == [
        "Qwen3-0.6B/no-offload",
        "Qwen3-8B/no-offload",
    ]
