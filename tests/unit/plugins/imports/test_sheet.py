"""From trees to sheets: what is told of each level, what is marked, and what becomes of a sheet that is there already."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.config_files import CONFIG
from tests.support.guidellm_reports import START, Story
from tests.support.import_sheets import (
    Row,
    campaign_plan,
    correct,
    plan,
    rows,
    update,
    write_rows,
)
from tests.support.result_trees import (
    HOUR,
    LMCACHE,
    folder_name,
    native,
    write_archive,
    write_campaign_tree,
    write_config,
    write_level,
    write_report,
)
from tests.support.vllm_bench import result

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_catalogue
from kveval.plugins.imports.forms import scan
from kveval.plugins.imports.interpret import interpret

MODEL = "Qwen3-0.6B"
PER_BLOCK_GIB = 16 * 114_688 / 2**30
POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:620d525c\nsize 108388\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    return tmp_path / "imports.csv"


def made(tree: Path) -> list[Row]:
    """The rows of a tree's sheet, made anew."""
    path = tree.parent / "imports.csv"
    path.unlink(missing_ok=True)
    update(path, tree)
    return rows(path)


def runs(content: list[Row]) -> dict[str, list[list[int]]]:
    """The levels of every run of every cell that is imported, as the sheet has them."""
    cells: dict[str, dict[str, list[int]]] = {}
    for row in content:
        if row["use"] == "yes" and "?" not in row.values():
            cell = f"{row['model']}/{row['scenario']}/{row['cpu_blocks']}"
            cells.setdefault(cell, {}).setdefault(row["run"], []).append(
                int(row["level"])
            )
    return {
        cell: [sorted(by_run[run]) for run in sorted(by_run)]
        for cell, by_run in cells.items()
    }


def row_of(content: list[Row], name: str) -> Row:
    """The only row whose report has `name` in its path."""
    (row,) = [row for row in content if name in row["report"]]
    return row


def remarks(tree: Path, place: str) -> dict[str, Mapping[str, Any]]:
    """The facts of the remarks on a result, by their codes."""
    catalogue = load_catalogue(CONFIG)
    (files,) = [files for files in scan(tree).results if place in files.place]
    found = interpret(tree, files, catalogue).remarks
    return {remark.code: remark.facts for remark in found}


def write_result(path: Path, *results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(entry) for entry in results))


# --- folders of one level each


def test_the_levels_of_a_configuration_are_one_run(tree: Path) -> None:
    for rate in (50, 1, 500):
        write_level(tree, MODEL, "no-offload", rate)
        arm = "native-offload-10k"
        write_level(tree, MODEL, arm, rate, archive=False, args=native(10_000))
    content = made(tree)
    assert runs(content) == {
        f"{MODEL}/native-offload/10000": [[1, 50, 500]],
        f"{MODEL}/no-offload/0": [[1, 50, 500]],
    }
    row = row_of(content, f"{MODEL}_no-offload_replica1_rate50/")
    folder = tree / folder_name(MODEL, "no-offload", 50)
    assert row == {
        "use": "yes",
        "model": MODEL,
        "scenario": "no-offload",
        "cpu_blocks": "0",
        "run": "1",
        "level": "50",
        "report": f"{folder}/guidellm-results.json.zst",
        "folder": f"tree/{folder.name}",
        "benchmark": "0",
        "recording": f"{folder}/pcp-archives",
        "server_files": f"{folder}/benchmark-config.txt;{folder}/vllm-startup.log.zst",
        "hardware": "1x2xL40S",
        "software": "upstream-llm-d-0.4.0",
        "replicas": "1",
        "tensor_parallel_size": "2",
        "arm": "no-offload",
        "vllm": "0.11.2",
        "problem": "",
        "guidellm": "0.5.3",
        "start": "2026-02-02T02:40:00.000Z",
        "configuration": row["configuration"],
        "remarks": "",
    }


def test_repeated_folders_are_further_runs_in_the_order_of_their_times(
    tree: Path,
) -> None:
    for number, place in enumerate(("second", "first")):
        for rate in (1, 4):
            start = START + (1 - number) * HOUR
            write_level(
                tree / place, MODEL, "no-offload", rate, archive=False, start=start
            )
    start = START + 9 * HOUR
    write_level(tree / "third", MODEL, "no-offload", 4, archive=False, start=start)
    content = made(tree)
    assert runs(content) == {f"{MODEL}/no-offload/0": [[1, 4], [1, 4], [4]]}
    numbers = {row["report"].split("/")[-3]: row["run"] for row in content}
    assert numbers == {"first": "1", "second": "2", "third": "3"}


