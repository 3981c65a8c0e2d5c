"""Recording with Performance Co-Pilot (PCP), what PCP is on this machine, and what is asked of a recording.

Knows `host`, and `pcp_parquet` for the format of archives and their tables; where PCP is not installed, `direct` records
without it.
"""
