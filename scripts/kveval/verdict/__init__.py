"""Verdict: what is compared with what, and what the runs say of it; pure functions of the tables of all cells.

The steps are in `verdicts.py`, one after the other; docs/verdicts.md and docs/comparisons.md describe them. Imports
`tables`, `estimators`, `store`; it knows no server.
"""
