"""Campaigns made up for tests, with the tables of what was predicted of them."""

from dataclasses import replace

import pandas as pd

from kveval.plugins.curve.predicted.hits import (
    KEYS,
    NUMBERS,
    served_shares,
    served_table,
)
from kveval.plugins.curve.predicted.waterfall import waterfall
from kveval.report.data.campaign import Measured
from kveval.tables.csv_files import PREDICTED_TEXTS

_COLUMNS = (*NUMBERS, *PREDICTED_TEXTS)


def with_predicted(measured: Measured, predicted: pd.DataFrame) -> Measured:
    """Return a campaign with its tables of predictions; `predicted`: its levels, with columns of `predicted_hits`."""
    return replace(
        measured,
        predicted_hits=predicted.reindex(columns=[*KEYS, *_COLUMNS]),
        hits=served_table(served_shares(predicted, measured.runs)),
        waterfall=waterfall(
            measured.runs, predicted, measured.peaks, measured.comparison
        ),
    )
