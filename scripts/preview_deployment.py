"""Write, for review, exactly what would be deployed for a cell."""

import json
from pathlib import Path

import yaml


def main(specification: str, measurement: str, output: str) -> None:
    """`specification`: what defines the measurement, JSON."""
    content = {"measurement": measurement, **json.loads(specification)}
    Path(output).write_text(yaml.safe_dump(content, sort_keys=False, width=120))


if __name__ == "__main__":
    main(snakemake.params.specification, snakemake.params.measurement, snakemake.output[0])
