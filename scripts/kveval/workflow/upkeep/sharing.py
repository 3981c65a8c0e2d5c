"""Copying of runs and results between this machine and jobs that see none of its folders."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from kveval.host.files import write_json
from kveval.store.run_file import BESIDE, stored_run
from kveval.store.store import RUN, StoreError, key_of, verify


def share_run(pointer: Path, shared: Path, description: Path, raw: Path) -> None:
    """Copy the run that `pointer` (measurement.json) names, every checksum verified, and write a pointer to the copy.

    `shared`: the pointer; `description` and `raw`: the copies of run.json and of the folder of what was measured, in a
    folder beside it. Raises StoreError when the run is not what was measured, RunFileError when the pointer is none.
    """
    place = stored_run(pointer)
    try:
        key = key_of(json.loads((place / RUN).read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"not a run's description ({error!r})"
        raise StoreError(place / RUN, problem, "wrong", "no_description") from error
    verify(place, key)
    shutil.copytree(place / "raw", raw, dirs_exist_ok=True)
    shutil.copyfile(place / RUN, description)
    content = json.loads(pointer.read_text())
    write_json(
        shared,
        {name: value for name, value in content.items() if name != "path"}
        | {BESIDE: description.parent.name},
    )


def bring(files: Iterable[Path], places: Iterable[Path], made: Path) -> None:
    """Copy each of `files`, or folders of files, to its place, and list the places in `made`."""
    brought = [*places]
    for file, place in zip(files, brought, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(file, place)
        else:
            shutil.copyfile(file, place)
    made.write_text("".join(f"{place}\n" for place in brought))
