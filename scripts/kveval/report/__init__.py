"""Tables, figures, REPORT.md and exports, from the analysis' tables: docs/results.md.

Knows `analysis` and what is below. A table is a function in `tables` that returns a `Table`, and its
place in `parts`, which builds the tree of sections that Markdown is written from.
"""
