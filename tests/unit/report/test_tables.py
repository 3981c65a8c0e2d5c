"""The report's tables, on a campaign as large as a published one."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
import yaml
from tests.support import synthetic_campaign as campaign
from tests.support.described import vllm
from tests.support.report_text import (
    Table,
    answer_in,
    part_of,
    remedies_text,
    result_of,
    result_of_whole,
    table_of,
    tables_by_model,
    tables_in,
    text_of,
    text_of_template,
)

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data import numbers as numerals
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.comparisons import UNDECLARED, comparison_of, effect_text
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.facts.arms import any_decided, arms_by_verdict
from kveval.report.facts.system import gpu_metrics
from kveval.report.result.checks import check_findings
from kveval.report.result.model import CampaignResult
from kveval.report.result.not_assessed import gaps_of
from kveval.report.result.origin import origin_of
from kveval.report.result.remedies import remedies_of
from kveval.report.result.same_configurations import same_configurations
from kveval.report.result.system import command_lines
from kveval.store.run_file import SidecarRecord
from kveval.tables.cells import THROUGHPUT
from kveval.tables.levels.goodput import GOODPUT
from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.tables.peaks import peak_row
from kveval.tables.system.metrics import with_system_metrics
from kveval.verdict import verdict_words as words
from kveval.verdict.exclusions import REASONS, Exclusion
from kveval.verdict.findings import (
    new_finding,
    read_exclusions,
    records_json,
)
from kveval.verdict.verdicts import compare_all
from kveval.verdict.wording import explanation

LEVELS = (1, 50, 300, 650)
ONE = Cell("Qwen3-14B", "lmcache-local", 20_000)
OTHER = Cell("Qwen3-14B", "lmcache-local", 10_000)
EFFECT = numerals.effect(25.0, 20.0, 30.0)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return campaign.whole()


@pytest.fixture(scope="module")
def plan() -> ReportPlan:
    return campaign.plan()


@pytest.fixture(scope="module")
def result() -> CampaignResult:
    return result_of_whole()


@pytest.fixture(scope="module")
def declared(plan: ReportPlan, measured: Measured) -> CampaignResult:
    """The same with the contrast of the two tiers declared."""
    return result_of(plan, with_contrast(measured))


def row(table: Table, *keys: str) -> Sequence[str]:
    return next(row for row in table.rows if all(key in row for key in keys))


def of_model(
    plan: ReportPlan, measured: Measured, model: str
) -> tuple[ReportPlan, Measured]:
    """The campaign of one model: what does not depend on the others is told sooner."""
    names = ("levels", "peaks", "comparison", "contrasts")
    tables = {name: getattr(measured, name) for name in names}
    kept = {name: table[table["model"] == model] for name, table in tables.items()}
    runs = [run for run in measured.runs if run.cell.model == model]
    cells = [cell for cell in plan.cells if cell.model == model]
    return (
        dataclasses.replace(plan, cells=cells),
        dataclasses.replace(measured, runs=runs, **kept),
    )


def with_contrast(measured: Measured, **changes: object) -> Measured:
    """The same with the contrast of the two tiers declared."""
    table = measured.comparison
    facts = {
        **{**ONE.row, "baseline": OTHER.path, "level": 300.0},
        **{"effect_percent": 25.0, "low_percent": 20.0, "high_percent": 30.0},
        **{"verdict": words.BETTER, "reason": ""},
    }
    base = table[table["metric"] == THROUGHPUT].iloc[[0]]
    return dataclasses.replace(measured, contrasts=base.assign(**(facts | changes)))


def verdicts_of(result: CampaignResult) -> list[Mapping[str, str]]:
    """The rows of all models' arms by their verdicts."""
    return table_of(result, "By model").records


