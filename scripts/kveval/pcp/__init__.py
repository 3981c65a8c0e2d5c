"""Performance Co-Pilot: recording with it, its archives to Parquet, and reading that back.

Knows `host`; where PCP is not installed, `direct` records without it.
`python -m kveval.pcp`, or pcp-parquet, is the converter as a tool: docs/pcp.md.
"""
