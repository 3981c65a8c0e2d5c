"""Exit statuses of `kveval`: docs/exit-codes.md."""

from collections.abc import Sequence

YES = 0
"""Done; or the answer is yes, or has no yes and no."""
NO = 1
"""The answer is no, or what was to be done failed."""
MISTAKE = 2
"""A mistake in the command line or in the campaign."""
UNDECIDED = 125
"""A build is neither shown to be slower nor not to be: `git bisect run` passes it over."""
CANNOT_ANSWER = 128
"""Of the command that judges builds: whatever is no verdict. `git bisect run` stops at it."""
BY_CTRL_C = 130
"""Stopped by Ctrl-C: 128 and the number of the signal, as of shells."""
JUDGING = "check"
"""The command whose statuses below 128 are verdicts."""


class Ended(SystemExit):
    """The end of a command with a status that it has chosen itself."""


def judges(words: Sequence[str]) -> bool:
    """Return whether a command line is that of the command that judges builds."""
    command = next((word for word in words if not word.startswith("-")), "")
    return command == JUDGING
