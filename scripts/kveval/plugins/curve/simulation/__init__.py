"""The share of prompt tokens that a cache of each size serves, computed from the requests before anything runs.

Pure: `prompts` makes blocks of requests, `distances` finds how long each was unused, `curve`
counts what each size serves, and `cells` that of a cell's levels; `service` and `speed` find how long a server takes
for them. Add here a rule by which a server keeps or looks up blocks.
"""
