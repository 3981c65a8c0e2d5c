"""Checks a recording made without PCP, as kveval.pcp.archive_tools checks a PCP archive."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kveval.pcp.archive_tools import ArchiveFacts
from kveval.pcp.installation import RecordingError
from kveval.pcp.parquet.bulk import Samples, samples_of
from kveval.pcp.parquet.longfile import LongFile

_SLACK_INTERVALS = 2


def verify_direct(
    path: Path,
    *,
    start: float,
    end: float,
    required: Sequence[str],
    windows: Sequence[tuple[float, float]] = (),
    interval_s: float = 1.0,
) -> ArchiveFacts:
    """Check that a recording covers start to end, epoch seconds, and has every required metric in every window.

    A window must hold at least a third of the samples due. Raises RecordingError with the codes of `verify_archive`.
    """
    try:
        found, archive = samples_of(path, required)
    except ValueError as error:
        raise RecordingError(f"the recording {path} is damaged: {error}", code="tool_failed") from error
    first, last, slack = archive.start_ns / 1e9, archive.end_ns / 1e9, _SLACK_INTERVALS * interval_s
    if first > start + slack or last < end - slack:
        said = f"the recording {path} covers {first:.1f} to {last:.1f} s since 1970, not {start:.1f} to {end:.1f}"
        raise RecordingError(said, code="window_not_covered")
    missing = [name for name in required if name not in found]
    if missing:
        message = f"the recording {path} lacks {', '.join(missing)}"
        raise RecordingError(message, code="metrics_missing", missing=missing)
    for begin, finish in windows:
        due = int((finish - begin) / interval_s / 3)
        seen = {name: _count(samples, begin, finish) for name, samples in found.items()}
        sparse = {name: count for name, count in seen.items() if count < due}
        if sparse:
            listed = ", ".join(f"{name} ({count})" for name, count in sparse.items())
            raise RecordingError(
                f"the recording {path} has fewer than {due} samples of {listed} in a window:"
                " an exporter was silent or the host too busy",
                code="too_few_samples",
                window_s=(begin, finish),
                due=due,
                sparse=sparse,
            )
    counts = {name: _count(samples, start, end) for name, samples in found.items()}
    return ArchiveFacts(first, last, len(LongFile(path).metrics()), counts, path.stat().st_size)


def _count(samples: Samples, begin_s: float, end_s: float) -> int:
    """Return the largest number of samples that a series has in a window."""
    inside: NDArray[np.bool_] = (samples.times >= begin_s * 1e9) & (samples.times <= end_s * 1e9)
    return int(np.bincount(samples.series[inside]).max(initial=0))
