"""Measurements to tables and verdicts: pure functions on tables. docs/analysis.md has every column and every check.

Knows `load`, `pcp`, `store`, `config`, `spec`; no engine, no Snakemake. A check is a function marked
`@check(RULES)` in the `checks` of what it looks at.
"""
