"""Check every measurement of the store, and every pointer to one; exits with 1 if anything was wrong."""

from pathlib import Path

from kveval.store.store import Store
from kveval.workflow.said import write_said
from kveval.workflow.upkeep.references import campaign_files, references
from kveval.workflow.upkeep.verify import verify_store

if __name__ == "__main__":
    params, catalogues = snakemake.params, Path(snakemake.params.catalogues)
    wanted = references([*campaign_files(catalogues), params.campaign], catalogues)
    checked = verify_store(Store(Path(params.store)), Path(), wanted, snakemake.threads)
    write_said(snakemake.log[0], lambda: (checked.sound, checked.text()))
