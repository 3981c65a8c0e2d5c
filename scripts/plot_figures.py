"""Draw a family of figures, each as PNG and SVG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.campaign_data import figure_data, make_plan, read_measured, read_metrics
from kveval.figures import write_figure


def main(given: Mapping[str, Any], plan: Mapping[str, Any], outputs: Sequence[str]) -> None:
    """`given`: the campaign's tables, pointers and metrics.yaml; the outputs' names say what is drawn."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    measured = read_measured(*tables, [Path(path) for path in given["measurements"]])
    data = figure_data(make_plan(plan, read_metrics(Path(given["metrics"]))), measured)
    paths = [Path(output) for output in outputs]
    for name in dict.fromkeys(path.name.removesuffix(path.suffix) for path in paths):
        write_figure(name, data, [path for path in paths if path.name.removesuffix(path.suffix) == name])


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, list(snakemake.output))
