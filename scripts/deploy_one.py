"""Deploy one cell as a test and remove it again; exits with 1 if that fails."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.spec.loading import load_config
from kveval.workflow.deploy_one import deploy_one


def main(values: Mapping[str, Any], log: Path) -> None:
    """`values`: the rule's params."""
    config = load_config(values["campaign"], Path(values["catalogues"]))
    try:
        good, text = deploy_one(
            config, str(values["cell"] or ""), Path(values["folder"]).absolute(), Path(values["server_environment"])
        )
    except Failure as failure:
        good, text = False, f"FAILED: {failure}"
    log.write_text(f"{text}\n")
    sys.exit(not good)


if __name__ == "__main__":
    main(dict(snakemake.params.items()), Path(snakemake.log[0]))
