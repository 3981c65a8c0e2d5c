"""Prices: what tokens and requests cost, where a campaign declares `prices`, as a table that the report shows.

`costs` is what the rule in `prices.smk` runs.
"""
