"""The names of a catalogue's metrics in the recording of a run."""

from collections.abc import Mapping

from kveval.campaign.metric import name_for
from kveval.store.conditions import RunConditions

_OF_SERVER = "server."


def recorded_names(
    names: Mapping[str, str], ran: RunConditions
) -> tuple[str, ...] | None:
    """Return the PCP metrics that an expression of a catalogue adds up; None where the run's server has none.

    `names`: first version -> expression. `server.TERM` stands for a metric of the server that `ran`, by its name there.
    """
    expression = name_for(names, ran.release)
    if expression is None:
        return None
    parts = []
    for part in expression.split(" + "):
        name = part.strip()
        if name.startswith(_OF_SERVER):
            name = ran.recorded.get(name.removeprefix(_OF_SERVER), "")
        if not name:
            return None
        parts.append(name)
    return tuple(parts)
