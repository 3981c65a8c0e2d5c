"""`python -m kveval.pcp`: the command pcp-parquet."""

from kveval.pcp.tool.command import main

if __name__ == "__main__":
    raise SystemExit(main())
