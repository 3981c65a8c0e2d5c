"""Tables: what was measured, as rows of requests, levels and peaks, with the system's metrics and the checks of each.

Every column is in docs/analysis.md. What they need of a server stands in conditions.json: they import `estimators` and
`store`, neither servers nor configuration. A check is a function marked `@check(RULES)` in the module `checks_...` of
what it checks.
"""
