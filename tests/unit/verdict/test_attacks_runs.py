"""Runs that failed, are missing, were copied or were measured elsewhere: named, and never the reason for a claim.

Each has its counterpart that must not be refused.
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.synthetic import BASELINES, levels_table
from tests.unit.report import test_report as small

from kveval.campaign.cell import Cell
from kveval.store.run_file import IMPORTED
from kveval.tables.cells import tables_by_cell
from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.verdict import verdict_words as words
from kveval.verdict.failed_checks import FAILURES
from kveval.verdict.findings import ground_codes
from kveval.verdict.verdicts import compare_all

ARM, BASELINE = "native-offload", "no-offload"
LABEL = "native-offload 10K"
THROUGHPUT = "throughput_tok_s"
RUNS = (1, 2, 3, 4, 5)
# What a run without a usable throughput has instead -> what is said of it.
DEFECTS = {
    0.0: "delivered nothing",
    np.nan: "without a value",
    np.inf: "with an infinite value",
    -4.0: "with a negative value",
}


def campaign(effect: float = 0.2, runs: int = 5, sd: float = 0.01) -> pd.DataFrame:
    return levels_table(effects={BASELINE: 0.0, ARM: effect}, runs=runs, sd=sd)


def of(levels: pd.DataFrame, scenario: str, runs: Sequence[int]) -> pd.Series:
    return (levels["scenario"] == scenario) & levels["run"].isin(runs)


def with_values(
    levels: pd.DataFrame, scenario: str, runs: Sequence[int], **values: object
) -> pd.DataFrame:
    """The same campaign with columns of some runs of a scenario changed."""
    changed = levels.copy()
    for column, value in values.items():
        changed.loc[of(levels, scenario, runs), column] = value
    return changed


def without(levels: pd.DataFrame, scenario: str, runs: Sequence[int]) -> pd.DataFrame:
    return levels[~of(levels, scenario, runs)]


def judged(
    levels: pd.DataFrame, metric: str = THROUGHPUT, **given: object
) -> pd.Series:
    """The row of the arm against its baseline."""
    table = compare_all(levels, BASELINES, **given).baseline
    return table[(table["metric"] == metric) & (table["scenario"] == ARM)].iloc[0]


# --- runs that delivered nothing


@pytest.mark.parametrize("value", DEFECTS)
def test_one_failed_run_of_five_is_named_and_qualifies(value: float) -> None:
    row = judged(with_values(campaign(), ARM, [2], throughput_tok_s=value))
    said = DEFECTS[value]
    assert (row["verdict"], row["runs"]) == (words.BETTER, 4)
    assert row["qualifier"] == f"1 of 5 runs of {LABEL} {said}"
    assert row["reason"] == f"without run 2 of {LABEL}: {said}"


@pytest.mark.parametrize("value", DEFECTS)
@pytest.mark.parametrize("effect", [0.2, 0.0])
def test_no_gain_and_no_parity_where_two_runs_of_five_failed(
    value: float, effect: float
) -> None:
    row = judged(
        with_values(campaign(effect, sd=0.003), ARM, [4, 5], throughput_tok_s=value)
    )
    assert row["verdict"] == words.INCONCLUSIVE
    assert "many_failed" in ground_codes(row)
    assert f"without runs 4, 5 of {LABEL}: {DEFECTS[value]}" in row["reason"]
    assert row["qualifier"] == f"2 of 5 runs of {LABEL} {DEFECTS[value]}"


def test_an_arm_that_loses_although_its_failed_runs_are_left_out_is_worse() -> None:
    row = judged(with_values(campaign(-0.2), ARM, [4, 5], throughput_tok_s=0.0))
    assert (row["verdict"], row["qualifier"]) == (
        words.WORSE,
        f"2 of 5 runs of {LABEL} delivered nothing",
    )


@pytest.mark.parametrize("failed", [[2], [2, 3]])
def test_a_large_gain_over_a_baseline_that_failed_at_times_keeps_its_verdict(
    failed: list[int],
) -> None:
    row = judged(with_values(campaign(), BASELINE, failed, throughput_tok_s=0.0))
    assert row["verdict"] == words.BETTER
    assert (
        row["qualifier"] == f"{len(failed)} of 5 runs of no-offload delivered nothing"
    )
    loss = judged(with_values(campaign(-0.2), BASELINE, failed, throughput_tok_s=0.0))
    assert loss["verdict"] == (words.WORSE if len(failed) == 1 else words.INCONCLUSIVE)


@pytest.mark.parametrize("value", DEFECTS)
def test_an_arm_that_failed_in_every_run_is_said_to_have_failed(value: float) -> None:
    row = judged(with_values(campaign(), ARM, RUNS, throughput_tok_s=value))
    assert (row["verdict"], row["runs"]) == (words.NOT_ASSESSED, 0)
    assert f"runs 1, 2, 3, 4, 5 of {LABEL}: {DEFECTS[value]}" in row["reason"]
    assert np.isnan(row["effect_percent"])


def test_three_failed_runs_leave_too_few_and_are_the_reason() -> None:
    row = judged(with_values(campaign(), ARM, [1, 2, 4], throughput_tok_s=0.0))
    assert row["verdict"] == words.NOT_ASSESSED
    assert (
        row["reason"]
        == f"2 of 5 runs usable in both cells, 3 needed: runs 1, 2, 4 of {LABEL}: delivered nothing"
    )


def test_a_level_that_failed_is_named_with_its_error() -> None:
    facts = {"error": "GuideLLM failed (exit code 1)"}
    failure = Outcome("level_failed", "fail", facts, "{error}")
    error = outcome_columns([failure])
    row = judged(with_values(campaign(), ARM, [4], **error))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        f"1 of 5 runs of {LABEL} failed at this level",
    )
    assert (
        row["reason"]
        == f"without run 4 of {LABEL}: failed at this level (GuideLLM failed (exit code 1))"
    )
    assert (
        judged(with_values(campaign(), ARM, [4, 5], **error))["verdict"]
        == words.INCONCLUSIVE
    )


@pytest.mark.parametrize("check", ["errors", "completed"])
def test_a_server_that_failed_requests_in_two_runs_of_five_is_not_better(
    check: str,
) -> None:
    row = judged(with_values(campaign(), ARM, [4, 5], checks_failed=check))
    assert (row["verdict"], row["qualifier"]) == (
        words.INCONCLUSIVE,
        f"2 of 5 runs of {LABEL} failed a check",
    )
    # A check of the measurement speaks of neither side.
    other = judged(with_values(campaign(), ARM, [4, 5], checks_failed="steadiness"))
    assert (other["verdict"], other["qualifier"]) == (
        words.BETTER,
        f"2 of 5 runs of {LABEL} failed a check",
    )


def test_a_run_that_hung_is_not_an_idle_arm() -> None:
    for runs in ([4, 5], RUNS):
        row = judged(
            with_values(campaign(), ARM, runs, throughput_tok_s=0.0, exercised=False)
        )
        assert row["verdict"] not in (words.NOT_EXERCISED, words.BETTER)
        assert "delivered nothing" in row["reason"]


def test_a_run_that_hung_enters_no_latency_and_counts_against_its_arm() -> None:
    hung = with_values(campaign(), ARM, [4, 5], throughput_tok_s=0.0)
    assert judged(hung, "ttft_ms_p50")["verdict"] == words.INCONCLUSIVE
    slow = with_values(
        campaign(), ARM, [4, 5], e2e_ms_p90=np.nan, not_reached="e2e_ms_p90"
    )
    row = judged(slow, "e2e_ms_p90")
    assert (row["verdict"], "many_failed" in ground_codes(row)) == (
        words.INCONCLUSIVE,
        True,
    )
    assert judged(slow)["verdict"] == words.BETTER


def test_a_failure_of_one_run_does_not_move_the_comparison_to_another_level() -> None:
    for scenario in (BASELINE, ARM):
        levels = campaign()
        levels.loc[of(levels, scenario, [2]) & (levels["level"] == 32), THROUGHPUT] = (
            0.0
        )
        tables = compare_all(levels, BASELINES)
        for table, word in (
            (tables.baseline, words.BETTER),
            (tables.peaks, words.NOT_JUDGED),
        ):
            row = table[table["metric"] == THROUGHPUT].iloc[0]
            assert (row["level"], row["runs"], row["verdict"]) == (32, 4, word)
            assert "run 2" in row["reason"]


# --- runs that are missing


def test_a_run_that_only_the_other_cell_has_is_named_and_counts_as_failed() -> None:
    row = judged(without(campaign(), ARM, [5]))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        f"1 of 5 runs of {LABEL} not measured",
    )
    row = judged(without(campaign(), ARM, [4, 5]))
    assert (row["verdict"], row["runs"]) == (words.INCONCLUSIVE, 3)
    assert f"without runs 4, 5 of {LABEL}: not measured" in row["reason"]
    row = judged(without(campaign(), BASELINE, [4, 5]))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "2 of 5 runs of no-offload not measured",
    )


def test_a_run_that_lacks_the_level_is_named() -> None:
    levels = campaign()
    row = judged(levels[~(of(levels, ARM, [4, 5]) & (levels["level"] == 32))])
    assert (row["verdict"], row["level"], row["runs"]) == (words.INCONCLUSIVE, 32, 3)
    assert f"without runs 4, 5 of {LABEL}: not measured at this level" in row["reason"]


def test_a_run_that_both_cells_lack_makes_fewer_runs() -> None:
    row = judged(
        campaign()[lambda levels: levels["run"] != 5],
        requested_runs=dict.fromkeys(_cells(campaign()), 5),
    )
    assert (row["verdict"], row["runs"], row["qualifier"], row["reason"]) == (
        words.BETTER,
        4,
        "",
        "",
    )


def test_a_missing_imported_result_is_named_and_refuses_nothing() -> None:
    row = judged(without(campaign(), ARM, [4, 5]).assign(engine=IMPORTED))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        f"2 of 5 runs of {LABEL} not measured",
    )


def _cells(levels: pd.DataFrame) -> list[Cell]:
    return [*tables_by_cell(levels)]


def _moved(levels: pd.DataFrame, hours: float) -> pd.DataFrame:
    times = {
        name: [
            time.isoformat()
            for time in pd.to_datetime(levels[name], utc=True)
            + pd.Timedelta(hours=hours)
        ]
        for name in ("run_started", "run_finished")
    }
    return levels.assign(**times)


def repeated_late(levels: pd.DataFrame, numbers: Sequence[int]) -> pd.DataFrame:
    """The same campaign with runs of the arm that were repeated a hundred hours later."""
    chosen = of(levels, ARM, numbers)
    moved = _moved(levels[chosen], 100.0)
    return pd.concat([levels[~chosen], moved], ignore_index=True)


def bridged(hours: float, failed: Sequence[int] = ()) -> pd.DataFrame:
    """An arm of the first day, and one of later, in whose blocks the baseline was measured again as runs 6 to 10."""
    levels = levels_table(
        effects={BASELINE: 0.0, ARM: 0.2, "lmcache-redis": 0.2}, sd=0.01
    )
    again = levels[levels["scenario"] == BASELINE].copy()
    again["run"] += 5
    again[[THROUGHPUT, "ttft_ms_p50"]] *= 1.0001
    late = _moved(pd.concat([levels[levels["scenario"] == ARM], again]), hours)
    first = levels[levels["scenario"] != ARM]
    return with_values(
        pd.concat([first, late], ignore_index=True), ARM, failed, throughput_tok_s=0.0
    )


@pytest.mark.parametrize("hours", [6.0, 1000.0])
def test_the_runs_of_a_bridge_are_missing_in_no_other_arm(hours: float) -> None:
    levels = bridged(hours)
    requested_runs = {
        cell: 10 if cell.scenario == BASELINE else 5 for cell in _cells(levels)
    }
    table = compare_all(levels, BASELINES, requested_runs=requested_runs).baseline
    rows = table[table["metric"] == THROUGHPUT].set_index("scenario")
    assert list(rows["verdict"]) == [words.BETTER] * 2
    assert (
        rows.loc["lmcache-redis", "qualifier"],
        rows.loc["lmcache-redis", "reason"],
    ) == ("", "")
    assert rows.loc[ARM, "basis_blocks"] == "shared blocks"


def test_a_bridge_names_the_side_whose_run_failed_although_numbers_overlap() -> None:
    levels = bridged(1000.0, [2])
    row = judged(with_values(levels, BASELINE, [9], throughput_tok_s=0.0))
    assert row["basis_blocks"] == "shared blocks"
    assert f"run 2 of {LABEL}: delivered nothing" in row["reason"]
    assert "run 9 of no-offload: delivered nothing" in row["reason"]
    # One run of each failed a check: neither reason replaces the other.
    levels = with_values(
        with_values(bridged(1000.0), ARM, [2], checks_failed="turns"),
        BASELINE,
        [7],
        checks_failed="steadiness",
    )
    row = judged(levels)
    assert f"run 2 of {LABEL}: {FAILURES['turns']}" in row["reason"]
    assert f"run 7 of no-offload: {FAILURES['steadiness']}" in row["reason"]


# --- copies


def copied(levels: pd.DataFrame, scenario: str, runs: Sequence[int]) -> pd.DataFrame:
    """The same campaign with runs that repeat run 1 under their own numbers and times."""
    changed = levels.copy()
    kept = ["run", "run_started", "run_finished"]
    first = levels[of(levels, scenario, [1])].drop(columns=kept)
    for run in runs:
        changed.loc[of(levels, scenario, [run]), first.columns] = first.to_numpy()
    return changed.astype(levels.dtypes.to_dict())


def test_copies_of_one_run_are_no_spread() -> None:
    levels = copied(copied(campaign(runs=3), ARM, [2, 3]), BASELINE, [2, 3])
    row = judged(levels)
    assert row["verdict"] == words.NOT_ASSESSED
    assert f"runs 2, 3 of {LABEL}: equal to run 1 to the digit" in row["reason"]
    assert "runs 2, 3 of no-offload: equal to run 1 to the digit" in row["reason"]
    assert np.isnan(row["low_percent"])


def test_a_copy_counts_once_and_the_other_runs_are_judged() -> None:
    row = judged(copied(campaign(), ARM, [4]))
    assert (row["verdict"], row["runs"], row["qualifier"]) == (
        words.BETTER,
        4,
        f"1 of 5 runs of {LABEL} copied",
    )


def test_a_baseline_copied_under_the_name_of_an_arm_is_at_parity_with_nothing() -> None:
    levels = campaign(0.0)
    twin = levels[levels["scenario"] == BASELINE]
    levels.loc[levels["scenario"] == ARM, THROUGHPUT] = twin[THROUGHPUT].to_numpy()
    names = [name for name in levels if "_ms_" in name or name.startswith("requests_")]
    levels.loc[levels["scenario"] == ARM, names] = twin[names].to_numpy()
    row = judged(levels)
    assert row["verdict"] == words.NOT_ASSESSED
    assert "equal to run 1 of" in row["reason"]


def test_runs_of_one_rate_with_times_of_their_own_are_no_copies() -> None:
    levels = campaign()
    levels[THROUGHPUT] = levels[THROUGHPUT].round(-1)
    assert judged(levels)["verdict"] == words.BETTER


# --- machines


def on(
    levels: pd.DataFrame, scenario: str, runs: Sequence[int], machine: str = "beef"
) -> pd.DataFrame:
    return with_values(levels, scenario, runs, hardware=machine)


def test_machines_are_those_of_each_pair() -> None:
    levels = campaign(runs=8)
    crossed = on(on(levels, ARM, range(2, 9)), BASELINE, [1])
    row = judged(crossed)
    assert (row["verdict"], row["grounds"]) == (words.NOT_ASSESSED, "other_machine")
    one = judged(on(levels, ARM, [1]))
    assert (one["verdict"], one["runs"]) == (words.BETTER, 7)
    assert (one["qualifier"], one["reason"]) == (
        "other hardware in 1 of 8 runs",
        "without run 1: on another machine",
    )
    few = judged(on(levels, ARM, range(1, 7)))
    assert (few["verdict"], few["grounds"], few["reason"]) == (
        words.NOT_ASSESSED,
        "other_machine",
        "measured on other hardware than its baseline in 6 of 8 runs",
    )


def test_blocks_on_machines_of_their_own_are_compared() -> None:
    row = judged(on(on(campaign(), ARM, [4, 5]), BASELINE, [4, 5]))
    assert (row["verdict"], row["runs"], row["qualifier"]) == (words.BETTER, 5, "")
    assert row["basis_hardware"] == "one kind of machine in each run"
    assert judged(campaign())["basis_hardware"] == "one kind of machine"


def test_runs_of_another_server_at_the_address_are_said_beside_the_verdict() -> None:
    """Of servers that ran already, whose declaration is one; a few blocks more or less are every start's own."""
    levels = campaign().assign(engine="existing", server_build="0.32.0")
    levels["device_tokens"] = 9000.0
    near = judged(with_values(levels, ARM, [2], device_tokens=8960.0))
    assert (near["verdict"], near["qualifier"]) == (words.BETTER, "")
    smaller = with_values(levels, ARM, [2], device_tokens=4500.0)
    for engine in ("existing", "local"):
        row = judged(smaller.assign(engine=engine))
        assert (row["verdict"], row["runs"], row["qualifier"]) == (
            words.BETTER,
            4,
            "1 of 5 runs of native-offload 10K measured with another server",
        )
    rebuilt = judged(with_values(levels, BASELINE, [1, 2], server_build="0.32.1"))
    assert (rebuilt["verdict"], rebuilt["qualifier"]) == (words.BETTER, "other build")
    assert judged(levels)["qualifier"] == ""


