import math
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.support.described import described_run
from tests.support.synthetic import level_row, run_description

from kveval.load.reports import LevelReport, RequestRecord
from kveval.store.conditions import Change
from kveval.store.run_file import IMPORTED, LevelRun
from kveval.tables.levels import checks_level
from kveval.tables.levels.noise import rate_drift
from kveval.tables.levels.outcomes import (
    Outcome,
    add_outcomes,
    failed_checks,
    note,
    outcome_columns,
    outcomes_of,
    run_checks,
    warn,
)
from kveval.tables.levels.records import window_columns
from kveval.tables.levels.requests import Requests
from kveval.tables.levels.rows import LEVEL_CHECKS


def level(
    rate: float = 640.0, streams: int = 8, **changes: Any
) -> checks_level.JudgedLevel:
    """A level that passes every check: 120 s at a constant rate."""
    row = level_row("m", "native-offload", 1, streams, rate)
    row |= {
        "throughput_req_s": rate / 64,
        "requests_total": row["requests_completed"] + streams,
        "turns_seen": 3,
    }
    row |= {"working_set_tokens": 400_000.0, "tier_tokens": 640_000.0}
    row |= {
        "requests_completed": 1200,
        "ttft_count": 1200,
        "throughput_server_difference": 0.0,
        "warmup_s": 30.0,
    }
    row |= {
        f"{name}_ms_mean": row[f"{name}_ms_p50"]
        for name in ("ttft", "tpot", "itl", "e2e")
    }
    return checks_level.JudgedLevel(
        row={**row, **changes},
        run=described_run(run_description("m", "native-offload", 1, 1)),
        entry=LevelRun(
            level=streams,
            start=0.0,
            end=120.0,
            counters={"vllm:hits_total": Change(1.0, 2.0, 1.0)},
        ),
        report=LevelReport(
            "concurrent", streams, 0.0, 120.0, 30.0, 1200, streams, 0, (), 0
        ),
        requests=steady(rate, 120.0),
        window=(0.0, 120.0),
    )


def steady(rate: float, seconds: float, late: float = 1.0) -> Requests:
    """Requests of 64 tokens back to back; the last third of the time delivers `late` times the rate."""
    records = []
    time = 0.0
    while time < seconds:
        length = 64 / rate / (late if time > 2 / 3 * seconds else 1.0)
        times, ms = (time, time, time + length, time + length), 1000 * length
        records.append(
            RequestRecord(
                "completed", *times, 64, 64, 1.0, ms / 64, ms / 63, ms, "c", 0
            )
        )
        time += length
    return Requests(records)


def shifted(requests: Requests, by_s: float) -> Requests:
    """The same requests, later."""
    times = ("start", "first_token", "last_token", "end")
    later = []
    for each in requests.records:
        moved = {name: getattr(each, name) + by_s for name in times}
        later.append(msgspec.structs.replace(each, **moved))
    return Requests(later)


def found(judged: checks_level.JudgedLevel) -> dict[str, str]:
    return {
        outcome.code: outcome.severity for outcome in run_checks(LEVEL_CHECKS, judged)
    }


def test_a_good_level_passes_everything() -> None:
    assert found(level()) == {}


