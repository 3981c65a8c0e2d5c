"""Put one run of an existing result tree into the measurement store; writes the pointer to it."""

from pathlib import Path

from kveval.plugins.imports.run import import_run, plan_from
from kveval.store.store import Store

if __name__ == "__main__":
    import_run(
        plan_from(snakemake.params.plan),
        Store(Path(snakemake.params.store)),
        Path(snakemake.output[0]),
    )
