"""What failed and why, read from jobs' logs; and a report so far that one bad run does not prevent."""

from pathlib import Path

import pytest

from kveval.measure.failures import cause, causes
from kveval.measure.progress import Progress

LABEL = "Qwen3-0.6B/no-offload/0 run 1"


def log_of(path: Path, *texts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(LABEL, 60.0, path)
    for text in texts:
        progress.say(text)
    return path


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["starting the server", "measured: /store/id/run-1"], None),
        (["adopted the stored measurement /store/id/run-1"], None),
        (["FAILED: no room · on the disk", "the other measurements go on; a report ..."], "no room · on the disk"),
        (["FAILED: old", "starting the server", "measured: /store/id/run-1"], None),
        (["measured: /old", "starting the server", "4 streams (level 2 of 3) · this run 1:00 left"],
         "its job was killed; its last line was: 4 streams (level 2 of 3) · this run 1:00 left"),
        (["stopped by SIGTERM; everything it had started is gone"],
         "stopped by SIGTERM; everything it had started is gone"),
        ([], None),
    ],
)  # fmt: skip
def test_the_cause_is_what_the_job_said_last(
    tmp_path: Path, texts: list[str], expected: str | None
) -> None:
    assert cause(log_of(tmp_path / "run-1.log", *texts)) == expected


def test_only_what_was_tried_and_is_not_there_has_a_cause(tmp_path: Path) -> None:
    results, logs = tmp_path / "results", tmp_path / "logs"
    pointers = [
        results / "M" / name / "0" / "run-1" / "measurement.json"
        for name in ("good", "bad", "never")
    ]
    pointers[0].parent.mkdir(parents=True)
    pointers[0].touch()
    for name in ("good", "bad"):
        log = log_of(
            logs / "benchmark" / "M" / name / "0" / "run-1.log", "FAILED: it broke"
        )
    assert causes(pointers, results, logs) == {"M/bad/0/run-1": f"it broke [{log}]"}
    assert causes(pointers, results, logs, since=log.stat().st_mtime + 1) == {}


def test_a_line_is_said_even_when_the_log_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """/dev/full has no room, like a full disk."""
    Progress(LABEL, 60.0, Path("/dev/full")).say("FAILED: two\nlines")
    assert capsys.readouterr().err.endswith("FAILED: two lines\n")
