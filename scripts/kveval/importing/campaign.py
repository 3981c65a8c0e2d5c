"""A campaign's imports as the workflow asks for them."""

from pathlib import Path

from kveval.configuration.config import Config
from kveval.host.errors import Failure
from kveval.importing.plan import ImportPlan, plan_imports
from kveval.importing.table import summary

# The most that a message lists of each kind.
_SHOWN = 8


class NothingToImport(Failure):
    """A campaign's imports give no run; the message says what was found instead."""


def import_plan(config: Config, index: Path) -> ImportPlan:
    """Return what a campaign imports; `index` is the folder that keeps what was read.

    Raises NothingToImport when a tree cannot be read or nothing in it can be imported.
    """
    try:
        plan = plan_imports(config, index)
    except OSError as error:
        message = f"{error.filename}: cannot be read ({error.strerror})"
        raise NothingToImport(
            message, code="unreadable", path=error.filename
        ) from error
    if config.imports and not plan.runs:
        raise _nothing(config, plan)
    return plan


def _nothing(config: Config, plan: ImportPlan) -> NothingToImport:
    """Return the error when nothing can be imported: the reasons, and how to name the JSON files that are there."""
    groups: dict[tuple[str, str], list[str]] = {}
    for result in plan.listed:
        key = (result.status, result.code or result.reason)
        groups.setdefault(key, []).append(f"{result.files.place}: {result.reason}")
    reasons = [
        f"{len(places)} {status}, such as {places[0]}"
        for (status, _), places in list(groups.items())[:_SHOWN]
    ]
    files = [other for _, other in plan.others if other.file]
    reasons += [f"left out: {other.place}: {other.reason}" for other in files[:_SHOWN]]
    if len(files) > _SHOWN:
        reasons.append(f"left out: {len(files) - _SHOWN} more JSON files")
    # Where some names are recognised, these files are left out on purpose.
    if files and not plan.listed:
        reasons.append(
            "say what their names mean, as in `pattern: '{arm}/benchmarks-{model}.json'`; {arm} and {model} stand for"
            " names in scenarios.yaml and models.yaml, or those that the import's `scenarios` and `models` translate"
        )
    lines = "".join(f"\n  {line}" for line in reasons)
    return NothingToImport(
        f"campaign {config.campaign.name}: nothing can be imported; {summary(plan)}{lines}",
        statuses=[result.status for result in plan.listed],
        files=[other.place for other in files],
    )
