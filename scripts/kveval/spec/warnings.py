"""Warnings of campaigns that can be measured but cannot show what they are meant to."""

import math
from collections.abc import Mapping
from typing import Any

from kveval.config.campaign import Campaign
from kveval.config.catalogue import Catalogue
from kveval.config.types import BLOCK_TOKENS
from kveval.host.findings import Finding, warning
from kveval.spec.deployment import replicas
from kveval.spec.reuse import LevelReuse, reuse_of
from kveval.spec.specification import Specification
from kveval.store.run_file import Cell

WORKLOAD = "workload"
"""Check of the warnings of arms that can have no effect with the workload."""
# A working set of so many times the device's cache is proposed: half of the visits then find nothing on the device.
_OUTGROWN = 2


def cluster_warnings(
    campaign: Campaign, catalogue: Catalogue, images: Mapping[Cell, str | None], baselines: Mapping[Cell, Cell | None]
) -> list[Finding]:
    """Return a warning for each arm whose image differs from that of its baseline, another arm; for each index without
    effect; and for each load that is spread unevenly.

    `images`: the server's image of every cell of the matrix; `baselines`: what it is compared with.
    """
    if campaign.cluster is None:
        return []
    found = [
        noted(
            f"{cell.path} runs {image}, its baseline {images[baseline]}: their comparison is confounded",
            "other_image",
            cell=cell.path,
            images=(image, images[baseline]),
        )
        for cell, image in images.items()
        if (baseline := baselines[cell]) is not None
        and images.get(baseline, image) != image
        and not catalogue.scenarios[cell.scenario].same_arm(catalogue.scenarios[baseline.scenario])
    ]
    for name in dict.fromkeys(cell.scenario for cell in images):
        scenario = catalogue.scenarios[name]
        servers = replicas(scenario, campaign.server)
        if "index" in scenario.kind.parts and servers == 1:
            said = f"{name} routes between replicas, and there is one: it cannot differ from its baseline"
            found.append(noted(said, "one_replica", scenario=name))
        if campaign.cluster.address not in ("router", "gateway") and servers > 1:
            said = f"{name} has {servers} replicas behind a Service, which spreads connections, not requests:"
            found.append(noted(f"{said} use address: router", "connections_spread", scenario=name))
    return found


def idle_tiers(
    specifications: Mapping[Cell, Specification], baselines: Mapping[Cell, Cell | None], margin: float
) -> list[Finding]:
    """Return a warning for arms whose tier can save next to nothing at any level and of any size.

    `specifications` of the matrix's cells; `baselines`: what each is compared with; `margin`: the relative difference
    that matters. Arms and models with the same reason have one warning.
    """
    arms: dict[tuple[str, str], list[LevelReuse]] = {}
    for cell, specification in specifications.items():
        found = reuse_of(specification)
        base = baselines[cell]
        # A baseline with a tier is the same arm: both tiers are idle, and the warning is that of the baseline.
        if base is not None and not base.cpu_blocks and found[0].caches.tier:
            arms.setdefault((cell.model, cell.scenario), []).extend(found)
    baseline = {cell.scenario: base.scenario for cell, base in baselines.items() if base is not None}
    same: dict[tuple[str, tuple[str, str, str]], list[tuple[str, str]]] = {}
    for (model, scenario), shown in arms.items():
        idle = [no_gain(reuse, margin) for reuse in shown]
        reason = idle[max(range(len(shown)), key=lambda place: (shown[place].saved, shown[place].overflows))]
        if reason is not None and None not in idle:
            same.setdefault((baseline[scenario], reason), []).append((model, scenario))
    return [_idle(base, reason, found) for (base, reason), found in same.items()]


def _idle(baseline: str, reason: tuple[str, str, str], arms: list[tuple[str, str]]) -> Finding:
    code, why, fix = reason
    models = list(dict.fromkeys(model for model, _ in arms))
    scenarios = list(dict.fromkeys(scenario for _, scenario in arms))
    pair = f"{', '.join(scenarios)} and {baseline} on {', '.join(models)}"
    said = f"this campaign cannot show a difference between {pair}, apart from what the tier costs: {why}"
    return warning(WORKLOAD, said, fix, code, scenarios=scenarios, baseline=baseline, models=models)


def no_gain(reuse: LevelReuse, margin: float) -> tuple[str, str, str] | None:
    """Say why a tier saves less than `margin`: the reason's code, the reason, the remedy; None if it may save more.

    Where requests in progress may outgrow the device, one that is preempted can be loaded again instead of computed.
    """
    demand, caches = reuse.demand, reuse.caches
    working_set, at_least = demand.working_set_tokens, caches.device_at_least
    known = caches.device is not None
    if reuse.saved >= margin or (reuse.overflows and (known or demand.reused)):
        return None
    device = f"the device's {at_least:,}" if known else f"the {at_least:,} that the device holds at least"
    whole = math.ceil(working_set / BLOCK_TOKENS)
    if not demand.reused:
        code, why = "no_reuse", "no prompt repeats anything of an earlier one"
        fix = "give the workload prefix_tokens and prefix_count, or turns"
    elif not working_set:
        code, why = "turns_fit", f"the {demand.in_use_tokens:,.0f} tokens of all conversations at once fit {device}"
        fix = "higher levels or longer conversations"
    elif working_set <= at_least:
        code, why = "prefixes_fit", f"the {working_set:,} tokens of all prefixes fit {device}"
        fix = f"raise prefix_count to at least {math.ceil(_OUTGROWN * at_least / demand.prefix_tokens)}"
        fix += f" or lower device_blocks to {working_set // _OUTGROWN // BLOCK_TOKENS}" if known else ""
    elif caches.tier <= at_least:
        code, why = "tier_below_device", f"the tier's {caches.tier:,.0f} tokens are a copy of a part of {device}"
        fix = f"raise cpu_blocks above {at_least // BLOCK_TOKENS}; {whole} hold all prefixes"
    else:
        holds = f"the tier's {caches.tier:,.0f} of the {working_set:,} tokens of all prefixes"
        code, why = "tier_adds_little", f"{holds} are little more than {device}"
        fix = f"raise cpu_blocks, {whole} hold all prefixes, or lower prefix_count"
    return code, f"{why} (preempted requests aside)" if reuse.overflows else why, fix


def sentence(found: Finding) -> str:
    """Return a warning as one line, with what is to be changed."""
    return f"{found.what}; {found.fix}" if found.fix else found.what


def noted(text: str, code: str, **facts: Any) -> Finding:
    """Return a note on the configuration of a campaign; see Finding."""
    return warning("configuration", text, "", code, **facts)
