"""`kveval curve`: what caches of every size would serve of a campaign's load, and what they buy."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kveval.campaign.inheritance import read_campaign
from kveval.campaign.problems import ConfigError
from kveval.plugins.curve.plan.curve_files import CurveText
from kveval.workflow.command.campaign import STORE, CampaignContext, campaign_file
from kveval.workflow.command.checkout import Checkout
from kveval.workflow.command.output import Output
from kveval.workflow.planning.stored import StoreIndex


def changes_for_model(campaign: Path | None, model_config: Path) -> list[str]:
    """Return the changes of a campaign, the default one if None, by which all of its models are that of a config.json."""
    near = Checkout.from_folders(Path.cwd()).relative()
    file = near.default_campaign if campaign is None else campaign_file(campaign, near)
    source, problems = read_campaign(file)
    if problems:
        raise ConfigError(problems)
    file = model_config.absolute()
    named = file.parent.name if file.stem == "config" else file.stem
    name = re.sub("[^A-Za-z0-9.-]+", "-", named).strip("-.") or "model"
    entries = []
    for entry in source.raw.get("matrix") or ():
        changed = {**entry, "models": [name]} if isinstance(entry, dict) else entry
        if changed not in entries:
            entries.append(changed)
    models = {name: {"config": str(file)}}
    return [f"models={json.dumps(models)}", f"matrix={json.dumps(entries)}"]


def show_curve(context: CampaignContext, *, as_json: bool) -> None:
    """Print the curves and what a tier buys, and write curve.csv and curve.png."""
    table, figure = context.logs / "curve.csv", context.logs / "curve.png"
    with Output.to(context.logs / "curve.log", as_json=as_json) as output:
        words = context.snakemake_words
        store = StoreIndex.read(STORE)
        text = CurveText(context.config, store, words, output.progress)
        for line in text.lines():
            output.line(line)
        text.write_table(table)
        output.line(f"\nTable: {table}")
        output.line(text.draw(figure))
        rows = [*text.rows()]
        output.document({"campaign": context.config.campaign.name, "rows": rows})
