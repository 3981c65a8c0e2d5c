"""Write a pointer to an existing run, under its scenario's name in the report."""

from pathlib import Path

from kveval.workflow.compared import link

if __name__ == "__main__":
    link(
        Path(snakemake.params.pointer),
        snakemake.params.scenario,
        Path(snakemake.output[0]),
    )
