"""Put one run of an existing result tree into the measurement store; writes the pointer to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.importing.run import import_run, plan_from
from kveval.store.store import Store


def main(plan: Mapping[str, Any], store: str, output: str) -> None:
    """`plan`: the run's files, and what is known about it."""
    import_run(plan_from(plan), Store(Path(store)), Path(output))


if __name__ == "__main__":
    main(snakemake.params.plan, snakemake.params.store, snakemake.output[0])