def test_machines_that_nobody_recorded_are_not_said_to_be_one() -> None:
    row = judged(campaign().assign(hardware=""))
    assert (row["verdict"], row["basis_hardware"]) == (
        words.BETTER,
        "unknown: machine not recorded",
    )
    assert judged(on(campaign(), ARM, RUNS, ""))["verdict"] == words.NOT_ASSESSED


@pytest.mark.parametrize("off", [BASELINE, ARM])
def test_a_server_that_stores_on_both_sides_is_said_beside_the_verdict(
    off: str,
) -> None:
    """Loading was switched off request by request; with both sides off nothing differs in that."""
    row = judged(with_values(campaign(), off, RUNS, activity="switched off"))
    assert row["basis_tier"] == "qualifies: loading alone: both sides store"
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "loading alone: both sides store",
    )
    both = judged(campaign().assign(activity="switched off"))
    assert "both_store" not in str(both["findings"])


def test_somebody_else_on_a_server_is_said_beside_the_verdict() -> None:
    outcome = Outcome("others_on_server", "warn", words="somebody else: 3.0 %")
    seen = outcome_columns([outcome])
    row = judged(with_values(campaign(), BASELINE, [2], **seen))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "somebody else used a server",
    )


# --- work that is not known


def undeclared(
    tokens: tuple[float, float], error: float, requests: int = 500
) -> pd.DataFrame:
    """A campaign that declares no work, whose answers have so many tokens in baseline and arm."""
    levels = campaign().assign(
        workload="", request_output_tokens_se=error, requests_completed=requests
    )
    for scenario, count in zip((BASELINE, ARM), tokens, strict=True):
        levels.loc[levels["scenario"] == scenario, "request_output_tokens"] = count
    return levels


