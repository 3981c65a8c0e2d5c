"""Warnings of campaigns that can be measured but cannot show what they are meant to."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kveval.campaign.campaign_file import Campaign
from kveval.campaign.catalogue import Catalogue
from kveval.campaign.cell import Cell
from kveval.campaign.sizing import memory_text
from kveval.campaign.specification import Specification
from kveval.campaign.types import BLOCK_TOKENS
from kveval.configuration.deployment import replicas
from kveval.configuration.reuse import LevelReuse, reuse_of
from kveval.host.findings import Finding, warning
from kveval.host.hashing import content_hash
from kveval.load import levels as workloads
from kveval.load.levels import working_set_varies
from kveval.load.sample_sizes import MIN_RUNS, window_s
from kveval.stacks.registry import server_of
from kveval.stacks.tier_layout import in_rows, layout_of, prompts_of_conversation

WORKLOAD = "workload"
"""Check of the warnings of arms that can have no effect with the workload."""
# A working set of so many times the device's cache is proposed: half of the visits then find nothing on the device.
_OUTGROWN = 2
_HUGE_BYTES = 8 * 2**40
"""Only the largest machines have so much memory; a tier beyond it has rather a digit too many."""


def warnings_of(
    campaign: Campaign,
    catalogue: Catalogue,
    specifications: Mapping[Cell, Specification],
    baselines: Mapping[Cell, Cell | None],
    least_tokens: Mapping[Cell, int],
) -> Iterator[Finding]:
    """Yield a warning for what can be measured but will not show what it seems to.

    `specifications` of the matrix's cells; `baselines`: what each is compared with; `least_tokens`: what the device of
    each is estimated to hold at least, where it is.
    """
    workload = catalogue.workloads[campaign.workload]
    yield from _huge_tiers(specifications)
    margin = campaign.comparison.margin
    yield from _idle_tiers(specifications, baselines, margin, least_tokens)
    yield from _unserved_rows(specifications)
    if working_set_varies(workload):
        message = "the working set grows with the level, so levels differ in two ways"
        yield config_note(
            f"workload {campaign.workload}: {message}", "working_set_grows"
        )
    # How many requests a level will complete is not known yet; its length is.
    window, needed = window_s(workload.seconds, workload.warmup_s), campaign.min_samples
    if window < needed:
        message = f"workload {campaign.workload}: a window of {window:g} s holds fewer than min_samples ({needed})"
        message += " of the recording at one a second: its system metrics will be n/a"
        yield config_note(message, "few_samples", min_samples=needed)
    missing = {
        (cell.scenario, base.path)
        for cell, base in baselines.items()
        if base is not None and base not in baselines
    }
    for scenario, path in sorted(missing):
        yield config_note(
            f"{scenario} is compared with {path}, which the matrix does not list",
            "baseline_unlisted",
        )
    step = campaign.server.block_size
    for blocks in sorted(
        {cell.cpu_blocks for cell in baselines if cell.cpu_blocks * BLOCK_TOKENS % step}
    ):
        message = f"cpu_blocks {blocks} are not a whole number of server blocks of {step} tokens; the rest stays unused"
        yield config_note(message, "blocks_uneven", cpu_blocks=blocks)
    if campaign.runs < MIN_RUNS:
        message = f"runs is {campaign.runs}: a verdict needs {MIN_RUNS} or more, five to show parity"
        yield config_note(message, "few_runs")
    images = {
        cell: specification.images.get("server")
        for cell, specification in specifications.items()
    }
    yield from _cluster_warnings(campaign, catalogue, images, baselines)
    same: dict[str, list[str]] = {}
    for cell, specification in specifications.items():
        if not catalogue.scenarios[cell.scenario].replicate:
            effective = {
                key: value
                for key, value in specification.to_json().items()
                if key != "cell"
            }
            same.setdefault(content_hash(effective), []).append(cell.path)
    for paths in same.values():
        if len(paths) > 1:
            message = (
                f"{' and '.join(paths)} are configured alike: a difference is noise"
            )
            yield config_note(message, "configured_alike", cells=paths)


def _cluster_warnings(
    campaign: Campaign,
    catalogue: Catalogue,
    images: Mapping[Cell, str | None],
    baselines: Mapping[Cell, Cell | None],
) -> Iterator[Finding]:
    """Yield a warning for each arm whose image differs from that of its baseline, another arm; for each index without
    effect; and for each load that is spread unevenly.
    """
    if campaign.cluster is None:
        return
    scenarios = catalogue.scenarios
    for cell, image in images.items():
        base = baselines[cell]
        if (
            base is None
            or base not in images
            or scenarios[cell.scenario].same_arm(scenarios[base.scenario])
        ):
            continue
        if images[base] != image:
            message = f"{cell.path} runs {image}, its baseline {images[base]}: their comparison is confounded"
            yield config_note(
                message, "other_image", cell=cell.path, images=(image, images[base])
            )
    for name in dict.fromkeys(cell.scenario for cell in images):
        servers = replicas(scenarios[name], campaign.server)
        if "index" in scenarios[name].kind.parts and servers == 1:
            message = f"{name} routes between replicas, and there is one: it cannot differ from its baseline"
            yield config_note(message, "one_replica", scenario=name)
        if campaign.cluster.address not in ("router", "gateway") and servers > 1:
            message = f"{name} has {servers} replicas behind a Service, which spreads connections, not requests:"
            yield config_note(
                f"{message} use address: router", "connections_spread", scenario=name
            )


def _huge_tiers(specifications: Mapping[Cell, Specification]) -> Iterator[Finding]:
    """Yield a warning for each size of a tier in host memory that hardly any server has."""
    budgets = {
        (cell.model, cell.cpu_blocks): specification.budget
        for cell, specification in specifications.items()
        if specification.budget.tier_bytes > _HUGE_BYTES
    }
    for (model, blocks), budget in budgets.items():
        yield config_note(
            f"{model}: one server has a tier of {budget.size} in host memory: more than servers have",
            "tier_too_large",
            cpu_blocks=blocks,
            tier_bytes=budget.tier_bytes,
        )


def _idle_tiers(
    specifications: Mapping[Cell, Specification],
    baselines: Mapping[Cell, Cell | None],
    margin: float,
    least_tokens: Mapping[Cell, int],
) -> Iterator[Finding]:
    """Yield a warning for arms whose tier can save next to nothing at any level and of any size.

    `margin`: the relative difference that matters; `least_tokens`: what devices are estimated to hold at least. Arms
    and models with the same reason have one warning.
    """
    arms: dict[tuple[str, str], list[LevelReuse]] = {}
    for cell, specification in specifications.items():
        found = reuse_of(specification, least_tokens=least_tokens.get(cell, 0))
        base = baselines[cell]
        # A baseline with a tier is the same arm: both tiers are idle, and the warning is that of the baseline.
        if base is not None and not base.cpu_blocks and found[0].caches.tier:
            arms.setdefault((cell.model, cell.scenario), []).extend(found)
    baseline = {
        cell.scenario: base.scenario
        for cell, base in baselines.items()
        if base is not None
    }
    same: dict[tuple[str, tuple[str, str, str]], list[tuple[str, str]]] = {}
    for (model, scenario), shown in arms.items():
        idle = [no_gain(reuse, margin) for reuse in shown]
        reason = idle[
            max(
                range(len(shown)),
                key=lambda place: (shown[place].saved, shown[place].overflows),
            )
        ]
        if reason is not None and None not in idle:
            same.setdefault((baseline[scenario], reason), []).append((model, scenario))
    for (base_name, (code, why, fix)), alike in same.items():
        models, scenarios = (
            list(dict.fromkeys(names)) for names in zip(*alike, strict=True)
        )
        pair = f"{', '.join(scenarios)} and {base_name} on {', '.join(models)}"
        message = f"this campaign cannot show a difference between {pair}, apart from what the tier costs: {why}"
        yield warning(
            WORKLOAD,
            message,
            fix,
            code,
            scenarios=scenarios,
            baseline=base_name,
            models=models,
        )


def _unserved_rows(
    specifications: Mapping[Cell, Specification],
) -> Iterator[Finding]:
    """Yield a warning for tiers of models with several kinds of layers that are written to and never read.

    Arms of a model with the same reason have one warning.
    """
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for cell, specification in specifications.items():
        if not in_rows(specification):
            continue
        for level in specification.workload.given_levels or (1,):
            for reason in _never_loads(specification, level):
                names = found.setdefault((cell.model, *reason), [])
                if cell.arm not in names:
                    names.append(cell.arm)
    for (model, code, why, fix), names in found.items():
        message = (
            f"the tier of {', '.join(names)} stores and never loads with {model}: {why}"
        )
        yield warning(WORKLOAD, message, fix, code, model=model, arms=names)


def _never_loads(
    specification: Specification, level: int
) -> Iterator[tuple[str, str, str]]:
    """Yield a code, a reason and a remedy where the tier serves nothing of what a level asks for again."""
    layout = layout_of(specification)
    prefix = workloads.prefix_tokens_at(specification.workload, level)
    yield from server_of(specification.versions).unserved_prefix(layout, prefix)
    prompts = prompts_of_conversation(specification, level)
    size = specification.budget.tier_bytes
    if specification.file_tier or layout.conversations_within(size, *prompts) >= 1:
        return
    rows = layout.rows_of_conversation(*prompts)
    why = f"its {layout.rows_within(size):,} rows are fewer than the {rows:,} of one conversation"
    yield "rows_too_few", why, f"at least {memory_text(rows * layout.row_bytes)}"


def no_gain(reuse: LevelReuse, margin: float) -> tuple[str, str, str] | None:
    """Say why a tier saves less than `margin`: the reason's code, the reason, the remedy; None if it may save more.

    Where requests in progress may outgrow the device, one that is preempted can be loaded again instead of computed.
    """
    demand, caches = reuse.demand, reuse.caches
    working_set, at_least = demand.working_set_tokens, caches.device_at_least
    known = caches.device is not None
    if reuse.saved >= margin or (reuse.overflows and (known or demand.reused)):
        return None
    device = (
        f"the device's {at_least:,}"
        if known
        else f"the {at_least:,} that the device holds at least"
    )
    whole = math.ceil(working_set / BLOCK_TOKENS)
    if not demand.reused:
        code, why = "no_reuse", "no prompt repeats anything of an earlier one"
        fix = "give the workload prefix_tokens and prefix_count, or turns"
    elif not working_set:
        code, why = (
            "turns_fit",
            f"the {demand.in_use_tokens:,.0f} tokens of all conversations at once fit {device}",
        )
        fix = "higher levels or longer conversations"
    elif working_set <= at_least:
        code, why = (
            "prefixes_fit",
            f"the {working_set:,} tokens of all prefixes fit {device}",
        )
        fix = f"raise prefix_count to at least {math.ceil(_OUTGROWN * at_least / demand.prefix_tokens)}"
        fix += (
            f" or lower device_blocks to {working_set // _OUTGROWN // BLOCK_TOKENS}"
            if known
            else ""
        )
    elif caches.tier <= at_least:
        code, why = (
            "tier_below_device",
            f"the tier's {caches.tier:,.0f} tokens are a copy of a part of {device}",
        )
        fix = f"raise cpu_blocks above {at_least // BLOCK_TOKENS}; {whole} hold all prefixes"
    else:
        holds = f"the tier's {caches.tier:,.0f} of the {working_set:,} tokens of all prefixes"
        code, why = "tier_adds_little", f"{holds} are little more than {device}"
        fix = f"raise cpu_blocks, {whole} hold all prefixes, or lower prefix_count"
    return code, f"{why} (preempted requests aside)" if reuse.overflows else why, fix


def sentence(found: Finding) -> str:
    """Return a warning as one line, with what is to be changed."""
    return f"{found.what}; {found.fix}" if found.fix else found.what


def config_note(text: str, code: str, **facts: Any) -> Finding:
    """Return a note on the configuration of a campaign; see Finding."""
    return warning("configuration", text, "", code, **facts)
