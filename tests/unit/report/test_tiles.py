"""The answer at a glance: tiles of one model, a table of several, what was checked, and the command to paste."""

import dataclasses

import pandas as pd
import pytest
from tests.support.report_text import answer_of, result_of
from tests.unit.report import test_report as small
from tests.unit.report.test_report_claims import CAMPAIGNS
from tests.unit.report.test_tables_predicted import PREDICTED

from kveval.campaign.cell import Cell
from kveval.report.best_arm import smaller_sizes
from kveval.report.data.arm_links import arm_link
from kveval.report.data.campaign import Measured, Table
from kveval.report.data.comparisons import gain_text
from kveval.report.result.check_counts import check_counts
from kveval.report.result.model import ReportedKvBytes
from kveval.report.sections import Paragraph, Tile
from kveval.report.tiles import at_a_glance, model_tiles
from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import compare_all

COMMAND = "snakemake --cores 4 report"


def tiles(name: str) -> tuple[Tile, ...]:
    return model_tiles(result_of(*CAMPAIGNS[name]()))


def sized(verdict: str) -> Measured:
    """The mechanism's campaign, its larger tier compared with the smaller one."""
    plan, facts = CAMPAIGNS["mechanism"]()
    row = facts.comparison.iloc[0].to_dict() | Cell.from_path(plan.cells[2].path).row
    row |= {"metric": "throughput_tok_s", "verdict": verdict}
    row |= {"baseline": plan.cells[1].path}
    return dataclasses.replace(facts, contrasts=pd.DataFrame([row]))


def test_four_tiles_say_gain_latency_tier_and_checks() -> None:
    gain, latency, tier, checks = tiles("mechanism")
    assert gain.title == "native-offload 10K against no-offload"
    assert "times (" in gain.value
    assert gain.style == latency.style == "better"
    assert latency.value.endswith(" ms")
    assert "0.153 GiB (10,000 blocks)" in tier.value
    assert checks.value == "3 runs each"
    load, counts = checks.lines
    assert load == "load: 1, 8, 32 concurrent requests, 20 prefixes x 2,000 tokens"
    assert "checks passed" in counts


def test_the_computed_size_is_stated_before_the_measured_one() -> None:
    plan, facts = CAMPAIGNS["mechanism"]()
    predicted = PREDICTED.assign(enough_blocks=4252, enough_gib=0.0649)
    facts = dataclasses.replace(facts, predicted=predicted.assign(model="Qwen3-0.6B"))
    tier = model_tiles(result_of(plan, facts))[2]
    assert tier.value == "0.0649 GiB (4,252 blocks)"
    assert not any("miniature" in line for line in tier.lines)
    result = result_of(plan, facts)
    token_bytes = {"Qwen3-0.6B": ReportedKvBytes(named=114_688, served=16_384)}
    named = result.model_copy(update={"kv_bytes_per_token": token_bytes})
    assert model_tiles(named)[2].lines[0] == (
        "of the miniature that was served; of Qwen3-0.6B itself 0.454 GiB"
    )
    assert (
        "the smallest measured that is as good as the best: 0.153 GiB (10,000 blocks)"
        in tier.lines
    )


@pytest.mark.parametrize(
    ("verdict", "measured_size"),
    [(words.PARITY, "0.00763 GiB"), (words.INCONCLUSIVE, "0.153 GiB")],
)
def test_a_smaller_tier_is_enough_only_where_parity_was_shown(
    verdict: str, measured_size: str
) -> None:
    plan, _ = CAMPAIGNS["mechanism"]()
    facts = sized(verdict)
    assert measured_size in model_tiles(result_of(plan, facts))[2].value


def test_where_nothing_is_better_the_tile_says_so() -> None:
    facts = small.measured()
    table = facts.comparison.assign(verdict=words.INCONCLUSIVE)
    facts = dataclasses.replace(facts, comparison=table)
    first, *rest = model_tiles(result_of(small.plan(), facts))
    assert first.value == "no arm is better"
    assert any("native-offload 10K" in line for line in first.lines)
    assert [tile.title for tile in rest] == ["runs and checks"]


