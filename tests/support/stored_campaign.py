"""A campaign for this host, of which every run is in the store: made up, with raw files that can be converted."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from benchmarks import campaign_files as files
from tests.support.stored_runs import HOST, described
from tests.support.synthetic import required_counters

from kveval.configuration.loading import load_config
from kveval.host.files import write_json
from kveval.pcp.archive_tools import pack_archives
from kveval.store.store import Key, Store, pointer

MODEL = "Qwen3-0.6B"
CAMPAIGN = "campaign.yaml"


def write_campaign(folder: Path, levels: Sequence[int], runs: int = 1) -> Path:
    """Write the campaign, of two cells, into a copy of the workflow. Return its folder of results."""
    workload = {
        **{
            "levels": list(levels),
            "seconds": files.LEVEL_S,
            "warmup_s": files.WARMUP_S,
            "turns": 5,
            "seed": 889,
        },
        **{
            "prompt_tokens": 128,
            "output_tokens": 128,
            "prefix_tokens": 1_000,
            "prefix_count": 40,
        },
    }
    campaign = yaml.safe_load((folder / "config" / "config.yaml").read_text()) | {
        **{"name": "stored", "results": "results/campaigns/stored", "runs": runs},
        **{"workload": "stored", "workloads": {"stored": workload}},
        "matrix": [
            {"models": [MODEL], "scenarios": [scenario], "cpu_blocks": [blocks]}
            for scenario, blocks in (("no-offload", 0), ("native-offload", 500))
        ],
    }
    (folder / CAMPAIGN).write_text(yaml.safe_dump(campaign))
    return folder / str(campaign["results"])


def point_to_store(folder: Path) -> None:
    """Put a pointer to every run of the campaign among its results, as the jobs do that find it stored."""
    config = load_config(folder / CAMPAIGN, folder / "config")
    for cell in config.cells:
        for run in config.runs_of(cell):
            key = Key(config.measurement_id(cell), run, "")
            place = Path("results/measurements") / key.measurement / f"run-{run}"
            results = folder / config.campaign.results / cell.path / f"run-{run}"
            results.mkdir(parents=True, exist_ok=True)
            write_json(
                results / "measurement.json",
                pointer(folder / place, key) | {"path": place.as_posix()},
            )


def fill_store(folder: Path, levels: Sequence[int], scratch: Path) -> None:
    """Put every run of the campaign into the store, as measured; `scratch`: a folder for what is made on the way."""
    config = load_config(folder / CAMPAIGN, folder / "config")
    store = Store(folder / "results" / "measurements")
    files.recording(scratch, 60)
    archive = scratch / "pcp.tar.zst"
    pack_archives([next(scratch.rglob("*.meta")).with_suffix("")], archive)
    generator = np.random.default_rng(3)
    for cell, run in itertools.product(
        config.cells, range(1, config.campaign.runs + 1)
    ):
        key = Key(config.measurement_id(cell), run, str(HOST["fingerprint"]))
        place = store.scratch(key)
        shutil.copyfile(archive, place / "raw" / "pcp.tar.zst")
        entries = []
        for number, streams in enumerate(levels):
            rate = (
                200.0
                * streams
                / (streams + 40)
                * float(np.exp(generator.normal(0, 0.02)))
            )
            name = f"raw/guidellm-{streams:04d}.json.zst"
            (place / name).write_bytes(files.report(generator, number, streams, rate))
            begin = files.level_start(number)
            window = {"start": begin + files.WARMUP_S, "end": begin + files.LEVEL_S}
            entries.append({"level": streams, "status": "ok", "report": name, **window})
        facts = described(config.specification(cell).to_json(), run, levels=entries)
        facts["exercised"] = {
            "required": required_counters(cell.scenario),
            "exercised": True,
        }
        write_json(place / "run.json", facts)
        store.commit(place, key)
