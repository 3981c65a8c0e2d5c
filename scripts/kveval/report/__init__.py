"""The report: tables, figures, REPORT.md, report.html and exports, from the analysis' tables; see docs/results.md.

Imports `analysis` and what that imports. A table is a function in `tables` that returns a `Table`; `parts` places it in
the tree of sections from which Markdown and HTML are written.
"""
