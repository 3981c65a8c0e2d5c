"""Hits by tier size, and what they gain: planned from requests, and beside what was measured.

`simulation/` follows blocks through caches and servers, `predicted/` makes the tables that the report reads, and `plan/`
what `kveval curve` and `kveval plan` say. docs/tier-size.md describes it.
"""