def test_an_arm_that_answers_sooner_at_equal_throughput_is_on_the_first_screen() -> (
    None
):
    facts = small.measured()
    sooner = facts.comparison["metric"] == "ttft_ms_p50"
    table = facts.comparison.assign(verdict=words.PARITY)
    table.loc[sooner, "verdict"] = words.BETTER
    facts = dataclasses.replace(facts, comparison=table)
    result = result_of(small.plan(), facts)
    gain, latency, *_ = model_tiles(result)
    assert gain.value == "no arm shown to deliver more"
    assert latency.title.startswith("median TTFT") and latency.style == words.BETTER
    said = " ".join(result.answer.sentences)
    assert " answered sooner: its median TTFT was shorter, " in said
    table.loc[~sooner, "verdict"] = words.WORSE
    worse = result_of(small.plan(), dataclasses.replace(facts, comparison=table))
    assert model_tiles(worse)[0].value == "no arm is better"


def test_several_models_have_a_row_each_and_no_tiles() -> None:
    models, checks = at_a_glance(result_of(*CAMPAIGNS["contrasts"]()))
    assert isinstance(models, Table)
    assert [row[0] for row in models.rows] == ["Qwen3-8B", "Qwen3-14B"]
    assert models.rows[0][1] == "no arm is better"
    assert models.rows[1][1] == arm_link(Cell("Qwen3-14B", "lmcache-valkey", 20_000))
    assert isinstance(checks, Paragraph) and "checks passed" in checks.text
    assert "160 prefixes x 10,000 tokens" in checks.text
    assert "the smallest measured that is as good as the best" in models.header[-1]


def test_checks_are_counted_by_name_and_failures_named() -> None:
    plan, facts = small.plan(), small.measured()
    counts = check_counts(result_of(plan, facts))
    assert counts.in_words == f"all {counts.made} checks passed"
    found = outcome_columns([Outcome("steadiness", "fail", words="the rate fell")])
    levels = facts.levels.copy()
    levels.loc[levels.index[:2], list(found)] = list(found.values())
    failed = check_counts(result_of(plan, dataclasses.replace(facts, levels=levels)))
    assert failed.passed == counts.passed - 1
    path = Cell.from_row(levels.iloc[0].to_dict()).path
    assert [*failed.remarks()] == [
        "[failed](#checks): no-offload, 2 times: the rate fell",
        f"what failed, level by level: `kveval show {path}`",
    ]


def test_of_many_warnings_the_most_frequent_is_named_in_words() -> None:
    plan, facts = small.plan(), small.measured()
    levels = facts.levels.copy()
    implausible = Outcome(
        "plausible", "warn", words="outside their range: offload_load_gib"
    )
    other = Outcome("b", "warn", words="b")
    levels[[*outcome_columns([])]] = ""
    for rows, outcomes in ((3, [implausible]), (1, [implausible, other])):
        found = outcome_columns(outcomes)
        levels.loc[levels.index[:rows], list(found)] = list(found.values())
    counts = check_counts(result_of(plan, dataclasses.replace(facts, levels=levels)))
    (remark,) = counts.remarks()
    often = "no-offload, 3 times: outside their range: offload_load_gib"
    assert remark == f"2 [warned](#checks), the most frequent: {often}"


@pytest.mark.parametrize(
    ("command", "pasted"),
    [
        (COMMAND, f"{COMMAND} --config runs=5"),
        (f"{COMMAND} --config site=s.yaml", f"{COMMAND} --config site=s.yaml runs=5"),
        ("", ""),
    ],
)
def test_the_next_step_is_a_command(command: str, pasted: str) -> None:
    plan, facts = CAMPAIGNS["mechanism"]()
    assert (
        answer_of(dataclasses.replace(plan, command=command), facts).command == pasted
    )


def test_runs_of_elsewhere_are_not_measured_by_a_command() -> None:
    plan, facts = CAMPAIGNS["mechanism"]()
    plan = dataclasses.replace(plan, command=COMMAND, measures=False)
    assert answer_of(plan, facts).command == ""


def test_missing_runs_need_no_other_setting() -> None:
    plan, facts = CAMPAIGNS["failing"]()
    plan = dataclasses.replace(plan, command=COMMAND)
    assert answer_of(plan, facts).command == COMMAND


