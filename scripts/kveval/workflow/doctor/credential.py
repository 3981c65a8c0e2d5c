"""Whether the credential for a cluster lasts as long as the campaign."""

from datetime import datetime
from pathlib import Path

from kveval.host.findings import Finding, ok, warning
from kveval.spec.config import Config
from kveval.workflow.planning.costs import cost
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.stored import StoreIndex


def planned_s(config: Config, store: Path) -> float:
    """Estimate how many seconds the campaign will still measure; runs in the store are not measured again."""
    index = StoreIndex.read(store)
    plan = make_plan(config, {}, index)
    runs = plan.to_measure.items()
    slots = config.campaign.cluster.slots if config.campaign.cluster is not None else 1
    return sum(cost(plan.specification(cell), index).seconds * len(each) for cell, each in runs) / slots


def lasts(ends: datetime | None, now: datetime, needed_s: float) -> list[Finding]:
    """Compare a token's expiry with the time that is needed; no finding if the expiry is not known."""
    if ends is None:
        return []
    left_s = (ends - now).total_seconds()
    left_h, needed_h = left_s / 3600, needed_s / 3600
    said = f"the token ends in {left_h:.1f} h ({ends:%Y-%m-%d %H:%M} UTC); about {needed_h:.1f} h are to be measured"
    if left_h >= needed_h:
        return [ok("credential", said, left_s=left_s, needed_s=needed_s)]
    fix = (
        f"kubectl create token --duration {max(1, round(1.5 * needed_h + 1))}h (docs/cluster.md), unless a plugin of"
        " the kubeconfig renews it: a run whose token ends is lost"
    )
    return [warning("credential", said, fix, left_s=left_s, needed_s=needed_s)]
