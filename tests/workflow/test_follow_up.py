"""A follow-up costs what is new: the February campaign finished, then 20,000 blocks for two of its models.

What a cluster would measure is made up, raw files and all, in a folder beside the store; a stand-in for the job takes
it from there, and notes what it was asked to measure. The finished campaign's tables are made up as well, and marked
as Snakemake's own; everything that the follow-up plans is run for real.
"""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from benchmarks import campaign_files as files
from tests.support import synthetic_campaign as tables
from tests.support.command import kveval
from tests.support.fault_chain import without_figures
from tests.support.loaded import snakemake
from tests.support.paths import copy_parts
from tests.support.report_text import whole_report
from tests.support.synthetic import run_description

from kveval.conditions.facts import described
from kveval.configuration.loading import load_config
from kveval.host.files import write_json
from kveval.pcp.archive_tools import pack_archives
from kveval.store.conditions import write_conditions
from kveval.store.run_file import read_run
from kveval.store.store import Key, pointer
from kveval.tables.cells import rows_of

pytestmark = pytest.mark.workflow
PARTS = ("Snakefile", "config", "rules", "scripts", "profiles", "envs")
FEBRUARY, FOLLOW_UP = (
    "config/campaigns/feb-2026.yaml",
    "config/campaigns/feb-2026-20k.yaml",
)
LEVELS = (1, 50, 100)
STAND_IN = """
import argparse, shutil, sys
from pathlib import Path
sys.path.insert(0, "scripts")
from kveval.host.files import write_json; from kveval.store.store import Key, pointer
parser = argparse.ArgumentParser()
parser.add_argument("--measurement"), parser.add_argument("--run", type=int), parser.add_argument("--cell")
parser.add_argument("--output", type=Path), parser.add_argument("--store", type=Path)
args, _ = parser.parse_known_args()
place = args.store / args.measurement / f"run-{args.run}"
place.parent.mkdir(parents=True, exist_ok=True)
shutil.copytree(Path("cluster") / args.measurement / f"run-{args.run}", place, copy_function=shutil.os.link)
with open("measured.txt", "a") as file:
    file.write(f"{args.cell} {args.run}\\n")
write_json(args.output, pointer(place, Key(args.measurement, args.run, "")))
"""


def measured(folder):
    path = folder / "measured.txt"
    return path.read_text().splitlines() if path.exists() else []


def jobs(output):
    table = re.search(
        r"^job +count\n[- ]+\n(.*?)^total", output, flags=re.MULTILINE | re.DOTALL
    )
    return {
        name: int(count)
        for name, count in re.findall(
            r"^(\S+) +(\d+)$", table.group(1), flags=re.MULTILINE
        )
    }


def make_measurable(folder, config, archive):
    """Write what every run of a campaign would leave, once per measurement id."""
    generator = np.random.default_rng(3)
    for cell in config.cells:
        for run in config.runs_of(cell):
            measurement = config.measurement_id(cell)
            place = folder / "cluster" / measurement / f"run-{run}"
            if place.exists():
                continue
            (place / "raw").mkdir(parents=True)
            os.link(archive, place / "raw" / "pcp.tar.zst")
            speed = (
                200.0
                * (1 + files.MODELS[::-1].index(cell.model))
                * (1.2 if cell.cpu_blocks == 20_000 else 1.0)
            )
            entries = []
            for number, streams in enumerate(LEVELS):
                rate = (
                    speed
                    * streams
                    / (streams + 40)
                    * float(np.exp(generator.normal(0, 0.02)))
                )
                name = f"raw/guidellm-{streams:04d}.json.zst"
                (place / name).write_bytes(
                    files.report(generator, number, streams, rate)
                )
                begin = files.level_start(number)
                window = {"start": begin + files.WARMUP_S, "end": begin + files.LEVEL_S}
                entries.append(
                    {"level": streams, "status": "ok", "report": name, **window}
                )
            description = run_description(
                cell.model, cell.scenario, cell.cpu_blocks, run, measurement=measurement
            )
            description |= {
                "engine": "kubernetes",
                "weights": "full",
                "levels": entries,
            }
            description |= {
                "specification": config.specification(cell).to_json(),
                "finished": "2026-02-03T04:05:06Z",
            }
            description["exercised"] = {"required": [], "exercised": True}
            (place / "run.json").write_text(json.dumps(description))
            (place / "SHA256SUMS").write_text("0  run.json\n")


@pytest.fixture(scope="module")
def february(tmp_path_factory):
    """A workflow in which the February campaign is finished: one run of each cell, at three levels."""
    folder = tmp_path_factory.mktemp("follow-up") / "repository"
    without_figures(copy_parts(folder, PARTS))
    (folder / "scripts" / "benchmark.py").write_text(STAND_IN)
    campaign = yaml.safe_load((folder / FEBRUARY).read_text())
    campaign["workloads"] = {
        "short": {
            **{
                "levels": list(LEVELS),
                "seconds": files.LEVEL_S,
                "warmup_s": files.WARMUP_S,
                "turns": 5,
                "seed": 889,
            },
            **{
                "prompt_tokens": 128,
                "output_tokens": 128,
                "prefix_tokens": 10_000,
                "prefix_count": 800,
            },
        }
    }
    (folder / FEBRUARY).write_text(
        yaml.safe_dump(campaign | {"workload": "short", "runs": 1})
    )
    (folder / "recording").mkdir()
    recording = files.recording(folder / "recording", 60)
    archive = folder / "recording" / "pcp.tar.zst"
    pack_archives(
        [next((folder / "recording").rglob("*.meta")).with_suffix("")], archive
    )
    make_measurable(folder, load_config(folder / FOLLOW_UP, folder / "config"), archive)
    finish(folder, load_config(folder / FEBRUARY, folder / "config"), recording)
    output = snakemake(
        folder, "report", "--configfile", FEBRUARY, "--touch", "--forceall"
    )
    assert jobs(output)["benchmark"] == 28
    return folder


