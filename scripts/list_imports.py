"""List every result that an import found: what became of it and why, declared beside effective."""

import json
from collections.abc import Sequence
from pathlib import Path

from kveval.importing.campaign import campaign_imports
from kveval.importing.table import write_table
from kveval.store.run_file import stored_run


def main(campaign: str, index: str, pointers: Sequence[str], output: str) -> None:
    """`pointers`: measurement.json of every imported run; `index`: where results read before are kept."""
    runs = [json.loads((stored_run(Path(path)) / "run.json").read_text()) for path in pointers]
    notes = {("/".join(map(str, run["cell"].values())), run["run"]): run["recording"]["notes"] for run in runs}
    write_table(campaign_imports(Path(campaign), Path("config"), Path(index)), notes, Path(output))


if __name__ == "__main__":
    main(snakemake.params.campaign, snakemake.params.index, snakemake.input.measurements, snakemake.output[0])