def test_a_strategy_comes_from_the_verdicts(
    measured: Measured, result: CampaignResult
) -> None:
    verdicts = measured.comparison[measured.comparison["metric"] == THROUGHPUT]
    better = verdicts[verdicts["verdict"] == words.BETTER]
    table = verdicts_of(result)
    assert {cells["model"] for cells in table} == {*campaign.MODELS}
    for cells in table:
        number = (better["model"] == cells["model"]).sum()
        named = cells["better than the baseline"].split("; ")
        assert len([*filter(None, named)]) == number
        assert ("arms that" in cells["conclusion"]) == (number > 1)


def test_without_a_better_arm_the_baseline_stays(
    plan: ReportPlan, measured: Measured
) -> None:
    nothing_better = measured.comparison.assign(verdict=words.PARITY)
    facts = dataclasses.replace(measured, comparison=nothing_better)
    conclusions = {cells["conclusion"] for cells in verdicts_of(result_of(plan, facts))}
    assert conclusions == {"no-offload: no arm is better"}


def test_a_better_throughput_at_the_cost_of_latency_is_said(
    plan: ReportPlan, measured: Measured
) -> None:
    comparison = measured.comparison.assign(verdict=words.BETTER)
    comparison.loc[comparison["metric"] == "ttft_ms_p50", "verdict"] = words.WORSE
    facts = dataclasses.replace(measured, comparison=comparison)
    for cells in verdicts_of(result_of(plan, facts)):
        assert "(but a worse median TTFT)" in cells["better than the baseline"]


def test_two_cells_without_a_declared_contrast_get_a_description_and_no_verdict(
    measured: Measured,
) -> None:
    other = dataclasses.replace(ONE, scenario="lmcache-valkey")
    comparison = comparison_of(measured, ONE, other)
    assert (comparison["verdict"], comparison["grounds"]) == (
        words.NOT_ASSESSED,
        UNDECLARED,
    )
    at = [
        measured.levels_of(cell, comparison["level"])["throughput_tok_s"]
        for cell in (ONE, other)
    ]
    ratio = np.exp(np.log(at[0].to_numpy()).mean() - np.log(at[1].to_numpy()).mean())
    assert comparison["effect_percent"] == pytest.approx(100 * (ratio - 1))
    assert "no interval" in effect_text(comparison)


def test_a_declared_contrast_is_quoted_in_either_direction(measured: Measured) -> None:
    left_out = records_json([Exclusion("check_failed", 2, "arm")])
    declared = with_contrast(measured, bound="at least", exclusions=left_out)
    forwards, backwards = (
        comparison_of(declared, ONE, OTHER),
        comparison_of(declared, OTHER, ONE),
    )
    assert (forwards["effect_percent"], forwards["verdict"], forwards["level"]) == (
        25.0,
        words.BETTER,
        300,
    )
    assert backwards["verdict"] == words.WORSE
    assert (forwards["bound"], backwards["bound"]) == ("at least", "at most")
    assert [run.side for run in read_exclusions(backwards)] == ["reference"]
    assert backwards["effect_percent"] == pytest.approx(-20.0)
    assert backwards["low_percent"] == pytest.approx(100 * (1 / 1.3 - 1))
    assert (
        backwards["low_percent"]
        < backwards["effect_percent"]
        < backwards["high_percent"]
    )


def test_declared_contrasts_stand_with_the_comparisons_and_not_with_the_baselines(
    result: CampaignResult, declared: CampaignResult
) -> None:
    table = table_of(declared, f"{ONE.model}, compared")
    assert row(table, f"{ONE.label} against {OTHER.label}", "Throughput", EFFECT)
    by_model = [part_of(text_of(each), "By model") for each in (result, declared)]
    assert by_model[0] == by_model[1]
    assert answer_in(declared) == answer_in(result)
    pairs = tables_by_model(part_of(text_of(declared), "Arms against each other"))
    assert row(pairs[ONE.model], ONE.label, OTHER.label, EFFECT, "**better**")


