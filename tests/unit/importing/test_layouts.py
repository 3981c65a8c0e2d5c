"""Trees of other layouts: what can be said of them in the settings, and what a user is told of the rest."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_files import CONFIG
from tests.support.guidellm_reports import START, Story
from tests.support.result_trees import (
    HOUR,
    native,
    write_archive,
    write_config,
    write_level,
    write_report,
)
from tests.support.vllm_bench import result

from kveval.configuration.loading import load_config
from kveval.importing.campaign import NothingToImport, import_plan
from kveval.importing.interpret import Result
from kveval.importing.plan import ImportPlan
from kveval.importing.table import findings, rows
from kveval.load.reports.vllm_bench import VLLM_BENCH

MODEL = "Qwen3-0.6B"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\noid sha256:620d525c\nsize 108388\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def plan(tree: Path, *imports: dict[str, Any], **asked: Any) -> ImportPlan:
    values = {"name": "test", "import": list(imports) or [{"path": str(tree), **asked}]}
    return import_plan(load_config(values, CONFIG), tree.parent / "index")


def levels(planned: ImportPlan) -> dict[str, list[list[int]]]:
    return {
        cell.path: [
            [level.level for level in run.levels] for run in planned.runs_of(cell.path)
        ]
        for cell in planned.cells
    }


def result_at(planned: ImportPlan, place: str) -> Result:
    (found,) = [entry for entry in planned.listed if entry.files.place == place]
    return found


def write_result(path: Path, *results: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(entry) for entry in results))


def test_a_folder_for_each_arm_is_expressed_by_a_pattern(tree: Path) -> None:
    for number, arm in enumerate(("default", "offload", "other")):
        write_report(
            tree / arm / "benchmarks.json",
            [Story(start=START + number * HOUR)],
            layers=0,
        )
    with pytest.raises(NothingToImport) as error:
        plan(tree)
    names = [
        "default/benchmarks.json",
        "offload/benchmarks.json",
        "other/benchmarks.json",
    ]
    assert error.value.facts == {"statuses": [], "files": names}
    assert "pattern: " in str(error.value)

    translated = {"default": "no-offload", "offload": "native-offload"}
    planned = plan(
        tree,
        pattern="{arm}/benchmarks.json",
        scenarios=translated,
        cpu_blocks={"native-offload": 20_000},
    )
    assert levels(planned) == {
        f"{MODEL}/native-offload/20000": [[4]],
        f"{MODEL}/no-offload/0": [[4]],
    }
    unknown = result_at(planned, "other/benchmarks.json")
    assert (unknown.status, unknown.code) == ("unknown", "unknown_arm")


def test_json_files_that_are_left_out_are_listed_with_their_reason(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 1, archive=False)
    (folder / "batch-final-status.json").write_text("{}")
    shutil.copy(
        folder / "guidellm-results.json.zst", folder / "guidellm-results.json.zst.zst"
    )
    (tree / "notes.json").write_text("{}")
    planned = plan(tree)
    found = {row["result"]: row["status"] for row in rows(planned, {})}
    assert found == {
        folder.name: "imported",
        f"{folder.name}/batch-final-status.json": "left out",
        "notes.json": "left out",
    }
    assert "and 1 more" in findings(planned)
    (note,) = result_at(planned, folder.name).remarks
    assert (note.code, "guidellm-results.json.zst.zst is left out" in note.text) == (
        "report",
        True,
    )


def test_the_settings_beside_a_patterned_report_are_its_own(tree: Path) -> None:
    folder = tree / "native-offload"
    folder.mkdir(parents=True)
    write_config(folder, "any", args=native(10_000), Model=f"Qwen/{MODEL}")
    write_report(folder / "burst-1.json", [Story()], layers=1)
    write_archive(folder / "pcp-archives" / "node", Story())
    planned = plan(tree, pattern="{arm}/burst-{any}.json")
    assert levels(planned) == {f"{MODEL}/native-offload/10000": [[4]]}
    assert len(planned.runs[0].levels[0].archives) == 3
    assert planned.runs[0].shared_archives == []


def test_pointers_of_git_lfs_are_called_that(tree: Path) -> None:
    places = [
        write_level(tree, MODEL, "no-offload", rate, archive=False).name
        for rate in (1, 4)
    ]
    for place in places:
        (tree / place / "guidellm-results.json.zst").write_text(POINTER)
    with pytest.raises(NothingToImport) as error:
        plan(tree)
    assert error.value.facts["statuses"] == ["no report", "no report"]
    assert str(error.value).count("git lfs pull") == 1

    write_level(tree, MODEL, "no-offload", 8, archive=False)
    (tree / places[0] / "vllm-startup.log.zst").write_text(POINTER)
    planned = plan(tree)
    assert levels(planned) == {f"{MODEL}/no-offload/0": [[1, 4, 8]]}
    found = result_at(planned, places[0])
    assert (found.status, found.code) == ("no report", "lfs_pointer")
    assert any("vllm-startup.log.zst" in note for note in found.facts.notes)


def test_arguments_under_the_other_key_size_the_tier_and_none_at_all_leave_it_unknown(
    tree: Path,
) -> None:
    known = {
        "vLLM Extra Args": None,
        "VLLM Additional Args": native(20_000),
        "Num CPU Blocks": 20_000,
    }
    write_level(tree, MODEL, "native-offload-20k", 1, archive=False, config=known)
    # The key stands in the file of every arm.
    none = {"vLLM Extra Args": None, "Num CPU Blocks": 20_000}
    write_level(tree, MODEL, "native-offload", 4, archive=False, config=none)
    write_level(tree, MODEL, "no-offload", 1, archive=False, config=none)
    planned = plan(tree)
    assert levels(planned) == {
        f"{MODEL}/native-offload/20000": [[1]],
        f"{MODEL}/no-offload/0": [[1]],
    }
    unknown = [entry for entry in planned.listed if entry.status != "imported"]
    assert [(entry.status, entry.code) for entry in unknown] == [
        ("unknown", "tier_unknown")
    ]
    runs = {run.cell.scenario: run.description["specification"] for run in planned.runs}
    assert runs["no-offload"]["configuration"] is None
    assert runs["no-offload"]["argv"] == []
    assert runs["native-offload"]["argv"][:2] == ["vllm", "serve"]


def test_the_model_that_a_report_names_is_translated(tree: Path) -> None:
    served = {"served": "my-finetune", "config": {"Model": "my-finetune"}}
    write_level(tree, MODEL, "no-offload", 1, archive=False, **served)
    with pytest.raises(NothingToImport):
        plan(tree)
    planned = plan(tree, models={"my-finetune": MODEL})
    assert levels(planned) == {f"{MODEL}/no-offload/0": [[1]]}
    assert planned.listed[0].remarks == ()


def test_results_of_vllm_bench_are_levels_of_their_concurrency(tree: Path) -> None:
    for arm, start in (("no-offload", START), ("native-offload", START + HOUR)):
        for number, streams in enumerate((1, 8)):
            name = f"openai-infqps-concurrency{streams}-{MODEL}-20260202-024000.json"
            write_result(
                tree / arm / name, result(streams=streams, end=start + 600 * number)
            )
    pattern = "{arm}/openai-infqps-concurrency{rate}-{model}-{any}.json"
    planned = plan(tree, pattern=pattern, cpu_blocks={"native-offload": 10_000})
    assert levels(planned) == {
        f"{MODEL}/native-offload/10000": [[1, 8]],
        f"{MODEL}/no-offload/0": [[1, 8]],
    }
    workload = planned.runs[0].description["specification"]["workload"]
    assert (
        workload["profile"],
        workload["prompt_tokens"],
        workload["output_tokens"],
    ) == ("concurrent", 64, 37)
    assert planned.listed[0].facts.guidellm == VLLM_BENCH


def test_results_appended_to_a_file_are_levels_of_one_run(tree: Path) -> None:
    write_result(
        tree / "no-offload.json", result(streams=1), result(streams=8, end=START + 600)
    )
    assert levels(plan(tree, pattern="{arm}.json")) == {
        f"{MODEL}/no-offload/0": [[1, 8]]
    }


def test_rates_are_levels_of_requests_a_minute(tree: Path) -> None:
    for number, rate in enumerate((0.5, 2.0)):
        write_result(
            tree / f"no-offload_{number}.json",
            result(streams=None, rate=rate, end=START + 600 * number),
        )
    planned = plan(tree, pattern="{arm}_{any}.json")
    assert levels(planned) == {f"{MODEL}/no-offload/0": [[30, 120]]}
    workload = planned.runs[0].description["specification"]["workload"]
    assert (workload["profile"], workload["levels"]) == ("poisson", [30, 120])


def test_reports_of_one_cell_without_a_common_level_are_one_run(tree: Path) -> None:
    write_level(tree / "low", MODEL, "no-offload", 1, archive=False)
    write_level(tree / "low", MODEL, "no-offload", 4, archive=False, start=START + 100)
    write_level(
        tree / "high", MODEL, "no-offload", 8, archive=False, start=START + HOUR
    )
    planned = plan(tree)
    assert levels(planned) == {f"{MODEL}/no-offload/0": [[1, 4, 8]]}
    assert {entry.runs for entry in planned.listed} == {(1,)}


@pytest.mark.parametrize(
    "other",
    [
        {"args": "--max-num-seqs 8"},
        {"prompt_tokens": 640, "config": {"Prefix_Tokens": 1}},
    ],
)
def test_what_differs_in_more_than_its_levels_is_left_out_with_the_reason(
    tree: Path, other: dict[str, Any]
) -> None:
    for rate in (1, 4):
        write_level(tree / "low", MODEL, "no-offload", rate, archive=False)
    story = (
        {"prompt_tokens": other.pop("prompt_tokens")}
        if "prompt_tokens" in other
        else {}
    )
    folder = write_level(
        tree / "high",
        MODEL,
        "no-offload",
        8,
        archive=False,
        start=START + HOUR,
        **other,
    )
    if story:
        write_report(
            folder / "guidellm-results.json.zst",
            [Story(streams=8, start=START + HOUR, **story)],
        )
    planned = plan(tree)
    assert levels(planned) == {f"{MODEL}/no-offload/0": [[1, 4]]}
    found = result_at(planned, f"high/{folder.name}")
    assert (found.status, found.code, found.cell) == (
        "left out",
        "no_common_level",
        None,
    )
    assert "(8)" in found.reason
    assert "(1, 4)" in found.reason


def test_a_report_of_another_import_is_left_out_as_well(tmp_path: Path) -> None:
    write_level(tmp_path / "a", MODEL, "no-offload", 1, archive=False)
    write_level(
        tmp_path / "b", MODEL, "no-offload", 4, archive=False, start=START + HOUR
    )
    planned = plan(
        tmp_path / "a", {"path": str(tmp_path / "a")}, {"path": str(tmp_path / "b")}
    )
    assert levels(planned) == {f"{MODEL}/no-offload/0": [[1]]}
    assert [entry.status for entry in planned.listed] == ["imported", "left out"]
