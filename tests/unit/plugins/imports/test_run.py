"""One imported run: files referred to with their checksums, archives chosen by time, counters from the recording."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.described import run_tables
from tests.support.guidellm_reports import START, Story
from tests.support.import_sheets import campaign_plan, plan, rows, update, write_rows
from tests.support.result_trees import (
    HOUR,
    native,
    write_archive,
    write_level,
    write_report,
)

from kveval.conditions.facts import described
from kveval.plugins.imports.plan import RunPlan
from kveval.plugins.imports.run import (
    ImportFailure,
    Span,
    covering,
    import_run,
    spans,
)
from kveval.store.run_file import read_run, stored_run
from kveval.store.store import Store
from kveval.tables.levels.recording import convert_recording
from kveval.tables.peaks import cell_tables
from pcp_parquet.parquet.reading import archive_info, describe

MODEL = "Qwen3-0.6B"
METRICS = {
    "requests_running": {
        **{
            "title": "running",
            "unit": "requests",
            "pcp": "openmetrics.vllm.vllm.num_requests_running",
        },
        **{"reduction": "mean", "instances": "sum"},
    },
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "tree"


def imported(tree: Path, number: int = 0, **options: Any) -> Path:
    """Import a run and return its folder in the store."""
    output = tree.parent / "pointers" / f"{number}.json"
    run = plan(tree, **options).runs[number]
    import_run(run, Store(tree.parent / "store"), output)
    return stored_run(output)


def facts(place: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((place / "run.json").read_text())
    return content


def test_a_run_refers_to_its_files_and_reads_like_a_measured_one(tree: Path) -> None:
    for rate in (1, 4):
        write_level(
            tree,
            MODEL,
            "native-offload-10k",
            rate,
            start=START + rate * HOUR,
            args=native(10_000),
        )
    place = imported(tree)
    run, content = read_run(place), facts(place)
    assert (run.engine, run.weights, run.run, run.cell.cpu_blocks) == (
        "imported",
        "full",
        1,
        10_000,
    )
    assert [(level.level, level.status, level.start) for level in run.levels] == [
        *((1, "ok", START + HOUR), (4, "ok", START + 4 * HOUR)),
    ]
    for source in content["sources"]:
        path = Path(source["path"])
        assert (path.stat().st_size, len(source["sha256"])) == (source["bytes"], 64)
    linked = [path for path in (place / "raw").rglob("*") if path.is_file()]
    assert len(linked) == len(content["sources"]) == 2 * (1 + 2 + 3)
    assert all(path.is_symlink() for path in linked)
    levels, requests = run_tables(place)
    assert list(levels["level"]) == [1, 4]
    assert (levels["engine"] == "imported").all()
    assert len(requests) == 30 + 120
    assert levels["exercised"].all()


def test_a_levels_window_of_the_recording_is_the_reports(
    tree: Path, tmp_path: Path
) -> None:
    for rate in (1, 4):
        write_level(tree, MODEL, "no-offload", rate, start=START + rate * HOUR)
    place = imported(tree)
    convert_recording(place, tmp_path / "pcp.parquet")
    table, peak = cell_tables(
        [run_tables(place)[0]],
        [tmp_path / "pcp.parquet"],
        [described(read_run(place)).described],
        METRICS,
        10,
    )
    assert list(table["requests_running"]) == pytest.approx([0.8, 3.2])
    assert (table["pcp_samples"] > 20).all()
    assert peak["level"].iloc[0] == 4


def test_the_servers_counters_come_from_the_recording(tree: Path) -> None:
    write_level(tree, MODEL, "native-offload-10k", 4, args=native(10_000), hits=500.0)
    counters = facts(imported(tree))["levels"][0]["counters"]
    assert counters["vllm:external_prefix_cache_hits_total"]["delta"] == pytest.approx(
        500.0 * 30
    )
    generated = counters["vllm:generation_tokens_total"]["delta"]
    assert generated == pytest.approx(Story(streams=4).delivered, rel=0.001)
    levels, _ = run_tables(imported(tree))
    assert levels["exercised"].iloc[0]
    assert abs(levels["throughput_server_difference"].iloc[0]) < 0.01
    assert "server_tokens" not in levels["checks_failed"].iloc[0]


def test_an_arm_whose_counters_did_not_move_was_not_exercised(tree: Path) -> None:
    write_level(tree, MODEL, "native-offload-10k", 4, args=native(10_000), hits=0.0)
    assert not run_tables(imported(tree))[0]["exercised"].iloc[0]


def test_without_a_recording_nothing_is_known_of_the_counters(
    tree: Path, tmp_path: Path
) -> None:
    write_level(
        tree, MODEL, "native-offload-10k", 4, args=native(10_000), archive=False
    )
    place = imported(tree)
    assert facts(place)["recording"]["notes"] == [
        "no recording was found with the results"
    ]
    levels, _ = run_tables(place)
    assert levels["exercised"].isna().all()
    convert_recording(place, tmp_path / "pcp.parquet")
    assert describe(tmp_path / "pcp.parquet") == {}
    assert (
        archive_info(tmp_path / "pcp.parquet").problems[0].message
        == "no recording was found with the results"
    )


def test_a_damaged_archive_costs_the_recording_alone(
    tree: Path, tmp_path: Path
) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4)
    for path in (folder / "pcp-archives").rglob("*.zst"):
        path.write_bytes(b"not an archive")
    place = imported(tree)
    assert "no PCP archive" in facts(place)["recording"]["notes"][0]
    convert_recording(place, tmp_path / "pcp.parquet")
    assert describe(tmp_path / "pcp.parquet") == {}
    assert run_tables(place)[0]["throughput_tok_s"].notna().all()


def test_archives_are_chosen_by_the_times_they_name(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4)
    for name, hours in (("node-0", -3), ("node-2", 2)):
        write_archive(
            folder / "pcp-archives" / name,
            Story(start=START + hours * HOUR),
            host="node-1",
        )
    place = imported(tree)
    assert [path.name for path in (place / "raw" / "pcp" / "0004").iterdir()] == [
        "node-1"
    ]
    assert facts(place)["recording"]["hosts"] == ["node-1"]


def test_several_hosts_are_said(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4)
    write_archive(folder / "pcp-archives" / "node-2", Story(streams=4), host="node-2")
    assert (
        "several hosts (node-1, node-2)"
        in facts(imported(tree))["recording"]["notes"][0]
    )


def test_an_archive_that_covers_nothing_is_said_and_left_out(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4, archive=False)
    write_archive(folder / "pcp-archives" / "node-1", Story(start=START + HOUR))
    notes = facts(imported(tree))["recording"]["notes"]
    assert notes[0] == "level 4: none of its 1 archives covers its time"


@pytest.mark.parametrize(
    ("given", "window", "expected"),
    [
        ([("a", 0, 100)], (500, 600), ["a"]),
        ([("a", 700, 800)], (500, 600), []),
        ([("a", 0, 100), ("a", 400, 900)], (500, 600), ["1"]),
        ([("a", 0, 490), ("a", 2000, 3000)], (500, 600), ["0"]),
        ([("a", 0, 100), ("b", 400, None)], (500, 600), ["1"]),
        ([("a", 0, None), ("a", 550, None)], (500, 600), ["0", "1"]),
        ([], (500, 600), []),
    ],
)
def test_which_archives_cover_a_window(
    given: list[tuple[str, int, int | None]],
    window: tuple[int, int],
    expected: list[str],
) -> None:
    found = [
        Span(str(number), host, start * 10**9, None if end is None else end * 10**9, ())
        for number, (host, start, end) in enumerate(given)
    ]
    chosen = covering(found, *window)
    assert [span.base for span in chosen] == (["0"] if expected == ["a"] else expected)


def test_the_span_of_an_archive_is_read_from_its_files(tmp_path: Path) -> None:
    paths = write_archive(tmp_path, Story(seconds=60.0))
    found, problems = spans([str(path) for path in paths])
    assert problems == []
    assert (found[0].host, found[0].start_ns) == ("node-1", round((START - 20) * 1e9))
    assert found[0].end_ns == round((START + 80) * 1e9)


@pytest.mark.parametrize(
    ("form", "suffix"), [("xztar", ".tar.xz"), ("bztar", ".tbz"), ("bztar", ".tbz2")]
)
def test_an_archive_packed_whole_beside_an_older_report(
    tree: Path, tmp_path: Path, form: str, suffix: str
) -> None:
    stem = "benchmark_20251101_120000_Qwen3-0.6B_no-offload_rate4"
    story = Story(streams=4)
    write_report(tree / f"{stem}_guidellm.json", [story], layers=0, generation="0.4")
    write_archive(tmp_path / "archive", story)
    packed = shutil.make_archive(str(tmp_path / "packed"), form, tmp_path / "archive")
    shutil.move(packed, tree / f"{stem}_pcp{suffix}")
    place = imported(tree)
    assert facts(place)["recording"]["sources"] == [f"raw/pcp-0004{suffix}"]
    convert_recording(place, tmp_path / "pcp.parquet")
    assert describe(tmp_path / "pcp.parquet")["mem.util.used"].samples > 20


def test_a_long_archive_over_all_results_is_cut_to_the_runs_time(
    tree: Path, tmp_path: Path
) -> None:
    stories = [
        Story(strategy="synchronous", streams=1),
        Story(strategy="throughput", streams=8, start=START + 66),
    ]
    write_report(
        tree / f"oct2025-{MODEL}-default.json",
        stories,
        layers=0,
        generation="0.3",
        keep=0,
    )
    write_archive(
        tree / "pcp-archives" / "node",
        Story(seconds=3 * HOUR, start=START - HOUR),
        step=10.0,
    )
    place = imported(tree)
    convert_recording(place, tmp_path / "pcp.parquet")
    info = archive_info(tmp_path / "pcp.parquet")
    assert START - 31 <= info.start_ns / 1e9 < info.end_ns / 1e9 <= START + 157
    levels, _ = run_tables(place)
    assert list(levels["strategy"]) == ["synchronous", "throughput"]
    # Ten seconds between samples do not tell one strategy's tokens from the next one's.
    assert levels["server_generation_tokens"].isna().all()


def test_a_failed_level_is_a_row_that_fails(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 1)
    folder = write_level(tree, MODEL, "no-offload", 4)
    (folder / "guidellm-results.json.zst").write_bytes(b"x")
    levels, _ = run_tables(imported(tree))
    assert list(levels["checks_failed"] == "level_failed") == [False, True]


def test_the_same_files_are_adopted_and_changed_ones_are_noticed(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4)
    first = imported(tree)
    assert imported(tree) == first
    write_report(
        folder / "guidellm-results.json.zst", [Story(streams=4, latency_s=3.0)]
    )
    second = imported(tree)
    assert second != first
    # The older entry no longer is what its checksums say.
    store = Store(tree.parent / "store")
    assert (second / "SHA256SUMS").read_text() != (first / "SHA256SUMS").read_text()
    content = facts(first)
    from kveval.store.store import Key  # noqa: PLC0415

    assert (
        store.find(Key(content["measurement"], 1, content["hardware"]["fingerprint"]))
        is None
    )
    assert list((tree.parent / "store" / "damaged").glob("*/REASON"))


def test_copies_are_kept_when_asked_for(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 4)
    place = imported(tree, copy_imports=True)
    files = [path for path in (place / "raw").rglob("*") if path.is_file()]
    assert files
    assert not any(path.is_symlink() for path in files)
    shutil.rmtree(tree)
    assert run_tables(place)[0]["throughput_tok_s"].notna().all()


def test_a_relative_tree_is_referred_to_relatively(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_level(tree, MODEL, "no-offload", 4)
    monkeypatch.chdir(tmp_path)
    planned = plan(Path("tree"))
    import_run(planned.runs[0], Store(Path("store")), Path("pointer.json"))
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.move("tree", moved / "tree")
    shutil.move("store", moved / "store")
    place = moved / stored_run(Path("pointer.json"))
    assert run_tables(place)[0]["throughput_tok_s"].notna().all()


def test_a_file_that_is_gone_is_named(tree: Path) -> None:
    folder = write_level(tree, MODEL, "no-offload", 4)
    run = plan(tree).runs[0]
    (folder / "guidellm-results.json.zst").unlink()
    with pytest.raises(ImportFailure) as error:
        import_run(run, Store(tree.parent / "store"), tree.parent / "p.json")
    assert error.value.facts == {"path": folder / "guidellm-results.json.zst"}
    assert Store(tree.parent / "store").partial() == []


def test_a_plan_survives_as_plain_values(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 4)
    run = plan(tree).runs[0]
    content = json.loads(json.dumps(msgspec.to_builtins(run)))
    assert msgspec.convert(content, RunPlan) == run


def test_what_defines_a_run_is_read_from_its_files(tree: Path) -> None:
    for rate in (1, 4):
        config = {"Prefix_Count": 2 * rate, "Turns": 5}
        write_level(tree, MODEL, "no-offload", rate, archive=False, config=config)
    content = facts(imported(tree))
    workload = content["specification"]["workload"]
    assert workload == {
        "profile": "concurrent",
        "levels": [1, 4],
        "sweep_size": None,
        "seconds": 60.0,
        "warmup_s": 0.0,
        "prompt_tokens": 64,
        "output_tokens": 37,
        "prefix_tokens": 2000,
        "prefix_count": {"per_level": 2},
        "turns": 5,
    }
    assert content["budget"]["device_tokens"] == 208_640
    assert content["versions"]["vllm"] == "0.11.2"
    assert content["hardware"]["description"].startswith("2 x L40S, ")
    assert content["specification"]["companions"] == []


def test_the_sheet_counts_and_not_the_names(tree: Path) -> None:
    write_level(tree, MODEL, "native-offload-10k", 4, args=native(10_000))
    values = {
        "model": "Qwen3-8B",
        "scenario": "lmcache-local",
        "cpu_blocks": "500",
        "run": "7",
        "level": "12",
        "hardware": "my-laptop",
        "software": "other",
        "tensor_parallel_size": "1",
        "vllm": "0.10.0",
    }
    content = facts(imported(tree, corrections=lambda row: values))
    assert content["cell"] == {
        "model": "Qwen3-8B",
        "scenario": "lmcache-local",
        "cpu_blocks": 500,
    }
    assert (content["run"], content["levels"][0]["level"]) == (7, 12)
    assert content["hardware"]["description"].startswith("my-laptop, ")
    specification = content["specification"]
    assert specification["software"] == "other"
    assert specification["model"]["tensor_parallel_size"] == 1
    assert content["versions"]["vllm"] == "0.10.0"


def test_arms_whose_arguments_are_not_known_do_not_count_as_equal(tree: Path) -> None:
    none = {"vLLM Extra Args": None}
    write_level(tree, MODEL, "no-offload", 1, archive=False, log=False, config=none)
    specification = facts(imported(tree))["specification"]
    assert specification["configuration"] is None
    assert specification["argv"] == []
    assert specification["companions"] == ["declared as no-offload"]
    assert "vllm" not in specification["versions"]


def test_secrets_in_the_environment_go_nowhere(tree: Path) -> None:
    env = "HF_TOKEN=hf_secret A=1"
    write_level(tree, MODEL, "no-offload", 1, archive=False, env=env)
    place = imported(tree)
    assert "hf_secret" not in (place / "run.json").read_text()
    assert "hf_secret" not in (tree.parent / "imports.csv").read_text()


def test_a_level_that_cannot_be_read_any_more_fails_alone(tree: Path) -> None:
    for rate in (1, 4):
        write_level(tree, MODEL, "no-offload", rate, archive=False)
    run = plan(tree).runs[0]
    report = Path(run.levels[1].report)
    report.write_bytes(report.read_bytes()[:-3])
    output = tree.parent / "p.json"
    import_run(run, Store(tree.parent / "store"), output)
    levels = facts(stored_run(output))["levels"]
    assert [level["status"] for level in levels] == ["ok", "failed"]
    assert "truncated zstd" in levels[1]["error"]
    Path(run.levels[0].report).write_bytes(b"")
    with pytest.raises(ImportFailure, match="no level of run 1"):
        import_run(run, Store(tree.parent / "store"), output)


def test_a_benchmark_that_the_report_does_not_have_is_named(tree: Path) -> None:
    write_level(tree, MODEL, "no-offload", 4, archive=False)
    with pytest.raises(ImportFailure, match="no benchmark 3, only 1"):
        imported(tree, corrections=lambda row: {"benchmark": "3"})


def test_recordings_of_several_levels_are_kept_once(tree: Path) -> None:
    stories = [Story(streams=1), Story(streams=8, start=START + 66)]
    write_report(tree / "free.json", stories, layers=0)
    write_archive(tree / "archives" / "node", Story(seconds=200.0))
    write_archive(tree.parent / "more" / "node", Story(seconds=200.0), host="node-2")
    sheet = tree.parent / "imports.csv"
    update(sheet, tree)
    content = rows(sheet)
    for row in content:
        row |= {"scenario": "no-offload", "cpu_blocks": "0", "run": "1"}
        row["recording"] = f"{tree / 'archives'}; {tree.parent / 'more'}"
    write_rows(sheet, content)
    store = Store(tree.parent / "store")
    import_run(campaign_plan(sheet).runs[0], store, tree.parent / "p.json")
    place = stored_run(tree.parent / "p.json")
    folders = {
        path.relative_to(place).parent.as_posix()
        for path in (place / "raw" / "pcp").rglob("*")
        if path.is_file()
    }
    assert folders == {"raw/pcp/shared/node", "raw/pcp/shared/1/node"}
