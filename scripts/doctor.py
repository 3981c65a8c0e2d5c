"""Check whether the campaign can run on its engine; exits with 1 if it cannot."""

import shutil
import sys
from pathlib import Path

from kveval.campaign.loading import load_config
from kveval.host.findings import table, worst
from kveval.workflow.doctor.doctor import diagnose
from kveval.workflow.said import write_said

if __name__ == "__main__":
    params = snakemake.params
    findings = diagnose(
        load_config(params.campaign, Path(params.catalogues)),
        params.asked,
        store=Path(params.store),
        server_environment=Path(params.server_environment),
        at_once=params.at_once,
        say=lambda text: print(text, file=sys.stderr),
    )
    said = table(findings, width=shutil.get_terminal_size((120, 24)).columns)
    write_said(snakemake.log[0], lambda: (worst(findings) != "error", said))
