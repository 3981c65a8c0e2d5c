"""Prices: what tokens and requests cost, where a campaign declares `prices`, as a table that the report shows.

`costs` is what the rule in `prices.smk` runs.
"""

from pathlib import Path

from kveval.workflow.plugin import Plugin

PLUGIN = Plugin("prices", rules=Path(__file__).with_name("prices.smk"))
