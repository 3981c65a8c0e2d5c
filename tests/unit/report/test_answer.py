"""The answer of a campaign in every state that a comparison can be in."""

import dataclasses
import functools
import math

import msgspec
import pandas as pd
import pytest
from tests.support import synthetic_campaign as large
from tests.support.report_text import answer_of, result_of
from tests.unit.report import test_report as small
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.campaign.cell import Cell
from kveval.report.answer import FIGURES, MOST_SENTENCES, answer_figure
from kveval.report.data.campaign import Measured
from kveval.report.data.comparisons import baseline_comparisons, gain_text
from kveval.report.result.model import ReportedAnswer
from kveval.report.tables.results import TTFT, values_text
from kveval.tables.cells import THROUGHPUT
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import Exclusion
from kveval.verdict.findings import records_json


@functools.cache
def answer(name: str) -> ReportedAnswer:
    """The answer of a campaign; its tests share it and change it nowhere."""
    return answer_of(*CAMPAIGNS[name]())


def changed(
    measured: Measured, scenario: str, metric: str, **values: object
) -> Measured:
    """The same with the comparison of an arm in a metric replaced."""
    table = measured.comparison.copy()
    at = (table["scenario"] == scenario) & (table["metric"] == metric)
    for name, value in values.items():
        table.loc[at, name] = value
    return dataclasses.replace(measured, comparison=table)


def said(facts: Measured) -> ReportedAnswer:
    return answer_of(small.plan(), facts)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_an_answer_is_a_question_and_at_most_five_sentences(name: str) -> None:
    found = answer(name)
    assert found.question.endswith("?")
    assert 2 <= len(found.sentences) <= MOST_SENTENCES
    assert all(
        sentence.endswith(".") and len(sentence) < 400 for sentence in found.sentences
    )
    assert len(found.next_steps) <= 4


def test_the_figure_of_single_runs_comes_first_where_it_is_drawn() -> None:
    campaign = CAMPAIGNS["mechanism"]()
    assert answer_figure(result_of(*campaign, FIGURES[::-1])) == "throughput_by_arm"
    assert answer_figure(result_of(*campaign, FIGURES[1:])) == FIGURES[1]
    assert answer_figure(result_of(*campaign)) == ""


def test_a_gain_beyond_twice_is_said_in_times_alone() -> None:
    result = result_of(*CAMPAIGNS["mechanism"]())
    found, cell = result.answer, Cell("Qwen3-0.6B", "native-offload", 10_000)
    best, latency = (
        result.with_baselines(metric)[cell] for metric in (THROUGHPUT, TTFT)
    )
    gain = gain_text(best.row)
    assert best.verdict == words.BETTER
    assert float(gain.partition(" times")[0]) == pytest.approx(
        1 + best.effect_percent.value / 100, rel=0.1
    )
    assert f"{gain} as much as no-offload: " in found.sentences[0]
    assert "%" not in found.sentences[0]
    value, other_value = values_text(result, best)
    assert f"{value} against {other_value} output tok/s" in found.sentences[0]
    value, other_value = values_text(result, latency)
    assert f"{value} against {other_value} ms" in found.sentences[1]
    (hits,) = [sentence for sentence in found.sentences if "prompt tokens" in sentence]
    assert "60 % with native-offload 10K" in hits
    assert "0.4 % with native-offload 500" in hits


@pytest.mark.parametrize(
    ("verdict", "words_said"),
    [
        (words.WORSE, "worse: native-offload 10K"),
        (words.PARITY, "no relevant difference, within 5 %: native-offload 10K"),
        (words.INCONCLUSIVE, "cannot tell yet: native-offload 10K"),
        (words.NOT_EXERCISED, "idle (why): native-offload 10K"),
        (words.NOT_ASSESSED, "not comparable (why): native-offload 10K"),
        (words.SINGLE_RUN, "cannot tell yet (why): native-offload 10K"),
        (words.INDICATIVE_TIME, "cannot tell yet (why): native-offload 10K"),
    ],
)
def test_a_verdict_is_said_as_it_is(verdict: str, words_said: str) -> None:
    facts = changed(
        small.measured(),
        "native-offload",
        "throughput_tok_s",
        verdict=verdict,
        reason="why",
    )
    found = said(facts)
    assert words_said in " ".join(found.sentences).lower().replace("10k", "10K")
    assert "times as much" not in found.sentences[0]
    assert "native-offload 10K delivered" not in " ".join(found.sentences)


