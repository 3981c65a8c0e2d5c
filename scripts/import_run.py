"""Put one run of an existing result tree into the measurement store; writes the pointer to it."""

from pathlib import Path

import msgspec

from kveval.plugins.imports.plan import RunPlan
from kveval.plugins.imports.run import import_run
from kveval.store.store import Store

if __name__ == "__main__":
    import_run(
        msgspec.convert(snakemake.params.plan, RunPlan),
        Store(Path(snakemake.params.store)),
        Path(snakemake.output[0]),
    )
