"""The parts of the report, as trees of sections: its first screen, what is by model, and the appendices.

Sentences without data are here; a table comes from `kveval.report.tables`, fitted to a page.
"""
