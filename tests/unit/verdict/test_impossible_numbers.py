"""Numbers that nothing measured can have, in any column that comparisons read: no traceback, and no claim from them."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
from tests.support.synthetic import BASELINES, levels_table

from kveval.verdict import inputs, uncertainty
from kveval.verdict.verdicts import compare_all

METRIC = "throughput_tok_s"
LEVELS = levels_table(effects={"no-offload": 0.0, "native-offload": 0.1})
COLUMNS = sorted(
    name
    for name in {*inputs.COLUMNS, *uncertainty.COLUMNS}
    if name not in LEVELS or pd.api.types.is_numeric_dtype(LEVELS[name])
)


IMPOSSIBLE = {1: math.nan, 2: math.inf, 3: -math.inf, 4: -1.0, 5: 1e300}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_number_that_cannot_be_is_not_known(column: str) -> None:
    levels = LEVELS.assign(**{column: LEVELS.get(column, np.nan)})
    levels[column] = levels[column].astype(float)
    arm = levels["scenario"] == "native-offload"
    levels.loc[arm, column] = levels["run"][arm].map(IMPOSSIBLE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = compare_all(levels, BASELINES, metrics={METRIC: True}).baseline.iloc[0]
    assert row["verdict"]
