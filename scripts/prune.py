"""Show the entries of the store that nothing refers to, and delete them on request."""

from pathlib import Path
from typing import Any

from kveval.store.store import Store
from kveval.workflow.said import write_said
from kveval.workflow.upkeep.prune import prune_as_asked, workflows


def main(
    prune: object,
    prune_days: object,
    prune_also: object,
    store: str,
    campaign: Any,
    catalogues: str,
) -> str:
    """Return what is to be printed; `prune...`: values of --config, None where they are not given."""
    using = workflows(Path(), Path(catalogues), campaign, prune_also or ())
    return prune_as_asked(Store(Path(store)), using, prune, prune_days or 0)


if __name__ == "__main__":
    write_said(snakemake.log[0], lambda: (True, main(**dict(snakemake.params.items()))))