def test_comparisons_are_in_the_order_of_cells_then_of_quantities(
    declared: CampaignResult,
) -> None:
    table = table_of(declared, f"{ONE.model}, compared")
    arms = [arm.partition(" against ")[0] for arm in table.column("arm")]
    cells = list(dict.fromkeys(arms))
    assert arms == sorted(arms, key=cells.index)
    assert cells[:2] == ["native-offload 10K", "native-offload 20K"]
    own = [cells[:2] for cells in table.rows if cells[0].startswith(ONE.label)]
    titles = [title for title in METRIC_TITLES.values() if title != "Goodput"]
    assert own[1] == [f"{ONE.label} against {OTHER.label}", "Throughput"]
    assert [quantity for _, quantity in own] == ["Throughput", *titles]


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (
            {
                "verdict": words.INDICATIVE_ACTIVITY,
                "indication": "better",
                "reason": "no counter was recorded",
            },
            "indicates better",
        ),
        (
            {
                "verdict": words.INDICATIVE_TIME,
                "indication": "parity",
                "grounds": "another_time",
                "reason": explanation(new_finding("another_time")),
            },
            "indicates no relevant difference, measured at another time",
        ),
    ],
)
def test_what_is_only_indicative_says_what_it_points_to(
    verdict: dict[str, str], said: str, plan: ReportPlan, measured: Measured
) -> None:
    plan, measured = of_model(plan, measured, ONE.model)
    result = result_of(plan, with_contrast(measured, **verdict))
    pair = f"{ONE.label} against {OTHER.label}"
    table = table_of(result, f"{ONE.model}, compared")
    assert f"cannot tell yet, {said}" in row(table, pair, "Throughput")
    gaps = table_of(result, "Not assessed")
    assert row(gaps, f"{ONE.model}, {pair}: Throughput", verdict["reason"])


def test_averages_over_models_name_the_models(
    plan: ReportPlan, measured: Measured
) -> None:
    means = {
        **{"scenario": "lmcache-local", "cpu_blocks": 10_000},
        **{"metric": THROUGHPUT, "models": 2, "panel": "Qwen3-8B;Qwen3-14B"},
        **{"effect_percent": 5.2, "low_percent": 1.0, "high_percent": 9.6},
        "missing": "Qwen3-0.6B/lmcache-local/10000",
    }
    averaged = dataclasses.replace(measured, averages=pd.DataFrame([means]))
    table = table_of(result_of(plan, averaged), "Averaged over models")
    assert table.rows == [
        [
            *("lmcache-local 10K", "Qwen3-8B, Qwen3-14B"),
            *(numerals.effect(5.2, 1.0, 9.6), "Qwen3-0.6B, lmcache-local 10K"),
        ]
    ]


def checks_tables(result: CampaignResult, measured: Measured) -> list[Table]:
    """The tables of checks: of what failed, and of warnings and notes."""
    changed = result.model_copy(update={"checks": check_findings(measured)})
    return tables_in(text_of_template(changed, "appendix/checks.md.j2"))


def test_checks_of_the_campaign_as_a_whole_are_listed(
    measured: Measured, result: CampaignResult
) -> None:
    cell = {"model": "Qwen3-8B", "scenario": "no-offload", "cpu_blocks": 0}
    rows = [
        {"severity": "fail", "check": "rows_once", "message": "twice"},
        {**cell, "severity": "note", "check": "edge", "message": "at the edge"},
        {
            **{"model": "Qwen3-8B", "level": 50},
            **{"severity": "fail", "check": "steadiness", "message": "rose"},
        },
    ]
    checks = pd.DataFrame(rows).assign(facts="{}")
    failed, noted = checks_tables(result, dataclasses.replace(measured, checks=checks))
    assert failed.rows == [["", "", "", "`rows_once`", "twice"]]
    _, _, count, example = row(noted, "`edge`")
    assert count.startswith("1, ")
    assert example == "Qwen3-8B, no-offload: at the edge"


