"""Checks that a recording is whole, covers what was measured and has enough samples: made by PCP or without it."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kveval.pcp.archive_tools import archive_files
from kveval.pcp.installation import RecordingError
from pcp_parquet.archive.problems import PERHAPS_LOST, ArchiveError
from pcp_parquet.conversion.conversion import convert
from pcp_parquet.parquet.reading import LongFile, samples_of


@dataclass(frozen=True)
class RecordingFacts:
    """A verified recording: its span in epoch seconds, and how often it sampled each required metric."""

    start: float
    end: float
    metrics: int
    samples: dict[str, int]


def verify_recording(
    recording: Path,
    *,
    start: float,
    end: float,
    required: Sequence[str],
    windows: Sequence[tuple[float, float]] = (),
    interval_s: float = 1.0,
) -> RecordingFacts:
    """Check that a recording is readable to its end, covers start to end and has the metrics.

    Args:
        recording: base path of a PCP archive, without .0, .meta or .index; or a Parquet file made without PCP.
        start: start of the window, seconds since the epoch; the recording may begin two intervals later.
        end: end of the window, seconds since the epoch; the recording may end two intervals earlier.
        required: metric names; each must have a sample in the window.
        windows: parts of the window; in each, every metric must have a third of the samples that are due.
        interval_s: sampling interval of the recording, seconds.

    Raises:
        RecordingError: saying what is wrong with the recording.
    """
    with _as_parquet(recording) as parquet:
        samples, archive = samples_of(parquet, required)
        metrics = len(LongFile(parquet).metrics())
    first, last, slack = archive.start_ns / 1e9, archive.end_ns / 1e9, 2 * interval_s
    if first > start + slack or last < end - slack:
        raise RecordingError(
            f"the recording {recording} covers {_utc(first)} to {_utc(last)}, not {_utc(start)} to {_utc(end)}",
            code="window_not_covered",
        )
    missing = [metric for metric in required if metric not in samples]
    if missing:
        message = f"the recording {recording} lacks {', '.join(missing)}"
        raise RecordingError(message, code="metrics_missing", missing=missing)

    def counts(begin_s: float, finish_s: float) -> dict[str, int]:
        """The largest number of samples that a series of each metric has in a window."""
        inside = {
            name: metric_samples.series[
                (metric_samples.times >= begin_s * 1e9)
                & (metric_samples.times <= finish_s * 1e9)
            ]
            for name, metric_samples in samples.items()
        }
        return {
            name: int(np.bincount(series).max(initial=0))
            for name, series in inside.items()
        }

    dues = [
        (begin, finish, int((finish - begin) / interval_s / 3))
        for begin, finish in windows
    ]
    for begin, finish, due in [(start - slack, end + slack, 1), *dues]:
        sparse = {
            metric: count
            for metric, count in counts(begin, finish).items()
            if count < due
        }
        if sparse:
            listed = ", ".join(
                f"{metric} ({count})" for metric, count in sparse.items()
            )
            raise RecordingError(
                f"the recording {recording} has fewer than {due} samples between {_utc(begin)} and {_utc(finish)}"
                f" of {listed}: an agent or exporter was silent or the host too busy",
                code="too_few_samples",
                window_s=(begin, finish),
                due=due,
                sparse=sparse,
            )
    return RecordingFacts(first, last, metrics, counts(start - slack, end + slack))


@contextlib.contextmanager
def _as_parquet(recording: Path) -> Iterator[Path]:
    """The recording as a Parquet file, a temporary one if it is an archive. RecordingError if it is damaged."""
    try:
        if recording.suffix == ".parquet":
            yield recording
            return
        if not archive_files(recording):
            raise RecordingError(
                f"there is no PCP archive {recording}", code="no_archive"
            )
        with tempfile.TemporaryDirectory(
            prefix=".verified-", dir=recording.parent
        ) as folder:
            summary = convert(recording, parquet := Path(folder, "recording.parquet"))
            # Nothing has copied a recording yet: a record that its index names and that is not there is lost.
            damage = [
                problem
                for problem in summary.problems
                if problem.damage or problem.kind == PERHAPS_LOST
            ]
            if damage:
                more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
                raise RecordingError(
                    f"the PCP archive {recording} is damaged: {damage[0]}{more}",
                    code="damaged",
                )
            yield parquet
    except (ArchiveError, ValueError) as error:
        raise RecordingError(
            f"the recording {recording} cannot be read: {error}", code="damaged"
        ) from error


def _utc(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
