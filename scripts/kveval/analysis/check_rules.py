"""The rules that keep a report from known mistakes, and the checks that hold them.

Each rule answers mistakes that published evaluations of KV-cache offload made. A check is a pure function of what it
looks at: a level (`levels.checks`, `levels.checks_run`), a level's system metrics (`system.checks`) or the campaign's
tables (`checks`). What the report's own sentences may say is tested with its template. docs/analysis.md lists all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from kveval.analysis import checks as checks_campaign
from kveval.analysis.cells import KEYS
from kveval.analysis.levels import checks, checks_run
from kveval.analysis.levels.outcomes import Outcome
from kveval.analysis.system import checks as checks_system

RULES: Mapping[str, str] = {
    "R1": "units and scales come from the recording, and values are physically possible",
    "R2": "cells are identified by their runs' own description, exactly",
    "R3": "system metrics are those of the level's window, with enough samples",
    "R4": "a closed loop obeys its invariants",
    "R5": "averages over models are geometric means of ratios over a balanced panel",
    "R6": "every percentage says of what",
    "R7": "tokens of unfinished requests count, and what was not observed is missing",
    "R8": "rates are steady and quantiles rest on enough observations",
    "R9": "verdicts rest on repeated blocks",
    "R10": "peaks are bracketed and cross-fitted, and comparisons are at a common level",
    "R11": "verdicts are adjusted for their number",
    "R12": "equality is said only where an equivalence test passed",
    "R13": "the workload exercises the feature",
    "R14": "what ran is recorded, and equal configurations are replicates",
    "R15": "sizes of KV caches follow from the model's geometry",
    "R16": "hardware is as probed, and it and the server's build are the same for what is compared",
    "R17": "correlations are within models, with their interval",
    "R18": "sentences claim what verdicts say and no more",
    "R19": "metrics have the names and meanings of their tool's version",
    "R20": "distributions are possible",
    "R21": "no digit is finer than the uncertainty",
    "R22": "the document's counts, links, names and encoding are right",
}

REGISTRY: Mapping[str, tuple[Callable[[Any], Any], ...]] = {
    "R1": (checks_system.plausible, checks_system.fraction_scaled, checks_system.kv_usage_physical),
    "R2": (checks.streams, checks_campaign.rows_once, checks_campaign.one_measurement_per_cell),
    "R3": (checks.window, checks_system.samples, checks_system.clock_offset),
    "R4": (checks.closed_loop, checks.littles_law, checks_system.queues),
    "R5": (checks_campaign.balanced_panel, checks_campaign.rows_once),
    "R6": (checks_campaign.denominators,),
    "R7": (
        checks.server_tokens,
        checks_system.server_rate,
        checks.unobserved_is_missing,
        checks.not_reached,
        checks_campaign.censored_share_shown,
    ),
    "R8": (
        checks.steadiness,
        checks.few_tokens,
        checks.few_latencies,
        checks.few_completions,
        checks.warmup,
        checks.warmup_scaled,
    ),
    "R9": (checks_campaign.replication,),
    "R10": (checks_campaign.peak_bracketed, checks_campaign.common_level),
    "R11": (checks_campaign.multiplicity,),
    "R12": (checks_campaign.parity_shown,),
    "R13": (
        checks_run.fits_device,
        checks_run.tier_below_device,
        checks_run.tier_below_prefixes,
        checks_run.workload_varies,
        checks_run.not_exercised,
        checks.turns,
    ),
    "R14": (checks_run.provenance, checks_campaign.replicates),
    "R15": (checks_run.kv_bytes, checks_run.kv_capacity),
    "R16": (checks_run.hardware_probed, checks_campaign.one_machine, checks_campaign.one_build),
    "R17": (checks_campaign.correlations_within_models,),
    "R19": (
        checks_run.counter_names,
        checks_run.tpot_definition,
        checks_system.recorded,
        checks_campaign.one_generator,
    ),
    "R20": (checks.completed, checks.errors, checks.percentiles, checks.mean_above_p90, checks.totals),
}

_CELL = re.compile(r"([^/\s]+)/([^/\s]+)/(\d+)")
_COLUMNS = [*KEYS, "run", "level", "severity", "rule", "check", "message"]


def rules_of(name: str) -> str:
    """Return the rules that a check holds, `;`-joined; "" for a check that belongs to none."""
    return ";".join(rule for rule, functions in REGISTRY.items() if name in {f.__name__ for f in functions})


def check_table(levels: pd.DataFrame, found: Sequence[Outcome] = ()) -> pd.DataFrame:
    """Return checks.csv: a row for every outcome of a level, then those of the campaign's tables (no run, no level)."""
    rows: list[dict[str, Any]] = []
    for level in levels.to_dict("records"):
        messages = dict(part.split(": ", 1) for part in str(level["checks_messages"]).split(" | ") if ": " in part)
        place = {name: level[name] for name in (*KEYS, "run", "level")}
        for severity, column in (("fail", "checks_failed"), ("warn", "checks_warned"), ("note", "checks_noted")):
            for name in filter(None, str(level[column]).split(";")):
                rows.append({**place, **_row(severity, name, messages.get(name, ""))})
    for outcome in found:
        cell = _CELL.fullmatch(outcome.where)
        place = {} if cell is None else dict(zip(KEYS, (cell[1], cell[2], int(cell[3])), strict=True))
        message = outcome.message if cell or not outcome.where else f"{outcome.where}: {outcome.message}"
        rows.append({**place, **_row(outcome.severity, outcome.name, message)})
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.astype({"cpu_blocks": "Int64", "run": "Int64", "level": "Int64"})


def _row(severity: str, name: str, message: str) -> dict[str, str]:
    return {"severity": severity, "rule": rules_of(name), "check": name, "message": message}
