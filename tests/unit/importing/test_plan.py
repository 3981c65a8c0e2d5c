"""From trees to runs: what is imported, as what, and what is only listed, with its reason."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.support.config_files import CONFIG
from tests.support.guidellm_reports import START, Story
from tests.support.result_trees import (
    HOUR,
    LMCACHE,
    folder_name,
    native,
    write_archive,
    write_config,
    write_level,
    write_report,
)

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.importing import index
from kveval.importing.campaign import NothingToImport, import_plan
from kveval.importing.interpret import Result
from kveval.importing.plan import ImportPlan, RunPlan
from kveval.importing.table import COLUMNS, findings, rows, summary, write_table

MODEL = "Qwen3-0.6B"
PER_BLOCK_GIB = 16 * 114_688 / 2**30


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def campaign_plan(tree: Path, *imports: dict[str, Any], **campaign: Any) -> ImportPlan:
    """Plan a campaign of imports."""
    values = {"name": "test", "import": list(imports), **campaign}
    return import_plan(load_config(values, CONFIG), tree.parent / "index")


def plan(tree: Path, **asked: Any) -> ImportPlan:
    """Plan the import of a tree."""
    return campaign_plan(tree, {"path": str(tree), **asked})


def cells(planned: ImportPlan) -> dict[str, list[list[int]]]:
    """The levels of every run of every cell."""
    return {
        cell.path: [
            [level.level for level in run.levels] for run in planned.runs_of(cell.path)
        ]
        for cell in planned.cells
    }


def listed(planned: ImportPlan, place: str) -> Result:
    found = [entry for entry in planned.listed if entry.files.place.endswith(place)]
    assert len(found) == 1, [entry.files.place for entry in planned.listed]
    return found[0]


def reason(planned: ImportPlan, place: str) -> tuple[str, str]:
    """Status and the kind of reason."""
    result = listed(planned, place)
    return result.status, result.code


def remarks(planned: ImportPlan, place: str) -> dict[str, tuple[object, ...]]:
    """The values of what is said of a result, by the kind of remark."""
    return {remark.code: remark.values for remark in listed(planned, place).remarks}


def only_run(planned: ImportPlan) -> RunPlan:
    assert len(planned.runs) == 1
    return planned.runs[0]


def test_the_levels_of_a_configuration_are_one_run(tree: Path) -> None:
    for rate in (50, 1, 500):
        write_level(tree, MODEL, "no-offload", rate, archive=False)
        write_level(
            tree, MODEL, "native-offload-10k", rate, archive=False, args=native(10_000)
        )
    assert cells(plan(tree)) == {
        f"{MODEL}/native-offload/10000": [[1, 50, 500]],
        f"{MODEL}/no-offload/0": [[1, 50, 500]],
    }


def test_repeated_folders_are_further_runs_in_the_order_of_their_times(
    tree: Path,
) -> None:
    for number, place in enumerate(("second", "first")):
        for rate in (1, 4):
            write_level(
                tree / place,
                MODEL,
                "no-offload",
                rate,
                archive=False,
                start=START + (1 - number) * HOUR,
            )
    write_level(
        tree / "third", MODEL, "no-offload", 4, archive=False, start=START + 9 * HOUR
    )
    planned = plan(tree)
    assert cells(planned) == {f"{MODEL}/no-offload/0": [[1, 4], [1, 4], [4]]}
    assert planned.runs[0].levels[0].place.startswith("first/")
    assert listed(planned, "third/" + folder_name(MODEL, "no-offload", 4)).runs == (3,)


def test_a_copy_of_a_result_is_no_repetition(tree: Path) -> None:
    folder = write_level(tree / "a", MODEL, "no-offload", 1, archive=False)
    shutil.copytree(folder, tree / "b" / folder.name)
    planned = plan(tree)
    assert cells(planned) == {f"{MODEL}/no-offload/0": [[1]]}
    copied = listed(planned, f"b/{folder.name}")
    assert (copied.status, f" {tree}/a/{folder.name}: " in copied.reason) == (
        "copy",
        True,
    )


def test_what_ran_counts_and_what_the_name_declares_is_said(tree: Path) -> None:
    write_level(
        tree, MODEL, "native-offload-20k", 1, archive=False, args=native(10_000)
    )
    planned = plan(tree)
    assert cells(planned) == {f"{MODEL}/native-offload/10000": [[1]]}
    description = only_run(planned).description
    assert description["declared"]["cpu_blocks"] == 20_000
    assert description["effective"]["cpu_blocks"] == 10_000
    assert description["budget"]["cpu_blocks"] == 10_000
    said = (
        "20000 cpu_blocks declared, 10000 effective (num_cpu_blocks 10000 of 16 tokens)"
    )
    assert description["remarks"] == [said]
    assert [remark.text for remark in listed(planned, "rate1").remarks] == [said]


def test_lmcache_is_sized_by_its_environment_over_all_ranks(tree: Path) -> None:
    args = f"--kv-transfer-config '{LMCACHE}'"
    write_level(
        tree,
        MODEL,
        "lmcache-local",
        1,
        archive=False,
        args=args,
        env="LMCACHE_MAX_LOCAL_CPU_SIZE=4.0",
    )
    expected = int(8 / PER_BLOCK_GIB)
    planned = plan(tree)
    assert list(cells(planned)) == [f"{MODEL}/lmcache-local/{expected}"]
    assert only_run(planned).description["remarks"] == []


def test_the_same_arguments_under_two_names_of_one_arm_are_repetitions(
    tree: Path,
) -> None:
    args = f"--kv-transfer-config '{LMCACHE}'"
    write_level(tree, MODEL, "lmcache-valkey", 1, archive=False, args=args)
    write_level(
        tree,
        MODEL,
        "lmcache-valkey-20kcpu",
        1,
        archive=False,
        args=args,
        start=START + HOUR,
    )
    planned = plan(tree)
    assert list(cells(planned).values()) == [[[1], [1]]]
    assert remarks(planned, "20kcpu_replica1_rate1")["other_size"][0] == 20_000


def test_two_arms_configured_alike_are_said_to_be_replicates(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "llm-d-redis", 1, archive=False)
    write_level(
        tree, MODEL, "llm-d-valkey", 1, archive=False, config={"EPP_Backend": "valkey"}
    )
    planned = plan(tree)
    assert remarks(planned, "no-offload_replica1_rate1") == {
        "configured_alike": (f"{MODEL}/llm-d-redis/0",)
    }
    assert remarks(planned, "llm-d-valkey_replica1_rate1") == {}
    alike = {
        run.cell.scenario: run.description["specification"]["configuration"]
        for run in planned.runs
    }
    assert alike["no-offload"] == alike["llm-d-redis"] != alike["llm-d-valkey"]


def test_an_arm_without_its_connector_is_imported_as_what_ran(tree: Path) -> None:
    write_level(tree, MODEL, "native-offload-10k", 1, archive=False)
    planned = plan(tree)
    assert list(cells(planned)) == [f"{MODEL}/native-offload/0"]
    assert next(iter(remarks(planned, "rate1"))) == "no_connector"


def test_a_buffer_before_files_is_no_tier(tree: Path) -> None:
    extra = '"cpu_bytes_to_use":1835008000,"secondary_tiers":[{"type":"fs","root_dir":"/data"}]'
    config = f'{{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{{{extra}}}}}'
    arguments = f"--kv-transfer-config '{config}'"
    own = {
        "files": {"extends": "no-offload", "title": "files", "baseline": "no-offload"}
    }
    write_level(tree, MODEL, "files", 1, archive=False, args=arguments)
    planned = campaign_plan(tree, {"path": str(tree)}, scenarios=own)
    assert list(cells(planned)) == [f"{MODEL}/files/0"]
    assert next(iter(remarks(planned, "rate1").items())) == ("buffer", (1000,))
    # The same arguments under the name of an arm that has a tier in host memory.
    shutil.rmtree(tree)
    write_level(tree, MODEL, "native-offload", 1, archive=False, args=arguments)
    assert list(cells(plan(tree))) == [f"{MODEL}/native-offload/1000"]


def test_levels_of_one_name_with_other_arguments_are_another_run(tree: Path) -> None:
    write_level(tree, MODEL, "native-offload", 1, archive=False, args=native(10_000))
    write_level(tree, MODEL, "native-offload", 4, archive=False, args=native(10_000))
    write_level(tree, MODEL, "native-offload", 8, archive=False, args=native(5_000))
    other = native(10_000) + " --max-num-seqs 8"
    for rate in (4, 16):
        write_level(
            tree / "again",
            MODEL,
            "native-offload",
            rate,
            archive=False,
            args=other,
            start=START + HOUR,
        )
    assert cells(plan(tree)) == {
        f"{MODEL}/native-offload/5000": [[8]],
        f"{MODEL}/native-offload/10000": [[1, 4], [4, 16]],
    }


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (
            lambda report: report.write_bytes(report.read_bytes()[:-3]),
            "damaged",
            "truncated zstd file",
        ),
        (lambda report: report.write_bytes(b""), "damaged", "the report is empty"),
        (
            lambda report: report.write_text('{"benchmarks": []}'),
            "damaged",
            "holds no benchmark",
        ),
        (
            lambda report: report.write_bytes(zstandard.compress(b'{"results": 1}')),
            "damaged",
            "not a report of GuideLLM",
        ),
        (lambda report: report.unlink(), "no report", "GuideLLM writes it at its end"),
    ],
)
def test_a_damaged_level_is_listed_and_the_others_are_unharmed(
    tree: Path, change: Any, status: str, message: str
) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    folder = write_level(tree, MODEL, "no-offload", 4, archive=False)
    change(folder / "guidellm-results.json.zst")
    planned = plan(tree)
    found = listed(planned, "rate4")
    assert (found.status, message in found.reason) == (status, True)
    failed = only_run(planned).levels[1]
    assert (failed.level, failed.report, message in str(failed.error)) == (
        4,
        None,
        True,
    )
    assert str(tree) not in found.reason


def test_a_report_compressed_twice_is_imported(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False, layers=2)
    assert (
        only_run(plan(tree)).levels[0].report
        == f"{folder_name(MODEL, 'no-offload', 1)}/guidellm-results.json.zst.zst"
    )


def test_a_report_without_a_completed_request_gives_nothing(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "no-offload", 4, archive=False, latency_s=90.0, keep=0)
    assert reason(plan(tree), "rate4") == ("damaged", "no_request")


@pytest.mark.parametrize(
    ("name", "code", "unknown"),
    [
        (
            "1x2xB9000_llm-d_Qwen3-0.6B_no-offload_replica1_rate1",
            "unknown_hardware",
            "'1x2xB9000'",
        ),
        (
            "1x2xL40S_llm-d_Qwen9-1B_no-offload_replica1_rate1",
            "unknown_model",
            "'Qwen9-1B'",
        ),
        (
            "1x2xL40S_llm-d_Qwen3-0.6B_quantum-offload_replica1_rate1",
            "unknown_arm",
            "'quantum-offload'",
        ),
        ("1x2xL40S_llm-d_Qwen3-0.6B_no-offload_rate1_x_y", "other_form", ""),
    ],
)
def test_an_unknown_name_is_listed_and_not_guessed(
    tree: Path, name: str, code: str, unknown: str
) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    write_level(tree, MODEL, "no-offload", 4, archive=False, name=name)
    planned = plan(tree)
    assert reason(planned, name) == ("unknown", code)
    assert unknown in listed(planned, name).reason
    assert cells(planned) == {f"{MODEL}/no-offload/0": [[1]]}


def test_names_can_be_translated_and_hardware_named(tree: Path) -> None:
    name = "1x2xB9000_llm-d_small_nothing_replica1_rate1"
    write_level(
        tree,
        MODEL,
        "no-offload",
        1,
        archive=False,
        name=name,
        config={"Model": "Qwen/Qwen3-0.6B"},
    )
    asked = {"path": str(tree), "hardware": "1x2xB9000", "models": {"small": MODEL}}
    planned = campaign_plan(tree, {**asked, "scenarios": {"nothing": "no-offload"}})
    assert list(cells(planned)) == [f"{MODEL}/no-offload/0"]


def test_the_model_that_ran_counts(tree: Path) -> None:
    write_level(
        tree,
        "Qwen3-8B",
        "no-offload",
        1,
        archive=False,
        config={"Model": "Qwen/Qwen3-0.6B"},
    )
    planned = plan(tree)
    assert list(cells(planned)) == [f"{MODEL}/no-offload/0"]
    assert next(iter(remarks(planned, "rate1").items())) == (
        "other_model",
        ("Qwen3-8B", "Qwen3-0.6B"),
    )
    write_level(
        tree, "Qwen3-8B", "no-offload", 4, archive=False, served="/models/Qwen3-0.6B"
    )
    assert reason(plan(tree), "rate4") == ("unknown", "several_models")


def test_memory_pressure_is_a_scenario_of_its_own(tree: Path) -> None:
    software = "upstream-llm-d-0.4.0-mempress"
    write_level(
        tree,
        MODEL,
        "no-offload",
        1,
        archive=False,
        software=software,
        config={"GPU_Memory_Utilization": 0.55},
    )
    write_level(tree, MODEL, "no-offload", 4, archive=False, software=software)
    planned = plan(tree)
    assert set(cells(planned)) == {f"{MODEL}/no-offload-mempress/0"}
    assert remarks(planned, "rate1") == {}
    assert next(iter(remarks(planned, "rate4").items())) == (
        "other_utilization",
        (0.55, 0.9),
    )


def test_results_of_several_releases_are_never_mixed_in_one_cell(tree: Path) -> None:
    for number, release in enumerate(("llm-d-0.4.0", "llm-d-0.5.0")):
        write_level(
            tree,
            MODEL,
            "no-offload",
            1,
            archive=False,
            software=release,
            start=START + number * HOUR,
        )
    with pytest.raises(
        NothingToImport, match=r"llm-d-0\.4\.0 and llm-d-0\.5\.0"
    ) as error:
        plan(tree)
    assert (error.value.code, error.value.facts["statuses"]) == (
        "nothing_to_import",
        ["ambiguous", "ambiguous"],
    )
    planned = plan(tree, software="llm-d-0.5.0")
    assert cells(planned) == {f"{MODEL}/no-offload/0": [[1]]}
    assert (
        listed(planned, f"llm-d-0.4.0_{MODEL}_no-offload_replica1_rate1").status
        == "not selected"
    )


def test_releases_are_compared_as_scenarios_of_their_own(tree: Path) -> None:
    for number, release in enumerate(("llm-d-0.4.0", "llm-d-0.5.0")):
        write_level(
            tree,
            MODEL,
            "no-offload",
            1,
            archive=False,
            software=release,
            start=START + number * HOUR,
        )
    newer = {
        "path": str(tree),
        "software": "llm-d-0.5.0",
        "scenarios": {"no-offload": "no-offload-0.5.0"},
    }
    own = {
        "no-offload-0.5.0": {
            "extends": "no-offload",
            "title": "llm-d 0.5.0",
            "baseline": "no-offload",
        }
    }
    older = {"path": str(tree), "software": "llm-d-0.4.0"}
    planned = campaign_plan(tree, older, newer, scenarios=own)
    assert set(cells(planned)) == {
        f"{MODEL}/no-offload/0",
        f"{MODEL}/no-offload-0.5.0/0",
    }


def test_where_name_arguments_and_report_do_not_agree_is_said(tree: Path) -> None:
    write_level(
        tree,
        MODEL,
        "no-offload",
        50,
        archive=False,
        streams=5,
        config={
            "Rate_(Concurrency)": 500,
            "Replicas": 2,
            "Parameters": "llm-d-redis",
            "Run_ID": "other",
        },
    )
    planned = plan(tree)
    assert cells(planned) == {f"{MODEL}/no-offload/0": [[5]]}
    expected = {
        "other_run_id": ("other",),
        "streams_of_name": (50, 5),
        "streams_of_arguments": (500, 5),
        "other_replicas": (1, 2),
        "other_arm": ("no-offload", "llm-d-redis"),
    }
    assert expected.items() <= remarks(planned, "rate50").items()


def test_a_load_that_grows_with_the_level_is_recognised(tree: Path) -> None:
    for rate in (1, 4):
        write_level(
            tree,
            MODEL,
            "no-offload",
            rate,
            archive=False,
            config={"Prefix_Count": 2 * rate, "Turns": 5},
        )
    workload = only_run(plan(tree)).description["specification"]["workload"]
    assert workload["prefix_count"] == {"per_level": 2}
    assert (workload["turns"], workload["prefix_tokens"], workload["levels"]) == (
        5,
        2000,
        [1, 4],
    )
    assert (
        workload["prompt_tokens"],
        workload["output_tokens"],
        workload["seconds"],
    ) == (64, 37, 60.0)
    assert ("Prefix Count", 2, 8) in [
        remark.values for remark in listed(plan(tree), "rate1").remarks
    ]


def test_the_start_up_log_names_release_and_cache(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    run = only_run(plan(tree, vllm="0.10.0"))
    assert (run.vllm, run.description["budget"]["device_tokens"]) == ("0.11.2", 208_640)
    shutil.rmtree(tree)
    write_level(tree, MODEL, "no-offload", 1, archive=False, log=False)
    assert only_run(plan(tree, vllm="0.10.0")).vllm == "0.10.0"
    unknown = only_run(plan(tree))
    assert (unknown.vllm, unknown.description["versions"].get("vllm")) == ("0", None)


def test_secrets_in_the_environment_go_nowhere(tree: Path) -> None:
    write_level(
        tree, MODEL, "no-offload", 1, archive=False, env="HF_TOKEN=hf_secret A=1"
    )
    planned = plan(tree)
    assert "hf_secret" not in str(planned.runs)
    assert "hf_secret" not in str(list(rows(planned, {})))


def test_the_older_form_beside_its_archive(tree: Path) -> None:
    for number, rate in enumerate((4, 4, 8)):
        stem = f"benchmark_2025110{number + 1}_120000_Qwen3-0.6B_native-offload-10k_rate{rate}"
        story = Story(streams=rate, start=START + number * HOUR)
        write_report(
            tree / f"{stem}_guidellm.json", [story], layers=0, generation="0.4"
        )
        (tree / f"{stem}_pcp.tar.xz").write_bytes(b"an archive")
    write_report(
        tree / "benchmark_20251101_120000_unknown-arm_guidellm.json",
        [Story()],
        layers=0,
    )
    planned = plan(tree)
    assert cells(planned) == {f"{MODEL}/native-offload/10000": [[4, 8], [4]]}
    assert planned.runs[0].levels[0].archives == [
        "benchmark_20251101_120000_Qwen3-0.6B_native-offload-10k_rate4_pcp.tar.xz"
    ]
    assert reason(planned, "unknown-arm_guidellm.json") == ("unknown", "no_known_arm")
    assert [
        remark.values
        for remark in planned.listed[0].remarks
        if remark.code == "arguments_unknown"
    ] == [(10_000,)]


def test_the_oldest_form_with_ten_strategies_in_a_file(tree: Path) -> None:
    stories = [
        Story(strategy="synchronous", streams=1),
        Story(strategy="throughput", start=START + 100),
    ]
    stories += [
        Story(strategy="constant", rate=rate, streams=4, start=START + 200 + 100 * rate)
        for rate in (4.0, 2.0, 3.0)
    ]
    for arm in ("default", "offload"):
        write_report(
            tree / f"oct2025-{MODEL}-{arm}.json",
            stories,
            layers=0,
            generation="0.3",
            keep=0,
        )
    write_archive(tree / "pcp-archives" / "node", Story())
    asked: dict[str, Any] = {"path": str(tree), "pattern": "oct2025-{model}-{arm}.json"}
    asked["scenarios"] = {"default": "no-offload", "offload": "native-offload"}
    with pytest.raises(ConfigError) as error:
        load_config(
            {"name": "t", "import": [{**asked, "cpu_blocks": {"native-ofload": 1}}]},
            CONFIG,
        )
    assert [(problem.key, problem.code) for problem in error.value.problems] == [
        ("import[0].cpu_blocks.native-ofload", "unknown_name")
    ]

    planned = campaign_plan(tree, asked)
    assert cells(planned) == {f"{MODEL}/no-offload/0": [[1, 2, 3, 4, 5]]}
    assert reason(planned, "-offload.json") == ("unknown", "tier_unknown")
    sized = campaign_plan(tree, {**asked, "cpu_blocks": {"native-offload": 20_000}})
    assert set(cells(sized)) == {
        f"{MODEL}/no-offload/0",
        f"{MODEL}/native-offload/20000",
    }
    run = sized.runs[0]
    # By load: one at a time, the rates, everything at once.
    assert [(level.benchmark, level.strategy) for level in run.levels] == [
        *(
            (0, "synchronous"),
            (3, "constant"),
            (4, "constant"),
            (2, "constant"),
            (1, "throughput"),
        ),
    ]
    specifications = [run.description["specification"] for run in sized.runs]
    assert [spec["argv"] for spec in specifications] == [[], []]
    assert specifications[0]["companions"] != specifications[1]["companions"]
    assert len(run.shared_archives) == 3
    chosen = campaign_plan(tree, {**asked, "archives": ["pcp-archives/node"]}).runs[0]
    assert chosen.shared_archives == run.shared_archives
    os.utime(tree / run.shared_archives[0], ns=(1, 1))
    assert campaign_plan(tree, asked).runs[0].stamp not in (run.stamp, "")
    workload = run.description["specification"]["workload"]
    assert (workload["profile"], workload["sweep_size"], workload["levels"]) == (
        "sweep",
        5,
        [],
    )


def test_places_beside_results_that_hold_none_are_listed(tree: Path) -> None:
    write_level(tree / "results", MODEL, "no-offload", 1, archive=False)
    (tree / "results" / "analysis").mkdir()
    (tree / "docs").mkdir()
    planned = plan(tree)
    assert [other.place for _, other in planned.others] == ["results/analysis"]
    assert list(rows(planned, {}))[-1]["status"] == "no result"


def test_a_plan_reads_again_only_what_changed(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write_level(tree, MODEL, "no-offload", rate) for rate in (1, 4, 8)]
    first = plan(tree)
    opened: list[str] = []
    real = index.read_facts
    monkeypatch.setattr(
        index,
        "read_facts",
        lambda root, found: opened.append(found.place) or real(root, found),
    )
    assert plan(tree).runs == first.runs
    assert opened == []
    os.utime(folders[1] / "guidellm-results.json.zst", ns=(1, 1))
    changed = plan(tree)
    assert opened == [folders[1].name]
    assert changed.runs[0].stamp != first.runs[0].stamp
    write_config(folders[2], folders[2].name, args="--max-num-seqs 4")
    assert cells(plan(tree)) == {f"{MODEL}/no-offload/0": [[1, 4]]}
    shutil.rmtree(folders[0])
    assert cells(plan(tree)) == {f"{MODEL}/no-offload/0": [[4]]}
    assert opened == [folders[1].name, folders[2].name]


def test_a_plan_opens_no_archive(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_level(tree, MODEL, "no-offload", 1)
    for path in (folder / "pcp-archives").rglob("*.zst"):
        # Opening it would end the test.
        path.unlink()
        path.symlink_to("/dev/null")
    assert len(only_run(plan(tree)).levels[0].archives) == 0
    assert cells(plan(tree)) == {f"{MODEL}/no-offload/0": [[1]]}


def test_a_damaged_index_is_made_anew(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1, archive=False)
    first = plan(tree)
    (file,) = (tree.parent / "index").iterdir()
    file.write_text("{")
    assert plan(tree).runs == first.runs


def test_nothing_to_import_is_an_error_with_examples(tree: Path) -> None:
    write_level(tree, "Qwen9-1B", "no-offload", 1, archive=False)
    with pytest.raises(NothingToImport) as error:
        plan(tree)
    assert error.value.facts == {"statuses": ["unknown"], "files": []}
    assert folder_name("Qwen9-1B", "no-offload", 1) in str(error.value)


def test_the_table_and_the_findings_say_everything(tree: Path, tmp_path: Path) -> None:
    write_level(
        tree, MODEL, "native-offload-20k", 1, archive=False, args=native(10_000)
    )
    write_level(
        tree,
        MODEL,
        "no-offload",
        1,
        archive=False,
        name=folder_name("Qwen9-1B", "no-offload", 1),
    )
    planned = plan(tree)
    write_table(
        planned,
        {(f"{MODEL}/native-offload/10000", 1): ["no recording"]},
        tmp_path / "a" / "imported.csv",
    )
    lines = (tmp_path / "a" / "imported.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert len(lines) == 3
    found = {
        row["status"]: row
        for row in rows(
            planned, {(f"{MODEL}/native-offload/10000", 1): ["no recording"]}
        )
    }
    row = found["imported"]
    assert (row["declared_cpu_blocks"], row["effective_cpu_blocks"], row["runs"]) == (
        20_000,
        10_000,
        "i1",
    )
    assert row["recording"] == "no recording"
    assert (
        summary(planned) == "2 results found: 1 imported (1 run of 1 cell), 1 unknown"
    )
    said = findings(planned)
    assert "only one run, so no verdict" in said
    assert "unknown model 'Qwen9-1B'" in said
    assert "20000 cpu_blocks declared, 10000 effective" in said
