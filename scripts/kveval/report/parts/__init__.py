"""The parts of the report, as trees of sections: its first screen, the sections by model, and the appendices.

Fixed sentences are here; tables come from `kveval.report.tables` and are fitted to a page.
"""
