"""The log of a target such as doctor or prune, whose text snakemake prints at its end."""

import sys
from collections.abc import Callable
from pathlib import Path

from kveval.host.errors import Failure
from kveval.host.processes import Terminated


def write_said(log: str, target: Callable[[], tuple[bool, str]]) -> None:
    """Write the text that a target returns, or why it failed, and exit with 1 unless it also returned True."""
    try:
        good, text = target()
    except Failure as failure:
        good, text = False, f"FAILED: {failure}"
    except Terminated as stopped:
        good, text = False, f"stopped by {stopped}"
    Path(log).write_text(f"{text}\n")
    sys.exit(not good)