def test_a_bound_is_said_with_the_times() -> None:
    plan, facts = CAMPAIGNS["mechanism"]()
    first = answer_of(
        plan, changed(facts, "native-offload", "throughput_tok_s", bound="at least")
    ).sentences[0]
    assert "delivered at least 8" in first


@pytest.mark.parametrize(
    ("verdict", "baseline", "part"),
    [
        (
            words.INCONCLUSIVE,
            "native-offload/5000",
            "; it is not shown to differ from the smaller native-offload 5K, +3 % (-7",
        ),
        (
            words.PARITY,
            "native-offload/5000",
            "; it shows no relevant difference from the smaller native-offload 5K, +3 % (-7",
        ),
        (words.BETTER, "native-offload/5000", ""),
        (words.INCONCLUSIVE, "native-offload/20000", ""),
        (words.INCONCLUSIVE, "lmcache-local/5000", ""),
    ],
)
def test_a_smaller_tier_that_is_as_good_is_named_with_the_best(
    verdict: str, baseline: str, part: str
) -> None:
    plan, facts = CAMPAIGNS["mechanism"]()
    cell = {
        "model": plan.cells[0].model,
        "scenario": "native-offload",
        "cpu_blocks": 10000,
    }
    effect = {
        "effect_percent": 3.0,
        "low_percent": -7.0,
        "high_percent": 13.0,
        "interval_percent": 95.0,
    }
    row = (
        cell
        | effect
        | {
            "metric": "throughput_tok_s",
            "verdict": verdict,
            "baseline": f"{cell['model']}/{baseline}",
            **{"family": "primary", "reason": "", "bound": ""},
        }
    )
    first, *_ = answer_of(
        plan, dataclasses.replace(facts, contrasts=pd.DataFrame([row]))
    ).sentences
    assert part in first and ("smaller" in first) == bool(part)


def test_without_any_verdict_nothing_is_shown_or_denied() -> None:
    facts = small.measured()
    for scenario in ("native-offload", "lmcache-redis", "idle"):
        facts = changed(
            facts,
            scenario,
            "throughput_tok_s",
            verdict=words.SINGLE_RUN,
            reason="one run",
        )
    first, *_ = said(facts).sentences
    assert "no verdict" in first
    assert "No arm was shown" not in first


def test_a_worse_latency_of_a_better_arm_is_said() -> None:
    facts = changed(small.measured(), "native-offload", TTFT, verdict=words.WORSE)
    assert "longer" in said(facts).sentences[1]


def test_where_the_load_fixes_throughput_the_question_is_of_latency() -> None:
    table = small.measured().comparison
    fixed = table["metric"] == "throughput_tok_s"
    excluded = records_json([Exclusion("open_loop", 1, "arm")])
    table = table.assign(exclusions=table["exclusions"].where(~fixed, excluded))
    found = said(dataclasses.replace(small.measured(), comparison=table))
    assert "shorter time to first token" in found.question
    assert "median TTFT" in found.sentences[0]
    assert "output tok/s" not in found.sentences[0]


def test_each_model_with_a_better_arm_is_named() -> None:
    found = answer("contrasts")
    plan, measured = CAMPAIGNS["contrasts"]()
    rows = baseline_comparisons(plan, measured.comparison, "throughput_tok_s")
    assert {row["model"] for row in rows if row["verdict"] == words.BETTER} == {
        "Qwen3-14B"
    }
    assert "Qwen3-14B with lmcache-valkey 20K" in found.sentences[0]
    assert "no arm for Qwen3-8B" in found.sentences[0]