def test_a_copy_of_a_result_is_no_repetition(tree: Path) -> None:
    folder = write_level(tree / "a", MODEL, "no-offload", 1, archive=False)
    shutil.copytree(folder, tree / "b" / folder.name)
    content = made(tree)
    assert runs(content) == {f"{MODEL}/no-offload/0": [[1]]}
    copied = row_of(content, "/b/")
    assert (
        copied["use"],
        f"the same measurement as {tree}/a/" in copied["remarks"],
    ) == (
        "no",
        True,
    )


def test_what_ran_counts_and_what_the_name_declares_is_said(tree: Path) -> None:
    write_level(
        tree, MODEL, "native-offload-20k", 1, archive=False, args=native(10_000)
    )
    (row,) = made(tree)
    assert row["cpu_blocks"] == "10000"
    text = (
        "20000 cpu_blocks declared, 10000 effective (num_cpu_blocks 10000 of 16 tokens)"
    )
    assert row["remarks"] == text
    assert plan(tree).runs[0].remarks == [text]


def test_lmcache_is_sized_by_its_environment_over_all_ranks(tree: Path) -> None:
    args, env = (
        f"--kv-transfer-config '{LMCACHE}'",
        "LMCACHE_MAX_LOCAL_CPU_SIZE=4.0",
    )
    write_level(tree, MODEL, "lmcache-local", 1, archive=False, args=args, env=env)
    assert [*runs(made(tree))] == [f"{MODEL}/lmcache-local/{int(8 / PER_BLOCK_GIB)}"]
    assert remarks(tree, "rate1") == {}


def test_the_same_arguments_under_two_names_of_one_arm_are_repetitions(
    tree: Path,
) -> None:
    args = f"--kv-transfer-config '{LMCACHE}'"
    write_level(tree, MODEL, "lmcache-valkey", 1, archive=False, args=args)
    start, arm = START + HOUR, "lmcache-valkey-20kcpu"
    write_level(tree, MODEL, arm, 1, archive=False, args=args, start=start)
    assert list(runs(made(tree)).values()) == [[[1], [1]]]
    (remark,) = remarks(tree, "20kcpu_replica1_rate1").items()
    assert (remark[0], remark[1]["declared"]) == ("other_size", 20_000)


def test_two_arms_configured_alike_are_said_to_be_replicates(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "llm-d-redis", 1, archive=False)
    config = {"EPP_Backend": "valkey"}
    write_level(tree, MODEL, "llm-d-valkey", 1, archive=False, config=config)
    by_arm = {row["scenario"]: row for row in made(tree)}
    text = f"configured like {MODEL}/llm-d-redis/0: a difference between them is noise (A/A)"
    assert by_arm["no-offload"]["remarks"] == text
    assert by_arm["llm-d-valkey"]["remarks"] == ""
    alike = {arm: row["configuration"] for arm, row in by_arm.items()}
    assert alike["no-offload"] == alike["llm-d-redis"] != alike["llm-d-valkey"]


def test_an_arm_without_its_connector_is_imported_as_what_ran(tree: Path) -> None:
    write_level(tree, MODEL, "native-offload-10k", 1, archive=False)
    assert [*runs(made(tree))] == [f"{MODEL}/native-offload/0"]
    assert next(iter(remarks(tree, "rate1"))) == "no_connector"


def test_a_buffer_before_files_is_no_tier(tree: Path) -> None:
    extra = '"cpu_bytes_to_use":1835008000,"secondary_tiers":[{"type":"fs","root_dir":"/data"}]'
    config = f'{{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{{{extra}}}}}'
    args = f"--kv-transfer-config '{config}'"
    write_level(tree, MODEL, "fs-offload", 1, archive=False, args=args)
    # The same arguments under the name of an arm that has a tier in host memory.
    write_level(tree, MODEL, "native-offload", 4, archive=False, args=args)
    assert [*runs(made(tree))] == [
        f"{MODEL}/fs-offload/0",
        f"{MODEL}/native-offload/1000",
    ]
    setting = "cpu_bytes_to_use 1835008000"
    assert remarks(tree, "rate1") == {
        "buffer": {"cpu_blocks": 1000, "setting": setting}
    }


