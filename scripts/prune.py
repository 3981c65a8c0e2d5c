"""Show the entries of the store that nothing refers to, and delete them on request."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.store.store import Store
from kveval.workflow.upkeep.prune import prune_as_asked, workflows


def main(values: Mapping[str, Any], log: str) -> None:
    """`values`: the rule's params."""
    try:
        using = workflows(Path(), Path(values["catalogues"]), values["campaign"], values["prune_also"] or ())
        said = prune_as_asked(Store(Path(values["store"])), using, values["prune"], values["prune_days"] or 0)
    except Failure as failure:
        Path(log).write_text(f"FAILED: {failure}\n")
        sys.exit(1)
    Path(log).write_text(said + "\n")


if __name__ == "__main__":
    main(dict(snakemake.params.items()), snakemake.log[0])
