"""The share of prompt tokens that caches of every size serve, exactly, from the requests and before anything runs.

Knows `load` and `spec`. Pure: `prompts` makes blocks of requests, `distances` finds how long each was unused, `curve`
counts what a size serves; `demands`, `service` and `speed` find how long a server takes for them. Add here another rule
by which a server keeps or looks up blocks.
"""