def test_levels_of_one_name_with_other_arguments_are_another_run(tree: Path) -> None:
    arm, args = "native-offload", native(10_000)
    write_level(tree, MODEL, arm, 1, archive=False, args=args)
    write_level(tree, MODEL, arm, 4, archive=False, args=args)
    write_level(tree, MODEL, arm, 8, archive=False, args=native(5_000))
    other, start = f"{args} --max-num-seqs 8", START + HOUR
    for rate in (4, 16):
        write_level(
            tree / "again", MODEL, arm, rate, archive=False, args=other, start=start
        )
    assert runs(made(tree)) == {
        f"{MODEL}/native-offload/5000": [[8]],
        f"{MODEL}/native-offload/10000": [[1, 4], [4, 16]],
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda report: report.write_bytes(report.read_bytes()[:-3]),
            "truncated zstd file",
        ),
        (lambda report: report.write_bytes(b""), "the report is empty"),
        (lambda report: report.write_text('{"benchmarks": []}'), "no benchmark"),
        (
            lambda report: report.write_bytes(zstandard.compress(b'{"results": 1}')),
            "not a report of GuideLLM",
        ),
        (lambda report: report.write_text(POINTER), "git lfs pull"),
        (lambda report: report.unlink(), "GuideLLM writes it at its end"),
    ],
)
def test_a_damaged_level_is_a_failed_one_of_its_run(
    tree: Path, change: Any, message: str
) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    folder = write_level(tree, MODEL, "no-offload", 4, archive=False)
    change(folder / "guidellm-results.json.zst")
    row = row_of(made(tree), "rate4")
    assert (row["use"], row["run"], row["level"]) == ("yes", "1", "4")
    assert message in row["problem"]
    assert str(tree) not in row["problem"]
    (run,) = plan(tree).runs
    assert [level.error for level in run.levels] == ["", row["problem"]]


def test_a_damaged_level_without_a_run_is_left_out(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4, archive=False)
    (folder / "guidellm-results.json.zst").write_bytes(b"x")
    (row,) = made(tree)
    assert (row["use"], row["level"], bool(row["problem"])) == ("no", "4", True)


def test_a_report_without_a_completed_request_gives_nothing(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "no-offload", 4, archive=False, latency_s=90.0, keep=0)
    assert "no request was completed" in row_of(made(tree), "rate4")["problem"]


def test_a_report_compressed_twice_is_read(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False, layers=2)
    (row,) = made(tree)
    assert row["report"].endswith("guidellm-results.json.zst.zst")


@pytest.mark.parametrize(
    ("name", "column", "reason"),
    [
        (
            "1x2xL40S_upstream-llm-d-0.4.0_Qwen9-1B_no-offload_replica1_rate4",
            "model",
            "Qwen9-1B",
        ),
        (
            "1x2xL40S_upstream-llm-d-0.4.0_Qwen3-0.6B_quantum_replica1_rate4",
            "scenario",
            "the arm 'quantum' is not in scenarios.yaml",
        ),
    ],
)
def test_what_an_unknown_name_does_not_tell_is_marked_and_not_guessed(
    tree: Path, name: str, column: str, reason: str
) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "no-offload", 4, archive=False, name=name)
    content = made(tree)
    row = row_of(content, name)
    assert (row[column], row["run"], row["level"]) == ("?", "1", "4")
    assert row["cpu_blocks"] == ("0" if column == "model" else "?")
    assert reason in row["remarks"]
    assert runs(content) == {f"{MODEL}/no-offload/0": [[1]]}


def test_runs_of_an_unknown_arm_are_numbered_for_themselves(tree: Path) -> None:
    for number, arm in enumerate(("quantum", "quantum-10k", "other")):
        for again in range(2):
            write_level(
                tree / str(again),
                MODEL,
                arm,
                1,
                archive=False,
                start=START + (3 * again + number) * HOUR,
            )
    content = made(tree)
    numbers = [(row["arm"], row["cpu_blocks"], row["run"]) for row in content]
    assert sorted(numbers) == [
        ("other", "?", "1"),
        ("other", "?", "2"),
        ("quantum", "10000", "1"),
        ("quantum", "10000", "2"),
        ("quantum", "?", "1"),
        ("quantum", "?", "2"),
    ]