@pytest.mark.parametrize(
    ("changes", "name", "severity"),
    [
        ({"requests_completed": 0}, "completed", "fail"),
        ({"requests_errored": 1}, "errors", "warn"),
        ({"requests_errored": 100}, "errors", "fail"),
        ({"output_tokens": 2499.0}, "few_tokens", "note"),
        ({"requests_completed": 199}, "few_completions", "note"),
        ({"ttft_count": 999}, "few_latencies", "note"),
        ({"concurrency_mean": 7.5}, "closed_loop", "warn"),
        ({"throughput_req_s": 8.9}, "littles_law", "note"),
        ({"throughput_req_s": 8.0}, "littles_law", "fail"),
        ({"ttft_ms_p90": 1.0}, "percentiles", "fail"),
        ({"e2e_ms_p50": 0.0}, "percentiles", "fail"),
        ({"ttft_ms_mean": 1e6}, "mean_above_p90", "note"),
        ({"throughput_server_difference": -0.03}, "server_tokens", "warn"),
        ({"throughput_server_difference": 0.051}, "server_tokens", "fail"),
        ({"turns_seen": 1}, "turns", "fail"),
        ({"turns_seen": 1, "requests_completed": 47}, "turns", "note"),
    ],
)
def test_each_check_finds_its_fault(
    changes: dict[str, Any], name: str, severity: str
) -> None:
    assert found(level(**changes))[name] == severity


def test_a_level_beside_other_work_is_named() -> None:
    quiet, busy, unknown = (
        replace(
            level(),
            entry=msgspec.structs.replace(level().entry, others_cpu_percent=share),
        )
        for share in (4.0, 35.0, None)
    )
    assert "disturbed" not in found(quiet)
    assert "disturbed" not in found(unknown)
    assert found(busy)["disturbed"] == "warn"


def test_unsteady_delivery_is_said_and_a_window_in_which_it_ended_fails() -> None:
    assert "steadiness" not in found(level())
    of_rate = {
        late: replace(level(), requests=steady(640.0, 120.0, late=late))
        for late in (1.2, 2.0)
    }
    assert found(of_rate[1.2])["steadiness"] == "warn"
    assert found(of_rate[2.0])["steadiness"] == "warn"
    # The two states are in the interval of a comparison.
    assert "times_apart" not in facts(of_rate[1.2], "steadiness")
    assert facts(of_rate[2.0], "steadiness") == {
        "change_percent": pytest.approx(100 * 2 / 3, abs=1),
        "times_apart": pytest.approx(2, abs=0.02),
    }
    ended = replace(level(), requests=steady(640.0, 79.0))
    begun = replace(level(), requests=shifted(steady(640.0, 79.0), 41.0))
    assert found(ended)["steadiness"] == found(begun)["steadiness"] == "fail"
    change, _ = rate_drift(steady(640.0, 120.0, late=1.2), 0.0, 120.0, 8)
    assert change == pytest.approx(0.2 / 1.1, abs=0.01)


def test_a_starved_loop_breaks_no_law_of_the_requests_that_were_in_flight() -> None:
    starved = level(concurrency_mean=6.0, throughput_req_s=7.5)
    assert found(starved) == {"closed_loop": "warn"}


def test_a_window_of_first_visits_is_noted() -> None:
    assert (
        found(level(first_visit_share=0.4, unshared_share=0.2))["first_visits"]
        == "note"
    )
    assert "first_visits" not in found(level(first_visit_share=0.3, unshared_share=0.1))


def test_a_report_of_another_level_or_window_fails() -> None:
    good = level()
    assert (
        found(replace(good, report=replace(good.report, streams=16)))["streams"]
        == "fail"
    )
    assert (
        found(replace(good, report=replace(good.report, end=125.0)))["window"] == "fail"
    )
    assert (
        found(replace(good, report=replace(good.report, completed=1300)))["totals"]
        == "warn"
    )
    assert (
        found(replace(good, report=replace(good.report, warmup_s=0.0)))["warmup"]
        == "warn"
    )


def test_what_warm_up_was_asked_for_is_not_known_of_imports() -> None:
    cut = replace(level().report, warmup_s=10.0)
    here = of_engine("local", warmup_s=0.0)
    assert found(replace(here, report=cut))["warmup"] == "warn"
    assert "warmup" not in found(replace(of_engine(IMPORTED, warmup_s=0.0), report=cut))
    # Where the settings of an import say it, it is held against that.
    assert (
        found(replace(of_engine(IMPORTED, warmup_s=30.0), report=cut))["warmup"]
        == "warn"
    )


