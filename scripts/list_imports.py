"""List every result that an import found: what became of it, why, and its declared and effective settings."""

import json
from pathlib import Path

from kveval.configuration.loading import load_config
from kveval.importing.campaign import import_plan
from kveval.importing.table import write_table
from kveval.store.run_file import stored_run

if __name__ == "__main__":
    values, pointers = (
        dict(snakemake.params.items()),
        map(Path, snakemake.input.measurements),
    )
    runs = [
        json.loads((stored_run(path) / "run.json").read_text()) for path in pointers
    ]
    notes = {
        ("/".join(map(str, run["cell"].values())), run["run"]): run["recording"][
            "notes"
        ]
        for run in runs
    }
    config = load_config(Path(values["campaign"]), Path(values["catalogues"]))
    write_table(
        import_plan(config, Path(values["index"])), notes, Path(snakemake.output[0])
    )