def test_the_model_that_ran_counts(tree: Path) -> None:
    config = {"Model": f"Qwen/{MODEL}"}
    write_level(tree, "Qwen3-8B", "no-offload", 1, archive=False, config=config)
    assert [*runs(made(tree))] == [f"{MODEL}/no-offload/0"]
    assert next(iter(remarks(tree, "rate1").items())) == (
        "other_model",
        {"declared": "Qwen3-8B", "effective": MODEL},
    )
    served = "/models/Qwen3-0.6B"
    write_level(tree, "Qwen3-8B", "no-offload", 4, archive=False, served=served)
    assert [*remarks(tree, "rate4")] == ["several_models"]
    assert row_of(made(tree), "rate4")["model"] == "?"


def test_memory_pressure_is_a_scenario_of_its_own(tree: Path) -> None:
    software, config = "upstream-llm-d-0.4.0-mempress", {"GPU_Memory_Utilization": 0.55}
    write_level(
        tree, MODEL, "no-offload", 1, archive=False, software=software, config=config
    )
    write_level(tree, MODEL, "no-offload", 4, archive=False, software=software)
    assert [*runs(made(tree))] == [f"{MODEL}/no-offload-mempress/0"]
    assert remarks(tree, "rate1") == {}
    assert next(iter(remarks(tree, "rate4").items())) == (
        "other_utilization",
        {"declared": 0.55, "effective": 0.9},
    )


def test_where_name_arguments_and_report_do_not_agree_is_said(tree: Path) -> None:
    config = {
        "Rate_(Concurrency)": 500,
        "Replicas": 2,
        "Parameters": "llm-d-redis",
        "Run_ID": "other",
    }
    write_level(tree, MODEL, "no-offload", 50, archive=False, streams=5, config=config)
    assert runs(made(tree)) == {f"{MODEL}/no-offload/0": [[5]]}
    expected = {
        "other_run_id": {"run_id": "other"},
        "streams_of_name": {"declared": 50, "effective": [5]},
        "streams_of_arguments": {"declared": 500, "effective": [5]},
        "other_replicas": {"declared": 1, "effective": 2},
        "other_arm": {"declared": "no-offload", "effective": "llm-d-redis"},
    }
    found = remarks(tree, "rate50")
    assert {code: found[code] for code in expected} == expected


def test_a_load_that_is_not_what_was_asked_for_is_said(tree: Path) -> None:
    config = {"Prefix_Count": 2, "Turns": 5}
    write_level(tree, MODEL, "no-offload", 1, archive=False, config=config)
    facts = {"key": "Prefix Count", "declared": 2, "effective": 8}
    assert remarks(tree, "rate1")["other_load"] == facts


# --- several releases, and runs that do not fit


def releases(tree: Path, *names: str) -> None:
    for number, software in enumerate(names):
        start = START + number * HOUR
        write_level(
            tree, MODEL, "no-offload", 1, archive=False, software=software, start=start
        )


def test_results_of_several_releases_in_one_cell_have_to_be_decided(tree: Path) -> None:
    releases(tree, "llm-d-0.4.0", "llm-d-0.5.0")
    content = made(tree)
    assert [(row["use"], row["run"]) for row in content] == [("?", "1"), ("?", "1")]
    assert "llm-d-0.4.0 and llm-d-0.5.0" in content[0]["remarks"]
    newer = plan(
        tree,
        corrections=lambda row: {
            "use": "yes" if row["software"] == "llm-d-0.5.0" else "no"
        },
    )
    assert [(run.cell.path, run.software) for run in newer.runs] == [
        (f"{MODEL}/no-offload/0", "llm-d-0.5.0")
    ]
    with pytest.raises(ConfigError) as caught:
        plan(tree, corrections=lambda row: {"use": "yes"})
    assert {problem.code for problem in caught.value.problems} == {
        "mixture",
        "repeated",
    }


def test_releases_are_compared_as_scenarios_of_their_own(tree: Path) -> None:
    releases(tree, "llm-d-0.4.0", "llm-d-0.5.0")
    name = "no-offload-0.5.0"
    own = {name: {"extends": "no-offload", "title": "0.5", "baseline": "no-offload"}}

    def corrections(row: Row) -> dict[str, str]:
        scenario = name if row["software"] == "llm-d-0.5.0" else row["scenario"]
        return {"use": "yes", "scenario": scenario}

    planned = plan(tree, corrections=corrections, scenarios=own)
    assert [cell.scenario for cell in planned.cells] == ["no-offload", name]


def test_reports_of_one_cell_without_a_common_level_are_one_run(tree: Path) -> None:
    write_level(tree / "low", MODEL, "no-offload", 1, archive=False)
    write_level(tree / "low", MODEL, "no-offload", 4, archive=False, start=START + 100)
    start = START + HOUR
    write_level(tree / "high", MODEL, "no-offload", 8, archive=False, start=start)
    assert runs(made(tree)) == {f"{MODEL}/no-offload/0": [[1, 4, 8]]}


