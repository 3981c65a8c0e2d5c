"""Point to a run that was measured, under the name that its scenario has in the report."""

from pathlib import Path

from kveval.importing.compared import link


def main(pointer: str, scenario: str, output: str) -> None:
    """`pointer`: the run's own measurement.json."""
    link(Path(pointer), scenario, Path(output))


if __name__ == "__main__":
    main(snakemake.params.linked["pointer"], snakemake.params.scenario, snakemake.output[0])
