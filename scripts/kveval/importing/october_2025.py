"""How the evaluation of October 2025 summed a sweep up, so that its published rows can be reproduced from the files.

    PYTHONPATH=scripts python -m kveval.importing.october_2025 REPORT...

Only for that. Its three numbers are the highest token rate over the strategies, and the plain means over them of the
time to the first token and of the gap between tokens (published as "TPOT"), each of GuideLLM's status `total`: with
requests that were cut off. The rate is that of the saturated strategy alone, the mean time to the first token is for
the most part that strategy's queue, and neither says what an arm does. The workflow's own tables count otherwise.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from kveval.load.reports import LoadReport, ReportFileError
from kveval.load.reports.reading import read_report


class LegacyRow(NamedTuple):
    """One published row; `strategies` counts what the means are over.

    `itl_ms` was published as "Avg TPOT"; `incomplete_share` is that of the strategy of the highest rate, `strategy`, of
    its requests that did not fail.
    """

    max_output_tok_s: float
    ttft_ms: float
    itl_ms: float
    strategies: int
    strategy: str
    incomplete_share: float


def legacy_row(report: LoadReport, name: str) -> LegacyRow:
    """Sum a sweep up as the publication did. Raises ReportFileError when a strategy lacks one of the statistics."""
    means: dict[str, list[float]] = {"output_tok_s": [], "ttft_ms": [], "itl_ms": []}
    for level in report.levels:
        for quantity, values in means.items():
            statistics = getattr(level.aggregate, quantity).everything
            if statistics is None:
                message = (
                    f"{name}: strategy {level.strategy} has no statistics of {quantity}"
                )
                raise ReportFileError(message, code="no_statistics", quantity=quantity)
            values.append(statistics.mean)
    rates, ttft_ms, itl_ms = means.values()
    fastest = report.levels[rates.index(max(rates))]
    share = fastest.incomplete / max(1, fastest.completed + fastest.incomplete)
    return LegacyRow(
        max(rates), fmean(ttft_ms), fmean(itl_ms), len(rates), fastest.strategy, share
    )


def main(arguments: Sequence[str]) -> int:
    """Print one row per report; exit code 1 if one could not be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "reports",
        nargs="+",
        type=Path,
        metavar="REPORT",
        help="a sweep's JSON, plain or .zst",
    )
    failed = 0
    print(
        f"{'max tok/s':>10} {'mean TTFT ms':>13} {'mean ITL ms':>12}  fastest strategy"
    )
    for path in parser.parse_args(arguments).reports:
        try:
            row = legacy_row(read_report(path), str(path))
        except ReportFileError as error:
            print(error, file=sys.stderr)
            failed = 1
            continue
        print(
            f"{row.max_output_tok_s:10.1f} {row.ttft_ms:13.1f} {row.itl_ms:12.1f}  {row.strategy},"
            f" {100 * row.incomplete_share:.0f} % of its requests cut off, of {row.strategies} strategies: {path}"
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
