"""The rule of costs."""

from pathlib import Path

from kveval.workflow.plugin import Plugin

PLUGIN = Plugin("prices", rules=Path(__file__).with_name("prices.smk"))