def of_engine(engine: str, **workload: Any) -> checks_level.JudgedLevel:
    good = level()
    description = run_description("m", "native-offload", 1, 1)
    description["specification"]["workload"] |= workload
    return replace(
        good,
        run=msgspec.structs.replace(described_run(description), engine=engine),
    )


def test_what_is_answered_as_it_comes_is_not_saturated() -> None:
    """A strategy without a rate of its own: 0.008 requests in flight are no queue, but nobody knows the load."""

    def everything(in_flight: float) -> str:
        judged = open_loop(concurrency_mean=in_flight)
        judged.run.specification["workload"] |= {"profile": "sweep"}
        judged = replace(
            judged,
            report=replace(judged.report, strategy="throughput", rate_req_s=None),
        )
        return found(judged)["saturated_open_loop"]

    assert everything(0.008) == "warn"
    assert everything(64.0) == everything(np.nan) == "fail"


def test_a_request_that_ends_with_the_window_was_completed() -> None:
    row = window_columns(Requests(steady(640.0, 120.0).records[:100]), 0.0, 10.0)
    assert (row["requests_completed"], row["requests_incomplete"]) == (100, 0)
    assert row["ttft_count"] == row["e2e_count"] == 100


def test_a_rate_of_no_one_state_says_nothing_against_latencies() -> None:
    row = {"checks_failed": "steadiness;errors"}
    assert failed_checks(row, of_throughput=True) == ["steadiness", "errors"]
    assert failed_checks(row, of_throughput=False) == ["errors"]
    assert failed_checks({"checks_failed": ""}, of_throughput=True) == []


def test_nothing_known_is_nothing_failed() -> None:
    unknown = level(
        throughput_server_difference=np.nan,
        ttft_ms_p50=np.nan,
        ttft_ms_p90=np.nan,
        ttft_ms_mean=np.nan,
    )
    assert "server_tokens" not in found(unknown)
    assert "percentiles" not in found(unknown)
    unknown = level(
        concurrency_mean=np.nan,
        e2e_ms_p50=np.nan,
        e2e_ms_p90=np.nan,
        e2e_ms_mean=np.nan,
    )
    assert found(unknown) == {}


def test_no_message_has_a_number_that_is_not_known() -> None:
    unknown = {
        "concurrency_mean": np.nan,
        "e2e_ms_p50": np.nan,
        "requests_completed": 199,
    }
    at_once = replace(
        open_loop(**unknown),
        report=replace(level().report, strategy="throughput", streams=None),
    )
    at_once.run.specification["workload"] |= {"profile": "sweep"}
    said = {
        outcome.code: outcome.message
        for judged in (level(**unknown), at_once)
        for outcome in run_checks(LEVEL_CHECKS, judged)
    }
    assert {"few_completions", "saturated_open_loop"} <= said.keys()
    assert not [message for message in said.values() if re.search(r"\bnan\b", message)]


def test_columns_sort_names_by_severity_and_hold_the_outcomes_themselves() -> None:
    outcomes = [
        Outcome("a", "fail", words="one: 1 | 2"),
        Outcome("b", "note", words='two; "x"'),
        Outcome("c", "fail", words="x"),
    ]
    row = outcome_columns(outcomes)
    assert row["checks_failed"] == "a;c"
    assert (row["checks_warned"], row["checks_noted"]) == ("", "b")
    assert outcomes_of(row) == outcomes
    assert (
        outcomes_of(outcome_columns([]))
        == outcomes_of({"checks_findings": np.nan})
        == []
    )


