"""The parts of the report, as trees of sections: its first screen, what is by model, and the appendices.

A sentence that holds no data stands here as it is; a table comes from `kveval.report.tables`, fitted to a page.
"""
