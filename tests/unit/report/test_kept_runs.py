"""The values beside an effect are those of the runs that it rests on, wherever they stand."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.report_text import answer_of, part_of, result_of, table_of, tables_in
from tests.support.synthetic import comparison_table, levels_table, peaks_table, runs
from tests.unit.report import test_report as small

from kveval.campaign.cell import Cell
from kveval.report.data.arm_links import runs_title
from kveval.report.data.campaign import Measured
from kveval.report.data.comparisons import comparison_of
from kveval.report.facts.arms import values_of
from kveval.report.render import Rendering
from kveval.tables.cells import THROUGHPUT, kept_runs
from kveval.tables.csv_files import read_table
from kveval.verdict import verdict_words as words

MODEL = "Qwen3-0.6B"
BASE, ARM, OTHER = (
    Cell(MODEL, "no-offload", 0),
    Cell(MODEL, "native-offload", 10_000),
    Cell(MODEL, "lmcache-redis", 10_000),
)
TTFT = "ttft_ms_p50"


def campaign(left_out: dict[str, tuple[int, ...]], sd: float = 0.01) -> Measured:
    """Arms of five runs each, 6 % ahead and 12 % behind; the runs left out deliver a third, and failed a check."""
    effects = {"no-offload": 0.0, "native-offload": 0.06, "lmcache-redis": -0.12}
    levels = levels_table(effects=effects, levels=(32,), sd=sd)
    for scenario, numbers in left_out.items():
        broken = (levels["scenario"] == scenario) & levels["run"].isin(numbers)
        levels.loc[broken, [THROUGHPUT]] /= 3
        levels.loc[broken, [name for name in levels if "_ms_" in name]] *= 3
        # A check of the measurement: a failure of the server would bar "better" in two of five runs.
        levels.loc[broken, "checks_failed"] = "totals"
    return Measured(runs(levels), levels, peaks_table(levels), comparison_table(levels))


def row_of(measured: Measured, cell: Cell, metric: str = THROUGHPUT) -> dict[str, Any]:
    return comparison_of(measured, cell, BASE, metric)


def numbers_in(text: str) -> list[float]:
    return [
        float(number.replace(",", ""))
        for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)
    ]


def arms(measured: Measured) -> dict[str, Mapping[str, str]]:
    """The rows of the table of arms, by arm."""
    rows = table_of(result_of(small.plan(), measured), MODEL).records
    return {row["arm"]: row for row in rows}


def first_sentence(measured: Measured) -> str:
    return answer_of(small.plan(), measured).sentences[0]


def test_the_first_sentence_has_the_values_whose_ratio_is_the_effect() -> None:
    measured = campaign({"native-offload": (4, 5)})
    row = row_of(measured, ARM)
    assert (row["verdict"], row["runs_kept"], row["baseline_runs_kept"]) == (
        words.BETTER,
        "1;2;3",
        "1;2;3",
    )
    *_, value, other = numbers_in(first_sentence(measured))
    assert value / other == pytest.approx(1 + row["effect_percent"] / 100, rel=0.01)
    assert row["mean"] / row["baseline_mean"] == pytest.approx(
        1 + row["effect_percent"] / 100
    )


def test_the_answer_counts_the_runs_that_the_verdicts_rest_on_and_all() -> None:
    every = answer_of(small.plan(), campaign({})).sentences[-1]
    assert every.startswith("This rests on 5 runs of each arm ")
    some = answer_of(small.plan(), campaign({"native-offload": (4, 5)})).sentences[-1]
    assert some.startswith("The verdicts rest on 3 to 5 of the 5 runs of each arm ")
    both = campaign({"native-offload": (4, 5), "lmcache-redis": (1, 2)})
    assert (
        answer_of(small.plan(), both)
        .sentences[-1]
        .startswith("The verdicts rest on 3 of the 5 runs of each arm ")
    )


def test_more_runs_than_there_are_make_up_for_those_left_out() -> None:
    both = campaign({"native-offload": (4, 5), "lmcache-redis": (1, 2)})
    steps = result_of(small.plan(), both).steps
    (runs,) = (step.facts["runs"] for step in steps if step.code == "few_runs")
    assert runs == small.plan().runs + 2


def test_values_are_of_the_same_kind_of_mean_as_the_effect() -> None:
    # Runs differ so much between blocks that the two kinds of mean are far apart.
    measured = campaign({})
    levels = measured.levels.assign(
        **{THROUGHPUT: measured.levels[THROUGHPUT] * 3.0 ** measured.levels["run"]}
    )
    uneven = replace(measured, levels=levels, comparison=comparison_table(levels))
    row = row_of(uneven, ARM)
    of_arm = levels[levels["scenario"] == "native-offload"][THROUGHPUT]
    assert row["mean"] == pytest.approx(np.exp(np.log(of_arm).mean()))
    shown = arms(uneven)["native-offload 10K"]["output tok/s"]
    assert numbers_in(shown) == pytest.approx([row["mean"]], rel=0.2)


def test_the_table_of_arms_has_the_values_of_the_compared_runs() -> None:
    measured = campaign({"native-offload": (4, 5)})
    result, rows = result_of(small.plan(), measured), arms(measured)
    arm, base = rows["native-offload 10K"], rows["no-offload"]
    assert arm["runs"] == "5 (3 compared)"
    for title, metric in (("output tok/s", THROUGHPUT), ("median TTFT, ms", TTFT)):
        row = row_of(measured, ARM, metric)
        value, against = numbers_in(arm[title])
        assert value / against == pytest.approx(
            1 + row["effect_percent"] / 100, rel=0.02
        )
        # lmcache-redis and the idle arm are compared with all runs of the baseline, which its own row shows.
        _, other_value = values_of(result, result.with_baselines(metric)[OTHER])
        assert base[title] == other_value
    assert "against" not in rows["lmcache-redis 10K"]["output tok/s"]
    assert base["runs"] == "5"


def test_a_run_of_the_baseline_that_is_left_out_is_left_out_of_its_value() -> None:
    measured = campaign({"no-offload": (2,)})
    rows = arms(measured)
    base, arm = rows["no-offload"], rows["native-offload 10K"]
    assert base["runs"] == arm["runs"] == "5 (4 compared)"
    effect = row_of(measured, ARM)["effect_percent"]
    (value,), (of_base,) = (numbers_in(row["output tok/s"]) for row in (arm, base))
    assert value / of_base == pytest.approx(1 + effect / 100, rel=0.01)


def test_runs_paired_under_other_numbers_are_named_by_side() -> None:
    levels = campaign({}).levels
    later = levels["scenario"] == "native-offload"
    levels = levels.assign(run=levels["run"].where(~later, levels["run"] + 10))
    row = (
        comparison_table(levels)
        .set_index(["scenario", "metric"])
        .loc[("native-offload", THROUGHPUT)]
    )
    assert row["runs_kept"].split(";") == [
        str(int(run) + 10) for run in row["baseline_runs_kept"].split(";")
    ]
    values = [
        levels[
            (levels["scenario"] == scenario)
            & levels["run"].isin(map(int, runs_kept.split(";")))
        ][THROUGHPUT]
        for scenario, runs_kept in (
            ("native-offload", row["runs_kept"]),
            ("no-offload", row["baseline_runs_kept"]),
        )
    ]
    ratio = np.exp(np.log(values[0]).mean() - np.log(values[1]).mean())
    assert ratio == pytest.approx(1 + row["effect_percent"] / 100)


def test_two_arms_that_were_not_declared_as_a_contrast_are_described_alike() -> None:
    measured = campaign({}, sd=0.2)
    row = comparison_of(measured, ARM, OTHER)
    assert row["mean"] / row["baseline_mean"] == pytest.approx(
        1 + row["effect_percent"] / 100
    )
    opposite = comparison_of(
        replace(measured, contrasts=contrast(measured)), OTHER, ARM
    )
    assert (opposite["mean"], opposite["baseline_mean"]) == (
        row["baseline_mean"],
        row["mean"],
    )
    assert opposite["verdict"] == words.WORSE


def contrast(measured: Measured) -> pd.DataFrame:
    """A declared contrast of the two arms, with a verdict."""
    found = comparison_of(measured, ARM, OTHER)
    return pd.DataFrame(
        [found | {"verdict": words.BETTER, "low_percent": 1.0, "high_percent": 40.0}]
    )


def test_the_page_names_the_runs_that_were_left_out() -> None:
    result = result_of(small.plan(), campaign({"native-offload": (4, 5)}))
    text = part_of(Rendering(result).text("runs.md.j2"), runs_title(ARM))
    own = next(
        row["its runs"]
        for row in tables_in(text)[0].records
        if row["quantity"].startswith("Throughput")
    )
    left_out = ["left out" in value for value in own.split(", ")]
    assert left_out == [False, False, False, True, True]


def test_report_json_has_the_values_and_the_runs() -> None:
    result = result_of(small.plan(), campaign({"native-offload": (4, 5)}))
    comparison = result.with_baselines(THROUGHPUT)[ARM]
    assert comparison.runs_kept == comparison.baseline_runs_kept == [1, 2, 3]
    effect = 1 + comparison.effect_percent.value / 100
    assert comparison.mean / comparison.baseline_mean == pytest.approx(effect)


def test_the_runs_survive_the_file(tmp_path: Path) -> None:
    one = campaign({"native-offload": (2, 3, 4, 5)}).comparison
    one.to_csv(tmp_path / "comparison.csv", index=False)
    again = read_table(tmp_path / "comparison.csv")
    assert list(again["runs_kept"]) == list(one["runs_kept"])
    single = one.assign(runs_kept="3", baseline_runs_kept="3")
    single.to_csv(tmp_path / "comparison.csv", index=False)
    assert kept_runs(read_table(tmp_path / "comparison.csv"))[ARM, THROUGHPUT].runs == (
        3,
    )
