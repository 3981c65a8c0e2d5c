"""Two finished campaigns in one report: every arm against itself, and what is confounded."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks import campaign_files as files
from tests.support.config_files import CONFIG, RAW, dump
from tests.support.fault_chain import without_figures
from tests.support.loaded import snakemake
from tests.support.paths import copy_parts
from tests.support.synthetic import run_description

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.host.files import write_json
from kveval.pcp.archive_tools import pack_archives
from kveval.store.run_file import pointed_run
from kveval.store.store import Key, pointer
from kveval.workflow.compared import CombiningError, combination, require_measured

LEVELS = (1, 50)
OLD = RAW["config"] | {
    "name": "old",
    "results": "results/campaigns/old",
    "runs": 2,
    "workload": "short",
    "workloads": {
        "short": {
            **{
                "levels": list(LEVELS),
                "seconds": files.LEVEL_S,
                "warmup_s": files.WARMUP_S,
                "turns": 2,
                "seed": 889,
            },
            **{
                "prompt_tokens": 64,
                "output_tokens": 128,
                "prefix_tokens": 4000,
                "prefix_count": 10,
            },
        }
    },
    "matrix": [
        {"models": ["Qwen3-0.6B"], "scenarios": ["no-offload"], "cpu_blocks": [0]},
        {
            "models": ["Qwen3-0.6B"],
            "scenarios": ["native-offload"],
            "cpu_blocks": [10_000],
        },
    ],
}
OWN = {"models": ["own"], "scenarios": ["no-offload"], "cpu_blocks": [0]}
NEW = {"extends": "old", "name": "new", "server": {"vllm": "0.33.0"}}
BOTH = {
    "name": "both",
    "results": "results/campaigns/both",
    "compare": [
        {"campaign": "old", "label": "0.32"},
        {"campaign": "new", "label": "0.33"},
    ],
}


@pytest.fixture
def catalogues(tmp_path):
    """The shipped catalogues beside campaigns of the test's own; write them by name."""
    folder = tmp_path / "config"
    shutil.copytree(CONFIG, folder)
    shutil.rmtree(folder / "campaigns")

    def write(**campaigns):
        (folder / "campaigns").mkdir(exist_ok=True)
        for name, content in campaigns.items():
            (folder / "campaigns" / f"{name}.yaml").write_text(dump(content))
        return folder

    return write


def load(folder, name="both"):
    return load_config(folder / "campaigns" / f"{name}.yaml", folder)


def test_every_arm_is_compared_with_itself_and_with_its_own_baseline(catalogues):
    config = load(catalogues(old=OLD, new=NEW, both=BOTH))
    scenarios = config.catalogue.scenarios
    assert scenarios["native-offload-on-0.33"].baseline == "native-offload-on-0.32"
    assert scenarios["no-offload-on-0.33"].baseline == "no-offload-on-0.32"
    assert scenarios["native-offload-on-0.32"].baseline is None
    assert set(config.campaign.comparison.contrasts) == {
        (f"native-offload-on-{label}", f"no-offload-on-{label}")
        for label in ("0.32", "0.33")
    }
    found = combination(config)
    assert found.cells == [
        Cell("Qwen3-0.6B", f"{scenario}-on-{label}", blocks)
        for label in ("0.32", "0.33")
        for scenario, blocks in (("no-offload", 0), ("native-offload", 10_000))
    ]
    runs = found.runs_of("Qwen3-0.6B/native-offload-on-0.33/10000")
    assert [run.run for run in runs] == [1, 2]
    assert (
        runs[0].pointer
        == "results/campaigns/new/Qwen3-0.6B/native-offload/10000/run-1/measurement.json"
    )


def test_another_release_alone_is_not_confounded(catalogues):
    remarks = combination(load(catalogues(old=OLD, new=NEW, both=BOTH))).remarks
    assert remarks == "Compares `old` (0.32), `new` (0.33)."


def test_what_differs_beside_the_release_is_said(catalogues):
    new = NEW | {
        "hardware": "another host",
        "server": {"vllm": "0.33.0", "max_num_seqs": 8},
        "matrix": [
            OLD["matrix"][0],
            {"models": ["Qwen3-0.6B"], "scenarios": ["fs-offload"], "cpu_blocks": [0]},
        ],
    }
    remarks = combination(load(catalogues(old=OLD, new=new, both=BOTH))).remarks
    assert (
        "differs in more than versions: argv.--max-num-seqs null -> 8 (`Qwen3-0.6B/no-offload/0`)"
        in remarks
    )
    assert "- only with 0.33 (`Qwen3-0.6B/fs-offload/0`)" in remarks
    assert "- only with 0.32 (`Qwen3-0.6B/native-offload/10000`)" in remarks
    assert "- 0.33 ran on another host, 0.32 on this host" in remarks


