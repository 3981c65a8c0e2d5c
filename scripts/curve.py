"""Compute the share of a campaign's load that caches of every size serve, and the gain, with a table and a figure."""

from pathlib import Path

from kveval.campaign.loading import load_config
from kveval.workflow.planning.curve_files import write_curve_files

if __name__ == "__main__":
    params = snakemake.params
    config = load_config(params.campaign, Path(params.catalogues))
    text = write_curve_files(
        config, Path(params.store), Path(params.table), Path(params.figure)
    )
    Path(snakemake.log[0]).write_text(text)
