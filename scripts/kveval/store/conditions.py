"""conditions.json: what ran in a run and what was counted, in terms that are the same for all servers.

It is made of the raw facts in run.json by `kveval.conditions`, for stored and imported runs as well, and again when that
is mended; tables, verdicts and the report know of a server what stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from kveval.host.errors import FileFailure

Conditions = Mapping[str, str]
"""`kind/name` -> value as text. What is not recorded is absent; of arguments and variables, what was not given."""
CONDITIONS_COLUMN = "conditions"
"""The column of a level's row with the conditions of its run, as JSON."""
CONDITIONS = "conditions.json"
"""Name of the file with the conditions of a run, beside its recording as a table."""
NO_ARGUMENTS = "unknown/arguments"
"""In the conditions of a server whose arguments nobody recorded."""
NO_CONNECTOR_OF_ARM = "unexpected/connector"
"""The connector that ran, where it is not one of the kind of arm that the run is called after."""
RESIZES_DEVICE = "arm/resizes the device's cache"
"""In the conditions of an arm with an argument of its own that changes how many tokens the device holds."""


class ConditionsError(FileFailure):
    """A file is not the conditions of a run."""


class Change(msgspec.Struct, frozen=True):
    """A server counter before and after a level, summed over label sets."""

    before: float
    after: float
    delta: float


class RunConditions(msgspec.Struct, frozen=True):
    """The content of conditions.json.

    Attributes:
        record: `kind/name` -> value, which comparisons of two runs go through.
        configuration: hash of what ran; cells with the same are replicates, whatever their names.
        arm_settings: the same without what identifies the build; "" for a run without arguments.
        server: the server's title; `server_version`: its release, "" if the run has none.
        release: the one by which names are looked up: as declared, where that is known; "0" for an unknown one.
        titles: name of a program -> its title, of the server and what stood beside it.
        server_build: image, build, version; "" if nothing is recorded.
        wrong_answers: why the server is known to give wrong answers from its tier, "" if it is not.
        invented_counters: those of the arm's required counters that no version of any server has.
        kv_bytes_per_token: bytes of a token by the model's geometry, over all ranks; None without one.
        recorded: term of what a server counts -> its name in a recording.
        counters: number of a level, as text -> term, with labels where the server has them -> change during the level.
    """

    record: dict[str, str]
    configuration: str
    arm_settings: str
    server: str
    server_version: str
    release: str
    titles: dict[str, str]
    server_build: str
    wrong_answers: str
    invented_counters: list[str]
    kv_bytes_per_token: int | None
    recorded: dict[str, str]
    counters: dict[str, dict[str, Change]]


def conditions_text(record: Conditions) -> str:
    """Return conditions as JSON, equal for equal ones."""
    return msgspec.json.encode(record, order="deterministic").decode()


@lru_cache(maxsize=4096)
def parse_conditions(text: str) -> Conditions:
    """Return the conditions that `conditions_text` wrote. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=dict[str, str])


def write_conditions(conditions: RunConditions, output: Path) -> None:
    """Write conditions.json."""
    output.write_bytes(msgspec.json.encode(conditions, order="deterministic") + b"\n")


def read_conditions(path: Path) -> RunConditions:
    """Return the content of conditions.json. Raises ConditionsError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunConditions)
    except (OSError, msgspec.DecodeError) as error:
        problem = f"not the conditions of a run ({error}): delete it, and the next run of snakemake makes it again"
        raise ConditionsError(path, problem, code="no_conditions") from error
