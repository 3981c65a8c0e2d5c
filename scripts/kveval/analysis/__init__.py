"""Analysis: turns measurements into tables and verdicts, with pure functions on tables.

Every column and check is in docs/analysis.md and docs/comparisons.md.

Imports `load`, `pcp`, `store`, `campaign`, `curve`; no engine, no Snakemake. A check is a function marked
`@check(RULES)` in the module `checks_...` of what it checks.
"""
