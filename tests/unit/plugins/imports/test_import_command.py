"""`kveval import`: what it prints of a tree, and that a campaign takes its sheet."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from tests.support.guidellm_reports import START, Story
from tests.support.import_sheets import rows
from tests.support.result_trees import HOUR, write_level, write_report
from tests.unit.workflow.test_command import folder, kveval

__all__ = ["folder"]
MODEL = "Qwen3-0.6B"


@pytest.fixture
def tree(folder: Path) -> Path:
    """A tree of one level, in a checkout that is the working directory."""
    write_level(folder / "tree", MODEL, "no-offload", 1, archive=False)
    return folder / "tree"


def test_a_tree_becomes_a_sheet_that_a_campaign_imports(tree: Path) -> None:
    start = START + HOUR
    write_level(tree, MODEL, "native-offload", 1, archive=False, start=start, log=False)
    unknown = {"archive": False, "log": False, "start": START + 2 * HOUR}
    write_level(tree, MODEL, "quantum", 1, **unknown)
    (tree / "notes.json").write_text("{}")
    done = kveval("import", "tree")
    assert done.exit_code == 0, done.stderr
    assert "imports.csv: 3 rows added (lines 2 to 4)" in done.stdout
    assert "1 with ?, not imported until it is corrected" in done.stdout
    assert "scenario, cpu_blocks in 1 row, from line 4 on: the arm 'quantum'" in done.stdout  # fmt: skip
    assert "tree/notes.json: notes.json: not a report of GuideLLM" in done.stdout
    assert "vllm in 2 rows" in done.stdout
    text = done.stdout.partition("In a campaign's file:\n\n")[2].partition("\n\nNext")[0]  # fmt: skip
    Path("campaign.yaml").write_text(text)
    planned = kveval("plan", "campaign.yaml")
    assert planned.exit_code == 0, planned.stderr
    assert "2 cells, 2 runs: imported" in planned.stdout


def test_it_says_what_is_new_and_what_is_there_already(tree: Path) -> None:
    assert kveval("import", "tree").exit_code == 0
    again = kveval("import", "tree")
    assert "imports.csv: 0 rows added; 1 level there already" in again.stdout
    start = START + HOUR
    write_level(tree, MODEL, "no-offload", 4, archive=False, start=start)
    folder = tree / "copy"
    shutil.copytree(next(tree.glob("*rate1")), folder / next(tree.glob("*rate1")).name)
    later = kveval("import", "tree", "--sheet", "imports.csv")
    assert "2 rows added (lines 3 to 4); 1 level there already" in later.stdout
    assert "Left out, in `remarks` why:\n  line 4: tree/copy/" in later.stdout


def test_as_json_it_is_one_document(tree: Path) -> None:
    write_report(tree / f"oct2025-{MODEL}-offload.json", [Story()], generation="0.3")
    document = json.loads(kveval("import", "tree", "--json").stdout)
    assert (document["sheet"], document["known"]) == ("imports.csv", 0)
    assert [row["line"] for row in document["added"]] == [2, 3]
    assert [row["model"] for row in rows(Path("imports.csv"))] == [MODEL, MODEL]
    (row,) = document["published"].values()
    assert row["strategies"] == 1


def test_what_is_no_folder_and_a_sheet_with_mistakes_are_refused(tree: Path) -> None:
    nowhere = kveval("import", "tree", "nowhere")
    assert (nowhere.exit_code, "nowhere is not a folder" in nowhere.stderr) == (2, True)
    Path("imports.csv").write_text("modelle\n")
    wrong = kveval("import", "tree")
    assert wrong.exit_code == 2
    assert "imports.csv: line 1: there is no column 'modelle'" in wrong.stderr
    assert "did you mean model" in wrong.stderr


def test_a_campaign_that_names_no_sheet_is_answered_with_the_command(
    folder: Path,
) -> None:
    Path("mine.yaml").write_text("name: mine\nimport: [{path: tree}]\n")
    done = kveval("plan", "mine.yaml")
    assert done.exit_code == 2
    assert "kveval import FOLDER --sheet imports.csv" in done.stderr


@pytest.mark.parametrize("name", ["benchmarks.csv", "report.html.gz", "pods.yaml", "a.json"])  # fmt: skip
def test_a_folder_without_results_is_refused_with_what_is_there(
    folder: Path, name: str
) -> None:
    (folder / "tree").mkdir()
    (folder / "tree" / name).write_text("a: 1\n")
    done = kveval("import", "tree")
    assert done.exit_code == 1
    assert "tree: no results; read are reports of GuideLLM in JSON or YAML" in done.stderr  # fmt: skip
    assert f"tree/{name}: " in done.stderr


def test_reports_in_yaml_are_results_and_count_once(tree: Path) -> None:
    report = tree / "other.json"
    write_report(report, [Story()], layers=0)
    (tree / "other.yaml").write_text(yaml.safe_dump(json.loads(report.read_text())))
    (tree / "second.yml").write_bytes((tree / "other.yaml").read_bytes())
    done = kveval("import", "tree", "--json")
    names = [row["report"] for row in json.loads(done.stdout)["added"]]
    assert [Path(name).name for name in names][-2:] == ["other.json", "second.yml"]


def test_conversations_of_vllm_bench_have_their_streams_turns_and_run(
    folder: Path,
) -> None:
    result = {
        "date": "20260915-101500", "model_id": "Qwen/Qwen3-0.6B", "duration": 9.0, "completed": 80,
        "total_input_tokens": 3200, "total_output_tokens": 320, "mean_ttft_ms": 9.0, "mode": "multi_turn",
        "multi_turn_concurrency": 8, "turns_per_conversation": 5,
    }  # fmt: skip
    (folder / "tree").mkdir()
    (folder / "tree/run=1.json").write_text(json.dumps(result))
    (row,) = json.loads(kveval("import", "tree", "--json").stdout)["added"]
    assert (row["level"], row["run"]) == ("8", "2")
    assert "conversations of 5 turns, 8 at once" in row["remarks"]
