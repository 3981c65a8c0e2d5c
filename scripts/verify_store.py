"""Check every measurement of the store, and what points to it; exits with 1 when anything was wrong."""

import sys
from pathlib import Path

from kveval.store.store import Store
from kveval.workflow.upkeep.references import campaign_files, references
from kveval.workflow.upkeep.verify import verify_store


def main(store: str, campaign: str, log: str, threads: int) -> None:
    """`campaign`: the one that was asked for, beside those of config/; `threads` hash files."""
    wanted = references([*campaign_files(Path()), Path(campaign)], Path("config"))
    checked = verify_store(Store(Path(store)), Path(), wanted, threads)
    print(checked.text(), flush=True)
    Path(log).write_text(checked.text() + "\n")
    sys.exit(0 if checked.sound else 1)


if __name__ == "__main__":
    main(snakemake.params.store, snakemake.params.campaign, snakemake.log[0], snakemake.threads)
