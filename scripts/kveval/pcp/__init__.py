"""Performance Co-Pilot: recording with it, its archives to Parquet, and reading that back.

Knows `host`. `python -m kveval.pcp ARCHIVE -o OUT.parquet` is the converter as a tool: docs/pcp.md.
"""
