"""What a campaign found, as one typed value, of which report.json is the JSON.

`model.py` says what there is, `build.py` makes it from the tables. What shows results to people or programs reads it,
and derives nothing a second time.
"""
