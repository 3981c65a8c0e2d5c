"""Point to a run of another campaign, under the name that its scenario has in a comparison."""

from pathlib import Path

from kveval.importing.compared import link


def main(pointer: str, scenario: str, output: str) -> None:
    """`pointer`: the run's own measurement.json."""
    link(Path(pointer), scenario, Path(output))


if __name__ == "__main__":
    main(snakemake.input[0], snakemake.params.scenario, snakemake.output[0])
