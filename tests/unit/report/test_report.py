import functools
import re
from dataclasses import replace

import msgspec
import pandas as pd
import pytest
from tests.support.report_text import part_of, result_of, table_of, tables_in, text_of
from tests.support.synthetic import (
    BASELINES,
    METRICS,
    comparison_table,
    levels_table,
    peaks_table,
    required_counters,
    runs,
)

from kveval.campaign.cell import Cell
from kveval.load.workload import workload_of
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.run_facts import footer, working_set
from kveval.report.render import render_report, table, written_files
from kveval.report.report import ReportError, build_result
from kveval.store.run_file import Repeat
from kveval.tables.levels.outcomes import Outcome, outcome_columns

KINDS = {
    "no-offload": {"arm": "none", "store": None},
    "native-offload": {"arm": "native", "store": None},
    "lmcache-redis": {"arm": "lmcache", "store": "redis"},
    "idle": {"arm": "native", "store": None},
}
CELLS = [
    Cell("Qwen3-0.6B", name, 0 if name == "no-offload" else 10_000)
    for name in BASELINES
]


def plan(**changes: object) -> ReportPlan:
    scenarios = {
        name: {
            "title": name,
            "baseline": baseline,
            "required": required_counters(name),
            **KINDS[name],
        }
        for name, baseline in BASELINES.items()
    }
    facts = {
        "name": "test",
        "title": "A test",
        "description": "",
        "runs": 5,
        "cells": CELLS,
        "scenarios": scenarios,
    }
    return ReportPlan(**{**facts, "metrics": METRICS, **changes})


@functools.cache
def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    levels = levels_table()
    return levels, peaks_table(levels), comparison_table(levels)


def measured(levels: pd.DataFrame | None = None, **changes: object) -> Measured:
    if levels is None:
        return Measured(runs(tables()[0], **changes), *tables())
    return Measured(
        runs(levels, **changes), levels, peaks_table(levels), comparison_table(levels)
    )


def files(plan: ReportPlan, measured: Measured) -> dict[str, str]:
    result = result_of(plan, measured, ["effect_plot"])
    return written_files(render_report(result))


def appendix(plan: ReportPlan, measured: Measured, name: str) -> str:
    return files(plan, measured)[f"appendix/{name}.md"]


def first_screen(plan: ReportPlan, measured: Measured) -> str:
    return files(plan, measured)["REPORT.md"].split("\n## ")[0]


def test_words_of_equality_only_where_it_was_shown() -> None:
    noisy = levels_table(effects={"no-offload": 0.0, "native-offload": 0.0}, sd=0.08)
    assert not re.search(
        "(?i)parity|identical|no impact|no (relevant )?difference",
        first_screen(plan(), measured(noisy)),
    )
    quiet = levels_table(effects={"no-offload": 0.0, "native-offload": 0.0}, sd=0.004)
    assert re.search(
        r"No relevant difference, within 5 %: native-offload 10K",
        first_screen(plan(), measured(quiet)),
    )


def test_budgets_are_set_against_the_working_set() -> None:
    def budget_row(**budget: int) -> dict[str, str]:
        """The native arm's row of what the caches hold."""
        facts = measured(budget=budget) if budget else measured()
        rows = table_of(result_of(plan(), facts), "What the caches hold").records
        return next(row for row in rows if row["arm"] == "native-offload 10K")

    size = "0.153 GiB (10,000 blocks)"
    assert [*budget_row().values()][1:5] == [size, "160,000", "17,920", "40,000"]
    budget = {"cpu_blocks": 500, "tokens": 8000, "tier_bytes": 8_192_000}
    smaller, short = budget_row(**budget, device_tokens=17_920)["note"].split("; ")
    assert "smaller than" in smaller
    assert "not hold" in short
    assert "fit the device" in budget_row(**budget, device_tokens=50_000)["note"]


def test_a_working_set_may_grow_with_the_level() -> None:
    growing = {
        "prefix_tokens": 10_000,
        "prefix_count": {"per_level": 2},
        "levels": [1, 50, 650],
    }
    assert working_set(workload_of(growing)) == {
        1: 20_000,
        50: 1_000_000,
        650: 13_000_000,
    }
    fixed = {"prefix_tokens": 10_000, "prefix_count": 800, "levels": [1, 2]}
    assert working_set(workload_of(fixed)) == {1: 8_000_000, 2: 8_000_000}


def test_failed_checks_are_listed_one_by_one() -> None:
    levels = levels_table()
    at = (levels["scenario"] == "idle") & (levels["level"] == 8) & (levels["run"] == 2)
    noted = Outcome("few_completions", "note", words="few")
    levels = levels.assign(**outcome_columns([noted]))
    message = "it rose by 40 %"
    found = outcome_columns([Outcome("steadiness", "fail", words=message), noted])
    levels.loc[at, list(found)] = list(found.values())
    facts = measured(levels)
    failed, others = tables_in(part_of(text_of(result_of(plan(), facts)), "Checks"))
    assert failed.rows == [["idle 10K", "2", "8", "`steadiness`", message]]
    assert others.rows == [["`few_completions`", "note", "60 of 60", "few"]]
    assert "`steadiness`" not in appendix(plan(), measured(), "checks")


