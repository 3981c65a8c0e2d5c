"""The report's tables, on a campaign as large as a published one."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
import yaml
from tests.support import synthetic_campaign as campaign
from tests.support.described import vllm
from tests.support.report_text import plain_table, result_of, result_of_whole

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.report.data import numbers as numerals
from kveval.report.data.arm_links import plain_text
from kveval.report.data.campaign import Measured, ReportPlan, Table
from kveval.report.data.comparisons import UNDECLARED, comparison_of, effect_text
from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.figures.names import find_figure
from kveval.report.parts.limitations import limitation_sentences
from kveval.report.result.checks import check_findings
from kveval.report.result.model import CampaignResult
from kveval.report.result.origin import origin_of
from kveval.report.result.same_configurations import same_configurations
from kveval.report.tables.caches import blocks_table, budget_table
from kveval.report.tables.configuration import command_lines, software_table
from kveval.report.tables.guidance import guidance_numbers, guidance_table
from kveval.report.tables.not_assessed import (
    gap_table,
    gaps_of,
    next_step_for,
)
from kveval.report.tables.pairs import pair_table
from kveval.report.tables.results import (
    arms_table,
    comparison_table,
    completed_table,
    guide_table,
    peak_table,
    strategy_table,
)
from kveval.report.tables.system import average_table, check_tables, system_tables
from kveval.store.run_file import Run, SidecarRecord
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


def column(table: Table, title: str) -> list[str]:
    at = list(table.header).index(title)
    return [row[at] for row in plain_table(table).rows]


def row(table: Table, *keys: str) -> Sequence[str]:
    rows = plain_table(table).rows
    return next(row for row in rows if all(key in row for key in keys))


def of_model(measured: Measured, model: str) -> Measured:
    """What was measured of one model."""
    tables = {
        name: getattr(measured, name) for name in ("levels", "peaks", "comparison")
    }
    kept = {name: table[table["model"] == model] for name, table in tables.items()}
    return dataclasses.replace(
        measured, runs=[run for run in measured.runs if run.cell.model == model], **kept
    )


def plan_of_model(plan: ReportPlan, model: str) -> ReportPlan:
    """The plan of a campaign of one model: what does not depend on the others is told sooner."""
    return dataclasses.replace(
        plan, cells=[cell for cell in plan.cells if cell.model == model]
    )


def with_contrast(measured: Measured, **changes: object) -> Measured:
    """The same with the contrast of the two tiers declared."""
    base = measured.comparison[
        measured.comparison["metric"] == "throughput_tok_s"
    ].iloc[[0]]
    facts = {
        **{
            **ONE.row,
            "baseline": OTHER.path,
        },
        **{
            "effect_percent": 25.0,
            "low_percent": 20.0,
            "high_percent": 30.0,
            "verdict": words.BETTER,
            "reason": "",
        },
        **{"level": 300.0, **changes},
    }
    return dataclasses.replace(measured, contrasts=base.assign(**facts))


def test_every_table_has_as_many_cells_as_its_header(
    plan: ReportPlan, measured: Measured, result: CampaignResult
) -> None:
    tables = [
        *(peak_table(result, model) for model in campaign.MODELS),
        *(
            strategy_table(result),
            completed_table(result),
            guide_table(result),
        ),
        *(arms_table(result, model) for model in campaign.MODELS),
        pair_table(result),
        *(
            blocks_table(result),
            budget_table(result),
            *system_tables(plan, measured).values(),
        ),
        *(
            guidance_table(result),
            gap_table(gaps_of(plan, measured, {"pcp_lmcache": "x"})),
        ),
    ]
    for table in tables:
        assert table.rows
        assert {len(cells) for cells in table.rows} == {len(table.header)}
        assert max(table.numbers, default=0) < len(table.header)


def test_models_stand_by_size(
    plan: ReportPlan, measured: Measured, result: CampaignResult
) -> None:
    order = ["Qwen3-0.6B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B-AWQ"]
    parts = system_tables(plan, measured).values()
    for table in (
        completed_table(result),
        budget_table(result),
        *parts,
    ):
        assert list(dict.fromkeys(column(table, "model"))) == order
        assert len(table.rows) == 34


def test_a_strategy_comes_from_the_verdicts(
    measured: Measured, result: CampaignResult
) -> None:
    table = strategy_table(result)
    verdicts = measured.comparison[measured.comparison["metric"] == "throughput_tok_s"]
    for model in campaign.MODELS:
        cells = row(table, model)
        better = verdicts[
            (verdicts["model"] == model) & (verdicts["verdict"] == words.BETTER)
        ]
        assert len([part for part in cells[1].split("; ") if part]) == len(better)
        assert ("arms that" in cells[-1]) == (len(better) > 1)


def test_without_a_better_arm_the_baseline_stays(
    plan: ReportPlan, measured: Measured
) -> None:
    nothing_better = measured.comparison.assign(verdict=words.PARITY)
    facts = dataclasses.replace(measured, comparison=nothing_better)
    table = strategy_table(result_of(plan, facts))
    (kept,) = set(column(table, "conclusion"))
    assert kept.startswith("no-offload: ")
    open_ = measured.comparison.assign(verdict=words.INCONCLUSIVE)
    facts = dataclasses.replace(measured, comparison=open_)
    table = strategy_table(result_of(plan, facts))
    (undecided,) = set(column(table, "conclusion"))
    assert undecided.startswith("undecided: no-offload ")


def test_a_better_throughput_at_the_cost_of_latency_is_said(
    plan: ReportPlan, measured: Measured
) -> None:
    comparison = measured.comparison.assign(verdict=words.BETTER)
    comparison.loc[comparison["metric"] == "ttft_ms_p50", "verdict"] = words.WORSE
    facts = dataclasses.replace(measured, comparison=comparison)
    table = strategy_table(result_of(plan, facts))
    better = [cells[1] for cells in table.rows]
    assert all("worse median TTFT" in cell for cell in better)


def test_two_cells_without_a_declared_contrast_get_a_description_and_no_verdict(
    measured: Measured,
) -> None:
    other = dataclasses.replace(ONE, scenario="lmcache-valkey")
    found = comparison_of(measured, ONE, other)
    assert (found["verdict"], found["grounds"]) == (words.NOT_ASSESSED, UNDECLARED)
    at = [
        measured.levels_of(cell, found["level"])["throughput_tok_s"]
        for cell in (ONE, other)
    ]
    ratio = np.exp(np.log(at[0].to_numpy()).mean() - np.log(at[1].to_numpy()).mean())
    assert found["effect_percent"] == pytest.approx(100 * (ratio - 1))
    assert "no interval" in effect_text(found)


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
    table = comparison_table(declared, "Qwen3-14B")
    assert row(table, f"{ONE.label} against {OTHER.label}", "Throughput", EFFECT)
    assert strategy_table(declared).rows == strategy_table(result).rows
    assert arms_table(declared, ONE.model).rows == arms_table(result, ONE.model).rows
    assert declared.answer == result.answer
    assert row(
        pair_table(declared),
        ONE.model,
        ONE.label,
        OTHER.label,
        EFFECT,
        "**better**",
    )


def test_comparisons_are_in_the_order_of_cells_then_of_quantities(
    declared: CampaignResult,
) -> None:
    table = plain_table(comparison_table(declared, ONE.model))
    arms = [row[0].partition(" against ")[0] for row in table.rows]
    cells = list(dict.fromkeys(arms))
    assert arms == sorted(arms, key=cells.index)
    assert cells[:2] == ["native-offload 10K", "native-offload 20K"]
    own = [row[:2] for row in table.rows if row[0].startswith(ONE.label)]
    titles = [title for title in METRIC_TITLES.values() if title != "Goodput"]
    assert own[1] == [f"{ONE.label} against {OTHER.label}", "Throughput"]
    assert [quantity for _, quantity in own] == ["Throughput", *titles]


def test_what_is_only_indicative_says_what_it_points_to(
    plan: ReportPlan, measured: Measured
) -> None:
    plan, measured = plan_of_model(plan, ONE.model), of_model(measured, ONE.model)
    hint = with_contrast(
        measured,
        verdict=words.INDICATIVE_ACTIVITY,
        indication="better",
        reason="no counter was recorded",
    )
    table = comparison_table(result_of(plan, hint), "Qwen3-14B")
    pair = (f"{ONE.label} against {OTHER.label}", "Throughput")
    assert "cannot tell yet, indicates better" in row(table, *pair)
    compared = f"{ONE.label} against {OTHER.label}"
    assert row(
        gap_table(gaps_of(plan, hint, {})),
        f"Qwen3-14B, {compared}: {METRIC_TITLES['throughput_tok_s']}",
    )
    late = with_contrast(
        measured,
        verdict=words.INDICATIVE_TIME,
        indication="parity",
        grounds="another_time",
        reason=explanation(new_finding("another_time")),
    )
    table = comparison_table(result_of(plan, late), "Qwen3-14B")
    pointed_to = "indicates no relevant difference, measured at another time"
    assert f"cannot tell yet, {pointed_to}" in row(table, *pair)
    assert row(
        gap_table(gaps_of(plan, late, {})), explanation(new_finding("another_time"))
    )


def test_averages_over_models_name_the_models(
    plan: ReportPlan, measured: Measured, result: CampaignResult
) -> None:
    assert average_table(result).rows == []
    means = pd.DataFrame(
        {
            **{
                "scenario": ["lmcache-local"],
                "cpu_blocks": [10_000],
                "metric": ["throughput_tok_s"],
                "models": [2],
            },
            **{"effect_percent": [5.2], "low_percent": [1.0], "high_percent": [9.6]},
            **{
                "panel": ["Qwen3-8B;Qwen3-14B"],
                "missing": ["Qwen3-0.6B/lmcache-local/10000"],
            },
        }
    )
    averaged = dataclasses.replace(measured, averages=means)
    table = average_table(result_of(plan, averaged))
    assert plain_table(table).rows == [
        [
            *("lmcache-local 10K", "Qwen3-8B, Qwen3-14B"),
            *(numerals.effect(5.2, 1.0, 9.6), "Qwen3-0.6B, lmcache-local 10K"),
        ]
    ]


def test_checks_of_the_campaign_as_a_whole_are_listed(
    measured: Measured, result: CampaignResult
) -> None:
    checks = pd.DataFrame(
        [
            {
                "model": None,
                "level": None,
                "severity": "fail",
                "check": "rows_once",
                "message": "twice",
            },
            {
                "model": "Qwen3-8B",
                "scenario": "no-offload",
                "cpu_blocks": 0,
                "level": None,
                "severity": "note",
            }
            | {"check": "edge", "message": "at the edge"},
            {
                "model": "Qwen3-8B",
                "level": 50,
                "severity": "fail",
                "check": "steadiness",
                "message": "rose",
            },
        ]
    )
    facts = dataclasses.replace(measured, checks=checks.assign(facts="{}"))
    findings = check_findings(facts)
    failed, noted = check_tables(result.model_copy(update={"checks": findings}))
    assert list(failed.rows) == [["", "", "", "", "`rows_once`", "twice"]]
    _, _, count, example = row(noted, "`edge`")
    assert count.startswith("1, ")
    assert example == f"Qwen3-8B, no-offload: {checks.loc[1, 'message']}"


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
    failed = outcome_columns([Outcome("no_reuse", "fail", words=message)])
    levels.loc[at, list(failed)] = list(failed.values())
    facts = dataclasses.replace(measured, levels=levels)
    findings = check_findings(facts)
    failed, _ = check_tables(result.model_copy(update={"checks": findings}))
    said = ", ".join(map(str, LEVELS))
    assert list(plain_table(failed).rows) == [
        ["Qwen3-8B", "llm-d-redis", "2", said, "`no_reuse`", message]
    ]


def test_what_is_not_recorded_is_not_shown_empty(
    plan: ReportPlan, measured: Measured
) -> None:
    bare = dataclasses.replace(
        measured,
        peaks=measured.peaks.drop(columns=[*campaign.METRICS], errors="ignore"),
    )
    assert system_tables(plan, bare) == {}
    runs = [msgspec.structs.replace(run, server={}) for run in measured.runs]
    assert command_lines(plan, dataclasses.replace(measured, runs=runs)) == {}


def software_of(plan: ReportPlan, runs: Sequence[Run]) -> Table:
    """The table of software of a campaign with these runs."""
    origin = origin_of(plan, runs)
    return software_table(result_of_whole().model_copy(update={"origin": origin}))


def test_images_and_builds_are_named_once(plan: ReportPlan, measured: Measured) -> None:
    built = {"kind": "release", "key": "9f", "title": "vllm 0.31.0"}
    images = [{"server": "a:1", "picker": "b:2"}, ["a:1", "c:3"]]
    runs = [
        msgspec.structs.replace(run, server={"images": these}, build=built)
        for run, these in zip(measured.runs, images, strict=False)
    ]
    rows = software_of(plan, runs).rows
    assert rows[-4:] == [
        *(["image", f"`{image}`"] for image in ("a:1", "b:2", "c:3")),
        [f"build of `{runs[0].cell.scenario}`", built["title"]],
    ]


def test_what_ran_beside_the_server_is_shown_as_it_ran(
    plan: ReportPlan, measured: Measured
) -> None:
    beside = [
        SidecarRecord("redis", "7.0.15", ["redis-server", "--save", ""]),
        SidecarRecord("epp"),
    ]
    runs = [
        described(msgspec.structs.replace(run, companions=beside))
        for run in measured.runs
    ]
    found = dataclasses.replace(measured, runs=runs)
    rows = software_of(plan, runs).rows
    assert ["Redis", "7.0.15"] in rows
    assert not any(tool == "endpoint picker" for tool, _ in rows)
    shown = command_lines(plan, found)
    assert shown
    assert all(lines[1:2] == ["redis-server --save ''"] for lines in shown.values())


def test_the_build_of_an_arm_is_named_with_what_tells_it_apart(
    plan: ReportPlan, measured: Measured
) -> None:
    built = {
        "kind": "checkout",
        "key": "1a2b",
        "title": "vllm of patched at 3c4d with changes",
    }
    runs = [msgspec.structs.replace(measured.runs[0], build=built), *measured.runs[1:]]
    rows = software_of(plan, runs).rows
    named = f"build of `{measured.runs[0].cell.scenario}`"
    assert [row for row in rows if "build of" in row[0]] == [
        [named, f"{built['title']} (`1a2b`)"]
    ]


def test_an_environment_that_is_not_complete_is_told(
    plan: ReportPlan, measured: Measured
) -> None:
    versions = {
        "numpy": {"locked": "2.3.5", "there": "2.5.2"},
        "scipy": {"locked": "1.17.1", "there": "1.17.1"},
    }
    reduced = {"gpu_code": "9.0", "left_out": ["tilelang"], "of_host": versions}
    runs = [
        msgspec.structs.replace(run, reduced_environment=reduced)
        for run in measured.runs
    ]
    rows = software_of(plan, runs).rows
    assert [text for title, text in rows if title == "server's environment"] == [
        "reduced: code for compute capability 9.0, without tilelang; of the host: numpy 2.5.2 in place of 2.3.5"
    ]


def test_a_pair_differs_in_one_thing(result: CampaignResult) -> None:
    table = plain_table(pair_table(result))
    stores = [
        cells for cells in table.rows if cells[1].replace("valkey", "redis") == cells[3]
    ]
    sizes = [
        cells for cells in table.rows if cells[1].replace("20K", "10K") == cells[3]
    ]
    native = [
        cells
        for cells in table.rows
        if cells[1].replace("lmcache-local", "native-offload") == cells[3]
    ]
    assert (len(stores), len(native), len(sizes)) == (8, 6, 6)
    assert len(table.rows) == 20
    without_verdict = [cells for cells in table.rows if not cells[6]]
    assert without_verdict == [cells for cells in table.rows if cells not in sizes]
    described = [pair for pair in result.pairs if pair.family == "undeclared"]
    assert len(described) == len(without_verdict)
    assert {pair.grounds[0] for pair in described} == {UNDECLARED}
    assert all("`contrasts`" in str(pair.next_step) for pair in described)


def test_blocks_weigh_what_the_geometry_says(result: CampaignResult) -> None:
    """The figures of the published table of blocks, recomputed."""
    table = blocks_table(result)
    sizes = dict(zip(column(table, "model"), column(table, "10K"), strict=True))
    assert sizes == {
        "Qwen3-0.6B": "17.1 GiB (10,000 blocks)",
        "Qwen3-8B": "22.0 GiB (10,000 blocks)",
        "Qwen3-14B": "24.4 GiB (10,000 blocks)",
        "Qwen3-32B-AWQ": "39.1 GiB (10,000 blocks)",
    }
    gb = dict(zip(column(table, "model"), column(table, "20K, GB"), strict=True))
    assert (gb["Qwen3-14B"], gb["Qwen3-32B-AWQ"]) == ("52.43", "83.89")


def test_latencies_in_the_form_of_the_guide(result: CampaignResult) -> None:
    table = guide_table(result)
    assert table.header[3:] == [
        *("mean TTFT, s", "P90 TTFT, s", "mean E2E latency, s", "P90 E2E latency, s"),
        "prompt and output tokens, tok/s",
    ]
    assert all(float(cells[3].replace(",", "")) > 0 for cells in table.rows)


def test_completed_requests_stand_beside_what_did_not_complete(
    result: CampaignResult,
) -> None:
    table = completed_table(result)
    for cells in table.rows:
        done, unfinished, failed = (int(cells[at].replace(",", "")) for at in (3, 4, 5))
        share = 100 * unfinished / (done + unfinished + failed)
        assert float(cells[6]) == pytest.approx(share, rel=0.06)


def test_guidance_weighs_tiers_against_the_working_set(result: CampaignResult) -> None:
    table = guidance_table(result)
    sizes = [cells[2] for cells in table.rows if cells[1] == "how large a tier"]
    assert all("1,600,000 tokens" in text and "(100,000 b" in text for text in sizes)
    *_, short, below = sizes[-1].split("; ")
    assert (short.partition(" ")[0], short.partition(": ")[2]) == (
        "too",
        "39.1 GiB (10,000 blocks), 78.1 GiB (20,000 blocks)",
    )
    assert (below.partition(" ")[0], below.partition(": ")[2]) == (
        "smaller",
        "39.1 GiB (10,000 blocks)",
    )
    memory = [cells[2] for cells in table.rows if cells[1] == "host memory"]
    assert any(
        text.startswith("78.1 GiB (20,000 blocks) for the tier")
        and "; at most " in text
        for text in memory
    )


def test_the_numbers_of_the_guidance_are_cells(result: CampaignResult) -> None:
    table = guidance_numbers(result)
    assert row(
        table,
        "Qwen3-32B-AWQ",
        "1,600,000",
        "391 GiB (100,000 blocks)",
        "208,080",
        "no-offload",
        "78.1 GiB (20,000 blocks)",
        "320,000",
    )
    assert row(table, "Qwen3-0.6B", "17.1 GiB (10,000 blocks)", "160,000")
    assert len(table.rows) == 6


@pytest.mark.parametrize(
    ("percent", "says"),
    [(30.0, "below 50 %"), (60.0, "between 50 % and 70 %"), (90.0, "above 70 %")],
)
def test_guidance_reads_the_baselines_hit_rate(
    plan: ReportPlan, measured: Measured, percent: float, says: str
) -> None:
    levels = measured.levels.assign(prefix_cache_hit_percent=percent)
    facts = dataclasses.replace(measured, levels=levels)
    table = plain_table(guidance_table(result_of(plan, facts)))
    hits = [cells[2] for cells in table.rows if cells[1] == "prefix hits on the device"]
    assert len(hits) == 4
    assert all(says in text and text.startswith("no-offload") for text in hits)


def test_what_is_open_comes_with_what_would_settle_it(
    plan: ReportPlan, measured: Measured
) -> None:
    single = campaign.measured(
        campaign.levels_table(campaign.cells(), runs=1, levels=LEVELS)
    )
    table = gap_table(gaps_of(plan, single, {"pcp_lmcache": "not recorded"}))
    assert any("the 2 missing runs, which" in cells[2] for cells in table.rows)
    one_run = dataclasses.replace(plan, runs=1)
    settled_by = column(gap_table(gaps_of(one_run, single, {})), "what would settle it")
    assert any("2 more runs of each cell: `runs: 3`" in step for step in settled_by)
    figure = find_figure("pcp_lmcache", campaign.MODELS)
    assert figure is not None
    assert row(table, f"figure: {figure.title}", "not recorded")
    declare = "`contrasts: [[lmcache-valkey, lmcache-redis]]`"
    declarations = [cells[2] for cells in table.rows if "`contrasts:" in cells[2]]
    models = "Qwen3-0.6B, Qwen3-8B, Qwen3-14B, Qwen3-32B-AWQ"
    assert row(table, f"lmcache-valkey against lmcache-redis: {models}")[2].startswith(
        declare
    )
    # Sizes of one arm are compared without a declaration.
    assert not any("/20000" in step for step in declarations)
    only = [
        cell
        for cell in campaign.cells()
        if cell.scenario in ("no-offload", "native-offload")
        and cell.cpu_blocks != 20_000
    ]
    few = campaign.measured(campaign.levels_table(only, levels=LEVELS))
    open_ = column(gap_table(gaps_of(campaign.plan(only), few, {})), "not assessed")
    assert all(
        any(what in subject for subject in open_)
        for what in ("Valkey", "native offload", "tier's size")
    )


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
    assert next_step_for(plan, row).startswith(advice), row["reason"]


def test_no_runs_settle_the_throughput_of_an_open_loop(plan: ReportPlan) -> None:
    levels = campaign.levels_table(campaign.cells(["Qwen3-8B"]), levels=LEVELS).assign(
        rate_req_s=1.0
    )
    table = gap_table(gaps_of(plan, campaign.measured(levels), {}))
    throughput = [
        cells for cells in table.rows if REASONS["open_loop"].words in cells[1]
    ]
    assert throughput
    assert all(
        cells[0].endswith("Throughput") and cells[2].startswith("nothing: ")
        for cells in throughput
    )


def test_cells_that_ran_the_same_are_named(
    plan: ReportPlan, measured: Measured
) -> None:
    assert same_configurations(measured.runs) == []
    first = {run.cell: run for run in measured.runs}
    one, other = (
        first[Cell("Qwen3-8B", arm, 0)] for arm in ("no-offload", "llm-d-redis")
    )
    twin = msgspec.structs.replace(other, specification=one.specification)
    both = dataclasses.replace(measured, runs=[*measured.runs, twin])
    result = result_of(plan, both)
    assert [cell.cell for cell in result.same_configurations[0]] == [
        one.cell,
        other.cell,
    ]
    (same,) = (
        plain_text(sentence)
        for sentence in limitation_sentences(result)
        if "the same configuration" in sentence
    )
    assert re.findall(r"[\w.-]+", same)[:4] == [
        "Qwen3-8B",
        "no-offload",
        "and",
        "llm-d-redis",
    ]


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
    done, gaps = completed_table(result), gap_table(gaps_of(plan, facts, {}))
    named = {(cell.model, cell.label) for cell in keys}
    assert {tuple(cells[:2]) for cells in plain_table(done).rows} == named
    guide = plain_table(guide_table(result))
    assert {tuple(cells[:2]) for cells in guide.rows} == named
    missing = [cells for cells in gaps.rows if cells[1] == "not measured"]
    assert len(missing) == len(plan.cells) - len(keys)
    guidance, strategy = guidance_table(result), strategy_table(result)
    assert set(column(guidance, "model")) == {cell.model for cell in keys}
    # One run of what has no baseline beside it decides nothing.
    decided = [cells[1:4] for cells in strategy.rows]
    assert decided == [["", "", ""]] * len(decided)
    for table in (done, gaps, guidance, strategy):
        assert {len(cells) for cells in table.rows} <= {len(table.header)}


def test_the_system_is_shown_part_by_part_and_each_gpu_where_there_are_several(
    measured: Measured,
) -> None:
    cells = campaign.cells(("Qwen3-8B",))
    plan, measured = campaign.plan(cells), of_model(measured, "Qwen3-8B")
    one = {
        "gpu_utilisation_percent_by_instance": "gpu0=90;gpu1=40",
        "gpu_power_w_by_instance": "gpu0=300;gpu1=120",
    }
    peaks = measured.peaks.assign(epp_scheduling_ms=1.5, network_in_mb_s=12.0)
    levels = measured.levels.assign(**one, epp_scheduling_ms=1.5, network_in_mb_s=12.0)
    found = system_tables(
        plan, dataclasses.replace(measured, levels=levels, peaks=peaks)
    )
    assert {
        "The server and its caches",
        "GPUs",
        "Network and disks",
        "Routing, index and stores",
    } < set(found)
    assert row(found["Each GPU"], "Qwen3-8B", "no-offload", "gpu1")[-2:] == [
        "40",
        "120",
    ]
    assert len(found["Each GPU"].rows) == 2 * len(cells)
    alone = levels.assign(
        **{name: text.partition(";")[0] for name, text in one.items()}
    )
    assert "Each GPU" not in system_tables(
        plan, dataclasses.replace(measured, levels=alone)
    )


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
    made = system_tables(campaign.plan(keys, metrics=metrics), facts)["Shares"]
    assert made.header[3] == "Busiest share, percent"
    assert [cells[1] for cells in plain_table(made).rows] == [
        "no-offload",
        "llm-d-redis",
    ]
    assert "n/a" not in column(made, "Busiest share, percent")
