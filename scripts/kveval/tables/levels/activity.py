"""Was the arm active? Decided here, and nowhere else, from what its counters say was loaded or hit during a level.

The counters that an arm requires are those of its entry in config/scenarios.yaml, under `exercised`. The arm was active
in a level if each of them rose enough: by `at_least`, and a counter of tokens or bytes also by 0.5 % of the level's prompt
tokens, as a tier that served less has no measurable effect. If one rose less, the arm was not active. If none did, but one
was not read, it is not known. docs/verdicts.md follows the answer from the counters to the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kveval.store.conditions import Change
from kveval.store.run_file import IMPORTED, LevelRun, RequiredCounter, Run
from kveval.tables.levels.server_counters import looked_up_tokens

SWITCHED_OFF = "switched off"
"""The word for an arm whose requests let the server load nothing from its tier."""
_LEAST_SERVED_SHARE = 0.005
"""Of the prompt tokens of a level."""


@dataclass(frozen=True)
class CounterRise:
    """By how much a required counter rose during a level, and by how much it had to, both in its unit.

    `rise` is None if the counter was not read.
    """

    counter: str
    unit: str
    rise: float | None
    needed: float

    @property
    def enough(self) -> bool | None:
        """Whether the counter rose as much as needed; None if it was not read."""
        return None if self.rise is None else self.rise >= self.needed


@dataclass(frozen=True)
class Activity:
    """The required counters of a level, in the order of the arm's entry, and the answer; none for a baseline."""

    rises: tuple[CounterRise, ...] = ()

    @property
    def active(self) -> bool | None:
        """Whether the arm's tier served tokens; None if nothing is required of the arm, or a counter was not read."""
        proofs = [rise.enough for rise in self.rises]
        if False in proofs:
            return False
        return None if None in proofs or not proofs else True


def level_activity(
    required: Sequence[RequiredCounter],
    counters: Mapping[str, Change],
    counted: Mapping[str, Change],
    kv_bytes_per_token: int | None,
    *,
    absent_is_zero: bool = True,
) -> Activity:
    """Decide whether an arm was active in a level, by the counters that it requires.

    `counters`: the change of each of the server's counters during the level, by name; `counted`: by term.
    `kv_bytes_per_token`: of the model
    as served, over all ranks; None if nothing says it. `absent_is_zero`: a counter with labels appears in a server's
    metrics when it first rises, so one that is absent there stands at 0; in a recording it may be one that was not
    recorded. Where no counter was read, none is known.
    """
    absent = 0.0 if counters and absent_is_zero else None
    prompt_tokens = looked_up_tokens(counted)
    tokens = 0.0 if math.isnan(prompt_tokens) else _LEAST_SERVED_SHARE * prompt_tokens
    least = {"tokens": tokens, "bytes": tokens * (kv_bytes_per_token or 0)}
    return Activity(
        tuple(
            CounterRise(
                counter=entry.counter,
                unit=entry.unit,
                rise=counters[entry.counter].delta
                if entry.counter in counters
                else absent,
                needed=max(entry.at_least, least.get(entry.unit, 0.0)),
            )
            for entry in required
        )
    )


def activity_at(
    run: Run, level: LevelRun, required: Sequence[RequiredCounter] | None = None
) -> Activity:
    """Decide whether a run's arm was active at one of its levels.

    `required`: None for the counters that the arm required when the run was measured.
    """
    return level_activity(
        run.required_counters if required is None else required,
        level.counters,
        level.counted,
        run.kv_bytes_per_token,
        absent_is_zero=run.engine != IMPORTED,
    )


def activity_word(run: Run, activity: Activity) -> str:
    """Return what the column `activity` of levels.csv says: "shown" or "none" if the arm was active or not.

    "not shown" if that is not known of an arm that has a tier, or counters; "switched off" if the server has a tier and
    requests switched loading off; "" for others, such as a baseline.
    """
    if run.specification.get("load_from_tier") is False:
        return SWITCHED_OFF
    if activity.active is not None:
        return "shown" if activity.active else "none"
    # Of an imported run without a recording, run.json has the counters under another key.
    required = activity.rises or run.exercised.get("unread")
    return "not shown" if run.cell.cpu_blocks or required else ""


def activity_record(
    required: Sequence[Mapping[str, Any]], activities: Mapping[int, Activity]
) -> dict[str, Any]:
    """Return what run.json keeps under `exercised`, for people who read it: the arm was active if it was in any level.

    `required`: entries with the keys of RequiredCounter, which are kept with how much each rose over all levels, the level
    at which it rose most, and whether it rose enough in any; `activities`: by level. A baseline, which requires nothing,
    counts as active there.
    """
    entries = []
    for place, entry in enumerate(required):
        rises = {level: known.rises[place] for level, known in activities.items()}
        amounts = {level: rise.rise or 0.0 for level, rise in rises.items()}
        entries.append(
            {
                **entry,
                "moved": sum(amounts.values()),
                "level_max": max(
                    amounts, key=lambda level: amounts[level], default=None
                ),
                "exercised": any(rise.enough for rise in rises.values()),
            }
        )
    active = any(known.active for known in activities.values())
    return {"required": entries, "exercised": active or not required}


def required_counters(entries: Sequence[Mapping[str, Any]]) -> list[RequiredCounter]:
    """Return the counters that an arm requires from their plain form, as a campaign's cells and run.json have it."""
    return msgspec.convert(entries, list[RequiredCounter])
