"""Copy the report and its tables from the storage provider into this machine's results folder."""

from pathlib import Path

from kveval.workflow.upkeep.sharing import bring

if __name__ == "__main__":
    bring(
        map(Path, snakemake.input),
        map(Path, snakemake.params.places),
        Path(snakemake.output[0]),
    )
