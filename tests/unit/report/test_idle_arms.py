"""What a reader is told of an arm whose tier served nothing, and of a gain that its tier cannot give."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from tests.support.paths import REPOSITORY
from tests.support.report_text import result_of
from tests.support.synthetic import levels_table
from tests.unit.report.test_report import files, first_screen, measured, plan
from tests.unit.report.test_report_claims import judged

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.comparisons import effect_text
from kveval.report.figures.effects import _key
from kveval.verdict import verdict_words as words

SCHEMA = json.loads((REPOSITORY / "docs" / "report.schema.json").read_text())
CELLS = [Cell("Qwen3-0.6B", "no-offload", 0), Cell("Qwen3-0.6B", "idle", 10_000)]


def campaign(effect: float, **changes: object) -> tuple[ReportPlan, Measured]:
    """A baseline and an idle arm."""
    levels = levels_table(effects={"no-offload": 0.0, "idle": effect}, **changes)
    return plan(cells=CELLS), measured(levels)


def of_arm(facts: Measured) -> dict[str, object]:
    """The row of comparison.csv on the throughput of the arm."""
    rows = facts.comparison[facts.comparison["metric"] == "throughput_tok_s"].to_dict(
        "records"
    )
    return next(row for row in rows if row["scenario"] == "idle")


def numbers(plan: ReportPlan, facts: Measured) -> dict[str, object]:
    """The comparison of throughput in report.json, which fits its schema."""
    report = json.loads(result_of(plan, facts).to_json())
    jsonschema.validate(report, SCHEMA)
    return next(
        row for row in report["comparisons"] if row["metric"] == "throughput_tok_s"
    )


def test_a_slower_idle_arm_is_said_on_the_first_screen(tmp_path: Path) -> None:
    facts = campaign(np.log(0.61))
    screen = first_screen(*facts)
    effect = effect_text(of_arm(facts[1]))
    served = "Idle (the tier served next to nothing), and worse"
    assert f"- {served}: idle 10K {effect}." in screen
    assert "a larger tier" not in screen
    assert (
        "For idle 10K: find out what slows it while its tier serves nothing" in screen
    )
    report = files(*facts)["REPORT.md"]
    assert f"| {effect} | **idle, and worse** |" in report
    found = numbers(*facts)
    assert (found["verdict"], found["family"]) == (
        "worse although idle",
        "primary, idle",
    )
    assert found["cost_percent"] == pytest.approx(of_arm(facts[1])["cost_percent"])
    assert judged(tmp_path, *facts) == []


def test_an_undecided_cost_is_said_as_that_of_an_idle_arm(tmp_path: Path) -> None:
    facts = campaign(-0.02, sd=0.1)
    screen = first_screen(*facts)
    assert (
        f"- Cannot tell yet: idle 10K {effect_text(of_arm(facts[1]))}, its tier served next to nothing."
        in screen
    )
    assert "a larger tier" in screen
    assert judged(tmp_path, *facts) == []


def test_an_idle_arm_that_measured_better_is_no_gain(tmp_path: Path) -> None:
    facts = campaign(0.2)
    screen = first_screen(*facts)
    assert "delivered more" not in screen
    assert "the tier cannot be why" in screen
    assert numbers(*facts)["verdict"] == words.NOT_EXERCISED
    assert judged(tmp_path, *facts) == []


def test_a_single_idle_run_says_what_a_verdict_on_its_cost_takes(
    tmp_path: Path,
) -> None:
    plan, facts = campaign(-0.5, runs=1)
    screen = first_screen(plan, facts)
    assert "what it costs has no verdict: single run" in screen
    assert "for its cost: `runs: 3` or more" in screen


def test_of_several_models_idle_arms_are_named_and_counted(tmp_path: Path) -> None:
    models = ("Qwen3-0.6B", "Qwen3-8B")
    levels = levels_table(models, {"no-offload": 0.0, "idle": -0.5})
    level = (levels["model"] == models[1]) & (levels["scenario"] == "idle")
    levels.loc[level, "throughput_tok_s"] *= np.exp(0.49)
    facts = measured(levels)
    cells = [cell.on(model) for model in models for cell in CELLS]
    screen = first_screen(plan(cells=cells), facts)
    assert "- Idle, and worse: Qwen3-0.6B with idle 10K -" in screen
    assert "of 2 comparisons with a baseline: 1 idle, costs at most " in screen


def test_a_gain_that_the_tier_cannot_give_is_said_beside_it(tmp_path: Path) -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": np.log(1.3)})
    levels["prefix_hit_ratio"] = 0.2
    levels.loc[levels["scenario"] == "native-offload", "external_hit_ratio"] = 0.0075
    facts = (
        plan(cells=[CELLS[0], Cell("Qwen3-0.6B", "native-offload", 10_000)]),
        measured(levels),
    )
    said = ", the tier alone cannot be why (it served 0.6 % of the prompt tokens)"
    first = next(
        line for line in first_screen(*facts).splitlines() if line.startswith("- ")
    )
    assert first.startswith("- native-offload 10K delivered more than no-offload, +")
    assert said in first
    assert f"**better**{said}" in files(*facts)["REPORT.md"]
    assert numbers(*facts)["qualifier"] == said[2:]


def test_the_key_of_the_effects_names_verdicts_on_idle_arms_where_there_are_any() -> (
    None
):
    def labels(verdicts: list[str]) -> list[object]:
        return [
            handle.get_label() for handle in _key(pd.DataFrame({"verdict": verdicts}))
        ]

    assert {words.WORSE_IDLE, words.IDLE} <= set(labels([words.WORSE_IDLE, words.IDLE]))
    assert not {words.WORSE_IDLE, words.IDLE} & set(labels([words.BETTER]))
