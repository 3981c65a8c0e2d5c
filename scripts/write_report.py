"""Write REPORT.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.report.data.reading import make_plan, read_measured, read_metrics
from kveval.report.report import write_report


def main(given: Mapping[str, Any], plan: Mapping[str, Any], metrics: str, output: str) -> None:
    """`given`: the campaign's tables, runs, figures, and the notes on those with nothing to show."""
    tables = [Path(given[name]) for name in ("levels", "peaks", "comparison")]
    measured = read_measured(*tables, Path(given["runs"]), pilots=[*map(Path, given["pilots"])])
    empty = {name: why for notes in given["notes"] for name, why in json.loads(Path(notes).read_text()).items()}
    figures = [Path(path) for path in given["figures"]]
    write_report(make_plan(plan, read_metrics(Path(metrics))), measured, figures, Path(output), empty)


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, snakemake.params.metrics, snakemake.output[0])