def finish(folder, config, recording):
    """Write what the workflow makes of a campaign's runs, up to the cells' tables."""
    measured = tables.measured(tables.levels_table(config.cells, runs=1, levels=LEVELS))
    results = folder / config.campaign.results
    for cell in config.cells:
        stored = Path("results/measurements") / config.measurement_id(cell) / "run-1"
        shutil.copytree(
            folder / "cluster" / stored.parent.name / "run-1",
            folder / stored,
            copy_function=os.link,
        )
        run = results / cell.path / "run-1"
        run.mkdir(parents=True)
        points = pointer(folder / stored, Key(config.measurement_id(cell), 1, ""))
        write_json(run / "measurement.json", points | {"path": stored.as_posix()})
        levels = measured.levels_of(cell)
        pd.DataFrame({"run": [], "level": [], "start": []}).to_parquet(
            run.parent / "requests.parquet"
        )
        (run / "pcp.parquet").hardlink_to(recording)
        ran = described(read_run(folder / stored)).described
        write_conditions(ran, run / "conditions.json")
        hits = rows_of(measured.predicted_hits, cell)
        hits.to_csv(results / cell.path / "predicted_hits.csv", index=False)
        levels.to_csv(results / cell.path / "levels.csv", index=False)
        peaks = rows_of(measured.peaks, cell)
        peaks.to_csv(results / cell.path / "peak.csv", index=False)
    (results / "REPORT.md").write_text("28 cells")


def test_a_follow_up_measures_six_cells_leaves_28_alone_and_rebuilds_the_report(
    february,
):
    report = february / "results/campaigns/feb-2026/REPORT.md"
    before = {
        path: path.stat().st_mtime_ns
        for path in (february / "results").rglob("*")
        if path.is_file()
    }
    assert kveval(february, "plan", FOLLOW_UP)[0] == 0
    planned = (february / "logs/feb-2026-20k/plan.csv").read_text().splitlines()[1:]
    assert sum(",measure,new," in row for row in planned) == 6
    assert sum(",there,," in row for row in planned) == 28

    snakemake(february, "report", "--configfile", FOLLOW_UP)
    assert sorted(measured(february)) == sorted(
        f"{model}/{scenario}/20000 1"
        for model in ("Qwen3-14B", "Qwen3-32B-AWQ")
        for scenario in ("native-offload", "lmcache-local", "lmcache-valkey")
    )
    text = whole_report(report.parent)
    assert "34 of 34" in text
    assert "20,000" in text
    untouched = [
        path
        for path in before
        if re.search(r"/(run-\d+|measurements)/|/(levels|peak)\.csv$", str(path))
    ]
    assert len(untouched) > 28 * 6
    assert all(path.stat().st_mtime_ns == before[path] for path in untouched)


def test_the_first_campaign_asked_for_again_measures_nothing(february):
    assert "benchmark" not in jobs(
        snakemake(february, "-n", "report", "--configfile", FEBRUARY)
    )


def test_limits_declared_later_rerun_the_analysis_alone_and_prices_what_is_made_of_it(
    february,
):
    def planned(name, **declared):
        campaign = yaml.safe_load((february / FOLLOW_UP).read_text()) | declared
        (february / f"config/campaigns/{name}.yaml").write_text(
            yaml.safe_dump(campaign)
        )
        return jobs(
            snakemake(
                february,
                "-n",
                "report",
                "--configfile",
                f"config/campaigns/{name}.yaml",
            )
        )

    limited = planned("limited", goodput={"ttft_ms": 500})
    assert not {"benchmark", "convert_pcp"} & limited.keys()
    assert limited["extract_peak"] == 34
    priced = planned("priced", prices={"gpu_hour_usd": 2.5})
    assert (
        not {"benchmark", "convert_pcp", "extract_peak", "collect_metrics"}
        & priced.keys()
    )
    assert (priced["price_tokens"], priced["write_report"]) == (1, 1)


def test_bridges_are_measured_beside_the_new_cells_alone(february):
    bridged = yaml.safe_load((february / FOLLOW_UP).read_text())
    bridged["bridges"] = [
        {
            "models": ["Qwen3-14B", "Qwen3-32B-AWQ"],
            "scenarios": ["no-offload"],
            "cpu_blocks": [0],
        },
    ]
    (february / "config/campaigns/bridged.yaml").write_text(yaml.safe_dump(bridged))
    output = snakemake(
        february, "-n", "report", "--configfile", "config/campaigns/bridged.yaml"
    )
    planned = re.findall(r"Measuring (\S+), run (\d+)", output)
    again = [("Qwen3-14B/no-offload/0", "2"), ("Qwen3-32B-AWQ/no-offload/0", "2")]
    assert [entry for entry in sorted(planned) if "20000" not in entry[0]] == again
