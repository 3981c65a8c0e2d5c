"""The answer of a campaign in every state that a comparison can be in.

The golden reports hold that of a large gain, of several models, of cells that are missing, and of single runs.
"""

import dataclasses
import math

import msgspec
import pytest
from tests.support import synthetic_campaign as large
from tests.support.report_text import Answer, answer_of, result_of
from tests.unit.report import test_report as small
from tests.unit.report.test_report_claims import CAMPAIGNS

from kveval.report.data.campaign import Measured
from kveval.report.facts.answer import answer_figure
from kveval.report.facts.arms import TTFT
from kveval.report.render import MOST_SENTENCES
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import Exclusion
from kveval.verdict.findings import records_json


def changed(
    measured: Measured, scenario: str, metric: str, **values: object
) -> Measured:
    """The same with the comparison of an arm in a metric replaced."""
    table = measured.comparison.copy()
    at = (table["scenario"] == scenario) & (table["metric"] == metric)
    for name, value in values.items():
        table.loc[at, name] = value
    return dataclasses.replace(measured, comparison=table)


def said(facts: Measured) -> Answer:
    return answer_of(small.plan(), facts)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_an_answer_is_a_question_and_at_most_five_sentences(name: str) -> None:
    answer = answer_of(*CAMPAIGNS[name]())
    assert answer.question.endswith("?")
    assert 2 <= len(answer.sentences) <= MOST_SENTENCES
    assert all(
        sentence.endswith(".") and len(sentence) < 400 for sentence in answer.sentences
    )
    assert len(answer.next_steps) <= 4


@pytest.mark.parametrize(
    ("drawn", "figure"),
    [
        (["effect_plot", "throughput_by_arm"], "throughput_by_arm"),
        (["benchmark_results", "effect_plot"], "effect_plot"),
        ([], ""),
    ],
)
def test_the_figure_of_single_runs_comes_first_where_it_is_drawn(
    drawn: list[str], figure: str
) -> None:
    assert answer_figure(result_of(*CAMPAIGNS["mechanism"](), drawn)) == figure


@pytest.mark.parametrize(
    ("verdict", "words_said"),
    [
        (words.PARITY, "no relevant difference, within 5 %: native-offload 10K"),
        (words.NOT_EXERCISED, "idle (why): native-offload 10K"),
        (words.NOT_ASSESSED, "not comparable (why): native-offload 10K"),
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
    answer = said(facts)
    assert words_said in " ".join(answer.sentences).lower().replace("10k", "10K")
    assert "times as much" not in answer.sentences[0]
    assert "native-offload 10K delivered" not in " ".join(answer.sentences)


def test_a_bound_is_said_with_the_times() -> None:
    plan, facts = CAMPAIGNS["mechanism"]()
    first = answer_of(
        plan, changed(facts, "native-offload", "throughput_tok_s", bound="at least")
    ).sentences[0]
    assert "delivered at least 8" in first


def test_a_worse_latency_of_a_better_arm_is_said() -> None:
    facts = changed(small.measured(), "native-offload", TTFT, verdict=words.WORSE)
    assert "longer" in said(facts).sentences[1]


def test_where_the_load_fixes_throughput_the_question_is_of_latency() -> None:
    table = small.measured().comparison
    fixed = table["metric"] == "throughput_tok_s"
    excluded = records_json([Exclusion("open_loop", 1, "arm")])
    table = table.assign(exclusions=table["exclusions"].where(~fixed, excluded))
    answer = said(dataclasses.replace(small.measured(), comparison=table))
    assert "shorter time to first token" in answer.question
    assert "median TTFT" in answer.sentences[0]
    assert "output tok/s" not in answer.sentences[0]


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
        " No run of native-offload 10K and its baseline was undisturbed: the answer rests on disturbed runs alone."
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
    answer = said(
        changed(small.measured(), "lmcache-redis", "throughput_tok_s", **later)
    )
    assert any(
        "lmcache-redis" in step and "`bridges`" in step for step in answer.next_steps
    )
    assert not any("()" in sentence for sentence in answer.sentences)


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
    answer = said(
        changed(small.measured(), "lmcache-redis", "throughput_tok_s", **noise)
    )
    assert not any("lmcache-redis" in step for step in answer.next_steps)


def test_a_campaign_as_large_as_a_published_one_has_an_answer() -> None:
    keys = large.cells()
    answer = answer_of(
        large.plan(keys), large.measured(large.levels_table(keys, levels=(1, 50, 300)))
    )
    assert len(answer.sentences) <= MOST_SENTENCES
    assert "4 models" in answer.question
