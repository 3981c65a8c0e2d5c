"""How a server's own counters changed over levels."""

from collections.abc import Mapping, Sequence
from typing import Any


def changes(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """Return before, after and delta of every counter in `after`; one that is missing in `before` started at 0."""
    return {
        name: {
            "before": before.get(name, 0.0),
            "after": value,
            "delta": value - before.get(name, 0.0),
        }
        for name, value in after.items()
    }


def counter_proof(
    required: Sequence[Mapping[str, Any]], levels: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the record of whether a run's arm was active: each required counter grew by `at_least` in some level.

    `required`: entries with `counter` and `at_least`; `levels`: entries with `level` (streams) and `counters`
    as `changes` gives them. An arm that requires nothing (the baseline) counts as exercised. It is kept for readers of
    run.json; verdicts rest on single levels, for which `analysis.levels.tables` decides.
    """
    proof = []
    for entry in required:
        moved = {
            level["level"]: level["counters"]
            .get(entry["counter"], {})
            .get("delta", 0.0)
            for level in levels
        }
        proof.append(
            {
                **entry,
                "moved": sum(moved.values()),
                "level_max": max(moved, key=lambda level: moved[level])
                if moved
                else None,
                "exercised": any(
                    delta >= entry["at_least"] for delta in moved.values()
                ),
            }
        )
    return {"required": proof, "exercised": all(entry["exercised"] for entry in proof)}