def test_what_was_found_at_several_levels_of_a_run_is_said_once(
    measured: Measured, result: CampaignResult
) -> None:
    levels = measured.levels.copy()
    at = (
        (levels["model"] == "Qwen3-8B")
        & (levels["scenario"] == "llm-d-redis")
        & (levels["run"] == 2)
    )
    message = "every prompt is unique"
    outcome = outcome_columns([Outcome("no_reuse", "fail", words=message)])
    levels.loc[at, list(outcome)] = list(outcome.values())
    failed, *_ = checks_tables(result, dataclasses.replace(measured, levels=levels))
    said = ", ".join(map(str, LEVELS))
    assert failed.rows == [["llm-d-redis", "2", said, "`no_reuse`", message]]


def test_what_is_not_recorded_is_not_shown_empty(
    plan: ReportPlan, measured: Measured
) -> None:
    plan, measured = of_model(plan, measured, ONE.model)
    bare = dataclasses.replace(
        measured,
        peaks=measured.peaks.drop(columns=[*campaign.METRICS], errors="ignore"),
        runs=[msgspec.structs.replace(run, server={}) for run in measured.runs],
    )
    text = text_of(result_of(plan, bare))
    assert "There is no recording of the system for these levels." in text
    assert tables_in(part_of(text, "The system")) == []
    assert "Command lines" not in text


RELEASE = {"kind": "release", "key": "9f", "title": "vllm 0.31.0"}
CHECKOUT = {
    **{"kind": "checkout", "key": "1a2b"},
    "title": "vllm of patched at 3c4d with changes",
}
REDUCED = {
    "gpu_code": "9.0",
    "left_out": ["tilelang"],
    "of_host": {
        "numpy": {"locked": "2.3.5", "there": "2.5.2"},
        "scipy": {"locked": "1.17.1", "there": "1.17.1"},
    },
}
BESIDE = [
    SidecarRecord("redis", "7.0.15", ["redis-server", "--save", ""]),
    SidecarRecord("epp"),
]


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        (
            [
                {"server": {"images": {"server": "a:1", "picker": "b:2"}}},
                {"server": {"images": ["a:1", "c:3"]}},
            ],
            [["image", f"`{image}`"] for image in ("a:1", "b:2", "c:3")],
        ),
        ([{"build": RELEASE}] * 2, [["build of `no-offload`", "vllm 0.31.0"]]),
        (
            [{"build": CHECKOUT}],
            [
                [
                    "build of `no-offload`",
                    "vllm of patched at 3c4d with changes (`1a2b`)",
                ]
            ],
        ),
        (
            [{"reduced_environment": REDUCED}],
            [
                [
                    "server's environment",
                    "reduced: code for compute capability 9.0, without tilelang;"
                    " of the host: numpy 2.5.2 in place of 2.3.5",
                ]
            ],
        ),
        ([{"companions": BESIDE}], [["Redis", "7.0.15"]]),
    ],
    ids=["images", "release", "checkout", "reduced environment", "beside the server"],
)
def test_software_is_named_once_with_what_tells_it_apart(
    changes: list[dict[str, Any]],
    rows: list[list[str]],
    plan: ReportPlan,
    measured: Measured,
) -> None:
    """The runs with changes have these rows more than the same runs without."""
    plain = [run for run in measured.runs if run.cell.scenario == "no-offload"]
    changed = [
        described(msgspec.structs.replace(run, **change))
        for run, change in zip(plain, changes, strict=False)
    ]
    tables = []
    for runs in (plain, [*changed, *plain[len(changed) :]]):
        update = {"origin": origin_of(plan, runs)}
        result = result_of_whole().model_copy(update=update)
        text = text_of_template(result, "appendix/configuration.md.j2")
        software = (each for each in tables_in(text) if each.header[0] == "software")
        tables.append(next(software).rows)
    before, after = tables
    assert [cells for cells in after if cells not in before] == rows


def test_what_ran_beside_the_server_is_shown_as_it_ran(measured: Measured) -> None:
    run = msgspec.structs.replace(measured.runs[0], companions=BESIDE)
    assert command_lines([run])[1] == "redis-server --save ''"


