"""A report and its figures are made of a campaign whose levels lack a column, or have there what nothing can measure."""

import itertools
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from tests.support import synthetic_campaign as campaign
from tests.support.paths import SCRIPTS
from tests.support.synthetic_value import LIMITS, with_goodput
from tests.unit.report.test_figures import figure_data_of

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured
from kveval.report.figures.axes import NothingToDraw
from kveval.report.figures.draw import draw
from kveval.report.figures.names import figure_names
from kveval.report.render import render_report
from kveval.report.report import build_result

MODEL = "Qwen3-14B"
CELLS = [Cell(MODEL, "no-offload", 0), Cell(MODEL, "lmcache-redis", 10_000)]
# A cell without any throughput has no peak, and no report but one so far, which names the reason.
KEYS = {"model", "scenario", "cpu_blocks", "run", "level", "engine", "weights"}
KEYS |= {"throughput_tok_s"}


@cache
def levels() -> pd.DataFrame:
    table = campaign.levels_table(CELLS, levels=(1, 200))
    table = table.assign(lmcache_hit_tok_s=table["external_cache_hit_percent"])
    table = with_goodput(table, lambda _, level: 1 / (1 + level / 100))
    return campaign.with_reuse(campaign.measured(table)).levels


def measured_with(column: str, value: float) -> Measured | None:
    """The campaign with one value in a column of all levels; None where a column of texts cannot have it."""
    table = levels().copy()
    kind = table[column].dtype
    if pd.api.types.is_bool_dtype(kind):
        table[column] = pd.Series(pd.NA, table.index, "boolean")
    elif np.isnan(value) or pd.api.types.is_numeric_dtype(kind):
        table[column] = value
    else:
        return None
    return campaign.measured(table)


def columns() -> Iterator[str]:
    yield from (name for name in levels() if name not in KEYS)


def columns_of_figures() -> set[str]:
    """The columns that the code of figures names."""
    folders = ("figures", "data")
    files = [
        file
        for name in folders
        for file in (SCRIPTS / "kveval/report" / name).glob("*.py")
    ]
    named = re.findall(r'"(\w+)"', "\n".join(file.read_text() for file in files))
    return set(named)


@pytest.mark.parametrize("values", [(np.nan,), (np.inf, 1e300)], ids=["nan", "large"])
def test_a_report_is_written_without_any_one_column(values: Sequence[float]) -> None:
    plan = campaign.plan(CELLS, goodput=LIMITS)
    for column, value in zip(columns(), itertools.cycle(values), strict=False):
        measured = measured_with(column, value)
        if measured is not None:
            assert render_report(build_result(plan, measured, {})), column


def test_every_figure_is_drawn_or_says_that_it_has_nothing_without_any_one_column(
    tmp_path: Path,
) -> None:
    recording = campaign.recording(tmp_path)
    named = columns_of_figures() & set(columns())
    assert len(named) > 15
    for column in named:
        measured = measured_with(column, np.nan)
        assert measured is not None
        data = figure_data_of(measured, recording)
        for name in figure_names([MODEL]):
            try:
                draw(name, data)
            except NothingToDraw:
                continue
            finally:
                pyplot.close("all")
