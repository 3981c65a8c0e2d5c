"""`python -m pcp_parquet`: the command pcp-parquet."""

import signal
import sys

from pcp_parquet.tool.command import main

if __name__ == "__main__":
    # An end by exception removes unfinished files.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    raise SystemExit(main())
