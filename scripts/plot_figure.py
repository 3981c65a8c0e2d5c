"""Draw one figure, as PNG and SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.campaign_data import figure_data, make_plan, read_measured
from kveval.figures import write_figure


def main(
    name: str, tables: Sequence[str], pointers: Sequence[str], plan: Mapping[str, Any], outputs: Sequence[str]
) -> None:
    """`tables`: levels, peaks and comparison of the campaign; `pointers`: its measurements."""
    measured = read_measured(*(Path(path) for path in tables), [Path(path) for path in pointers])
    write_figure(name, figure_data(make_plan(plan, {}), measured), [Path(path) for path in outputs])


if __name__ == "__main__":
    given = snakemake.input
    tables = [given.levels, given.peaks, given.comparison]
    main(snakemake.wildcards.figure, tables, given.measurements, snakemake.params.plan, list(snakemake.output))
