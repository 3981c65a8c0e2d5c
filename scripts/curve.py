"""Compute the share of a campaign's load that caches of every size serve, and the gain, with a table and a figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.spec.loading import load_config
from kveval.workflow.planning.curve_files import write_curve_files


def main(campaign: Mapping[str, Any], catalogues: str, store: str, table: str, figure: str, log: Path) -> None:
    """`campaign`: its complete values; `table` (CSV), `figure` and `log` (the text): the files to write."""
    config = load_config(campaign, Path(catalogues))
    log.write_text(write_curve_files(config, Path(store), Path(table), Path(figure)))


if __name__ == "__main__":
    main(**dict(snakemake.params.items()), log=Path(snakemake.log[0]))
