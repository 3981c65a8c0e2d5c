"""Why runs are left out: every run is compared or has a code, and every code has words that its facts fill."""

import re
from inspect import getsource
from typing import get_args

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import synthetic_campaign as large
from tests.support.synthetic import BASELINES, levels_table
from tests.unit.verdict.test_attacks import of_arm
from tests.unit.verdict.test_attacks_runs import (
    ARM,
    BASELINE,
    CHANGES,
    RUNS,
    Pairs,
    bridged,
    campaign,
    in_states,
    judged,
    repeated_late,
    with_values,
    without,
)

from kveval.report.result.model import Remedy
from kveval.report.result.remedies import _OF_CAUSE, remedies_of
from kveval.tables.levels.checks_import import no_reuse, saturated_open_loop
from kveval.tables.levels.outcomes import LEVEL_FAILED
from kveval.verdict import verdict_words as words
from kveval.verdict.codes import CODES, INPUTS, SEVERITIES, Severity
from kveval.verdict.exclusions import REASONS, SIDES
from kveval.verdict.failed_checks import FAILURES, failures_text
from kveval.verdict.findings import (
    read_exclusions,
    read_findings,
)
from kveval.verdict.verdict_tables import CHECKS
from kveval.verdict.verdicts import compare_all


def codes(row: object) -> dict[tuple[str, int], str]:
    """Side and run -> the code of its exclusion."""
    return {(each.side, each.run): each.code for each in read_exclusions(row)}


def kept(row: dict[str, str]) -> set[tuple[str, int]]:
    """Sides and runs that a comparison rests on."""
    columns = zip(SIDES, ("runs_kept", "baseline_runs_kept"), strict=True)
    return {
        (side, int(run))
        for side, column in columns
        for run in row[column].split(";")
        if run
    }


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([*CHANGES]), st.sampled_from([*CHANGES][:-1])),
        min_size=5,
        max_size=8,
    )
)
def test_every_run_of_a_verdict_is_compared_or_has_one_code(pairs: Pairs) -> None:
    levels = in_states(0.3, pairs)
    if set(levels["scenario"]) != {ARM, BASELINE}:
        return
    row = judged(levels)
    if row["verdict"] not in words.VERDICTS:
        return
    measured = {
        (side, int(run))
        for side, scenario in zip(SIDES, (ARM, BASELINE), strict=True)
        for run in levels[levels["scenario"] == scenario]["run"].unique()
    }
    excluded = codes(row)
    assert kept(row).isdisjoint(excluded)
    assert measured <= kept(row) | excluded.keys()


def test_a_run_whose_partner_has_no_value_has_a_code_of_its_own() -> None:
    row = judged(with_values(campaign(), ARM, [2], throughput_tok_s=0.0))
    assert codes(row) == {
        ("arm", 2): "delivered_nothing",
        ("reference", 2): "other_of_pair",
    }
    row = judged(without(campaign(), ARM, [5]))
    assert codes(row) == {("arm", 5): "not_measured", ("reference", 5): "no_pair"}


def test_a_run_is_single_where_the_others_were_not_measured() -> None:
    assert judged(without(campaign(), ARM, [2, 3, 4, 5]))["verdict"] == words.SINGLE_RUN
    failed = judged(with_values(campaign(), ARM, [2, 3, 4, 5], checks_failed="turns"))
    assert (failed["verdict"], failed["grounds"]) == (words.NOT_ASSESSED, "few_runs")


def test_the_side_that_was_idle_is_the_one_that_is_named() -> None:
    levels = bridged(1000.0)
    levels["exercised"] = levels["exercised"].astype("boolean")
    row = judged(with_values(levels, BASELINE, [7], exercised=False))
    assert codes(row)["reference", 7] == "not_active"
    assert codes(row)["arm", 2] == "other_of_pair"


def test_runs_of_a_bridge_that_belong_to_other_cells_are_in_no_pair() -> None:
    excluded = codes(judged(bridged(1000.0)))
    assert excluded == {("reference", run): "no_pair" for run in RUNS}


