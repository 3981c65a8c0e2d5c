"""Check whether the campaign can run on its engine; exits with 1 if it cannot."""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.host.findings import table, worst
from kveval.spec.loading import load_config
from kveval.workflow.doctor.doctor import diagnose


def main(values: Mapping[str, Any], log: Path) -> None:
    """`values`: the rule's params."""
    config = load_config(values["campaign"], Path(values["catalogues"]))
    places = {name: Path(values[name]) for name in ("store", "server_environment")}
    asked, at_once = str(values["asked"]), values["at_once"]
    findings = diagnose(config, asked, at_once=at_once, say=lambda text: print(text, file=sys.stderr), **places)
    log.write_text(f"{table(findings, width=shutil.get_terminal_size((120, 24)).columns)}\n")
    sys.exit(worst(findings) == "error")


if __name__ == "__main__":
    main(dict(snakemake.params.items()), Path(snakemake.log[0]))
