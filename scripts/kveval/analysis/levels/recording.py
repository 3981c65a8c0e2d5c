"""A run's recording in the measurement store: one packed archive, or those that an import refers to."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.pcp.archive.problems import ArchiveError
from kveval.pcp.conversion.conversion import convert, write_empty
from kveval.pcp.conversion.pcp2arrow import from_pcp2arrow
from kveval.store.run_file import RunFileError

CONVERTERS = {"kveval": convert, "pcp2arrow": from_pcp2arrow}
_MEASURED = "raw/pcp.tar.zst"
_DIRECT = ".parquet"


@dataclass(frozen=True)
class ConvertedRecording:
    """Folders and tars of PCP archives, and the window to convert: ns since 1970 UTC, None for all."""

    sources: Sequence[Path]
    start_ns: int | None = None
    finish_ns: int | None = None


def recording_of(directory: Path) -> ConvertedRecording:
    """Return the recording of a stored run. Raises RunFileError when its run.json cannot be read."""
    try:
        facts: dict[str, Any] = json.loads((directory / "run.json").read_text()).get("recording") or {}
    except (OSError, ValueError) as error:
        path = directory / "run.json"
        raise RunFileError(
            f"{path}: not the description of a run ({error})", code="no_description", path=path
        ) from error
    if "sources" not in facts:
        return ConvertedRecording([directory / facts.get("archive", _MEASURED)])
    start_s, finish_s = facts["window"]
    return ConvertedRecording(
        [directory / name for name in facts["sources"]], round(start_s * 1e9), round(finish_s * 1e9)
    )


def convert_recording(directory: Path, output: Path, converter: str = "kveval") -> None:
    """Write a stored run's recording as one Parquet file.

    For an imported run without a readable recording, writes an empty file that says why: its load report is useful
    without it. A measured run always has a recording: raises ArchiveError if it cannot be read.
    """
    recording = recording_of(directory)
    if recording.start_ns is None and recording.sources[0].suffix == _DIRECT:
        # Recorded from exporters only, already as Parquet.
        shutil.copyfile(recording.sources[0], output)
        return
    if recording.start_ns is None:
        CONVERTERS[converter](recording.sources[0], output)
        return
    if not recording.sources:
        write_empty(output, "no recording was found with the results")
        return
    try:
        convert(recording.sources, output, start_ns=recording.start_ns, finish_ns=recording.finish_ns)
    except ArchiveError as error:
        write_empty(output, str(error))
