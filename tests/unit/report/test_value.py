"""The report on goodput: shown where declared, nothing elsewhere, and words for what is none or unknown."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.support import synthetic_campaign as large
from tests.support.report_text import (
    Table,
    answer_of,
    part_of,
    result_of,
    table_of,
    text_of,
)
from tests.support.synthetic_value import LIMITS, with_goodput

from kveval.campaign.campaign_file import Comparison
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.reading import figure_data
from kveval.report.figures.axes import NothingToDraw
from kveval.report.figures.draw import draw, write_family
from kveval.report.figures.names import FAMILIES, Extent, families_of
from kveval.report.html.page import write_page
from kveval.report.report import write_report
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.peaks import peak_row
from kveval.verdict.verdict_tables import verdict_tables

MODEL = "Qwen3-32B-AWQ"
KEYS = large.cells((MODEL,))
KNEES = {"no-offload": 100, "native-offload": 60, "lmcache-local": 220}


def share(scenario: str, level: int) -> float:
    return (
        0.0
        if scenario == "llm-d-valkey"
        else 1 / (1 + (level / KNEES.get(scenario, 100)) ** 6)
    )


def of_levels(levels: pd.DataFrame) -> Measured:
    groups = levels.groupby(["model", "scenario", "cpu_blocks"], sort=False)
    peaks = pd.DataFrame([peak_row(rows, list(large.METRICS)) for _, rows in groups])
    tables = verdict_tables(levels, peaks, large.BASELINES, Comparison())
    beside = {
        name: tables[name]
        for name in ("contrasts", "averages", "checks", "peak_comparison")
    }
    return Measured(
        large.runs_of(levels), levels, peaks, tables["comparison"], **beside
    )


@cache
def campaign(
    change: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table,
) -> tuple[ReportPlan, Measured]:
    levels = change(with_goodput(large.levels_table(KEYS), share))
    return large.plan(KEYS, goodput=LIMITS), of_levels(levels)


def titles(facts: tuple[ReportPlan, Measured]) -> set[str]:
    return {*re.findall("^## (.*)$", text_of(result_of(*facts)), re.MULTILINE)}


def row_of(table: Table, arm: str) -> list[str]:
    return next([*row] for row in table.rows if row[0] == arm)


def arms_goodput(facts: tuple[ReportPlan, Measured]) -> Table:
    return table_of(result_of(*facts), "Goodput")


def test_where_nothing_is_declared_nothing_is_said() -> None:
    plain = large.plan(KEYS), large.measured(large.levels_table(KEYS))
    assert titles(campaign()) - titles(plain) == {"Goodput"}


def test_every_arm_has_its_goodput_at_one_level_and_at_its_best() -> None:
    table = arms_goodput(campaign())
    assert len(table.header) == 7
    assert sorted(table.column("arm")) == sorted(cell.label for cell in KEYS)
    best = row_of(table, "lmcache-local 20K")
    assert best[4] == "**better**"
    assert "100 concurrent" in best[5]
    assert best[6].startswith("+")
    assert [row_of(table, "no-offload")[at] for at in (3, 4, 6)] == ["", "", ""]


def test_none_that_met_the_limits_is_said_in_words_and_has_a_verdict() -> None:
    row = row_of(arms_goodput(campaign()), "llm-d-valkey")
    assert row[1:3] == ["none met", "0"]
    assert row[5].startswith("none met")
    assert row[4] == "**worse**"
    assert row[6].startswith("at least")


def unknown_of_one(levels: pd.DataFrame) -> pd.DataFrame:
    columns = [
        name
        for name in levels
        if name.startswith("goodput") and name != "goodput_limits"
    ]
    levels = levels.astype(dict.fromkeys(columns, float))
    levels.loc[levels["scenario"] == "lmcache-redis", columns] = np.nan
    return levels


def test_what_no_report_tells_is_not_known() -> None:
    row = row_of(arms_goodput(campaign(unknown_of_one)), "lmcache-redis 10K")
    assert (row[1], row[5]) == ("not known", "not known")
    assert row[4] == "not comparable"


def test_the_first_screen_says_who_serves_most_within_the_limits() -> None:
    answer = answer_of(*campaign())
    said = [
        sentence for sentence in answer.sentences if "TTFT up to 500 ms" in sentence
    ]
    assert len(said) == 1
    assert "lmcache-local 20K" in said[0]
    assert len(answer.sentences) <= 5
    nobody = answer_of(*campaign(lambda table: with_goodput(table, lambda *_: 0.0)))
    assert any("no arm was shown" in sentence for sentence in nobody.sentences)


def test_the_goodputs_of_the_sentence_are_of_the_runs_behind_its_change() -> None:
    levels = with_goodput(large.levels_table(KEYS, runs=5), share)
    second = levels["run"] == 2
    # The best arm is compared without run 2, in which the baseline served half; the other arms with it.
    levels.loc[second & (levels["scenario"] == "no-offload"), GOODPUT] *= 0.5
    best = (levels["scenario"] == "lmcache-local") & (levels["cpu_blocks"] == 20_000)
    levels.loc[second & best, "checks_failed"] = "totals"
    measured = of_levels(levels)
    (said,) = (
        sentence
        for sentence in answer_of(large.plan(KEYS, goodput=LIMITS), measured).sentences
        if "Within the limits" in sentence
    )
    table = measured.comparison
    rows = table[(table["metric"] == GOODPUT) & (table["cpu_blocks"] == 20_000)]
    row = rows[rows["scenario"] == "lmcache-local"].iloc[0]
    assert row["baseline_runs_kept"] == "1;3;4;5"
    shown = re.findall(r"served ([\d.]+) .*no-offload ([\d.]+)", said)[0]
    assert list(map(float, shown)) == pytest.approx(
        [row["mean"], row["baseline_mean"]], rel=0.05
    )


def test_open_loops_say_that_all_arms_were_sent_the_same() -> None:
    plan, measured = campaign()
    runs = [
        run.workload.update(profile="poisson", levels=[60]) for run in measured.runs
    ]
    assert runs
    try:
        goodput = part_of(text_of(result_of(plan, measured)), "Goodput")
        assert "all arms were sent the same" in goodput
    finally:
        for run in measured.runs:
            run.workload.update(profile="concurrent", levels=list(large.LEVELS))


def test_the_figure_is_drawn_where_limits_are_declared(tmp_path: Path) -> None:
    data = figure_data(*campaign())
    drawn = draw("goodput", data)
    assert [axes.get_ylabel() for axes in drawn.axes] == [
        "goodput, requests a second",
        "met the limits, %",
    ]
    assert families_of(Extent(1, 1, limits=True)) == [
        name for name in FAMILIES if name in {*families_of(Extent(1, 1)), "throughput"}
    ]
    with pytest.raises(NothingToDraw):
        draw("goodput", replace(data, levels=data.levels.assign(**{GOODPUT: np.nan})))
    plain = figure_data(
        large.plan(KEYS), large.measured(large.levels_table(KEYS, levels=(1,)))
    )
    write_family("throughput", plain, tmp_path)
    assert not (tmp_path / "goodput.png").exists()
    assert '"goodput"' in (tmp_path / "figures.json").read_text().split("left_out")[1]


def test_it_is_written_as_markdown_and_as_a_page(tmp_path: Path) -> None:
    plan, measured = campaign()
    files, result = write_report(plan, measured, [], tmp_path / "REPORT.md")
    write_page(files, result, {}, tmp_path / "report.html")
    for name in ("REPORT.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "none met" in text