@pytest.mark.parametrize("error", [np.nan, 0.01, np.inf])
def test_answers_of_another_length_are_other_work_even_without_an_error(
    error: float,
) -> None:
    row = judged(undeclared((37.0, 20.0), error))
    assert row["verdict"] == words.NOT_ASSESSED
    assert row["basis_work"] == "refuses: output tokens of a request 20 against 37"


def test_work_of_which_nothing_is_known_is_not_the_same() -> None:
    row = judged(undeclared((np.nan, np.nan), np.nan))
    assert (row["verdict"], row["grounds"]) == (words.NOT_ASSESSED, "work_unknown")
    one_side = judged(undeclared((64.0, np.nan), 0.001))
    assert (one_side["verdict"], one_side["grounds"]) == (
        words.NOT_ASSESSED,
        "work_unknown",
    )
    vague = judged(undeclared((37.0, 20.0), 0.6))
    assert (vague["verdict"], vague["grounds"]) == (words.NOT_ASSESSED, "work_unknown")


def test_cut_off_requests_of_unknown_number_excuse_no_difference() -> None:
    row = judged(undeclared((37.0, 20.0), 0.01).assign(incomplete_share=np.nan))
    assert row["verdict"] == words.NOT_ASSESSED


@pytest.mark.parametrize("error", [np.nan, 0.001])
def test_counted_answers_of_one_length_are_the_same_work(error: float) -> None:
    row = judged(undeclared((64.0, 64.2), error))
    assert (row["verdict"], row["basis_work"]) == (words.BETTER, "the same")
    few = judged(
        with_values(
            undeclared((64.0, 64.0), 0.01), ARM, [3], request_output_tokens=np.nan
        )
    )
    assert (few["verdict"], few["basis_work"]) == (words.BETTER, "the same")


