"""Write a pointer to an existing run, under its scenario's name in the report."""

from pathlib import Path

from kveval.importing.compared import link


def main(pointer: str, scenario: str, output: str) -> None:
    """`pointer`: the run's own measurement.json."""
    link(Path(pointer), scenario, Path(output))


if __name__ == "__main__":
    main(snakemake.params.linked["pointer"], snakemake.params.scenario, snakemake.output[0])
