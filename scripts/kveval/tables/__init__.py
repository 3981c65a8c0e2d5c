"""Tables: what was measured, as rows of requests, levels and peaks, with the system's metrics and the checks of each.

Every column is in docs/analysis.md. Imports `estimators` and `store` and above; no engine, no Snakemake. A check is a
function marked `@check(RULES)` in the module `checks_...` of what it checks.
"""
