import json
import os

from kveval.load.workload import workload_of
from kveval.measure.progress import (
    Progress,
    campaign_progress,
    minutes,
    requested_with,
    write_requested,
)

WORKLOAD = workload_of({"levels": [1, 4, 8], "seconds": 20})


def test_durations_are_read_as_minutes_and_seconds():
    assert [minutes(seconds) for seconds in (-3, 0, 59.6, 125)] == [
        "0:00",
        "0:00",
        "1:00",
        "2:05",
    ]


def test_a_line_names_the_run_its_place_in_the_campaign_and_the_time_left(
    tmp_path, capsys
):
    pointers = [tmp_path / f"{number}.json" for number in range(3)]
    pointers[0].write_text("{}")
    progress = Progress(
        "Qwen3-0.6B/no-offload/0 run 1", 120.0, tmp_path / "log", pointers
    )
    progress.level("8 streams (level 3 of 3)", 12.0, 20.0)
    line = capsys.readouterr().err
    assert (
        "[2/3] Qwen3-0.6B/no-offload/0 run 1 · 8 streams (level 3 of 3) · 12 s of about 32 s"
        in line
    )
    assert "this run 2:00 left, all 3 in about 4:00" in line
    assert (tmp_path / "log").read_text() == line


def test_a_level_is_reported_at_most_every_ten_seconds(tmp_path, capsys):
    progress = Progress("run", 120.0, tmp_path / "log")
    progress.level("8 streams (level 3 of 3)", 1.0, 20.0)
    progress.level("8 streams (level 3 of 3)", 1.5, 20.0)
    progress.priming("8 streams (level 3 of 3)", 2.0)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_caches_are_primed_for_as_long_as_the_server_takes(tmp_path, capsys):
    progress = Progress("run", 120.0, tmp_path / "log")
    progress.priming("8 streams (level 3 of 3)", 72.0)
    line = capsys.readouterr().err
    assert "· 8 streams (level 3 of 3) · priming the caches, 72 s so far · this" in line


def test_the_estimate_comes_from_finished_runs_where_there_are_any(tmp_path):
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored" / "run.json").write_text(
        json.dumps({"phases": {"server_start_s": 30.0, "levels_s": 70.0}})
    )
    (tmp_path / "one.json").write_text(json.dumps({"path": str(tmp_path / "stored")}))
    (tmp_path / "broken.json").write_text("{")
    pointers = [tmp_path / f"{name}.json" for name in ("one", "broken", "missing")]
    progress = campaign_progress("run", WORKLOAD, pointers, tmp_path / "logs" / "log")
    assert progress.typical_s == 100.0
    assert progress.left() == "this run 1:40 left"


def test_without_other_runs_the_workload_gives_the_estimate(tmp_path):
    progress = campaign_progress("run", WORKLOAD, [], tmp_path / "log")
    assert progress.typical_s > max(60, WORKLOAD.level_count * WORKLOAD.seconds)
    assert "all" not in progress.left()


def test_a_run_is_one_of_those_requested_whatever_else_the_campaign_has(
    tmp_path, capsys
):
    campaign = [tmp_path / f"{number}.json" for number in range(9)]
    for path in campaign:
        path.write_text("{}")
    long_ago = 1_700_000_000
    requested, file = campaign[:3], tmp_path / "logs" / "requested.json"
    write_requested(file, requested)
    for path in campaign:
        os.utime(path, (long_ago, long_ago))
    together = requested_with(campaign[1], file)
    assert together == (requested, file.stat().st_mtime)
    progress = campaign_progress(
        "run", WORKLOAD, campaign, tmp_path / "log", requested=together
    )
    progress.say("starts")
    # What was there before snakemake began is measured anew; the first of the three is now done.
    requested[0].write_text("{}")
    os.utime(requested[0], (file.stat().st_mtime + 1,) * 2)
    progress.say("is done")
    progress = campaign_progress(
        "run", WORKLOAD, campaign, tmp_path / "log", requested=together
    )
    progress.say("starts")
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        "[1/3]",
        "[1/3]",
        "[2/3]",
    ]
    assert "all 3 in about" in progress.left()


def test_a_job_that_was_not_requested_counts_in_its_campaign(tmp_path):
    file = tmp_path / "requested.json"
    assert requested_with(tmp_path / "one.json", file) is None
    write_requested(file, [tmp_path / "other.json"])
    assert requested_with(tmp_path / "one.json", file) is None
    file.write_text("{")
    assert requested_with(tmp_path / "one.json", file) is None


def test_a_run_that_is_slower_than_others_takes_as_long_as_its_loads(tmp_path, capsys):
    pointers = [tmp_path / f"{number}.json" for number in range(3)]
    progress = Progress("run", 120.0, tmp_path / "log", pointers)
    # It began 200 s ago; the last of its levels begins now.
    progress.begin -= 200.0
    progress.begin_level("8 streams (level 3 of 3)", 1, 20.0)
    assert "this run 0:32 left, all 3 in about 8:16" in capsys.readouterr().err
    progress.level("8 streams (level 3 of 3)", 30.0, 20.0)
    assert "this run 0:02 left, all 3 in about 6:46" in capsys.readouterr().err
    assert progress.left(500.0) == (
        "this run takes longer than the 2:00 expected, all 3 in about 6:40"
    )