def test_unrecorded_metrics_are_not_printed_as_zero() -> None:
    system = appendix(plan(), measured(), "system")
    assert "KV-cache usage, percent" in system
    assert "server memory" not in system
    assert "| 45 |" in system
    assert re.search(r"no-offload \| 32 \| 45 \| 70 \| n/a \|", system)


def test_runs_of_different_kinds_do_not_mix() -> None:
    one, other = measured(), measured(weights="full")
    mixed = Measured([*one.runs, *other.runs], one.levels, one.peaks, one.comparison)
    with pytest.raises(ReportError) as error:
        build_result(plan(), mixed, {})
    assert error.value.code == "mixed_kinds"
    assert error.value.facts["kinds"] == [("local", "full"), ("local", "miniature")]
    with pytest.raises(ReportError) as error:
        build_result(plan(), Measured([], one.levels, one.peaks, one.comparison), {})
    assert error.value.code == "no_run"


def test_a_replayed_trace_is_not_called_synthetic() -> None:
    drawn = measured()
    trace = {
        "profile": "trace",
        "trace": {"sha256": "f00d", "hash_tokens": 16, "tokens": 16},
    }
    replayed = [
        msgspec.structs.replace(run, specification={"workload": run.workload | trace})
        for run in drawn.runs
    ]
    for found, said in (drawn.runs, "is synthetic"), (replayed, "replays a trace"):
        text = files(plan(), replace(drawn, runs=found))["REPORT.md"]
        (line,) = [
            line for line in text.splitlines() if line.startswith("- The workload ")
        ]
        assert line.startswith(f"- The workload {said}")


def test_machines_that_differ_are_pointed_out() -> None:
    one, other = (
        measured(),
        measured(
            hardware={"cpu_model": "Another CPU", "cpus": 4, "fingerprint": "beef"}
        ),
    )
    both = Measured(
        [*one.runs[:10], *other.runs[10:]], one.levels, one.peaks, one.comparison
    )
    assert "different machines" in first_screen(plan(), both)
    lines = appendix(plan(), both, "configuration").splitlines()
    header = next(line for line in lines if line.startswith("| machine |"))
    assert [cell.strip() for cell in header.split("|")[2:-1]] == ["`f00d`", "`beef`"]


def test_what_is_said_of_runs_from_elsewhere_is_a_list() -> None:
    shown = first_screen(
        plan(description="2 results found:\nall good\n- one remark\n- another"),
        measured(),
    )
    assert "2 results found: all good\n\n- one remark\n- another\n" in shown


def test_runs_that_were_measured_again_are_counted_by_arm() -> None:
    crash = {
        "defect": "vllm-1",
        "title": "it dies",
        "link": "https://example.org/1",
        "effect": "Slow loads are rare.",
    }
    ends = [
        msgspec.convert({**crash, "attempt": f"failed/{n}", "ended": ""}, Repeat)
        for n in range(2)
    ]
    found = runs(tables()[0])
    assert result_of(plan(), Measured(found, *tables())).known_defects == []
    native = [
        number
        for number, run in enumerate(found)
        if run.cell.scenario == "native-offload"
    ]
    found[native[0]] = msgspec.structs.replace(found[native[0]], repeats=ends)
    found[native[1]] = msgspec.structs.replace(found[native[1]], repeats=ends[:1])
    arms = f"native-offload: 2 of {len(native)} runs, 3 times in all"
    text = files(plan(), Measured(found, *tables()))["REPORT.md"]
    said = part_of(text, "Measured again after a known defect")
    for words in (f"[vllm-1]({crash['link']})", arms, crash["effect"]):
        assert words in said
    assert "vllm-1" not in files(plan(), measured())["REPORT.md"]


def test_a_bar_in_a_cell_does_not_split_it() -> None:
    text = table([["x|y", "two\nlines"]], ["a", "b:"])
    assert text.strip() == "| a | b |\n| --- | ---: |\n| x\\|y | two lines |"


def test_the_footer_names_engine_weights_and_hardware() -> None:
    line = footer(measured().runs, "test")
    assert line == footer(measured().runs[:1], "test")
    assert line == (
        "local engine, random-weight miniature, not the named model · A CPU, 2 CPUs, 24 GiB memory, no GPU"
        " · vLLM 0.32.0, GuideLLM 0.8.1 · campaign test"
    )


def test_the_foot_has_what_is_needed_to_find_or_repeat_the_campaign() -> None:
    command = "snakemake --cores 4 report"
    origin = {"command": command, "workflow_commit": f"{'a' * 40}-dirty"}
    text = files(plan(**origin), measured())["REPORT.md"]
    rows = dict(tables_in(part_of(text, "Where this comes from"))[0].rows)
    assert rows["command"] == f"`{command}`"
    commit = f"`{'a' * 40}`, with changes that are not committed"
    assert rows["commit of the workflow"] == commit
    assert {"measured on", "campaign", "versions", "machine", "measurements"} < {*rows}
    unknown = files(plan(), measured())["REPORT.md"]
    assert "commit of the workflow" not in unknown