@pytest.mark.parametrize(
    "other", [{"args": "--max-num-seqs 8"}, {"prompt_tokens": 640}]
)
def test_what_differs_in_more_than_its_levels_is_left_out_with_the_reason(
    tree: Path, other: dict[str, Any]
) -> None:
    for rate in (1, 4):
        write_level(tree / "low", MODEL, "no-offload", rate, archive=False)
    options = {"archive": False, "start": START + HOUR, **other}
    write_level(tree / "high", MODEL, "no-offload", 8, **options)
    content = made(tree)
    assert runs(content) == {f"{MODEL}/no-offload/0": [[1, 4]]}
    row = row_of(content, "/high/")
    assert (row["use"], row["run"]) == ("no", "2")
    assert "shares no level (8) with the cell's other runs (1, 4)" in row["remarks"]


# --- other forms


def test_the_older_form_beside_its_archive(tree: Path) -> None:
    for number, rate in enumerate((4, 4, 8)):
        stem = f"benchmark_2025110{number + 1}_120000_Qwen3-0.6B_native-offload-10k_rate{rate}"
        story = Story(streams=rate, start=START + number * HOUR)
        write_report(
            tree / f"{stem}_guidellm.json", [story], layers=0, generation="0.4"
        )
        (tree / f"{stem}_pcp.tar.xz").write_bytes(b"an archive")
    unknown = "benchmark_20251101_120000_unknown-arm_guidellm.json"
    write_report(tree / unknown, [Story()], layers=0)
    content = made(tree)
    assert runs(content) == {f"{MODEL}/native-offload/10000": [[4, 8], [4]]}
    row = row_of(content, "20251101_120000_Qwen3")
    assert row["recording"].endswith("native-offload-10k_rate4_pcp.tar.xz")
    assert row["remarks"] == "10000 cpu_blocks as declared; its arguments are not known"
    assert row_of(content, unknown)["scenario"] == "?"


def test_the_evaluation_of_october_2025(tree: Path, sheet: Path) -> None:
    stories = [
        Story(strategy="synchronous", streams=1),
        Story(strategy="throughput", start=START + 100),
    ]
    stories += [
        Story(strategy="constant", rate=rate, streams=4, start=START + 200 + 100 * rate)
        for rate in (4.0, 2.0, 3.0)
    ]
    for arm in ("default", "offload"):
        report = tree / f"oct2025-{MODEL}-{arm}.json"
        write_report(report, stories, layers=0, generation="0.3", keep=0)
    write_archive(tree / "pcp-archives" / "node", Story())
    updated = update(sheet, tree)
    assert len(updated.published) == 2
    content = rows(sheet)
    assert runs(content) == {f"{MODEL}/no-offload/0": [[1, 2, 3, 4, 5]]}
    offload = [row for row in content if row["arm"] == "offload"]
    assert {(row["scenario"], row["cpu_blocks"], row["vllm"]) for row in offload} == {
        ("native-offload", "?", "0.11.0")
    }
    assert {row["recording"] for row in content} == {str(tree / "pcp-archives")}
    assert correct(sheet, {"cpu_blocks": 20_000}) == 5
    planned = plan(tree, corrections={"cpu_blocks": 20_000})
    assert [cell.path for cell in planned.cells] == [
        f"{MODEL}/native-offload/20000",
        f"{MODEL}/no-offload/0",
    ]
    # By load: one at a time, the rates, everything at once.
    assert [level.benchmark for level in planned.runs[0].levels] == [0, 3, 4, 2, 1]
    stamp = planned.runs[0].stamp
    os.utime(next((tree / "pcp-archives" / "node").iterdir()), ns=(1, 1))
    again = plan(tree, corrections={"cpu_blocks": 20_000})
    assert again.runs[0].stamp not in (stamp, "")


def test_a_folder_of_another_name_keeps_its_files_and_is_marked(tree: Path) -> None:
    name = "1x2xL40S_llm-d_Qwen3-0.6B_no-offload_rate4_x_y"
    folder = write_level(tree, MODEL, "no-offload", 4, name=name)
    (row,) = made(tree)
    assert open_columns(row) == ["scenario", "cpu_blocks", "run"]
    assert row["recording"] == f"{folder}/pcp-archives"
    assert (row["vllm"], row["folder"]) == ("0.11.2", f"tree/{name}")
    assert "no documented form" in row["remarks"]


