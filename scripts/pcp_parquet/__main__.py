"""`python -m pcp_parquet`: the command pcp-parquet."""

import signal
import sys

from pcp_parquet.tool.command import main


def run() -> int:
    """Run the command and return its exit code."""
    # An end by exception removes unfinished files.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    return main()


if __name__ == "__main__":
    raise SystemExit(run())
