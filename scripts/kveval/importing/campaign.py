"""A campaign's imports as the workflow asks for them."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveval.config.imports import ImportCampaign
from kveval.host.errors import Failure
from kveval.importing.plan import ImportPlan, make_plan
from kveval.importing.table import summary
from kveval.spec.arms import Platform
from kveval.spec.config import Config
from kveval.spec.loading import load_config
from kveval.spec.resolve import exercised_counters
from kveval.spec.servers.vllm import VLLM

_SAY_EVERY_S = 5.0


class NothingToImport(Failure):
    """A campaign's imports give no run; the message says what was found instead."""


def import_plan(config: Config, index: Path) -> ImportPlan:
    """Return what a campaign imports; `index` is the folder where what was read is kept.

    Says on standard error how far it is, when it has to read results. Raises NothingToImport when a tree cannot be read
    or nothing in it can be imported.
    """
    if not isinstance(config.campaign, ImportCampaign):
        return ImportPlan((), (), ())
    said_s = time.monotonic()

    def progress(tree: str, done: int, total: int) -> None:
        nonlocal said_s
        if time.monotonic() - said_s >= _SAY_EVERY_S:
            said_s = time.monotonic()
            print(f"reading results in {tree}: {done} of {total}", file=sys.stderr, flush=True)

    def required(scenario: str, vllm: str) -> list[dict[str, Any]]:
        # What was measured elsewhere ran on GPUs; LMCache's form follows from the release.
        platform = Platform(vllm, lmcache=None, on_cpu=False, engine="local", block_size=16, served_name="")
        return [dict(entry) for entry in exercised_counters(config.catalogue.scenarios[scenario], VLLM, platform)]

    try:
        plan = make_plan(config.campaign, config.catalogue, index, required, progress=progress)
    except OSError as error:
        said = f"{error.filename}: cannot be read ({error.strerror})"
        raise NothingToImport(said, code="unreadable", path=error.filename) from error
    if not plan.runs:
        reasons = dict.fromkeys(f"{entry.result.source.found.place}: {entry.result.reason}" for entry in plan.listed)
        examples = "".join(f"\n  {reason}" for reason in list(reasons)[:5])
        said = f"campaign {config.campaign.name}: nothing can be imported; {summary(plan)}{examples}"
        raise NothingToImport(said, statuses=[entry.result.status for entry in plan.listed])
    return plan


def campaign_imports(campaign: Path | Mapping[str, Any], catalogues: Path, index: Path) -> ImportPlan:
    """Return what a campaign imports, given by its file or its values."""
    return import_plan(load_config(campaign, catalogues), index)