def test_a_pair_differs_in_one_thing(result: CampaignResult) -> None:
    part = part_of(text_of(result), "Arms against each other")
    rows = [cells for table in tables_by_model(part).values() for cells in table.rows]
    stores = [
        cells for cells in rows if cells[0].replace("valkey", "redis") == cells[2]
    ]
    sizes = [cells for cells in rows if cells[0].replace("20K", "10K") == cells[2]]
    native = [
        cells
        for cells in rows
        if cells[0].replace("lmcache-local", "native-offload") == cells[2]
    ]
    assert (len(stores), len(native), len(sizes)) == (8, 6, 6)
    assert len(rows) == 20
    without_verdict = [cells for cells in rows if not cells[5]]
    assert without_verdict == [cells for cells in rows if cells not in sizes]
    described = [pair for pair in result.pairs if pair.family == "undeclared"]
    assert len(described) == len(without_verdict)
    assert {pair.grounds[0] for pair in described} == {UNDECLARED}
    assert {remedies_text(pair.remedies).split("`")[1] for pair in described} == {
        "contrasts"
    }


def test_guidance_reads_the_baselines_hit_rate(
    plan: ReportPlan, measured: Measured
) -> None:
    plan, measured = of_model(plan, measured, ONE.model)
    levels = measured.levels.assign(prefix_cache_hit_percent=30.0)
    result = result_of(plan, dataclasses.replace(measured, levels=levels))
    said = table_of(result, "Deployment guidance")
    assert row(said, "prefix hits on the device")[1] == (
        "no-offload, at 300 concurrent: 30 % of prompt tokens; below 50 %: more than "
        "half was computed, which a large enough tier could save in part"
    )


def not_assessed(plan: ReportPlan, measured: Measured) -> dict[str, str]:
    """What has no verdict -> what would settle it, as a report lists it."""
    table = table_of(result_of(plan, measured), "Not assessed")
    return {what: settled for what, _, settled in table.rows}


def test_what_is_open_comes_with_what_would_settle_it(
    plan: ReportPlan, measured: Measured
) -> None:
    single = campaign.measured(
        campaign.levels_table(campaign.cells(), runs=1, levels=LEVELS)
    )
    gaps = not_assessed(plan, single)
    assert any("the 2 missing runs, which" in settled for settled in gaps.values())
    once = dataclasses.replace(plan, runs=1)
    more = "2 more runs of each cell: `runs: 3`"
    assert any(more in settled for settled in not_assessed(once, single).values())
    pair = "lmcache-valkey against lmcache-redis"
    models = "Qwen3-0.6B, Qwen3-8B, Qwen3-14B, Qwen3-32B-AWQ"
    declare = "`contrasts: [[lmcache-valkey, lmcache-redis]]`"
    declarations = {
        what: settled for what, settled in gaps.items() if "`contrasts:" in settled
    }
    assert declarations[f"{pair}: {models}"].startswith(declare)
    # Sizes of one arm are compared without a declaration.
    assert not any("/20000" in step for step in declarations.values())
    only = [
        cell
        for cell in campaign.cells()
        if cell.scenario in ("no-offload", "native-offload")
        and cell.cpu_blocks != 20_000
    ]
    few = campaign.measured(campaign.levels_table(only, levels=LEVELS))
    absent = not_assessed(campaign.plan(only), few)
    for what in ("Valkey", "native offload", "tier's size"):
        assert any(what in subject for subject in absent)


