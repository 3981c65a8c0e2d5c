"""Sum the campaign up: a row per cell, a row per level, means over models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.campaign_data import make_plan
from kveval.peaks import read_table
from kveval.summaries import detailed, summary, system_summary


def main(given: Mapping[str, Any], plan: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """`given`: the campaign's tables; `made`: the three summaries."""
    complete, peaks, comparison = (read_table(Path(given[name])) for name in ("complete", "peaks", "comparison"))
    known = make_plan(plan, {})
    summary(peaks, comparison, known.parameters).to_csv(made["summary"], index=False)
    detailed(complete, known.parameters).to_csv(made["detailed"], index=False)
    means = system_summary(complete, comparison, peaks, known.baseline_of, known.parameters)
    means.to_csv(made["pcp_summary_stats"], index=False)


if __name__ == "__main__":
    main(dict(snakemake.input.items()), snakemake.params.plan, dict(snakemake.output.items()))
