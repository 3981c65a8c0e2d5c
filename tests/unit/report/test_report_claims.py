"""A rendered report is held to the rules of a document, whatever the campaign has and lacks; a slip is found."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.support import synthetic_campaign as large
from tests.support.described import described_runs
from tests.support.predicted import with_predicted
from tests.support.report_claims import judge_report
from tests.support.report_text import part_of, result_of, whole_report
from tests.support.synthetic import run_description
from tests.unit.report import test_report as small

from kveval.campaign.campaign_file import Comparison
from kveval.campaign.cell import Cell
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.figures.names import figure_names
from kveval.report.render import render_report
from kveval.report.report import write_report
from kveval.tables.levels.outcomes import Outcome, outcome_columns
from kveval.verdict.verdict_tables import verdict_tables
from kveval.verdict.verdicts import compare_all

MODELS = ("Qwen3-14B", "Qwen3-8B")
ARMS = (
    "no-offload",
    "native-offload",
    "lmcache-redis",
    "lmcache-valkey",
    "llm-d-redis",
)
CONTRASTS = [
    ["lmcache-valkey", "lmcache-redis"],
    ["native-offload/20000", "native-offload/10000"],
]


@functools.cache
def campaign(runs: int = 3, contrasts: bool = False) -> tuple[ReportPlan, Measured]:
    """Two models, five arms, one of them with two tiers; with every table of verdicts, as the workflow has them.

    One model with up to two runs: what no verdict is possible for.
    """
    keys = large.cells(MODELS if runs > 2 else MODELS[:1], ARMS)
    levels = large.levels_table(keys, runs, levels=(1, 200, 400))
    measured = large.measured(levels)
    settings = Comparison(contrasts=CONTRASTS if contrasts else ())
    tables = verdict_tables(levels, measured.peaks, large.BASELINES, settings)
    kept = {
        name: tables[name] for name in ("comparison", "contrasts", "averages", "checks")
    }
    return large.plan(keys, runs=runs), dataclasses.replace(measured, **kept)


def failing() -> tuple[ReportPlan, Measured]:
    """A cell that failed, one that was not reached, a run that is missing, and levels that failed checks."""
    plan, measured = campaign()
    failed, absent = (
        Cell("Qwen3-14B", "lmcache-redis", 10_000),
        Cell("Qwen3-8B", "llm-d-redis", 0),
    )
    run = (Cell("Qwen3-8B", "native-offload", 10_000), 3)
    levels = measured.levels
    keys = [(Cell.from_row(row), row["run"]) for row in levels.to_dict("records")]
    levels = levels[
        [key[0] not in (failed, absent) and key != run for key in keys]
    ].copy()
    broken = (levels["scenario"] == "lmcache-valkey") & (levels["level"] >= 200)
    found = outcome_columns(
        [Outcome("steadiness", "fail", words="the rate fell by 23 % in 90 s")]
    )
    levels.loc[broken, list(found)] = list(found.values())
    left = large.measured(levels)
    reason = (
        "failed: 3 of 17 health checks refused the connection on port 8000, all of them"
    )
    return plan, dataclasses.replace(
        left, failures={failed: reason, absent: "failed: every GPU is in use"}
    )


def mechanism() -> tuple[ReportPlan, Measured]:
    """A campaign chosen to show an effect: a tier below and one above the working set, which serves most prompts."""
    effects = {"no-offload": 0.0, "native-offload": 2.1}
    level = {"levels": (2,), "runs": 3, "sd": 0.05}
    large_tier = small.levels_table(effects=effects, **level)
    low = small.levels_table(
        effects={"no-offload": 0.0, "native-offload": 0.01}, **level
    )
    low = low[low["scenario"] == "native-offload"].assign(
        cpu_blocks=500, configuration="smaller"
    )
    levels = pd.concat([large_tier, low], ignore_index=True)
    # Of the smaller tier more than it served.
    computed = levels["cpu_blocks"].map({0: 0.07, 500: 0.12, 10_000: 0.66})
    levels = levels.assign(
        **{
            "predicted_device_ratio": 0.07,
            "predicted_ratio_low": computed,
            "predicted_ratio_high": computed,
            "predicted_pooled_ratio": computed,
            "predicted_offered_ratio": 0.7,
        },
        prefix_hit_ratio=0.07,
        external_hit_ratio=levels["cpu_blocks"].map({0: 0.0, 500: 0.004, 10_000: 0.65}),
        predicted_curve=levels["cpu_blocks"].map(
            lambda size: "0=0.07;500=0.12;10000=0.66;12000=0.7" if size else ""
        ),
        **{
            "predicted_prompt_tokens": 1e5,
            "predicted_tier_blocks": levels["cpu_blocks"].astype(float),
        },
    )
    runs = []
    for size, hits in ((0, 0.0), (500, 400.0), (10_000, 60_000.0)):
        moved = {
            "vllm:prefix_cache_queries_total": 1e5,
            "vllm:prefix_cache_hits_total": 7e3,
            "vllm:hits_total": hits,
        }
        moved |= {"vllm:external_prefix_cache_hits_total": hits} if size else {}
        counters = {
            name: {"before": 0.0, "after": delta, "delta": delta}
            for name, delta in moved.items()
        }
        budget = {
            "cpu_blocks": size,
            "tokens": 16 * size,
            "requested_bytes": 16384 * size,
            "tier_bytes": 16384 * size,
            "device_tokens": 17_920,
        }
        part = [{"level": 2, "counters": counters}]
        scenario = "native-offload" if size else "no-offload"
        more = {"levels": part, "budget": budget, "one_request": one_request(size)}
        described = [
            run_description("Qwen3-0.6B", scenario, size, run, **more)
            for run in (1, 2, 3)
        ]
        runs += described_runs(described)
    cells = [
        Cell("Qwen3-0.6B", "no-offload", 0),
        *(Cell("Qwen3-0.6B", "native-offload", size) for size in (500, 10_000)),
    ]
    about = "The workload was chosen to show the mechanism: the working set fits the larger tier, and not the device."
    tables = compare_all(levels, small.BASELINES)
    facts = Measured(
        runs,
        levels,
        small.peaks_table(levels),
        tables.baseline,
        contrasts=tables.contrasts,
    )
    plan = small.plan(cells=cells, runs=3, description=about)
    return plan, with_predicted(facts, levels)


def one_request(cpu_blocks: int) -> dict[str, Any]:
    """Times of one request: the tier of 500 blocks serves none, a larger one takes longer than computing."""

    def requests(*ttft_ms: float, served: int = 0) -> dict[str, Any]:
        tokens = {"prompt_tokens": 2064, "served_tokens": served}
        return {"requests": [{"ttft_ms": ms, **tokens} for ms in ttft_ms]}

    times = {
        "cold": requests(251.2, 262.7, 244.1),
        "device": requests(14.6, 13.9, 21.2, served=2048),
    }
    if cpu_blocks > 500:
        times["tier"] = requests(301.5, 296.4, 322.8, served=2048)
    elif cpu_blocks:
        times["tier"] = {"reason": "the tier served 0 of the prompts' 2,064 tokens"}
    return times


def subset() -> tuple[ReportPlan, Measured]:
    """One model, and of its arms the one without a baseline."""
    keys = [Cell("Qwen3-8B", "native-offload", 10_000)]
    return large.plan(keys), large.measured(large.levels_table(keys))


def without_the_system() -> tuple[ReportPlan, Measured]:
    plan, measured = campaign()
    names = [name for name in large.METRICS if name in measured.levels]
    return plan, large.measured(
        measured.levels.assign(**dict.fromkeys(names, float("nan")))
    )


def crossing() -> tuple[ReportPlan, Measured]:
    """An arm that is worse at the compared level and better at another one."""
    levels = small.levels_table(effects={"no-offload": 0.0, "native-offload": -0.2})
    at = (levels["scenario"] == "native-offload") & (levels["level"] == 8)
    levels.loc[at, "throughput_tok_s"] *= 1.6
    cells = [Cell("Qwen3-0.6B", "no-offload", 0)]
    cells += [Cell("Qwen3-0.6B", "native-offload", 10_000)]
    return small.plan(cells=cells), small.measured(levels)


_MAKING: dict[str, Callable[[], tuple[ReportPlan, Measured]]] = {
    "whole": campaign,
    "contrasts": lambda: campaign(contrasts=True),
    "one run": lambda: campaign(runs=1),
    "two runs": lambda: campaign(runs=2),
    "failing": failing,
    "subset": subset,
    "no recording": without_the_system,
    "miniature": lambda: (small.plan(), small.measured()),
    "noisy": lambda: (small.plan(), small.measured(small.levels_table(sd=0.1))),
    "mechanism": mechanism,
    "crossing": crossing,
    "quiet": lambda: (small.plan(), small.measured(small.levels_table(sd=0.004))),
    "baseline alone": lambda: (
        small.plan(),
        small.measured(small.levels_table(effects={"no-offload": 0.0})),
    ),
}
CAMPAIGNS = {name: functools.cache(make) for name, make in _MAKING.items()}


# What stands before the rows of an answer to the guidance's questions.
GUIDANCE = "| question | what these measurements say |\n| --- | --- |\n"


@functools.cache
def files_of(name: str) -> dict[str, str]:
    """The report of a campaign with all its figures, as Markdown with marks."""
    plan, measured = CAMPAIGNS[name]()
    figures = figure_names(measured.levels["model"])
    return render_report(result_of(plan, measured, figures))


def judged(
    folder: Path,
    plan: ReportPlan,
    measured: Measured,
    slip: str = "",
    *,
    beside: bool = True,
) -> list[Outcome]:
    """Write a report, and the files beside it that the workflow makes; return what its text claims too much.

    `slip`: what its guidance says besides.
    """
    names = figure_names(measured.levels["model"]) if beside else []
    figures = [folder / "figures" / f"{name}.png" for name in names]
    empty = {"pcp_lmcache": "nothing was recorded"}
    _, result = write_report(plan, measured, figures, folder / "REPORT.md", empty)
    text = whole_report(folder)
    if beside:
        tables = re.findall(r"`(analysis/\w+\.csv)`", part_of(text, "Files"))
        for path in (*figures, *(folder / name for name in tables)):
            path.parent.mkdir(exist_ok=True)
            path.touch()
    if slip:
        text = text.replace(GUIDANCE, f"{GUIDANCE}| host memory | {slip} |\n")
    return judge_report(plan, measured, result, text, folder)


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_report_claims_no_more_than_its_tables_hold(
    name: str, tmp_path: Path
) -> None:
    assert judged(tmp_path, *CAMPAIGNS[name]()) == []


SLIPS = {
    "numbers_in_prose": "native-offload 10K serves 4711 requests",
    "banned_words": "this confirms native-offload 10K",
    "claim_words": "native-offload 10K improves latency because memory is freed",
    "parity_words": "native-offload 10K is identical to no-offload",
    "one_denominator": "native-offload 10K gains 16.2 %",
    "models_known": "as with Qwen3-7B",
}


@functools.cache
def pair() -> tuple[ReportPlan, Measured]:
    """One model with an arm and its baseline: a slip is one, however much stands around it."""
    keys = large.cells(("Qwen3-8B",), ("no-offload", "native-offload"))
    return large.plan(keys), large.measured(large.levels_table(keys, levels=(1, 200)))


@pytest.mark.parametrize("check", SLIPS)
def test_a_slip_is_found(check: str, tmp_path: Path) -> None:
    found = judged(tmp_path, *pair(), SLIPS[check])
    assert check in {outcome.code for outcome in found if SLIPS[check] in outcome.where}


def test_a_file_that_is_named_and_not_there_is_found(tmp_path: Path) -> None:
    found = judged(tmp_path, *pair(), beside=False)
    missing = [
        outcome.message.split()[-1]
        for outcome in found
        if outcome.code == "links_exist"
    ]
    assert "analysis/comparison.csv" in missing
