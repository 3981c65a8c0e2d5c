"""The answer at a glance: tiles of one model, a table of several, what was checked, and the command to paste.

The golden reports hold the tiles of a better arm and of single runs, the rows of models, and checks that failed.
"""

import dataclasses

import pandas as pd
import pytest
from tests.support.report_text import answer_in, answer_of, result_of, tables_in
from tests.unit.plugins.curve.test_section_gain import PREDICTED
from tests.unit.report import test_report as small
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured
from kveval.report.data.comparisons import effect_text
from kveval.report.facts.answer import smaller_sizes
from kveval.report.render import render_report
from kveval.report.result.model import (
    CampaignResult,
    ReportedComparison,
    ReportedKvBytes,
)
from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.verdict import verdict_words as words
from kveval.verdict.verdicts import compare_all

COMMAND = "snakemake --cores 4 report"
TIER = "tier needed, in host memory"


def tiles(result: CampaignResult) -> dict[str, str]:
    """The tiles of one model with marks, by their title."""
    return dict(tables_in(render_report(result)["REPORT.md"])[0].rows)


def with_verdicts(**verdicts: str) -> CampaignResult:
    """The small campaign with these verdicts, by metric, of every arm."""
    facts = small.measured()
    table = facts.comparison.copy()
    for metric, verdict in verdicts.items():
        table.loc[table["metric"] == metric, "verdict"] = verdict
    facts = dataclasses.replace(facts, comparison=table)
    return result_of(small.plan(), facts)


def test_what_is_better_and_what_failed_is_marked() -> None:
    gain, latency, tier, checks = tiles(result_of(*CAMPAIGNS["mechanism"]())).values()
    assert gain.startswith("**8.6 times (7.7 to 9.7)** {.better}; ")
    assert latency.startswith("**177 to 20.6 ms** {.better}; ")
    assert "{." not in tier + checks
    *_, checks = tiles(result_of(*CAMPAIGNS["one run"]())).values()
    assert checks.startswith("**1 run each** {.worse}; ")


def test_a_tile_has_one_size_the_smaller_one_of_computed_and_measured() -> None:
    plan, facts = CAMPAIGNS["mechanism"]()

    def with_computed(blocks: int, gib: float) -> CampaignResult:
        predicted = PREDICTED.assign(enough_blocks=blocks, enough_gib=gib)
        predicted = predicted.assign(model="Qwen3-0.6B")
        return result_of(plan, dataclasses.replace(facts, predicted=predicted))

    computed = "computed: for 90 % of the hits that a tier without a limit adds"
    small = "0.0649 GiB (4,252 blocks) of the miniature"
    result = with_computed(4252, 0.0649)
    assert tiles(result)[TIER] == f"**{small}**; {computed}"
    token_bytes = {"Qwen3-0.6B": ReportedKvBytes(named=114_688, served=16_384)}
    named = result.model_copy(update={"kv_bytes_per_token": token_bytes})
    of_named = f"**0.454 GiB of Qwen3-0.6B, {small}**; {computed}"
    assert tiles(named)[TIER].startswith(of_named)
    assert tiles(with_computed(20_000, 0.305))[TIER] == (
        "**0.153 GiB (10,000 blocks) of the miniature**; the smallest measured that is as good as the best"
    )


@pytest.mark.parametrize(
    ("throughput", "ttft", "stated"),
    [
        (words.INCONCLUSIVE, words.INCONCLUSIVE, "no arm shown to be better"),
        (words.PARITY, words.BETTER, "no arm shown to deliver more"),
        (
            words.WORSE,
            words.BETTER,
            "it depends on the load**; no arm is better at 32 concurrent",
        ),
    ],
)
def test_where_nothing_is_better_the_tile_says_so_or_which_arm_answers_sooner(
    throughput: str, ttft: str, stated: str
) -> None:
    result = with_verdicts(throughput_tok_s=throughput, ttft_ms_p50=ttft)
    value, *latency, _ = tiles(result).values()
    assert value.startswith(f"**{stated}")
    sooner = stated == "no arm shown to deliver more"
    assert ["ms** {.better}; better: " in text for text in latency] == [True] * sooner
    said = " ".join(answer_in(result).sentences)
    assert (" answered sooner: its median TTFT was shorter, " in said) == sooner


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
    facts = dataclasses.replace(facts, levels=levels)
    often = "no-offload, 3 of 60 levels: outside their range: offload_load_gib"
    checks = tiles(result_of(plan, facts))["runs and checks"]
    assert checks.endswith(f"; 2 [warned](#checks), the most frequent: {often}")