# --- reports of any other name


def open_columns(row: Row) -> list[str]:
    """The columns of a row that have to be filled in."""
    return [name for name, value in row.items() if value == "?"]


def test_a_report_of_another_name_says_what_it_is_itself(tree: Path) -> None:
    folder = tree / "native-offload"
    write_report(folder / "a.json", [Story(streams=4), Story(streams=8)], layers=0)
    write_config(folder, "any", args=native(10_000))
    write_archive(folder / "pcp-archives" / "node", Story())
    content = made(tree)
    assert [row["level"] for row in content] == ["4", "8"]
    assert content[0] == dict.fromkeys(content[0], "") | {
        "use": "yes",
        "model": MODEL,
        "scenario": "?",
        "cpu_blocks": "?",
        "run": "?",
        "level": "4",
        "report": f"{folder}/a.json",
        "folder": "tree/native-offload",
        "guidellm": "0.5.3",
        "start": "2026-02-02T02:40:00.000Z",
        "benchmark": "0",
        "remarks": "its name has no documented form, so nothing is taken from it",
    }


FREE = st.lists(
    st.sampled_from(
        [
            "no-offload",
            "native-offload-10k",
            "1x2xL40S_llm-d-0.4.0",
            MODEL,
            "replica2",
            "rate8",
            "run-1",
            "benchmark_20251101",
            "oct2025",
        ]
    ),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(folders=FREE, fields=FREE)
def test_a_free_name_means_nothing(
    tmp_path_factory: pytest.TempPathFactory, folders: list[str], fields: list[str]
) -> None:
    """Law: but for its place, the row of a report is the same whatever it and its folders are called."""
    tree = tmp_path_factory.mktemp("free") / "tree"
    write_report(tree / "/".join(folders) / f"{'_'.join(fields)}.json", [Story()])
    write_report(tree / "report.json", [Story()])
    first, second = made(tree)
    places = {"report": "", "folder": ""}
    assert first | places == second | places


def test_free_reports_are_neither_copies_nor_parts_of_one_run(tree: Path) -> None:
    for name in ("a", "b"):
        write_report(tree / f"{name}.json", [Story()], layers=0)
    write_report(tree / "c.json", [Story(streams=8, start=START + HOUR)], layers=0)
    uses = [(row["use"], row["run"]) for row in made(tree)]
    assert uses == [("yes", "?")] * 3


def test_a_free_sheet_is_filled_in_by_folders_and_stays(
    tree: Path, sheet: Path
) -> None:
    for number, arm in enumerate(("base", "tier")):
        for again in range(2):
            start = START + (2 * number + again) * HOUR
            stories = [Story(streams=1), Story(streams=8)]
            report = tree / arm / f"again-{again}.json"
            write_report(report, [replace(story, start=start) for story in stories])
    arms = {"tree/base": ("no-offload", 0), "tree/tier": ("native-offload", 10_000)}

    def fill(row: Row) -> dict[str, object]:
        scenario, blocks = arms[row["folder"]]
        run = 1 + row["report"].endswith("again-1.json")
        return {"scenario": scenario, "cpu_blocks": blocks, "run": run}

    update(sheet, tree)
    assert correct(sheet, fill) == 3 * 8
    before = sheet.read_bytes()
    assert update(sheet, tree).added == {}
    assert sheet.read_bytes() == before
    planned = [(run.cell.scenario, run.run) for run in campaign_plan(sheet).runs]
    assert planned == [
        (arm, run) for arm, _ in reversed(arms.values()) for run in (1, 2)
    ]


def test_results_of_vllm_bench_are_levels_of_their_concurrency(tree: Path) -> None:
    for number, streams in enumerate((1, 8)):
        path = tree / f"openai-infqps-concurrency{streams}-{MODEL}.json"
        write_result(path, result(streams=streams, end=START + 600 * number))
    content = made(tree)
    assert [(row["model"], row["level"]) for row in content] == [
        (MODEL, "1"),
        (MODEL, "8"),
    ]


@pytest.mark.parametrize(
    ("number", "run"), [(None, "?"), (0, "1"), (2, "3"), (-1, "?")]
)
def test_a_result_of_vllm_bench_may_say_which_run_it_is(
    tree: Path, number: int | None, run: str
) -> None:
    write_result(tree / "a.json", result(run_number=number))
    (row,) = made(tree)
    assert row["run"] == run


def test_results_appended_to_a_file_are_levels_of_it(tree: Path) -> None:
    results = [result(streams=1), result(streams=8, end=START + 600)]
    write_result(tree / "no-offload.json", *results)
    levels = [(row["benchmark"], row["level"]) for row in made(tree)]
    assert levels == [("0", "1"), ("1", "8")]


def test_rates_are_levels_of_requests_a_minute(tree: Path) -> None:
    for number, rate in enumerate((0.5, 2.0)):
        path = tree / f"{number}.json"
        write_result(path, result(streams=None, rate=rate, end=START + 600 * number))
    assert [row["level"] for row in made(tree)] == ["30", "120"]


def test_a_free_report_without_a_completed_request_is_left_out(tree: Path) -> None:
    story = Story(latency_s=90.0)
    write_report(tree / "a.json", [story], layers=0, keep=0)
    (row,) = made(tree)
    assert (row["use"], row["run"], row["level"]) == ("no", "?", "?")
    assert "no request was completed" in row["problem"]


# --- what is no result


def test_what_is_no_result_is_listed_with_its_reason(tree: Path, sheet: Path) -> None:
    folder = write_level(tree / "results", MODEL, "no-offload", 1, archive=False)
    (folder / "batch-final-status.json").write_text("{}")
    twice = folder / "guidellm-results.json.zst.zst"
    shutil.copy(folder / "guidellm-results.json.zst", twice)
    (tree / "notes.json").write_text("{}")
    (tree / "results" / "analysis").mkdir()
    (tree / "docs").mkdir()
    others = update(sheet, tree).others
    assert {Path(place).relative_to(tree).as_posix() for place in others} == {
        f"results/{folder.name}/batch-final-status.json",
        "notes.json",
        "results/analysis",
    }
    assert "not a report of GuideLLM" in others[str(tree / "notes.json")]
    assert f"{twice.name} is left out" in rows(sheet)[0]["remarks"]


# --- a sheet that is there


def test_a_sheet_of_a_tree_is_always_the_same(tree: Path) -> None:
    write_campaign_tree(tree, runs=2)
    assert made(tree) == made(tree)


def test_nothing_new_leaves_the_sheet_as_it_is(tree: Path, sheet: Path) -> None:
    write_campaign_tree(tree)
    update(sheet, tree)
    before = sheet.read_bytes()
    updated = update(sheet, tree)
    assert (updated.added, updated.known) == ({}, 6)
    assert sheet.read_bytes() == before


def test_levels_that_came_later_are_added_to_their_runs(
    tree: Path, sheet: Path
) -> None:
    write_level(tree / "a", MODEL, "no-offload", 1, archive=False)
    update(sheet, tree)
    before = sheet.read_bytes()
    write_level(tree / "a", MODEL, "no-offload", 4, archive=False, start=START + HOUR)
    for rate in (1, 4):
        # Measured before, and listed afterwards: the numbers of runs in the sheet stay.
        write_level(
            tree / "b",
            MODEL,
            "no-offload",
            rate,
            archive=False,
            start=START - rate * HOUR,
        )
    updated = update(sheet, tree)
    assert sheet.read_bytes().startswith(before)
    assert {
        line: (row["run"], row["level"]) for line, row in updated.added.items()
    } == {3: ("2", "1"), 4: ("2", "4"), 5: ("1", "4")}
    assert rows(sheet)[1:] == [*updated.added.values()]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    first=st.integers(0, 6),
    corrections=st.dictionaries(
        st.sampled_from(
            ["scenario", "cpu_blocks", "run", "use", "remarks", "software"]
        ),
        st.sampled_from(["7", "no"]),
    ),
)
def test_corrections_stay_whatever_is_added(
    tmp_path_factory: pytest.TempPathFactory, first: int, corrections: dict[str, str]
) -> None:
    """Law: the lines of a sheet are a beginning of the sheet of the grown tree, with every level once."""
    folder = tmp_path_factory.mktemp("grown")
    tree, sheet = folder / "tree", folder / "imports.csv"
    write_campaign_tree(folder / "all")
    names = sorted(path.name for path in (folder / "all").iterdir())
    tree.mkdir()
    for name in names[:first]:
        shutil.copytree(folder / "all" / name, tree / name)
    update(sheet, tree)
    valid = {name: text for name, text in corrections.items() if _fits(name, text)}
    if rows(sheet):
        content = rows(sheet)
        content[0].update(valid)
        write_rows(sheet, content)
    before = sheet.read_bytes()
    for name in names[first:]:
        shutil.copytree(folder / "all" / name, tree / name)
    updated = update(sheet, tree)
    assert sheet.read_bytes().startswith(before)
    assert len(updated.added) == len(names) - first
    reports = [row["report"] for row in rows(sheet)]
    assert len(set(reports)) == len(reports) == len(names)


