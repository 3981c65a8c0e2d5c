"""The result of a campaign as one typed value, of which report.json is the JSON.

`model.py` has its parts; `report/build.py` makes it from the tables. Whatever shows results to people or programs reads
it, and derives nothing a second time.
"""
