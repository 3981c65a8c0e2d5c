"""A copy of the workflow with a made-up campaign in it, measured and compared: only what is published is missing."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pandas as pd
import yaml
from tests.support import synthetic_campaign as campaign
from tests.support.described import raw_run
from tests.support.paths import REPOSITORY, copy_parts

from kveval.campaign.cell import Cell
from kveval.configuration.loading import load_config
from kveval.store.conditions import write_conditions
from kveval.tables.cells import rows_of
from kveval.tables.csv_files import collect_tables

PARTS = ("Snakefile", "config", "rules", "scripts", "profiles", "envs")
# The site and the release of the published evaluation.
PUBLISHED = REPOSITORY / "config" / "campaigns" / "feb-2026.yaml"


def make_workflow(folder: Path, keys: Sequence[Cell]) -> None:
    """Copy the workflow and put a campaign's tables, pointers and recordings where its rules would."""
    copy_parts(folder, PARTS)
    matrix = [
        {
            "models": [cell.model],
            "scenarios": [cell.scenario],
            "cpu_blocks": [cell.cpu_blocks],
        }
        for cell in keys
    ]
    config = yaml.safe_load(PUBLISHED.read_text()) | {
        "name": "large",
        "results": "results",
        "comparison": {},
    }
    (folder / "config" / "config.yaml").write_text(
        yaml.safe_dump(config | {"runs": 3, "matrix": matrix})
    )
    planned = load_config(folder / "config" / "config.yaml", folder / "config")
    levels = campaign.levels_table(keys)
    measured = campaign.measured(levels)
    results = folder / "results"
    recording = campaign.recording(results / "recording", cpus=48)
    for made_up in measured.runs:
        run = msgspec.structs.replace(
            made_up, measurement=planned.measurement_id(made_up.cell)
        )
        place = results.joinpath(run.cell.path, f"run-{run.run}")
        stored = Path("results/measurements") / run.measurement / f"run-{run.run}"
        place.mkdir(parents=True)
        (folder / stored).mkdir(parents=True)
        (folder / stored / "run.json").write_bytes(msgspec.json.encode(raw_run(run)))
        (place / "measurement.json").write_text(
            json.dumps({"measurement": run.measurement, "path": str(stored)})
        )
        (place / "pcp.parquet").hardlink_to(recording)
        write_conditions(run.described, place / "conditions.json")
    pairs = []
    for key in keys:
        place = results / key.path
        pairs.append((place / "levels.csv", place / "peak.csv"))
        measured.levels_of(key).to_csv(pairs[-1][0], index=False)
        requests = pd.DataFrame(columns=["run", "level", "start"])
        requests.to_parquet(place / "requests.parquet")
        hits = rows_of(measured.predicted_hits, key)
        hits.to_csv(place / "predicted_hits.csv", index=False)
        rows_of(measured.peaks, key).to_csv(pairs[-1][1], index=False)
    (results / "analysis").mkdir()
    for name, table in collect_tables(
        [p[0] for p in pairs], [p[1] for p in pairs], campaign.METRICS
    ).items():
        table.to_csv(results / "analysis" / f"{name}.csv", index=False)
    measured.comparison.to_csv(results / "analysis" / "comparison.csv", index=False)
