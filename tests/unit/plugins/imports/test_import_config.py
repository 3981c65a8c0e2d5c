"""The key `import` and the sheet that it names: mistakes are refused, all at once, with file, line and column."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.config_files import CONFIG
from tests.support.guidellm_reports import START, Story
from tests.support.import_sheets import Row, rows, update, write_rows
from tests.support.result_trees import HOUR, write_level, write_report

from kveval.campaign.import_sheet import COLUMNS, SheetRow
from kveval.campaign.imports import ImportCampaign
from kveval.campaign.problems import ConfigError, ConfigProblem
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config

MODEL = "Qwen3-0.6B"
Change = Callable[[list[Row]], object]


@pytest.fixture
def sheet(tmp_path: Path) -> Path:
    """The sheet of two runs of two levels."""
    for number in range(2):
        for rate in (1, 4):
            write_level(
                tmp_path / "tree" / f"r{number}",
                MODEL,
                "no-offload",
                rate,
                archive=False,
                start=START + (2 * number + rate) * HOUR,
            )
    update(tmp_path / "imports.csv", tmp_path / "tree")
    return tmp_path / "imports.csv"


def load(folder: Path, value: Any, **values: Any) -> Config:
    path = folder / "campaign.yaml"
    path.write_text(yaml.safe_dump({"name": "old", "import": value, **values}))
    return load_config(path, CONFIG)


def problems(folder: Path, value: Any, **values: Any) -> list[ConfigProblem]:
    with pytest.raises(ConfigError) as caught:
        load(folder, value, **values)
    return list(caught.value.problems)


def mistakes(sheet: Path, change: Change) -> dict[str, ConfigProblem]:
    """The mistakes in a changed sheet, by line and column."""
    content = rows(sheet)
    change(content)
    write_rows(sheet, content)
    found = problems(sheet.parent, str(sheet))
    assert {problem.file for problem in found} == {sheet.as_posix()}
    return {problem.key: problem for problem in found}


def test_a_sheet_is_all_that_an_import_needs(sheet: Path) -> None:
    config = load(sheet.parent, str(sheet))
    assert isinstance(config.campaign, ImportCampaign)
    assert config.sheet is not None
    assert len(config.sheet.imported) == 4
    assert not config.campaign.copy_imports
    assert (config.cells, config.warnings) == ((), ())


def test_a_campaign_that_measures_imports_nothing() -> None:
    assert load_config(CONFIG / "config.yaml", CONFIG).sheet is None


def test_a_sheet_that_is_not_there_names_the_command_that_writes_it(
    tmp_path: Path,
) -> None:
    (problem,) = problems(tmp_path, "imports.csv")
    assert (problem.key, problem.code) == ("import", "absent")
    assert "kveval import FOLDER --sheet imports.csv" in problem.message
    (tmp_path / "tree").mkdir()
    (problem,) = problems(tmp_path, str(tmp_path / "tree"))
    assert problem.code == "no_file"
    assert f"kveval import {tmp_path / 'tree'} --sheet" in problem.message


@pytest.mark.parametrize("value", [{"path": "a"}, ["a"], None])
def test_what_names_no_sheet_is_answered_with_the_command(
    tmp_path: Path, value: Any
) -> None:
    (problem,) = problems(tmp_path, value)
    assert (problem.key, problem.code) == ("import", "no_sheet")
    assert "kveval import FOLDER --sheet imports.csv" in problem.message


def test_a_campaign_imports_or_measures(sheet: Path) -> None:
    matrix = [{"models": [MODEL], "scenarios": ["no-offload"], "cpu_blocks": [0]}]
    (problem,) = problems(sheet.parent, str(sheet), matrix=matrix)
    assert (problem.key, problem.code) == ("matrix", "mixed")


def test_scenarios_of_the_campaign_are_known_to_its_sheet(sheet: Path) -> None:
    content = rows(sheet)
    for row in content:
        row["scenario"] = "other"
    write_rows(sheet, content)
    assert problems(sheet.parent, str(sheet))[0].code == "unknown_name"
    own = {"other": {"extends": "no-offload", "title": "other"}}
    config = load(sheet.parent, str(sheet), scenarios=own)
    assert config.sheet is not None


# --- values of single rows


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("cpu_blocks", "10k", "wrong_value"),
        ("cpu_blocks", "10,000", "wrong_value"),
        ("cpu_blocks", "-1", "wrong_value"),
        ("cpu_blocks", "1.5", "wrong_value"),
        ("cpu_blocks", "", "missing"),
        ("run", "0", "wrong_value"),
        ("run", "i1", "wrong_value"),
        ("level", "four", "wrong_value"),
        ("use", "maybe", "wrong_value"),
        ("vllm", "newest", "wrong_value"),
        ("report", "", "missing"),
        ("model", "", "missing"),
    ],
)
def test_a_value_of_another_kind_is_named(
    sheet: Path, column: str, value: str, code: str
) -> None:
    found = mistakes(sheet, lambda content: content[1].update({column: value}))
    problem = found[f"line 3, column {column}"]
    assert (problem.code, value in problem.message) == (code, True)
    assert problem.valid


def test_a_number_says_what_it_may_be(sheet: Path) -> None:
    found = mistakes(sheet, lambda content: content[0].update(cpu_blocks="10k"))
    assert "a whole number (0 or more) or ?" in found["line 2, column cpu_blocks"].valid


@pytest.mark.parametrize(
    ("column", "value", "near"),
    [("scenario", "no-ofload", "no-offload"), ("model", "Qwen3-06B", MODEL)],
)
def test_unknown_names_are_named_once_for_all_their_lines(
    sheet: Path, column: str, value: str, near: str
) -> None:
    found = mistakes(
        sheet, lambda content: [row.update({column: value}) for row in content]
    )
    problem = found[f"lines 2, 3, 4 and 1 more, column {column}"]
    assert (problem.code, problem.near[0]) == ("unknown_name", near)


def test_an_open_row_is_checked_for_names_and_one_that_is_left_out_is_not(
    sheet: Path,
) -> None:
    def change(content: list[Row]) -> None:
        content[0].update(cpu_blocks="?", scenario="no-ofload")
        content[1].update(use="no", scenario="no-ofload", report="nowhere.json")

    assert [*mistakes(sheet, change)] == ["line 2, column scenario"]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("report", "nowhere.json"),
        ("recording", "nowhere"),
        ("server_files", "nowhere.txt"),
    ],
)
def test_files_that_are_missing_are_named(sheet: Path, column: str, value: str) -> None:
    found = mistakes(sheet, lambda content: content[2].update({column: value}))
    problem = next(iter(found.values()))
    assert (problem.code, "nowhere" in problem.message) == ("absent", True)
    assert column in next(iter(found))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"results": 1}', "no_list_of_benchmarks"),
        (b"half of a file", "damaged_json"),
        (b"", "empty"),
        (b"\x28\xb5\x2f\xfd half of a file", "damaged_zstd"),
        (b"version https://git-lfs.github.com/spec/v1\n", "lfs_pointer"),
    ],
)
def test_a_report_that_is_none_is_named(sheet: Path, content: bytes, code: str) -> None:
    other = sheet.parent / "other.json"
    other.write_bytes(content)
    found = mistakes(sheet, lambda content: content[3].update(report="other.json"))
    problem = found["line 5, column report"]
    assert (problem.code, "`problem`" in problem.valid) == (code, True)
    # With the reason it is a level that failed.
    changed = rows(sheet)
    changed[3]["problem"] = "it was cut off"
    write_rows(sheet, changed)
    assert load(sheet.parent, str(sheet)).sheet is not None


def test_a_report_of_another_name_and_form_is_one(sheet: Path) -> None:
    write_report(sheet.parent / "results.txt", [Story(streams=4)], generation="0.3")
    content = rows(sheet)
    content[3]["report"] = "results.txt"
    write_rows(sheet, content)
    assert load(sheet.parent, str(sheet)).sheet is not None


# --- rows that do not go together


def test_two_rows_for_one_level_of_a_run_are_refused(sheet: Path) -> None:
    found = mistakes(sheet, lambda content: content[3].update(run="1"))
    problem = found["line 5, column level"]
    assert (problem.code, "line 3" in problem.message) == ("repeated", True)


@pytest.mark.parametrize(
    ("column", "value"),
    [("software", "llm-d-0.5.0"), ("hardware", "1x8xH100"), ("replicas", "2")],
)
def test_runs_of_several_releases_or_machines_share_no_cell(
    sheet: Path, column: str, value: str
) -> None:
    found = mistakes(
        sheet, lambda content: [row.update({column: value}) for row in content[2:]]
    )
    problem = found[f"column {column}"]
    assert problem.code == "mixture"
    assert "lines 2, 3" in problem.message
    assert "lines 4, 5" in problem.message


def test_levels_of_one_run_have_one_tensor_parallel_size(sheet: Path) -> None:
    found = mistakes(sheet, lambda content: content[1].update(tensor_parallel_size="4"))
    assert found["column tensor_parallel_size"].code == "mixture"


def test_runs_without_a_common_level_are_refused(sheet: Path) -> None:
    def change(content: list[Row]) -> None:
        content[1]["use"] = content[2]["use"] = "no"

    problem = mistakes(sheet, change)["column run"]
    assert problem.code == "no_common_level"
    assert "run 1 has 1; run 2 has 4" in problem.message


def test_a_run_needs_a_level_with_a_result(sheet: Path) -> None:
    found = mistakes(
        sheet, lambda content: [row.update(problem="lost") for row in content[2:]]
    )
    assert found["lines 4, 5, column problem"].code == "failed_run"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use": "no"}, "nowhere yes"),
        ({"scenario": "?"}, "in lines 2, 3, 4 and 1 more has to be corrected"),
        ({"use": "?"}, "has to be corrected"),
    ],
)
def test_a_sheet_without_a_row_to_import_says_why(
    sheet: Path, change: Row, message: str
) -> None:
    found = mistakes(sheet, lambda content: [row.update(change) for row in content])
    assert found[""].code == "nothing_to_import"
    assert message in found[""].message


# --- the file


@pytest.mark.parametrize(
    ("content", "key", "code"),
    [
        ("", "line 1", "missing_column"),
        ("model,scenario\n", "line 1", "missing_column"),
        ("model;scenario;cpu_blocks;run;level;report\n", "line 1", "unknown_column"),
        (
            "model,scenario,cpu_blocks,run,level,report,extra\n",
            "line 1",
            "unknown_column",
        ),
        (
            "model,scenario,cpu_blocks,run,level,report,run\n",
            "line 1",
            "repeated_column",
        ),
        ("model,scenario,cpu_blocks,run,level,report\na,b\n", "line 2", "other_length"),
        ('model,scenario,cpu_blocks,run,level,report\n"a\n', "", "no_csv"),
    ],
)
def test_a_file_of_another_form_is_refused(
    tmp_path: Path, content: str, key: str, code: str
) -> None:
    (tmp_path / "imports.csv").write_text(content)
    found = problems(tmp_path, str(tmp_path / "imports.csv"))
    assert (key, code) in [(problem.key, problem.code) for problem in found]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "imports.csv").write_bytes(b"model\xff\n")
    (problem,) = problems(tmp_path, str(tmp_path / "imports.csv"))
    assert problem.code == "no_csv"


def test_a_sheet_written_by_hand_needs_six_columns(sheet: Path) -> None:
    report = rows(sheet)[0]["report"]
    text = f"model,scenario,cpu_blocks,run,level,report\n\n{MODEL},no-offload,0,1,1,{report}\n"
    # As spreadsheets write it.
    sheet.write_text(text.replace("\n", "\r\n"), encoding="utf-8-sig")
    config = load(sheet.parent, str(sheet))
    assert config.sheet is not None
    assert [*config.sheet.imported] == [3]


def test_every_column_is_in_the_schema() -> None:
    schema = json.loads((CONFIG / "schema.json").read_text())["$defs"]
    assert schema["imports.csv"]["items"]["$ref"] == "#/$defs/SheetRow"
    assert tuple(schema["SheetRow"]["properties"]) == COLUMNS
    required = [
        name for name, field in SheetRow.model_fields.items() if field.is_required()
    ]
    assert schema["SheetRow"]["required"] == required
