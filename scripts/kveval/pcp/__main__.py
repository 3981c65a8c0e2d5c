"""`python -m kveval.pcp`: the command pcp-parquet."""

import signal
import sys

from kveval.pcp.tool.command import main

if __name__ == "__main__":
    # An end by exception removes unfinished files.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    raise SystemExit(main())
