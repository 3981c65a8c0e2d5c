"""The runs of several campaigns as those of one, and what confounds their comparison."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from kveval.campaign.cell import Cell
from kveval.campaign.imports import named_on
from kveval.campaign.problems import ConfigError
from kveval.campaign.specification import described, differences
from kveval.configuration.config import Config
from kveval.host.errors import Failure
from kveval.host.files import write_json
from kveval.store.run_file import pointer_of
from kveval.workflow.elsewhere import RunElsewhere, RunsElsewhere

# The keys with which a campaign declares a release, and those of a specification that follow from it.
_DECLARED = ("vllm", "guidellm", "lmcache", "build", "release", "images")
_RELEASE = ("versions", "images", "deployment", "build")


class CombiningError(Failure):
    """A campaign that is to be compared was not measured."""


class CombinedRun(RunElsewhere, frozen=True, kw_only=True):
    """A run of a compared campaign, under its scenario's name in the comparison; `pointer`: its own."""

    pointer: str
    campaign: str


def combination(config: Config) -> RunsElsewhere:
    """Return the runs of the campaigns that a campaign compares; remarks are differences other than the release."""
    runs = [
        CombinedRun(
            cell=replace(cell, scenario=named_on(cell.scenario, entry.label)),
            run=run,
            pointer=pointer_of(source.campaign.results, cell, run).as_posix(),
            campaign=entry.campaign,
            required=list(map(dict, source.required_counters(cell))),
        )
        for entry, source in config.compared
        for cell in source.cells
        for run in source.runs_of(cell)
    ]
    return RunsElsewhere(runs, "\n".join(_remarks(config)))


def _remarks(config: Config) -> Iterator[str]:
    """Say what is confounded: what differs between the campaigns besides the versions they declare."""
    (first, reference), *others = config.compared
    names = [f"`{entry.campaign}` ({entry.label})" for entry, _ in config.compared]
    yield f"Compares {', '.join(names)}."
    for entry, source in others:
        if source.campaign.hardware != reference.campaign.hardware:
            yield f"- {entry.label} ran on {source.campaign.hardware}, {first.label} on {reference.campaign.hardware}"
        paths_by_remark: dict[str, list[str]] = {}
        for cell in source.cells:
            if cell not in reference.cells:
                paths_by_remark.setdefault(f"only with {entry.label}", []).append(
                    cell.path
                )
                continue
            expected = _on_release_of(reference, source, cell)
            confounding = [
                difference
                for difference in differences(
                    expected, source.specification(cell).to_json()
                )
                if not difference[0].startswith(_RELEASE)
            ]
            if confounding:
                text = f"confounded, {entry.label} against {first.label} differs in more than versions: "
                paths_by_remark.setdefault(text + described(confounding), []).append(
                    cell.path
                )
        missing = [cell.path for cell in reference.cells if cell not in source.cells]
        if missing:
            paths_by_remark[f"only with {first.label}"] = missing
        yield from (
            f"- {text} ({_first(cells)})" for text, cells in paths_by_remark.items()
        )


def _on_release_of(reference: Config, source: Config, cell: Cell) -> dict[str, Any]:
    """Return a reference cell's specification on the other release, whose consequences do not count as differences."""
    declared = {name: getattr(source.campaign.server, name) for name in _DECLARED}
    server = reference.campaign.server.model_copy(update=declared)
    try:
        changed = Config(
            reference.campaign.model_copy(update={"server": server}),
            reference.catalogue,
        )
        return changed.specification(cell).to_json()
    except ConfigError:
        return reference.specification(cell).to_json()


def _first(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - 3} more cells" if len(cells) > 3 else ""
    return ", ".join(f"`{cell}`" for cell in cells[:3]) + more


def require_measured(run: CombinedRun) -> str:
    """Return the run's own pointer. Raises CombiningError, which says what to do, where it is not there."""
    if not Path(run.pointer).exists():
        raise CombiningError(
            f"{run.pointer}: campaign {run.campaign} is not measured yet; measure it first:"
            f" snakemake report --configfile config/campaigns/{run.campaign}.yaml",
            campaign=run.campaign,
        )
    return run.pointer


def link(pointer: Path, scenario: str, output: Path) -> None:
    """Write a pointer to the same measurement under another scenario's name."""
    content = msgspec.json.decode(pointer.read_bytes())
    write_json(output, {**content, "scenario": scenario})