def test_a_gain_has_one_scale() -> None:
    ends = {"low_percent": 90.0, "high_percent": 130.0}
    assert gain_text({"effect_percent": 110.0, **ends}) == "2.1 times (1.9 to 2.3)"
    assert gain_text({"effect_percent": 99.0, **ends}).startswith("+99 % (")


def test_no_smaller_size_is_named_where_it_was_shown_to_differ() -> None:
    plan, _ = CAMPAIGNS["mechanism"]()
    result = result_of(plan, sized(words.BETTER))
    (compared,) = [each for each in result.comparisons if not each.with_baseline]
    assert smaller_sizes(result, compared) == {}


def compared_sizes(*rows: tuple[int, int, str]) -> Measured:
    """Sizes of native-offload compared with each other: a size, another one, the verdict."""
    plan, facts = CAMPAIGNS["mechanism"]()
    base = facts.comparison.iloc[0].to_dict() | {"metric": "throughput_tok_s"}
    contrasts = []
    for size, other, verdict in rows:
        cell, reference = (
            dataclasses.replace(plan.cells[1], cpu_blocks=blocks)
            for blocks in (size, other)
        )
        row = base | cell.row | {"baseline": reference.path, "verdict": verdict}
        contrasts.append(row)
    return dataclasses.replace(facts, contrasts=pd.DataFrame(contrasts))


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        ([(20, 10, words.PARITY), (10, 5, words.PARITY)], [10]),
        ([(20, 10, words.INCONCLUSIVE), (10, 5, words.PARITY)], [10]),
        ([(20, 10, words.BETTER), (10, 5, words.PARITY)], []),
        # Parity says more than an undecided comparison with a still smaller one.
        ([(20, 10, words.PARITY), (20, 5, words.INCONCLUSIVE)], [10]),
        ([(20, 10, words.INCONCLUSIVE), (20, 5, words.PARITY)], [5]),
        # A pair may be declared in either direction.
        ([(10, 20, words.PARITY)], [10]),
        ([(20, 40, words.PARITY)], []),
    ],
)
def test_of_several_sizes_those_are_named_that_the_best_one_was_compared_with(
    rows: list[tuple[int, int, str]], sizes: list[int]
) -> None:
    plan, _ = CAMPAIGNS["mechanism"]()
    result = result_of(plan, compared_sizes(*rows))
    compared = result.with_baselines("throughput_tok_s")
    best = compared[plan.cells[1]].model_copy(update={"cpu_blocks": 20})
    smaller = smaller_sizes(result, best)
    assert [*smaller] == sizes
    for blocks, row in smaller.items():
        other = dataclasses.replace(best.cell, cpu_blocks=blocks)
        assert (Cell.from_row(row), row["baseline"]) == (best.cell, other.path)


@pytest.mark.parametrize(
    ("effect", "sd", "statement"),
    [
        (
            0.30,
            0.004,
            "it shows no relevant difference from the smaller native-offload 10K",
        ),
        (0.29, 0.05, "it is not shown to differ from the smaller native-offload 10K"),
        (0.60, 0.004, ""),
    ],
)
def test_what_a_larger_size_is_worth_needs_no_declaration(
    effect: float, sd: float, statement: str
) -> None:
    effects = {"no-offload": 0.0, "native-offload": 0.3, "larger": effect + 0.001}
    levels = small.levels_table(effects=effects, sd=sd)
    larger = levels["scenario"] == "larger"
    levels.loc[larger, ["scenario", "cpu_blocks"]] = ["native-offload", 20_000]
    cells = [*small.CELLS[:2], dataclasses.replace(small.CELLS[1], cpu_blocks=20_000)]
    contrasts = compare_all(levels, small.BASELINES).contrasts
    facts = dataclasses.replace(small.measured(levels), contrasts=contrasts)
    answer = answer_of(small.plan(cells=cells), facts)
    assert "20K delivered" in answer.sentences[0]
    assert statement in answer.sentences[0]
    assert ("smaller" in answer.sentences[0]) == bool(statement)
