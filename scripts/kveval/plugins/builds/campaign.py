"""The campaign of a check: the same arms on two builds, under the load of the campaign that was asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kveval.campaign.builds import BESIDE, ArmBuild, BuildError, find_build
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import BuildSource
from kveval.campaign.cell import Cell, CellError
from kveval.host.errors import Failure
from kveval.host.hashing import content_hash

ARMS = ("native-offload/3000", "lmcache-local/10000")
"""Default arms: the server's own tier, too small not to evict, and LMCache's, which holds the default working set."""
BLOCKS = 6
"""The most blocks by default: half an hour on two cores."""
INSTALLED = "installed"
BASE, CANDIDATE = "base", "candidate"
_LEFT_OUT = (
    "bridges",
    "matrix",
    "title",
    "description",
    "comparison",
    "prices",
    "goodput",
)


class CheckError(Failure):
    """A check cannot be made of what was asked for; the message says what would be right."""


@dataclass(frozen=True)
class CheckPlan:
    """A check: its campaign's values, and requested cell -> the cells of the base and of the candidate.

    The two differ from the requested one in their scenarios, which extend its own by a build. `described`: the titles
    of the two builds; `identical`: whether they have the same content.
    """

    values: Mapping[str, Any]
    cells: Mapping[Cell, tuple[Cell, Cell]]
    described: tuple[str, str]
    identical: bool


def source_of(text: str) -> dict[str, str] | None:
    """Return a build given on the command line in the form of a scenario's `server`; None for the installed build.

    PROGRAM==VERSION is a release, FILE.whl a wheel, a folder with bin/python an environment, another one a checkout,
    FOLDER@COMMIT a commit of it. Raises CheckError for a PROGRAM that a scenario's `server` may not name.
    """
    name, _, version = text.partition("==")
    path, at, commit = text.rpartition("@")
    if text == INSTALLED:
        return None
    if version and name in BuildSource.model_fields:
        return {name: version}
    if version:
        raise CheckError(
            f"{text} is not a release: write PROGRAM==VERSION of what a scenario's server may name",
            code="no_release",
        )
    if text.endswith(".whl"):
        return {"wheel": text}
    if (Path(text).expanduser() / "bin" / "python").exists():
        return {"environment": text}
    if at and not Path(text).expanduser().exists():
        return {"checkout": path, "commit": commit}
    return {"checkout": text}


def check_plan(
    values: Mapping[str, Any],
    base: str,
    candidate: str,
    arms: Sequence[str] = (),
    blocks: int = BLOCKS,
) -> CheckPlan:
    """Make the campaign of a check from the server, the load and the first model of the requested campaign.

    `arms`: SCENARIO/BLOCKS, by default those of ARMS that the server can run; `blocks`: the most that are measured.
    Raises CheckError, BuildError.
    """
    if "matrix" not in values or values.get("engine", "local") != "local":
        raise CheckError(
            "check needs a campaign with engine: local and a matrix", code="not_here"
        )
    server = ServerConfig.model_validate(values["server"])
    model = next(name for entry in values["matrix"] for name in entry.get("models", ()))
    sources = [source_of(base), source_of(candidate)]
    builds = [
        _build(source, server, side)
        for side, source in zip((BASE, CANDIDATE), sources, strict=True)
    ]
    beside_alone = any(
        build is not None and {*build.versions, *build.packages} == {BESIDE}
        for build in builds
    )
    requested = list(arms) or [
        arm for arm in ARMS if (server.lmcache if BESIDE in arm else not beside_alone)
    ]
    installed = f"{server.program}-{server.declared_version}"
    told_apart = [
        installed if build is None else build.source or build.key for build in builds
    ]
    # Each pair of builds has its own base runs, measured in the same blocks, not adopted from another check.
    mark = content_hash(told_apart, 8)
    scenarios: dict[str, Any] = {}
    matrix: list[dict[str, Any]] = []
    cells = {}
    for arm in requested:
        cell = _cell_of(model, arm)
        names = [f"{cell.scenario}.{side}.{mark}" for side in (BASE, CANDIDATE)]
        for side, name, source in zip((BASE, CANDIDATE), names, sources, strict=True):
            scenarios[name] = {
                "extends": cell.scenario,
                "title": f"{cell.scenario}, {side}",
                "replicate": False,
            }
            scenarios[name] |= {} if source is None else {"server": source}
        scenarios[names[1]]["baseline"] = names[0]
        matrix.append(
            {"models": [model], "scenarios": names, "cpu_blocks": [cell.cpu_blocks]}
        )
        base_cell, candidate_cell = (replace(cell, scenario=name) for name in names)
        cells[cell] = (base_cell, candidate_cell)
    kept = {key: value for key, value in values.items() if key not in _LEFT_OUT}
    kept |= {
        "name": "check",
        "title": f"{candidate} against {base}",
        "results": f"results/check/{mark}",
    }
    compared = values.get("comparison") or {}
    kept["comparison"] = {
        name: compared[name] for name in ("margin", "alpha") if name in compared
    }
    kept |= {
        "runs": blocks,
        "matrix": matrix,
        "scenarios": {**values.get("scenarios", {}), **scenarios},
    }
    titles = [
        f"the installed {installed}" if build is None else build.title
        for build in builds
    ]
    return CheckPlan(
        kept, cells, (titles[0], titles[1]), told_apart[0] == told_apart[1]
    )


def _cell_of(model: str, arm: str) -> Cell:
    try:
        return Cell.from_arm(model, arm)
    except CellError:
        raise CheckError(
            f"{arm!r} is not an arm: write SCENARIO/CPU_BLOCKS, as {ARMS[0]}",
            code="no_arm",
        ) from None


def _build(
    source: dict[str, str] | None, server: ServerConfig, side: str
) -> ArmBuild | None:
    """Find a build; None for the installed one. Raises BuildError, with the side of the comparison among its facts."""
    if source is None:
        return None
    try:
        return find_build(BuildSource.model_validate(source), server)
    except BuildError as error:
        raise BuildError(str(error), code=error.code, side=side) from None
