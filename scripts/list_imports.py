"""List every result that an import found: what became of it, why, and its declared and effective settings."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.importing.campaign import import_plan
from kveval.importing.table import write_table
from kveval.spec.loading import load_config
from kveval.store.run_file import stored_run


def main(values: Mapping[str, Any], pointers: Sequence[str], output: str) -> None:
    """`values`: the rule's params; `pointers`: measurement.json of every imported run."""
    runs = [json.loads((stored_run(Path(path)) / "run.json").read_text()) for path in pointers]
    notes = {("/".join(map(str, run["cell"].values())), run["run"]): run["recording"]["notes"] for run in runs}
    config = load_config(values["campaign"], Path(values["catalogues"]))
    write_table(import_plan(config, Path(values["index"])), notes, Path(output))


if __name__ == "__main__":
    main(dict(snakemake.params.items()), snakemake.input.measurements, snakemake.output[0])