@pytest.mark.parametrize(
    ("campaigns", "key", "code"),
    [
        ({"both": BOTH, "old": OLD}, "compare[1].campaign", "unknown_name"),
        (
            {
                "both": BOTH | {"compare": [{"campaign": "old", "label": "a"}] * 2},
                "old": OLD,
            },
            "compare",
            "repeated_label",
        ),
        (
            {"both": BOTH, "old": OLD, "new": BOTH | {"name": "new", "compare": []}},
            "compare",
            "too_short",
        ),
        (
            {"both": BOTH | {"matrix": OLD["matrix"]}, "old": OLD, "new": NEW},
            "matrix",
            "mixed",
        ),
        (
            {
                "both": BOTH,
                "old": OLD
                | {"models": {"own": {"extends": "Qwen3-8B"}}, "matrix": [OWN]},
                "new": OLD
                | {
                    "name": "new",
                    "models": {"own": {"extends": "Qwen3-14B"}},
                    "matrix": [OWN],
                },
            },
            "compare",
            "other_model",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(catalogues, campaigns, key, code):
    with pytest.raises(ConfigError) as caught:
        load(catalogues(**campaigns))
    assert (key, code) in [
        (problem.key, problem.code) for problem in caught.value.problems
    ], caught.value


def test_a_campaign_that_was_not_measured_is_named_with_what_to_do(
    catalogues, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    found = combination(load(catalogues(old=OLD, new=NEW, both=BOTH)))
    with pytest.raises(
        CombiningError, match=r"--configfile config/campaigns/old\.yaml"
    ) as error:
        require_measured(found.runs[0])
    assert error.value.facts == {"campaign": "old"}


def measure(folder, config, archive, speed):
    """Put what every run of a campaign would leave into the store, and a pointer to it among its results."""
    generator = np.random.default_rng(4)
    for cell in config.cells:
        for run in config.runs_of(cell):
            measurement = config.measurement_id(cell)
            stored = Path("results/measurements") / measurement / f"run-{run}"
            (folder / stored / "raw").mkdir(parents=True)
            os.link(archive, folder / stored / "raw" / "pcp.tar.zst")
            entries = []
            for number, streams in enumerate(LEVELS):
                rate = (
                    speed
                    * streams
                    / (streams + 40)
                    * float(np.exp(generator.normal(0, 0.01)))
                )
                name = f"raw/guidellm-{streams:04d}.json.zst"
                (folder / stored / name).write_bytes(
                    files.report(generator, number, streams, rate)
                )
                begin = files.level_start(number)
                window = {"start": begin + files.WARMUP_S, "end": begin + files.LEVEL_S}
                entries.append(
                    {"level": streams, "status": "ok", "report": name, **window}
                )
            described = run_description(
                cell.model, cell.scenario, cell.cpu_blocks, run, measurement=measurement
            )
            described |= {
                "levels": entries,
                "specification": config.specification(cell).to_json(),
            }
            described["exercised"] = {"required": [], "exercised": True}
            (folder / stored / "run.json").write_text(json.dumps(described))
            (folder / stored / "SHA256SUMS").write_text("0  run.json\n")
            where = (
                folder
                / config.campaign.results
                / cell.path
                / f"run-{run}"
                / "measurement.json"
            )
            write_json(
                where,
                pointer(folder / stored, Key(measurement, run, ""))
                | {"path": stored.as_posix()},
            )


@pytest.mark.workflow
def test_two_finished_campaigns_give_one_report(catalogues, tmp_path, monkeypatch):
    folder = catalogues(old=OLD, new=NEW, both=BOTH)
    copy_parts(tmp_path, ("Snakefile", "rules", "scripts", "profiles", "envs"))
    without_figures(tmp_path)
    (tmp_path / "recording").mkdir()
    files.recording(tmp_path / "recording", 60)
    archive = tmp_path / "recording" / "pcp.tar.zst"
    pack_archives(
        [next((tmp_path / "recording").rglob("*.meta")).with_suffix("")], archive
    )
    for name, speed in (("old", 200.0), ("new", 260.0)):
        measure(tmp_path, load(folder, name), archive, speed)
    results = tmp_path / BOTH["results"]
    made = (
        f"{BOTH['results']}/REPORT.md",
        "--configfile",
        "config/campaigns/both.yaml",
    )
    assert "Measuring" not in snakemake(tmp_path, *made)
    link = results / "Qwen3-0.6B/native-offload-on-0.33/10000/run-i2/measurement.json"
    monkeypatch.chdir(tmp_path)
    assert pointed_run(link).cell.scenario == "native-offload-on-0.33"
    table = pd.read_csv(results / "analysis/comparison.csv")
    compared = table[
        (table["metric"] == "throughput_tok_s")
        & (table["scenario"] == "native-offload-on-0.33")
    ]
    assert list(compared["baseline"]) == ["Qwen3-0.6B/native-offload-on-0.32/10000"]
    assert 20 < float(compared["effect_percent"].iloc[0]) < 40
    text = (results / "REPORT.md").read_text()
    assert "native-offload-on-0.33" in text
    assert "`old` (0.32), `new` (0.33)" in text
