"""Warnings of campaigns that can be measured but cannot show what they are meant to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kveval.campaign.campaign_file import Campaign
from kveval.campaign.catalogue import Catalogue
from kveval.campaign.cell import Cell
from kveval.campaign.sizing import memory_text
from kveval.campaign.specification import Specification
from kveval.campaign.types import BLOCK_TOKENS
from kveval.configuration.deployment import replicas
from kveval.configuration.reuse import LevelReuse, reuse_of
from kveval.host.findings import Remark
from kveval.host.hashing import content_hash
from kveval.load import levels as workloads
from kveval.load.levels import working_set_varies
from kveval.load.sample_sizes import MIN_RUNS, window_s
from kveval.stacks.registry import server_of
from kveval.stacks.tier_layout import in_rows, layout_of, prompts_of_conversation

# A working set of so many times the device's cache is proposed: half of the visits then find nothing on the device.
_OUTGROWN = 2
_NO_DIFFERENCE = (
    "this campaign cannot show a difference between {scenarios} and {baseline} on {models}, apart from what the tier"
    " costs"
)
WITHOUT_EFFECT = frozenset(
    {
        *("no_reuse", "turns_fit", "prefixes_fit", "tier_below_device"),
        *("tier_adds_little", "rows_too_few"),
        *("prefix_below_block", "windows_at_the_end"),
    }
)
"""The codes of warnings of arms that can have no effect with the workload."""
_HUGE_BYTES = 8 * 2**40
"""Only the largest machines have so much memory; a tier beyond it has rather a digit too many."""


def warnings_of(
    campaign: Campaign,
    catalogue: Catalogue,
    specifications: Mapping[Cell, Specification],
    baselines: Mapping[Cell, Cell | None],
    least_tokens: Mapping[Cell, int],
) -> Iterator[Remark]:
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
        yield _warning(
            "working_set_grows",
            "workload {workload}: the working set grows with the level, so levels differ in two ways",
            workload=campaign.workload,
        )
    # How many requests a level will complete is not known yet; its length is.
    window, needed = window_s(workload.seconds, workload.warmup_s), campaign.min_samples
    if window < needed:
        yield _warning(
            "few_samples",
            "workload {workload}: a window of {window_s:g} s holds fewer than min_samples ({min_samples}) of the recording"
            " at one a second: its system metrics will be n/a",
            workload=campaign.workload,
            window_s=window,
            min_samples=needed,
        )
    missing = {
        (cell.scenario, base.path)
        for cell, base in baselines.items()
        if base is not None and base not in baselines
    }
    for scenario, path in sorted(missing):
        yield _warning(
            "baseline_unlisted",
            "{scenario} is compared with {baseline}, which the matrix does not list",
            scenario=scenario,
            baseline=path,
        )
    step = campaign.server.block_size
    for blocks in sorted(
        {cell.cpu_blocks for cell in baselines if cell.cpu_blocks * BLOCK_TOKENS % step}
    ):
        yield _warning(
            "blocks_uneven",
            "cpu_blocks {cpu_blocks} are not a whole number of server blocks of {block_tokens} tokens; the rest stays"
            " unused",
            cpu_blocks=blocks,
            block_tokens=step,
        )
    if campaign.runs < MIN_RUNS:
        yield _warning(
            "few_runs",
            "runs is {runs}: a verdict needs {needed_runs} or more, five to show parity",
            runs=campaign.runs,
            needed_runs=MIN_RUNS,
        )
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
            yield _warning(
                "configured_alike",
                "{cells: and } are configured alike: a difference is noise",
                cells=paths,
            )


def _cluster_warnings(
    campaign: Campaign,
    catalogue: Catalogue,
    images: Mapping[Cell, str | None],
    baselines: Mapping[Cell, Cell | None],
) -> Iterator[Remark]:
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
            yield _warning(
                "other_image",
                "{cell} runs {images[0]}, its baseline {images[1]}: their comparison is confounded",
                cell=cell.path,
                images=(image, images[base]),
            )
    for name in dict.fromkeys(cell.scenario for cell in images):
        servers = replicas(scenarios[name], campaign.server)
        if "index" in scenarios[name].kind.parts and servers == 1:
            yield _warning(
                "one_replica",
                "{scenario} routes between replicas, and there is one: it cannot differ from its baseline",
                scenario=name,
            )
        if campaign.cluster.address not in ("router", "gateway") and servers > 1:
            yield _warning(
                "connections_spread",
                "{scenario} has {replicas} replicas behind a Service, which spreads connections, not requests: use address:"
                " router",
                scenario=name,
                replicas=servers,
            )


def _huge_tiers(specifications: Mapping[Cell, Specification]) -> Iterator[Remark]:
    """Yield a warning for each size of a tier in host memory that hardly any server has."""
    budgets = {
        (cell.model, cell.cpu_blocks): specification.budget
        for cell, specification in specifications.items()
        if specification.budget.tier_bytes > _HUGE_BYTES
    }
    for (model, _), budget in budgets.items():
        yield _warning(
            "tier_too_large",
            "{model}: one server has a tier of {size} in host memory: more than servers have",
            model=model,
            size=budget.size,
        )


def _idle_tiers(
    specifications: Mapping[Cell, Specification],
    baselines: Mapping[Cell, Cell | None],
    margin: float,
    least_tokens: Mapping[Cell, int],
) -> Iterator[Remark]:
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
    same: dict[tuple[str, Remark], list[tuple[str, str]]] = {}
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
    for (base_name, reason), alike in same.items():
        models, scenarios = (
            list(dict.fromkeys(names)) for names in zip(*alike, strict=True)
        )
        pair = {"scenarios": scenarios, "baseline": base_name, "models": models}
        aside = " (preempted requests aside)" if reason.facts["overflows"] else ""
        what = f"{_NO_DIFFERENCE}: {reason.words}{aside}"
        yield replace(reason, facts={**reason.facts, **pair}, words=what)


def _unserved_rows(
    specifications: Mapping[Cell, Specification],
) -> Iterator[Remark]:
    """Yield a warning for tiers of models with several kinds of layers that are written to and never read.

    Arms of a model with the same reason have one warning.
    """
    arms: dict[tuple[str, Remark], list[str]] = {}
    for cell, specification in specifications.items():
        if not in_rows(specification):
            continue
        for level in specification.workload.given_levels or (1,):
            for reason in _never_loads(specification, level):
                names = arms.setdefault((cell.model, reason), [])
                if cell.arm not in names:
                    names.append(cell.arm)
    for (model, reason), names in arms.items():
        facts = {**reason.facts, "model": model, "arms": names}
        what = f"the tier of {{arms}} stores and never loads with {{model}}: {reason.words}"
        yield replace(reason, facts=facts, words=what)


def _never_loads(specification: Specification, level: int) -> Iterator[Remark]:
    """Yield why the tier serves nothing of what a level asks for again."""
    layout = layout_of(specification)
    prefix = workloads.prefix_tokens_at(specification.workload, level)
    yield from server_of(specification.versions).unserved_prefix(layout, prefix)
    prompts = prompts_of_conversation(specification, level)
    size = specification.budget.tier_bytes
    if specification.file_tier or layout.conversations_within(size, *prompts) >= 1:
        return
    rows = layout.rows_of_conversation(*prompts)
    yield _warning(
        "rows_too_few",
        "its {rows:,} rows are fewer than the {needed_rows:,} of one conversation",
        "at least {needed_size}",
        rows=layout.rows_within(size),
        needed_rows=rows,
        needed_bytes=rows * layout.row_bytes,
        needed_size=memory_text(rows * layout.row_bytes),
    )


def no_gain(reuse: LevelReuse, margin: float) -> Remark | None:
    """Return why a tier saves less than `margin`, None if it may save more.

    Where requests in progress may outgrow the device, one that is preempted can be loaded again instead of computed.
    """
    demand, caches = reuse.demand, reuse.caches
    working_set, at_least = demand.working_set_tokens, caches.device_at_least
    known = caches.device is not None
    if reuse.saved >= margin or (reuse.overflows and (known or demand.reused)):
        return None
    # Arms with equal facts are listed together, so tokens are whole.
    facts: dict[str, Any] = {"overflows": reuse.overflows}
    if not demand.reused:
        return _warning(
            "no_reuse",
            "no prompt repeats anything of an earlier one",
            "give the workload prefix_tokens and prefix_count, or turns",
            **facts,
        )
    facts |= {"device_tokens": at_least, "device_known": known}
    device = "the {device_tokens:,} that the device holds at least"
    if known:
        device = "the device's {device_tokens:,}"
    if not working_set:
        in_use = demand.in_use_tokens
        assert in_use is not None, "whatever may be in progress outgrows the device"
        return _warning(
            "turns_fit",
            f"the {{in_use_tokens:,}} tokens of all conversations at once fit {device}",
            "higher levels or longer conversations",
            in_use_tokens=round(in_use),
            **facts,
        )
    if working_set <= at_least:
        needed = {
            "needed_prefixes": math.ceil(_OUTGROWN * at_least / demand.prefix_tokens),
            "needed_device_blocks": working_set // _OUTGROWN // BLOCK_TOKENS,
        }
        fewer = " or lower device_blocks to {needed_device_blocks}" if known else ""
        return _warning(
            "prefixes_fit",
            f"the {{working_set_tokens:,}} tokens of all prefixes fit {device}",
            f"raise prefix_count to at least {{needed_prefixes}}{fewer}",
            working_set_tokens=working_set,
            **needed,
            **facts,
        )
    # A tier without bounds holds whatever there is.
    tier = caches.tier if math.isfinite(caches.tier) else working_set
    facts |= {
        "tier_tokens": round(tier),
        "working_set_tokens": working_set,
        "working_set_blocks": math.ceil(working_set / BLOCK_TOKENS),
    }
    if caches.tier <= at_least:
        return _warning(
            "tier_below_device",
            f"the tier's {{tier_tokens:,}} tokens are a copy of a part of {device}",
            "raise cpu_blocks above {device_blocks}; {working_set_blocks} hold all prefixes",
            device_blocks=at_least // BLOCK_TOKENS,
            **facts,
        )
    return _warning(
        "tier_adds_little",
        f"the tier's {{tier_tokens:,}} of the {{working_set_tokens:,}} tokens of all prefixes are little more than {device}",
        "raise cpu_blocks, {working_set_blocks} hold all prefixes, or lower prefix_count",
        **facts,
    )


def _warning(code: str, words: str, remedy: str = "", /, **facts: Any) -> Remark:
    """Return a remark on a campaign that can be measured all the same."""
    return Remark(code, "warning", facts, words, remedy)
