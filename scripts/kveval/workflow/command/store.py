"""`kveval verify` and `prune`: what is kept of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kveval.store.store import Store
from kveval.workflow.command.campaign import STORE, CampaignContext
from kveval.workflow.command.exits import NO, Ended
from kveval.workflow.command.output import Output
from kveval.workflow.upkeep.prune import (
    KINDS,
    outcome_text,
    plan_pruning,
    prune,
    workflows,
)
from kveval.workflow.upkeep.references import campaign_files, references
from kveval.workflow.upkeep.verify import verify_store


def check_store(context: CampaignContext, *, cores: int, as_json: bool) -> None:
    """Check every entry, pointer and table; ends with NO if anything was wrong. `cores`: how many hash files."""
    with Output.to(context.logs / "verify.log", as_json=as_json) as output:
        catalogues = context.checkout.catalogues
        campaigns = [*campaign_files(catalogues), context.source]
        output.progress(f"Checking every measurement in {STORE}")
        checked = verify_store(
            Store(STORE), Path(), references(campaigns, catalogues), cores
        )
        output.line(checked.text())
        findings = [vars(finding) for finding in checked.findings]
        output.document({"findings": findings, "measured_again": checked.again})
    if not checked.sound:
        raise Ended(NO)


def prune_store(
    context: CampaignContext,
    *,
    delete: bool,
    kinds: Sequence[str],
    older_than_days: float,
    also: Sequence[Path],
    as_json: bool,
) -> None:
    """Show the entries that nothing refers to, or delete them; all kinds of them unless some are named."""
    with Output.to(context.logs / "prune.log", as_json=as_json) as output:
        users = workflows(Path(), context.checkout.catalogues, context.source, also)
        store, chosen = Store(STORE), tuple(kinds) or tuple(KINDS)
        act = prune if delete else plan_pruning
        pruning = act(store, users, chosen, older_than_days)
        output.line(outcome_text(pruning, deleted=delete))
        output.document({"deleted": delete, **pruning.document()})