def test_what_is_missing_comes_first_among_the_steps() -> None:
    found = answer("failing")
    assert "lmcache-redis 10K" in found.next_steps[0]
    assert "2 of 12 cells" in found.sentences[-1]


def test_other_programs_beside_the_runs_are_named_before_all_that_is_undecided() -> (
    None
):
    facts = small.measured()

    def beside(share: float) -> Measured:
        runs = [
            msgspec.structs.replace(
                run,
                levels=[
                    msgspec.structs.replace(level, others_cpu_percent=share)
                    for level in run.levels
                ],
            )
            for run in facts.runs
        ]
        return dataclasses.replace(facts, runs=runs)

    command = "snakemake --cores 4 report --configfile config/campaigns/mine.yaml"
    plan = dataclasses.replace(small.plan(), command=command)
    disturbed = answer_of(plan, beside(52.3))
    count = len(facts.runs)
    assert disturbed.next_steps[0] == (
        "Wait until the machine is quiet, then `runs: 8`: other programs took up to 52 % of this machine's processors"
        f" in {count} of {count} runs; it takes 3 further blocks, one run of every cell each, to make up for them."
    )
    assert disturbed.command == f"{command} --config runs=8"
    read = dataclasses.replace(plan, measures=False)
    step = answer_of(read, beside(52.3)).next_steps[0]
    assert step.startswith(
        "Wait until the machine is quiet, then more `runs` in the campaigns that measured them: other programs"
    )
    # Further blocks of a campaign with bridges would be taken for those of another time.
    bridged = dataclasses.replace(plan, cell_runs=[6, *[3] * (len(plan.cells) - 1)])
    for answer in (answer_of(plan, beside(4)), answer_of(bridged, beside(52.3))):
        assert not any("quiet" in step for step in answer.next_steps)


def test_an_arm_measured_later_than_its_baseline_is_told_to_measure_that_again() -> (
    None
):
    later = {"verdict": words.INDICATIVE_TIME, "indication": words.BETTER, "reason": ""}
    found = said(
        changed(small.measured(), "lmcache-redis", "throughput_tok_s", **later)
    )
    assert any(
        "lmcache-redis" in step and "`bridges`" in step for step in found.next_steps
    )
    assert not any("()" in sentence for sentence in found.sentences)


def test_runs_that_would_decide_are_named_where_they_are_affordable() -> None:
    facts = small.measured()
    few = changed(
        facts,
        "lmcache-redis",
        "throughput_tok_s",
        verdict=words.INCONCLUSIVE,
        runs_to_decide=9,
    )
    assert any(
        "`runs: 9`" in step and "lmcache-redis" in step for step in said(few).next_steps
    )
    for needed in (316, math.nan):
        many = changed(
            facts,
            "lmcache-redis",
            "throughput_tok_s",
            verdict=words.INCONCLUSIVE,
            runs_to_decide=needed,
        )
        assert not any("`runs:" in step for step in said(many).next_steps)
        assert any(
            "longer levels" in step and "lmcache-redis" in step
            for step in said(many).next_steps
        )


def test_a_replicate_needs_no_step() -> None:
    noise = {
        "verdict": words.NOT_ASSESSED,
        "replicate": True,
        "reason": "configured exactly as its baseline",
    }
    found = said(
        changed(small.measured(), "lmcache-redis", "throughput_tok_s", **noise)
    )
    assert not any("lmcache-redis" in step for step in found.next_steps)


def test_a_campaign_as_large_as_a_published_one_has_an_answer() -> None:
    keys = large.cells()
    found = answer_of(
        large.plan(keys), large.measured(large.levels_table(keys, levels=(1, 50, 300)))
    )
    assert len(found.sentences) <= MOST_SENTENCES
    assert "4 models" in found.question