def _fits(column: str, text: str) -> bool:
    numbers = column in ("cpu_blocks", "run")
    return text.isdigit() if numbers else column != "use" or text == "no"


def test_columns_and_line_ends_of_a_sheet_are_kept(tree: Path, sheet: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    update(sheet, tree)
    few = ("model", "scenario", "cpu_blocks", "run", "level", "report")
    write_rows(sheet, [{name: rows(sheet)[0][name] for name in few}])
    # The last line has no end.
    sheet.write_bytes(sheet.read_bytes().rstrip(b"\n"))
    write_level(tree, MODEL, "no-offload", 4, archive=False, start=START + HOUR)
    update(sheet, tree)
    content = rows(sheet)
    assert [tuple(row) for row in content] == [few, few]
    assert [row["level"] for row in content] == ["1", "4"]


def test_a_sheet_with_mistakes_is_not_added_to(tree: Path, sheet: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    sheet.write_text("model,scenario\n")
    with pytest.raises(ConfigError):
        update(sheet, tree)
    assert sheet.read_text() == "model,scenario\n"


def test_a_second_tree_is_added_and_copies_in_it_are_left_out(
    tmp_path: Path, sheet: Path
) -> None:
    folder = write_level(tmp_path / "a", MODEL, "no-offload", 1, archive=False)
    update(sheet, tmp_path / "a")
    shutil.copytree(folder, tmp_path / "b" / folder.name)
    write_level(
        tmp_path / "c", MODEL, "no-offload", 1, archive=False, start=START + HOUR
    )
    update(sheet, tmp_path / "b", tmp_path / "c")
    content = rows(sheet)
    assert runs(content) == {f"{MODEL}/no-offload/0": [[1], [1]]}
    assert "the same measurement as" in row_of(content, "/b/")["remarks"]


def test_a_damaged_report_that_came_again_is_said(tree: Path, sheet: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    report = (
        write_level(tree, MODEL, "no-offload", 4, archive=False, start=START + HOUR)
        / "guidellm-results.json.zst"
    )
    content = report.read_bytes()
    report.write_text(POINTER)
    update(sheet, tree)
    report.write_bytes(content)
    assert update(sheet, tree).readable == [3]


def test_a_level_without_a_completed_request_is_not_said_to_be_readable(
    tree: Path, sheet: Path
) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "no-offload", 4, archive=False, latency_s=90.0, keep=0)
    update(sheet, tree)
    assert update(sheet, tree).readable == []


def test_a_release_that_was_decided_for_is_not_asked_for_again(
    tree: Path, sheet: Path
) -> None:
    releases(tree, "llm-d-0.4.0", "llm-d-0.5.0")
    update(sheet, tree)
    correct(
        sheet,
        lambda row: {"use": "yes" if row["software"] == "llm-d-0.5.0" else "no"},
    )
    for number, software in enumerate(("llm-d-0.5.0", "llm-d-0.6.0")):
        start = START + (5 + number) * HOUR
        options = {"archive": False, "software": software, "start": start}
        write_level(tree, MODEL, "no-offload", 4, **options)
        (row,) = update(sheet, tree).added.values()
        assert (row["use"], row["run"]) == (("yes", "1"), ("?", "1"))[number]


def test_levels_are_added_to_a_run_of_which_there_is_a_copy(
    tree: Path, sheet: Path
) -> None:
    folder = write_level(tree / "a", MODEL, "no-offload", 1, archive=False)
    shutil.copytree(folder, tree / "b" / folder.name)
    update(sheet, tree)
    write_level(tree / "a", MODEL, "no-offload", 4, archive=False, start=START + HOUR)
    (row,) = update(sheet, tree).added.values()
    assert row["run"] == "1"


def test_paths_are_relative_to_the_sheet_where_the_tree_is_given_so(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_level(tree, MODEL, "no-offload", 1)
    monkeypatch.chdir(tmp_path)
    sheet = Path("sheets/imports.csv")
    update(sheet, Path("tree"))
    (row,) = rows(sheet)
    assert row["report"].startswith("../tree/1x2xL40S")
    assert row["recording"].startswith("../tree/1x2xL40S")