def test_facts_come_back_from_the_table_as_they_went_in() -> None:
    outcome = warn(
        "{error}: {cells: and }, {counts}, {share_percent:.1f} %, {rate_req_s:.0f}/s, {most}, {least}",
        error='{0} {x!r} "quoted"; 1 | 2',
        cells=["a {b}", "c"],
        counts=np.array([1, 2]),
        share_percent=np.float64(12.34),
        rate_req_s=np.nan,
        most=np.inf,
        least=-np.inf,
        spread=[1.5, np.nan, np.inf],
        known=np.bool_(True),
        none=None,
    )
    (back,) = outcomes_of(outcome_columns([outcome]))
    assert back.message == outcome.message
    assert back.message == (
        '{0} {x!r} "quoted"; 1 | 2: a {b} and c, 1, 2, 12.3 %, nan/s, inf, -inf'
    )
    assert repr(back) == repr(outcome)
    plain = {str: "error", float: "share_percent", bool: "known"}
    assert all(type(back.facts[name]) is type_ for type_, name in plain.items())
    assert back.facts["counts"] == [1, 2]
    assert math.isnan(back.facts["rate_req_s"]) and math.isnan(back.facts["none"])


def test_a_fact_is_plain() -> None:
    with pytest.raises(TypeError, match="neither text nor number"):
        note("{shares}", shares={"tier": 0.5})


def facts(judged: checks_level.JudgedLevel, code: str) -> dict[str, Any]:
    (outcome,) = (
        outcome for outcome in run_checks(LEVEL_CHECKS, judged) if outcome.code == code
    )
    return dict(outcome.facts)


def test_facts_have_their_units_in_their_names() -> None:
    assert facts(level(requests_errored=100), "errors") == {
        "requests_failed": 100,
        "requests_total": 1208,
    }
    faster = replace(level(), requests=steady(640.0, 120.0, late=1.2))
    assert facts(faster, "steadiness") == {
        "change_percent": pytest.approx(100 * 0.2 / 1.1, abs=1),
        "limit_percent": pytest.approx(10.9, abs=0.1),
    }
    assert facts(level(requests_completed=199), "few_completions") == {
        "requests_completed": 199,
        "enough_requests": 200,
        "window_s": 120.0,
        "e2e_p50_s": pytest.approx(0.8),
    }
    assert facts(level(throughput_server_difference=-0.03), "server_tokens") == {
        "difference_percent": pytest.approx(-3)
    }
    assert facts(level(ttft_count=199), "few_latencies") == {
        "latencies_observed": 199,
        "p50_enough": 50,
        "p90_enough": 200,
        "p99_enough": 1000,
    }
    cut = level(not_reached="ttft_ms_p90;ttft_ms_p99", ttft_censored=30)
    assert facts(cut, "not_reached") == {
        "quantiles": ["ttft_ms_p90", "ttft_ms_p99"],
        "ttft_cut_off": 30,
        "ttft_total": 1230,
    }


def test_a_later_outcome_joins_the_row_it_belongs_to() -> None:
    table = pd.DataFrame(
        [outcome_columns([Outcome("a", "fail", words="one")]), outcome_columns([])]
    )
    joined = add_outcomes(table, [[Outcome("b", "fail", words="two")], []])
    assert list(joined["checks_failed"]) == ["a;b", ""]
    assert [
        [outcome.message for outcome in outcomes_of(row)]
        for row in joined.to_dict("records")
    ] == [
        ["one", "two"],
        [],
    ]


def open_loop(
    profile: str = "poisson",
    strategy: str = "poisson",
    asked: int = 600,
    **changes: Any,
) -> checks_level.JudgedLevel:
    """A level of `asked` requests a minute, answered as fast as they come: 10/s with 8 in flight."""
    closed = level(**changes)
    run = described_run(run_description("m", "native-offload", 1, 1))
    run.specification["workload"] |= {"profile": profile}
    # A report of a trace does not say at which rate it was sent.
    rate = None if strategy == "trace" else 10.0
    report = LevelReport(strategy, None, 0.0, 120.0, 30.0, 1200, 8, 0, (), 0, rate)
    return replace(
        closed,
        run=run,
        report=report,
        entry=msgspec.structs.replace(closed.entry, level=asked),
    )


