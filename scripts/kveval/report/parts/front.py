"""The first screen: the question, the answer, one figure, and what would make the answer more certain."""

from __future__ import annotations

from collections.abc import Iterator

from kveval.report.answer import CampaignAnswer
from kveval.report.data.campaign import Measured, ReportPlan
from kveval.report.data.run_facts import hardware
from kveval.report.parts.blocks import Pictures, under
from kveval.report.sections import Block, Bullets, Paragraph

MINIATURE = (
    "**A miniature was measured, not the named model:** random weights, few layers, the real server. It shows how the "
    "tiers of the KV cache act, not how fast the model is on a GPU."
)
RANDOM = (
    "**Random weights, full geometry:** prefills, KV cache and transfers have the named model's sizes, and nothing was"
    " downloaded. The content of the answers was not measured."
)
_NOTES = {"miniature": MINIATURE, "random": RANDOM}
MACHINES = "**Measured on different machines:** a difference between arms may be one between machines."


def front(plan: ReportPlan, measured: Measured, answer: CampaignAnswer, pictures: Pictures) -> list[Block]:
    """Return the blocks of the first screen."""
    return [
        *_notes(plan, measured),
        Paragraph(f"**{answer.question}**"),
        Bullets(answer.sentences),
        *pictures.take(answer.figure),
        *under("What would make the answer more certain", *([Bullets(answer.next_steps)] if answer.next_steps else [])),
    ]


def _notes(plan: ReportPlan, measured: Measured) -> Iterator[Block]:
    # In the description, remarks on runs that were not measured for the campaign are a list.
    lines = plan.description.splitlines()
    items = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    about = " ".join(" ".join(line for line in lines if not line.startswith("- ")).split())
    about = " ".join(filter(None, (_NOTES.get(measured.runs[0].weights), about)))
    if about:
        yield Paragraph(about, note=True)
    if items:
        yield Bullets(items)
    if len(hardware(measured.runs)) > 1:
        yield Paragraph(MACHINES, note=True)