@pytest.mark.parametrize(
    ("name", "changes", "pasted"),
    [
        ("mechanism", {"command": COMMAND}, f"{COMMAND} --config runs=5"),
        (
            "mechanism",
            {"command": f"{COMMAND} --config site=s.yaml"},
            f"{COMMAND} --config site=s.yaml runs=5",
        ),
        ("mechanism", {"command": ""}, ""),
        # Runs of elsewhere are not measured by a command.
        ("mechanism", {"command": COMMAND, "measures": False}, ""),
        # Missing runs need no other setting.
        ("failing", {"command": COMMAND}, COMMAND),
    ],
)
def test_the_next_step_is_a_command(
    name: str, changes: dict[str, object], pasted: str
) -> None:
    plan, facts = CAMPAIGNS[name]()
    assert answer_of(dataclasses.replace(plan, **changes), facts).command == pasted


def test_a_gain_has_one_scale() -> None:
    ends = {"low_percent": 90.0, "high_percent": 130.0}
    assert effect_text({"effect_percent": 110.0, **ends}) == "2.1 times (1.9 to 2.3)"
    assert effect_text({"effect_percent": 99.0, **ends}).startswith("+99 % (")


def compared_sizes(
    *rows: tuple[int, int, str], other_arm: str = "native-offload"
) -> Measured:
    """Sizes of native-offload compared with others: a size, another one, the verdict."""
    plan, facts = CAMPAIGNS["mechanism"]()
    base = facts.comparison.iloc[0].to_dict() | {"metric": "throughput_tok_s"}
    contrasts = []
    for size, other, verdict in rows:
        cell = dataclasses.replace(plan.cells[1], cpu_blocks=size)
        reference = Cell(cell.model, other_arm, other)
        row = base | cell.row | {"baseline": reference.path, "verdict": verdict}
        contrasts.append(row)
    return dataclasses.replace(facts, contrasts=pd.DataFrame(contrasts))


def smaller_than_20(facts: Measured) -> list[ReportedComparison]:
    plan, _ = CAMPAIGNS["mechanism"]()
    result = result_of(plan, facts)
    compared = result.with_baselines("throughput_tok_s")[plan.cells[1]]
    return smaller_sizes(result, compared.model_copy(update={"cpu_blocks": 20}))


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
        ([(20, 40, words.INCONCLUSIVE)], []),
    ],
)
def test_of_several_sizes_those_are_named_that_the_best_one_was_compared_with(
    rows: list[tuple[int, int, str]], sizes: list[int]
) -> None:
    smaller = smaller_than_20(compared_sizes(*rows))
    assert [each.against.cpu_blocks for each in smaller if each.against] == sizes
    assert [each.cpu_blocks for each in smaller] == [20] * len(sizes)


def test_a_tier_of_another_arm_is_no_smaller_size() -> None:
    facts = compared_sizes((20, 5, words.PARITY), other_arm="lmcache-local")
    assert smaller_than_20(facts) == []


@pytest.mark.parametrize(
    ("verdict", "size"),
    [(words.PARITY, "0.00763 GiB"), (words.INCONCLUSIVE, "0.153 GiB")],
)
def test_a_smaller_tier_is_enough_only_where_parity_was_shown(
    verdict: str, size: str
) -> None:
    plan, _ = CAMPAIGNS["mechanism"]()
    facts = compared_sizes((10_000, 500, verdict))
    assert size in tiles(result_of(plan, facts))[TIER]


@pytest.mark.parametrize(
    ("effect", "sd", "statement"),
    [
        (
            0.30,
            0.004,
            "it shows no relevant difference from the smaller native-offload 10K, +0.5 % (90 %: ",
        ),
        (
            0.29,
            0.05,
            "it is not shown to differ from the smaller native-offload 10K, +4 % (-1 to ",
        ),
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
