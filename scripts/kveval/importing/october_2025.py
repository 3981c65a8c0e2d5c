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
from dataclasses import dataclass
from pathlib import Path

from kveval.load.reports import ByStatus, LevelReport, LoadReport, ReportFileError, read_report


@dataclass(frozen=True)
class LegacyRow:
    """One published row. `itl_ms` was published as "Avg TPOT"; `incomplete_share` is that of the strategy of the rate.

    `strategies` counts what the means are over.
    """

    max_output_tok_s: float
    ttft_ms: float
    itl_ms: float
    strategies: int
    strategy: str
    completed: int
    incomplete: int

    @property
    def incomplete_share(self) -> float:
        """Share of the requests of the fastest strategy that were cut off; 0 where all failed."""
        return self.incomplete / max(1, self.completed + self.incomplete)


def legacy_row(report: LoadReport, name: str) -> LegacyRow:
    """Sum a sweep up as the publication did. Raises ReportFileError when a strategy lacks one of the statistics."""
    rates = [_mean(level, "output_tok_s", name) for level in report.levels]
    fastest = report.levels[rates.index(max(rates))]
    ttft = [_mean(level, "ttft_ms", name) for level in report.levels]
    itl = [_mean(level, "itl_ms", name) for level in report.levels]
    return LegacyRow(
        max_output_tok_s=max(rates),
        ttft_ms=sum(ttft) / len(ttft),
        itl_ms=sum(itl) / len(itl),
        strategies=len(report.levels),
        strategy=fastest.strategy,
        completed=fastest.completed,
        incomplete=fastest.incomplete,
    )


def _mean(level: LevelReport, quantity: str, name: str) -> float:
    values: ByStatus = getattr(level.aggregate, quantity, ByStatus())
    if values.everything is None:
        said = f"{name}: strategy {level.strategy} has no statistics of {quantity}"
        raise ReportFileError(said, code="no_statistics", quantity=quantity)
    return values.everything.mean


def main(arguments: Sequence[str]) -> int:
    """Print one row per report; exit code 1 if one could not be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT", help="a sweep's JSON, plain or .zst")
    failed = 0
    print(f"{'max tok/s':>10} {'mean TTFT ms':>13} {'mean ITL ms':>12}  fastest strategy")
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
