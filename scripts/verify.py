"""Check every measurement of the store, and every pointer to one; exits with 1 if anything was wrong."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.store.store import Store
from kveval.workflow.upkeep.references import campaign_files, references
from kveval.workflow.upkeep.verify import verify_store


def main(values: Mapping[str, Any], log: str, threads: int) -> None:
    """`values`: the rule's params, with a `campaign` besides those of config/; `threads`: how many hash files."""
    store, catalogues = values["store"], Path(values["catalogues"])
    wanted = references([*campaign_files(catalogues), values["campaign"]], catalogues)
    checked = verify_store(Store(Path(store)), Path(), wanted, threads)
    Path(log).write_text(checked.text() + "\n")
    sys.exit(0 if checked.sound else 1)


if __name__ == "__main__":
    main(dict(snakemake.params.items()), snakemake.log[0], snakemake.threads)
