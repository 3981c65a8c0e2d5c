"""What the single runs say beside the verdicts: at other levels, without disturbed runs, and where a side has nothing."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.report_text import answer_in, result_of, table_of
from tests.support.synthetic import levels_table
from tests.unit.report.test_report import first_screen, measured, plan

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured
from kveval.report.facts.answer import answer_comparisons
from kveval.report.facts.levels import effect_of_quiet_runs, effects_elsewhere
from kveval.report.result.model import CampaignResult

ARM, BASELINE = (
    Cell("Qwen3-0.6B", "native-offload", 10_000),
    Cell("Qwen3-0.6B", "no-offload", 0),
)
PLAN = plan(cells=[BASELINE, ARM])


def crossing(
    compared: float, elsewhere: float, *, runs: int = 5, sd: float = 0.005
) -> Measured:
    """A campaign whose arm has one effect (ln) at its compared level, 32, and another one at 8."""
    effects = {"no-offload": 0.0, "native-offload": compared}
    levels = levels_table(effects=effects, runs=runs, sd=sd)
    at = (levels["scenario"] == "native-offload") & (levels["level"] == 8)
    levels.loc[at, "throughput_tok_s"] *= np.exp(elsewhere - compared)
    return measured(levels)


@pytest.mark.parametrize(
    ("compared", "elsewhere", "said"),
    [
        (-0.2, 0.25, "native-offload 10K delivers more at 8 concurrent, +2"),
        (0.2, -0.25, "native-offload 10K delivers less at 8 concurrent, -2"),
        (0.0, 0.25, "native-offload 10K delivers more at 8 concurrent, +2"),
        (0.0, 1.0, "native-offload 10K delivers more at 8 concurrent, 2.7 times"),
    ],
)
def test_a_level_that_says_something_else_is_on_the_first_screen(
    compared: float, elsewhere: float, said: str
) -> None:
    screen = first_screen(PLAN, crossing(compared, elsewhere))
    assert (
        f"- At other levels, with intervals of 95 % for all of them together: {said}"
        in screen
    )
    assert "; native-offload 10K, 8 concurrent: " in screen
    table = table_of(result_of(PLAN, crossing(compared, elsewhere)), "Qwen3-0.6B", 1)
    assert table.column("at N concurrent") == ["8"]


@pytest.mark.parametrize(
    ("compared", "elsewhere", "settings"),
    [
        pytest.param(0.2, 0.25, {}, id="the same sign"),
        pytest.param(-0.2, -0.1, {}, id="a smaller loss"),
        pytest.param(0.0, 0.02, {}, id="within the margin"),
        pytest.param(-0.2, 0.25, {"sd": 0.2}, id="a wide interval"),
        pytest.param(-0.2, 0.25, {"runs": 1}, id="a single run"),
    ],
)
def test_a_level_that_says_nothing_else_is_not_named(
    compared: float, elsewhere: float, settings: dict[str, float]
) -> None:
    screen = first_screen(PLAN, crossing(compared, elsewhere, **settings))
    assert "At other levels" not in screen


def test_a_level_at_which_the_arm_was_idle_is_not_named() -> None:
    facts = crossing(-0.2, 0.25)
    levels = facts.levels.copy()
    idle = (levels["scenario"] == "native-offload") & (levels["level"] == 8)
    levels["activity"] = np.where(idle, "none", levels["activity"])
    screen = first_screen(PLAN, replace(facts, levels=levels))
    assert "At other levels" not in screen


def test_of_many_levels_without_an_effect_hardly_any_is_named() -> None:
    named = 0
    for seed in range(40):
        effects = {"no-offload": 0.0, "native-offload": 0.0}
        levels = levels_table(effects=effects, runs=3, sd=0.05, seed=seed)
        result = result_of(PLAN, measured(levels))
        named += len(effects_elsewhere(result, answer_comparisons(result)))
    assert named <= 4


def disturbed(facts: Measured, numbers: set[int]) -> CampaignResult:
    """The result of a campaign in which other programs disturbed the runs of these numbers."""

    def beside(run: int) -> float:
        return 60.0 if run in numbers else 0.0

    runs = [
        msgspec.structs.replace(
            run,
            levels=[
                msgspec.structs.replace(level, others_cpu_percent=beside(run.run))
                for level in run.levels
            ],
        )
        for run in facts.runs
    ]
    return result_of(PLAN, replace(facts, runs=runs))


def test_a_step_for_disturbed_runs_says_what_the_others_show() -> None:
    result = disturbed(crossing(0.25, 0.25), {1, 2, 3})
    [comparison] = answer_comparisons(result)
    quiet = effect_of_quiet_runs(result, comparison)
    assert quiet.runs == 2
    assert quiet.effect_percent is not None
    assert quiet.effect_percent.numbers[0] == pytest.approx(28, abs=2)
    assert (
        "Over the 2 undisturbed runs alone, native-offload 10K shows +2"
        in answer_in(result).next_steps[0]
    )


def test_where_all_runs_were_disturbed_the_step_says_so() -> None:
    result = disturbed(crossing(0.25, 0.25), {1, 2, 3, 4, 5})
    assert answer_in(result).next_steps[0].endswith("rests on disturbed runs alone.")


def test_disturbed_runs_of_a_baseline_alone_are_said_without_an_effect() -> None:
    facts = measured(levels_table(effects={"no-offload": 0.0}))
    runs = [
        msgspec.structs.replace(
            run,
            levels=[
                msgspec.structs.replace(level, others_cpu_percent=60.0)
                for level in run.levels
            ],
        )
        for run in facts.runs
    ]
    result = result_of(plan(cells=[BASELINE]), replace(facts, runs=runs))
    assert answer_in(result).next_steps[0].endswith("each, to make up for them.")


def test_nothing_is_shown_to_be_better_is_no_arm_is_better() -> None:
    wide = first_screen(PLAN, crossing(0.1, 0.1, sd=0.3))
    assert "**no arm shown to be better**" in wide
    narrow = first_screen(PLAN, crossing(0.0, 0.0, sd=0.002))
    assert "**no arm is better**" in narrow


def test_the_size_of_a_tier_is_no_advice_where_no_other_was_measured() -> None:
    screen = first_screen(PLAN, crossing(0.25, 0.25))
    assert "tier needed" not in screen
