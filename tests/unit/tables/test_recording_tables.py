"""Where a stored run's recording lies, and what becomes of one that is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.guidellm_reports import START, Story
from tests.support.result_trees import HOUR, write_archive

from kveval.store.run_file import RunFileError
from kveval.tables.levels.recording import convert_recording
from pcp_parquet.archive.problems import ArchiveError
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.parquet.reading import archive_info, series


def stored(folder: Path, recording: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"recording": recording}))
    return folder


def test_a_measured_run_has_one_packed_archive(tmp_path: Path) -> None:
    place = stored(tmp_path / "run", {"archive": "raw/pcp.tar.zst"})
    with pytest.raises(ArchiveError, match=str(place / "raw" / "pcp.tar.zst")):
        convert_recording(place, tmp_path / "pcp.parquet")


def test_an_imported_run_refers_to_several_within_a_window(tmp_path: Path) -> None:
    place = stored(
        tmp_path / "run",
        {"sources": ["raw/a", "raw/b"], "window": [START - 10, START + HOUR + 70]},
    )
    write_archive(place / "raw" / "a", Story())
    write_archive(place / "raw" / "b", Story(start=START + HOUR), host="node-2")
    convert_recording(place, tmp_path / "pcp.parquet")
    info = archive_info(tmp_path / "pcp.parquet")
    assert info.hosts == ["node-1", "node-2"]
    assert (info.start_ns, info.end_ns) == (
        round((START - 10) * 1e9),
        round((START + HOUR + 70) * 1e9),
    )
    assert set(series(tmp_path / "pcp.parquet", "mem.util.used")["host"]) == {
        "node-1",
        "node-2",
    }


def test_sources_may_be_of_every_kind(tmp_path: Path) -> None:
    write_archive(tmp_path / "a", Story())
    paths = write_archive(tmp_path / "b", Story(), host="node-2")
    summary = convert(
        [tmp_path / "a", paths[0]], tmp_path / "pcp.parquet", metrics=["mem.util.used"]
    )
    assert summary.rows == 2 * 51


def test_one_of_several_sources_that_is_no_archive_costs_itself_alone(
    tmp_path: Path,
) -> None:
    write_archive(tmp_path / "a", Story())
    (tmp_path / "b").mkdir()
    summary = convert(
        [tmp_path / "a", tmp_path / "b"],
        tmp_path / "pcp.parquet",
        metrics=["mem.util.used"],
    )
    assert summary.rows == 51
    assert [problem.kind for problem in summary.problems] == ["unreadable"]
    with pytest.raises(ArchiveError):
        convert([tmp_path / "b", tmp_path / "none" / "x"], tmp_path / "pcp.parquet")


def test_a_description_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError) as error:
        convert_recording(tmp_path, tmp_path / "pcp.parquet")
    assert (error.value.code, error.value.facts) == (
        "no_description",
        {"path": tmp_path / "run.json"},
    )