def test_prompts_of_unknown_length_are_said_beside_the_verdict() -> None:
    row = judged(undeclared((64.0, 64.0), 0.001).assign(request_prompt_tokens=np.nan))
    assert (row["verdict"], row["qualifier"]) == (
        words.BETTER,
        "lengths of prompts not known",
    )


def test_a_number_that_neither_side_has_is_no_failure_of_either() -> None:
    levels = campaign()
    for scenario in (ARM, BASELINE):
        levels = with_values(levels, scenario, [2, 3], **{THROUGHPUT: np.nan})
    row = judged(levels)
    assert (row["verdict"], row["qualifier"], row["runs"]) == (words.BETTER, "", 3)


# --- what holds for every campaign

CHANGES: dict[str, dict[str, object]] = {
    "sound": {},
    "hung": {THROUGHPUT: 0.0},
    "no number": {THROUGHPUT: np.nan},
    "infinite": {THROUGHPUT: np.inf},
    "failed": {"checks_failed": "level_failed"},
    "missing": {},
    "unsteady": {"checks_failed": "steadiness"},
    "elsewhere": {"hardware": "beef"},
    "idle": {"exercised": False},
}
FAILED = ("hung", "no number", "infinite", "failed", "missing")
Pairs = list[tuple[str, str]]