OPEN_LOOPS = [("poisson", "poisson"), ("constant", "constant"), ("bursts", "trace")]


@pytest.mark.parametrize(("profile", "strategy"), OPEN_LOOPS)
def test_an_open_loop_is_judged_by_its_rate_and_not_by_streams(
    profile: str, strategy: str
) -> None:
    assert found(open_loop(profile, strategy)) == {"open_loop": "note"}
    assert (
        found(open_loop(profile, strategy, throughput_req_s=8.0))["saturated_open_loop"]
        == "fail"
    )


@pytest.mark.parametrize(("profile", "strategy"), OPEN_LOOPS)
def test_few_requests_in_a_window_are_no_saturation_by_chance_alone(
    profile: str, strategy: str
) -> None:
    """12 requests a minute: 4.5 are due in 22.5 s, and 4 or 5 come."""
    few = replace(
        open_loop(profile, strategy, asked=12, throughput_req_s=4 / 22.5),
        window=(0.0, 22.5),
    )
    few = replace(
        few, report=replace(few.report, rate_req_s=None if strategy == "trace" else 0.2)
    )
    records = [
        msgspec.structs.replace(few.requests.records[0], start=time)
        for time in (1.0, 6.0, 11.0, 16.0, 21.0)
    ]
    assert "saturated_open_loop" not in found(replace(few, requests=Requests(records)))
    # Of twice as many that were sent, as many again wait.
    assert "saturated_open_loop" in found(replace(few, requests=Requests(records * 2)))


def test_random_arrivals_may_be_fewer_than_due_where_evenly_spaced_ones_may_not() -> (
    None
):
    """10/s for 10 s, of which 80 came and were answered."""
    for strategy, outcome in (("poisson", None), ("constant", "fail")):
        few = replace(
            open_loop(strategy, strategy, throughput_req_s=8.0), window=(0.0, 10.0)
        )
        few = replace(few, requests=Requests(few.requests.records[:80]))
        assert found(few).get("saturated_open_loop") == outcome


def test_one_request_at_a_time_whatever_the_level_counts() -> None:
    good = level(streams=1)
    good.run.specification["workload"] |= {"profile": "prefix-length"}
    by_length = replace(good, entry=msgspec.structs.replace(good.entry, level=4096))
    assert (by_length.streams, by_length.in_flight) == (1, 1)
    assert not {"streams", "closed_loop"} & set(found(by_length))


def test_tokens_of_cancelled_requests_are_nobody_elses() -> None:
    judged = level(throughput_server_difference=-0.06, server_generation_tokens=60.0)
    judged = replace(judged, run=msgspec.structs.replace(judged.run, engine="existing"))
    assert list(checks_level.others_on_server(judged)) == []


@pytest.mark.parametrize(
    ("engine", "apart", "named", "severity"),
    [
        ("existing", -0.019, "", ""),
        ("existing", -0.03, "somebody else uses this server: 3.0 %", "warn"),
        ("existing", -0.099, "somebody else uses this server: 9.9 %", "warn"),
        ("existing", -0.11, "somebody else uses this server: 11.0 %", "fail"),
        ("existing", 0.06, "metrics are not read", "fail"),
        ("local", -0.06, "against the server's own count", "fail"),
    ],
)
def test_others_are_named_only_where_they_can_reach_the_server(
    engine: str, apart: float, named: str, severity: str
) -> None:
    judged = level(throughput_server_difference=apart)
    judged = replace(judged, run=msgspec.structs.replace(judged.run, engine=engine))
    outcomes = [
        *checks_level.server_tokens(judged),
        *checks_level.others_on_server(judged),
    ]
    assert [outcome.severity for outcome in outcomes] == [severity] * bool(severity)
    assert all(named in outcome.message for outcome in outcomes)
    others = "somebody else" in named
    assert all(("somebody" in outcome.message) is others for outcome in outcomes)