def test_facts_say_what_words_say() -> None:
    row = judged(with_values(campaign(), ARM, [4], checks_failed="totals;turns"))
    (failed,) = (each for each in read_exclusions(row) if each.side == "arm")
    assert (failed.code, failed.facts) == (
        "check_failed",
        {"checks": ["totals", "turns"]},
    )
    text = failures_text(["totals", "turns"])
    assert text == f"the check `totals` failed and {FAILURES['turns']}"
    assert text in row["reason"]


def test_every_check_of_a_level_that_can_fail_has_words() -> None:
    failing = {
        check.name
        for check in (*CHECKS["level"], *CHECKS["system"])
        if re.search(r"\bfail\b", getsource(check.function))
    }
    assert FAILURES.keys() == failing | {LEVEL_FAILED}


def test_an_input_that_refuses_is_among_the_findings_with_its_facts() -> None:
    row = judged(campaign().assign(request_output_tokens=float("nan"), workload=""))
    (found,) = (each for each in read_findings(row) if each.severity == "refuses")
    assert (found.code, row["grounds"]) == ("work_unknown", "work_unknown")


def test_every_code_has_the_words_that_its_meaning_needs() -> None:
    for code, meaning in CODES.items():
        assert bool(meaning.summary) == bool(meaning.input), code
        sound = meaning.severity in ("sound", "unknown") and meaning.input
        assert sound or meaning.why or meaning.severity == "qualifies", code
    assert get_args(Severity) == SEVERITIES
    assert {meaning.input for meaning in CODES.values()} == {*INPUTS, ""}


def test_a_step_is_for_a_code_or_a_check() -> None:
    checks = {no_reuse.name, saturated_open_loop.name}
    assert _OF_CAUSE.keys() - checks <= CODES.keys() | REASONS.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"throughput_tok_s": 0.0},
        {"checks_failed": "no_reuse"},
        {"rate_req_s": 5.0},
        {"hardware": "beef"},
        {"requests_errored": 400},
        {"concurrency_shortfall": 0.3},
        {"exercised": False},
        {"activity": "not shown", "exercised": pd.NA},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_next_step_follows_codes_whatever_the_words(
    changes: dict[str, object],
) -> None:
    levels = campaign().assign(rate_req_s=0.0, concurrency_shortfall=0.0)
    row = judged(with_values(levels, ARM, RUNS, **changes)).to_dict()
    texts = [name for name in row if name == "reason" or name.startswith("basis_")]
    without_words = row | dict.fromkeys(texts, "-")
    remedies = remedies_of(large.plan(), row)
    assert remedies == remedies_of(large.plan(), without_words)
    assert remedies != [Remedy(code="see_reason")]


def test_runs_of_another_time_are_named_unless_the_comparison_is_refused() -> None:
    levels = repeated_late(campaign(), [2])
    left_out = {("arm", 2): "other_time", ("reference", 2): "other_time"}
    sound = judged(levels)
    refused = judged(of_arm(levels, request_output_tokens=32.0))
    assert codes(sound) == codes(refused) == left_out
    assert sound["verdict"] == words.BETTER
    assert sound["reason"] == (
        "without run 2: measured at another time than those of its baseline"
    )
    assert refused["grounds"] == "other_work"
    assert "at another time" not in refused["reason"]


@pytest.mark.parametrize(("runs", "kept"), [(3, "1;2;3"), (4, "1;2;4")])
def test_an_unsteady_run_is_left_out_where_three_others_are_steady(
    runs: int, kept: str
) -> None:
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 1.0}, runs=runs)
    levels["throughput_drift"], levels["throughput_drift_se"] = 0.0, 0.01
    of_run = (levels["scenario"] == "no-offload") & (levels["run"] == 3)
    levels.loc[of_run, "throughput_drift"] = 0.6
    row = compare_all(levels, BASELINES).baseline.iloc[0]
    assert (row["verdict"], row["runs_kept"]) == (words.BETTER, kept)
    codes = {exclusion.code for exclusion in read_exclusions(row)}
    assert ("two_states" in codes) == (runs > 3)