def in_states(effect: float, pairs: Pairs) -> pd.DataFrame:
    """A campaign whose runs, of arm and baseline, are in these states."""
    levels = campaign(effect, runs=len(pairs))
    for run, pair in enumerate(pairs, start=1):
        for scenario, state in zip((ARM, BASELINE), pair, strict=True):
            levels = with_values(levels, scenario, [run], **CHANGES[state])
    for side, scenario in enumerate((ARM, BASELINE)):
        missing = [
            run for run, pair in enumerate(pairs, start=1) if pair[side] == "missing"
        ]
        levels = without(levels, scenario, missing)
    return levels


def runs_named(reason: str) -> set[int]:
    lists = re.findall(r"runs? ([\d, ]+?)(?: of [^:]+)?: ", reason)
    return {int(run) for listed in lists for run in listed.split(", ")}


# A run that hung counts against its cell, whether the other cell has its own or not.
SOUND: Pairs = [("sound", "sound")] * 4
HUNG_WITH_AND_WITHOUT_PARTNER: Pairs = [*SOUND, ("sound", "hung"), ("missing", "hung")]


@settings(max_examples=60, deadline=None)
@example(HUNG_WITH_AND_WITHOUT_PARTNER, -0.3)
@given(
    st.lists(
        st.tuples(st.sampled_from([*CHANGES]), st.sampled_from([*CHANGES][:-1])),
        min_size=6,
        max_size=8,
    ),
    st.sampled_from([-0.3, 0.0, 0.3]),
)
def test_every_run_of_a_verdict_is_compared_or_named(
    pairs: Pairs, effect: float
) -> None:
    """The runs that are kept and those that are named are all that either side has or lacks."""
    levels = in_states(effect, pairs)
    if set(levels["scenario"]) != {ARM, BASELINE}:
        return
    row = judged(levels)
    if row["verdict"] not in words.VERDICTS:
        return
    known = {
        run for run, pair in enumerate(pairs, start=1) if pair != ("missing", "missing")
    }
    alike = [("sound", "sound"), ("elsewhere", "elsewhere")]
    if row["family"].endswith(words.IDLE_FAMILY):
        # What an idle arm costs is judged on its idle runs.
        alike = [("idle", "sound")]
    fit = {run for run in known if pairs[run - 1] in alike}
    assert runs_named(row["reason"]) == known - fit
    assert row["runs"] == len(fit)
    idle = {run for run in known if "idle" in pairs[run - 1]}
    assert row["qualifier"] or known - fit <= idle
    for side, favourable in enumerate((words.BETTER, words.WORSE)):
        # What both lack in the same way is a finding about neither.
        failed = sum(
            pairs[run - 1][side] in FAILED and len(set(pairs[run - 1])) > 1
            for run in known
        )
        if failed > 0.25 * len(known):
            assert row["verdict"] not in (favourable, words.PARITY)


# --- what a reader sees


def report_of(levels: pd.DataFrame) -> str:
    measured = small.measured(levels)
    return small.first_screen(small.plan(cells=_cells(levels)), measured)


def test_the_first_screen_says_beside_a_gain_that_a_run_of_the_arm_failed() -> None:
    text = report_of(with_values(campaign(), ARM, [2], throughput_tok_s=0.0))
    assert f"1 of 5 runs of {LABEL} delivered nothing" in text


def test_the_first_screen_asks_for_the_failed_runs_and_not_for_more_runs() -> None:
    text = report_of(with_values(campaign(), ARM, [4, 5], throughput_tok_s=0.0))
    assert f"2 of 5 runs of {LABEL} delivered nothing" in text
    assert "would resolve a difference" not in text
