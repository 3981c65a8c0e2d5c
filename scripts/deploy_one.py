"""Deploy one cell as a test and remove it again; exits with 1 if that fails."""

from pathlib import Path

from kveval.campaign.loading import load_config
from kveval.host.processes import stop_signals_raise
from kveval.workflow.deploy_one import deploy_one
from kveval.workflow.said import write_said

if __name__ == "__main__":
    params = snakemake.params
    config = load_config(params.campaign, Path(params.catalogues))
    folder, environment = (
        Path(params.folder).absolute(),
        Path(params.server_environment),
    )
    # A stop removes what was deployed, as the end does.
    with stop_signals_raise():
        write_said(
            snakemake.log[0],
            lambda: deploy_one(config, str(params.cell or ""), folder, environment),
        )
