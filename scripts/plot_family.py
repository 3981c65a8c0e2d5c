"""Draw a family of figures, each as PNG and SVG, and note which of them have nothing to show, and why."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.report.data.reading import figure_data, make_plan, read_measured, read_metrics
from kveval.report.figures.draw import write_figures
from kveval.workflow.lacking import with_tables


def main(given: Mapping[str, Any], plan: Mapping[str, Any], metrics: str, made: Mapping[str, Any]) -> None:
    """`given`: the campaign's tables, runs and recordings; `made`: png and svg files, whose names say what to draw, and
    the notes."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    recordings = with_tables(map(Path, given["recordings"]), map(Path, given["cells"]))
    measured = read_measured(*tables, Path(given["runs"]), recordings)
    data = figure_data(make_plan(plan, read_metrics(Path(metrics))), measured)
    files = {Path(png).name.removesuffix(".png"): [Path(png)] for png in made["png"]}
    for svg in made["svg"]:
        files[Path(svg).name.removesuffix(".svg")].append(Path(svg))
    Path(made["notes"]).write_text(json.dumps(write_figures(data, files), indent=1) + "\n")


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, snakemake.params.metrics, dict(snakemake.output.items()))
