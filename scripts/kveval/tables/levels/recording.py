"""A run's recording in the measurement store: one packed archive, or those that an import refers to."""

import json
import shutil
from pathlib import Path
from typing import Any

from kveval.pcp.direct.ranges import RANGES_FILE
from kveval.store.run_file import RunFileError
from pcp_parquet.archive.problems import ArchiveError
from pcp_parquet.conversion.conversion import convert, write_empty
from pcp_parquet.conversion.pcp2arrow import from_pcp2arrow
from pcp_parquet.parquet.joining import join

CONVERTERS = {"kveval": convert, "pcp2arrow": from_pcp2arrow}
_MEASURED = "raw/pcp.tar.zst"


def convert_recording(directory: Path, output: Path, converter: str = "kveval") -> None:
    """Write a stored run's recording as one Parquet file.

    For an imported run without a readable recording, writes an empty file that says why: its load report is useful
    without it. A measured run always has a recording: raises ArchiveError if it cannot be read, RunFileError when its
    run.json cannot be read.
    """
    facts = _facts(directory / "run.json")
    if "sources" not in facts:
        archive = directory / facts.get("archive", _MEASURED)
        # Recorded from exporters only, it is Parquet already.
        (shutil.copyfile if archive.suffix == ".parquet" else CONVERTERS[converter])(
            archive, output
        )
        if (more := directory / RANGES_FILE).exists():
            join(output, more, output)
        return
    start_ns, finish_ns = (round(edge * 1e9) for edge in facts["window"])
    sources = [directory / name for name in facts["sources"]]
    if not sources:
        write_empty(output, "no recording was found with the results")
        return
    try:
        convert(sources, output, start_ns=start_ns, finish_ns=finish_ns)
    except ArchiveError as error:
        write_empty(output, str(error))


def _facts(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text()).get("recording") or {}
    except (OSError, ValueError) as error:
        problem = f"not the description of a run ({error})"
        raise RunFileError(path, problem, code="no_description") from error
