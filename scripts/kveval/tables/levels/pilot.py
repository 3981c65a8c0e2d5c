"""The pilot of a peak search: the levels it tried on a baseline, and the levels it fixed for every arm."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kveval.host.errors import Failure
from kveval.host.files import write_json
from kveval.load.peak_search import levels_to_freeze, outcome
from kveval.load.workload import workload_of
from kveval.store.run_file import read_run, stored_run


class PilotError(Failure):
    """The results of a pilot cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Pilot:
    """A finished search. `tried`: level and throughput, tok/s, in the order in which they were measured."""

    cell: str
    measurement: str
    settings: Mapping[str, Any]
    tried: Sequence[tuple[int, float]]
    peak: int
    below: int | None
    above: int | None
    ending: str
    levels: Sequence[int]


def freeze(pointer: Path, output: Path) -> None:
    """Write to `output` the levels found by the pilot that `pointer` (measurement.json) names, and the levels tried.

    Raises RunFileError when the measurement cannot be read, PilotError when it is not that of a search.
    """
    run = read_run(stored_run(pointer))
    search = workload_of(run.workload).searched
    if search is None or any(level.throughput_tok_s is None for level in run.levels):
        message = f"{pointer}: names a measurement that is not a search for levels; delete the file to measure again"
        raise PilotError(message, code="no_search")
    tried = {level.level: float(level.throughput_tok_s or 0.0) for level in run.levels}
    result = outcome(search, tried)
    write_json(
        output,
        {
            "cell": run.cell.path,
            "measurement": run.measurement,
            "settings": search.model_dump(mode="json", exclude_none=True),
            "tried": list(tried.items()),
            **{
                "peak": result.peak,
                "below": result.below,
                "above": result.above,
                "ending": result.ending,
            },
            "levels": list(levels_to_freeze(search, tried)),
        },
    )


def read_pilot(path: Path) -> Pilot:
    """Read what `freeze` wrote. Raises FileNotFoundError when it was not written yet, PilotError when it is damaged."""
    try:
        content = json.loads(path.read_text())
        tried = [
            (int(level), float(throughput))
            for level, throughput in content.pop("tried")
        ]
        return Pilot(tried=tried, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"{path}: not a pilot's file ({error}); delete it, and the next run of the workflow makes it again"
        raise PilotError(message, code="damaged_levels") from error


def frozen_levels(path: Path) -> tuple[int, ...]:
    """Return the levels that a pilot fixed; see `read_pilot`."""
    return tuple(read_pilot(path).levels)
