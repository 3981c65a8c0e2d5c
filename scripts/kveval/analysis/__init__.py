"""Measurements to tables and verdicts: pure functions on tables.

Every column and check is in docs/analysis.md and docs/comparisons.md.

Knows `load`, `pcp`, `store`, `config`, `spec`; no engine, no Snakemake. A check is a function marked
`@check(RULES)` in the `checks` of what it looks at.
"""