@pytest.mark.parametrize(
    ("metric", "values", "advice"),
    [
        ("ttft_ms_p50", {"ttft_count": 1}, "longer levels"),
        (GOODPUT, {"goodput_settled": 4}, "longer levels"),
        (GOODPUT, {"concurrency_shortfall": 0.2}, "a load generator"),
        (THROUGHPUT, {"checks_failed": "no_reuse"}, "prompts with shared prefixes"),
        (THROUGHPUT, {"checks_failed": "window"}, "levels that pass"),
        (THROUGHPUT, {"activity": "not shown"}, "a recording of the server's metrics"),
        (
            THROUGHPUT,
            {"run": [1, 8, 9]},
            "the 4 missing runs, which `snakemake report`",
        ),
        (
            THROUGHPUT,
            {"run": [1, 2, 9]},
            "the 2 missing runs, which `snakemake report`",
        ),
        (THROUGHPUT, {"model": "other"}, "measure its baseline"),
        (
            THROUGHPUT,
            {"checks_failed": ["", "window", ""]},
            "one more run of each cell: `snakemake report --config runs=4`; what is measured",
        ),
        (THROUGHPUT, {"checks_failed": ["", "window", "window"]}, "levels that pass"),
        (THROUGHPUT, {"run": [1, 1, 1], "checks_failed": "window"}, "levels that pass"),
        (THROUGHPUT, {"run": [1, 2, 1]}, "the missing run, which `snakemake report`"),
        (THROUGHPUT, {THROUGHPUT: [90.0, 0.0, 91.0]}, "a server that answers"),
    ],
)
def test_a_reason_leads_to_what_removes_it(
    metric: str, values: dict[str, object], advice: str
) -> None:
    """Each reason is the one that the comparison gives where an arm's levels have these values."""
    levels = campaign.levels_table(
        [Cell("Qwen3-8B", arm, 0) for arm in ("no-offload", "llm-d-redis")],
        levels=(50,),
    )
    goodput = {
        GOODPUT: 1.0,
        f"{GOODPUT}_se": 0.1,
        "goodput_met": 90,
        "goodput_settled": 100,
        "goodput_cut": 0.0,
    }
    levels = levels.assign(**goodput, concurrency_shortfall=0.0, activity="shown")
    for name, value in values.items():
        levels.loc[levels["scenario"] == "llm-d-redis", name] = value
    table = compare_all(levels, campaign.BASELINES).baseline
    (row,) = table[table["metric"] == metric].to_dict("records")
    plan = campaign.plan(runs=3, command="snakemake report")
    assert remedies_text(remedies_of(plan, row)).startswith(advice), row["reason"]


def test_no_runs_settle_the_throughput_of_an_open_loop(plan: ReportPlan) -> None:
    levels = campaign.levels_table(campaign.cells(["Qwen3-8B"]), levels=LEVELS).assign(
        rate_req_s=1.0
    )
    gaps = gaps_of(plan, campaign.measured(levels), {})
    throughput = [gap for gap in gaps if REASONS["open_loop"].words in gap.reason]
    assert throughput
    for gap in throughput:
        assert gap.metrics == [THROUGHPUT]
        assert remedies_text(gap.remedies).startswith("nothing: ")


def test_cells_that_ran_the_same_are_named(
    plan: ReportPlan, measured: Measured
) -> None:
    plan, measured = of_model(plan, measured, "Qwen3-8B")
    assert same_configurations(measured.runs) == []
    by_cell = {run.cell: run for run in measured.runs}
    plain, other = (
        by_cell[Cell("Qwen3-8B", arm, 0)] for arm in ("no-offload", "llm-d-redis")
    )
    twin = msgspec.structs.replace(other, specification=plain.specification)
    both = dataclasses.replace(measured, runs=[*measured.runs, twin])
    result = result_of(plan, both)
    [cells] = result.same_configurations
    assert [cell.cell for cell in cells] == [plain.cell, other.cell]
    same = "- Qwen3-8B: no-offload and llm-d-redis ran the same configuration: "
    assert same in part_of(text_of(result), "Limitations")


