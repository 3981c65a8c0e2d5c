"""How a server's own counters changed over levels."""

from collections.abc import Mapping


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
