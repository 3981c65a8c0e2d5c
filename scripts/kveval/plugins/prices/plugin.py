"""The rule and the section of costs."""

from pathlib import Path

from kveval.workflow.plugin import Plugin

_HERE = Path(__file__).parent
PLUGIN = Plugin(
    "prices",
    rules=_HERE / "prices.smk",
    section=_HERE / "costs.md.j2",
    section_after="goodput",
)
