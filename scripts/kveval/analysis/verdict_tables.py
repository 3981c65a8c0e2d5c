"""The campaign's verdicts as tables: comparisons, averages over models, and what every check found."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from kveval.analysis.cells import THROUGHPUT
from kveval.analysis.check_rules import CHECKS, check_table
from kveval.analysis.checks import Tables
from kveval.analysis.estimators.correlations import CORRELATED, within_models
from kveval.analysis.levels.outcomes import judge
from kveval.analysis.statistics.averages import averages
from kveval.analysis.statistics.campaign import compare_all
from kveval.config.campaign import Comparison


def verdict_tables(
    complete: pd.DataFrame, peaks: pd.DataFrame, baselines: Mapping[str, str | None], settings: Comparison
) -> dict[str, pd.DataFrame]:
    """Return comparison, contrasts, peak_comparison, averages and checks, by the names of their files.

    `complete` and `peaks`: complete_metrics.csv and peak_throughput_all.csv; `baselines`: scenario -> its baseline.
    """
    compared = compare_all(complete, baselines, settings)
    means = averages(compared.baseline, settings.alpha)
    related = within_models(complete, CORRELATED, THROUGHPUT)
    tables = Tables(complete, peaks, *compared, means, related, settings.alpha)
    return {
        "comparison": compared.baseline,
        "contrasts": compared.contrasts,
        "peak_comparison": compared.peaks,
        "averages": means,
        "checks": check_table(complete, judge(CHECKS["campaign"], tables)),
    }
