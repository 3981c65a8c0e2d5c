"""Report over the runs that exist, into <results>/so-far/REPORT.md."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.report.data.reading import make_plan, read_metrics
from kveval.workflow.report_so_far import Analysis, report_so_far


def main(values: Mapping[str, Any]) -> None:
    """`values`: the rule's params."""
    plan = make_plan(values["plan"], read_metrics(Path(values["metrics"])))
    analysis = Analysis(values["version"], values["min_samples"], values["comparison"])
    output = Path(values["results"]) / "so-far" / "REPORT.md"
    try:
        report_so_far(plan, Path(values["results"]), Path(values["logs"]), analysis, output)
    except Failure as failure:
        sys.exit(str(failure))
    print(f"Report over what has been measured: {output}", file=sys.stderr)


if __name__ == "__main__":
    main(dict(snakemake.params.items()))