@pytest.mark.parametrize(
    "keys",
    [
        [Cell("Qwen3-8B", "native-offload", 10_000)],
        [Cell("Qwen3-8B", "no-offload", 0)],
        campaign.cells()[5:9],
    ],
    ids=["an arm", "a baseline", "four"],
)
def test_any_subset_of_cells_makes_all_tables(
    plan: ReportPlan, keys: list[Cell]
) -> None:
    facts = campaign.measured(campaign.levels_table(keys, runs=1, levels=(50,)))
    result = result_of(plan, facts)
    text = text_of(result)
    names = sorted((cell.model, cell.label) for cell in keys)
    for title in (
        "Requests completed at the peak",
        "Mean and P90 latencies at the common level",
    ):
        part = part_of(text, title)
        tables = tables_by_model(part) or {keys[0].model: tables_in(part)[0]}
        rows = []
        for model, table in tables.items():
            rows += [(model, arm) for arm in table.column("arm")]
        assert sorted(rows) == names
    missing = [gap for gap in result.not_assessed if gap.code == "no_run"]
    assert len(missing) == len(plan.cells) - len(keys)
    guidance = tables_in(part_of(text, "Deployment guidance"))
    assert len(guidance) == len({cell.model for cell in keys})
    # One run of what has no baseline beside it decides nothing.
    assert not any_decided(arms_by_verdict(result))
    for table in tables_in(text):
        assert {len(cells) for cells in table.rows} == {len(table.header)}


def test_the_system_is_shown_part_by_part_and_each_gpu_where_there_are_several(
    plan: ReportPlan, measured: Measured
) -> None:
    plan, measured = of_model(plan, measured, "Qwen3-8B")
    gpus = {
        "gpu_utilisation_percent_by_instance": "gpu0=90;gpu1=40",
        "gpu_power_w_by_instance": "gpu0=300;gpu1=120",
    }
    peaks = measured.peaks.assign(epp_scheduling_ms=1.5, network_in_mb_s=12.0)
    levels = measured.levels.assign(**gpus, epp_scheduling_ms=1.5, network_in_mb_s=12.0)
    facts = dataclasses.replace(measured, levels=levels, peaks=peaks)
    text = text_of(result_of(plan, facts))
    for title in (
        *("The server and its caches", "GPUs"),
        *("Network and disks", "Routing, index and stores"),
    ):
        assert tables_in(part_of(text, title))
    [table] = tables_in(part_of(text, "Each GPU"))
    assert row(table, "no-offload", "gpu1")[-2:] == ["40", "120"]
    assert len(table.rows) == 2 * len(plan.cells)
    alone = levels.assign(
        **{name: values.partition(";")[0] for name, values in gpus.items()}
    )
    facts = dataclasses.replace(measured, levels=alone)
    assert gpu_metrics(result_of(plan, facts)).rows == []


def test_an_entry_of_the_catalogue_makes_a_column_and_stands_in_the_report(
    tmp_path: Path,
) -> None:
    added = {
        "title": "Busiest share",
        "unit": "percent",
        "pcp": "kernel.percpu.share",
        "scale": 100,
    }
    added |= {
        "reduction": "max",
        "instances": "max",
        "plausible": [0, 100],
        "table": "Shares",
    }
    metrics = yaml.safe_load(
        yaml.safe_dump(
            {**campaign.METRICS, "busiest_share_percent": added}, sort_keys=False
        )
    )
    keys = [Cell("Qwen3-8B", "no-offload", 0), Cell("Qwen3-8B", "llm-d-redis", 0)]
    levels = campaign.levels_table(keys, runs=1, levels=(1, 50)).drop(
        columns=[*campaign.METRICS, "pcp_samples", "pcp_notes"]
    )
    levels = with_system_metrics(
        levels, campaign.recording(tmp_path), metrics, vllm("0.32.0")
    )
    assert levels["busiest_share_percent"].between(50, 100).all()
    peaks = pd.DataFrame(
        [
            peak_row(rows, list(metrics))
            for _, rows in levels.groupby("scenario", sort=False)
        ]
    )
    facts = Measured(
        campaign.runs_of(levels), levels, peaks, campaign.measured(levels).comparison
    )
    table = table_of(result_of(campaign.plan(keys, metrics=metrics), facts), "Shares")
    assert table.header[2] == "Busiest share, percent"
    assert table.column("arm") == ["no-offload", "llm-d-redis"]
    assert "n/a" not in table.column("Busiest share, percent")
