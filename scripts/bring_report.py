"""Bring what people read from the storage provider to where it lies without one."""

from pathlib import Path

from kveval.workflow.upkeep.sharing import bring

if __name__ == "__main__":
    bring(map(Path, snakemake.input), map(Path, snakemake.params.places), Path(snakemake.output[0]))
