"""Checks of a run: whether its workload exercises the tier, what ran, how large its caches are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from packaging.version import InvalidVersion, Version

from kveval.campaign.size import GIB
from kveval.campaign.types import BLOCK_TOKENS, on_cpu
from kveval.host.disturbance import DISTURBED_PERCENT
from kveval.load.reports.vllm_bench import VLLM_BENCH
from kveval.store.run_file import Answers
from kveval.tables.levels.activity import SWITCHED_OFF
from kveval.tables.levels.checks_level import JudgedLevel
from kveval.tables.levels.outcomes import Outcome, check, fail, note, warn

_TOLERANCE = 0.02


@check("R13")
def fits_device(level: JudgedLevel) -> Iterator[Outcome]:
    """The prefixes do not fit the device's cache, so that a tier behind it can help."""
    working, device = level.row["working_set_tokens"], level.row["device_tokens"]
    is_arm = level.run.cell.cpu_blocks or level.run.required_counters
    # Without shared prefixes, the requests themselves may exceed the device's cache.
    if is_arm and 0 < working <= device:
        yield note(
            "the device's {device_tokens:,.0f} tokens hold all {prefixes_tokens:,.0f} of distinct prefixes: the tier is"
            " not exercised",
            device_tokens=device,
            prefixes_tokens=working,
        )


@check("R13")
def tier_below_device(level: JudgedLevel) -> Iterator[Outcome]:
    """The CPU tier holds more than the device: an inclusive tier smaller than the device adds no capacity."""
    tier, device = level.row["tier_tokens"], level.row["device_tokens"]
    if 0 < tier < device:
        yield note(
            "the tier's {tier_tokens:,.0f} tokens are fewer than the device's {device_tokens:,.0f}",
            tier_tokens=tier,
            device_tokens=device,
        )


@check("R13")
def tier_below_prefixes(level: JudgedLevel) -> Iterator[Outcome]:
    """The CPU tier holds all prefixes."""
    tier, working = level.row["tier_tokens"], level.row["working_set_tokens"]
    if 0 < tier < working:
        yield note(
            "the tier's {tier_tokens:,.0f} tokens do not hold the {prefixes_tokens:,.0f} of all prefixes",
            tier_tokens=tier,
            prefixes_tokens=working,
        )


@check("R13")
def workload_varies(level: JudgedLevel) -> Iterator[Outcome]:
    """Levels differ in concurrency only."""
    if not isinstance(level.run.workload.get("prefix_count"), int | float | None):
        yield note(
            "the number of prefixes grows with the level: levels differ in it and in concurrency"
        )


@check("R13")
def not_exercised(level: JudgedLevel) -> Iterator[Outcome]:
    """The counters that the arm requires rose during the level, by at least 0.5 % of the prompt tokens."""
    if level.row.get("exercised") is False:
        yield warn(
            "by its own counters the arm served nothing, or less than 0.5 % of the prompt tokens"
        )


@check("R13")
def loading_switched_off(level: JudgedLevel) -> Iterator[Outcome]:
    """Nothing was loaded from the tier where requests switched loading off."""
    if level.row.get("activity") != SWITCHED_OFF:
        return
    tokens = level.row["external_hit_tokens"]
    if np.isnan(tokens):
        yield warn("no counter shows that nothing was loaded from the tier")
    elif tokens > 0:
        yield fail(
            "{loaded_tokens:,.0f} prompt tokens were loaded from the tier although requests switched loading off: see"
            " whether somebody else uses this server",
            loaded_tokens=tokens,
        )


@check("R13")
def answers(level: JudgedLevel) -> Iterator[Outcome]:
    """The arm gives the same answers with cold caches and served from the device's cache, and from its tier, except for
    near ties of two tokens.
    """
    if level.run.answers is None:
        return
    for source, comparison in level.run.answers.by_source.items():
        served_by = "the tier" if source == "tier" else "the device's own cache"
        if comparison.wrong:
            words, facts = _changed_answers(comparison)
            yield fail(words, served_by=served_by, **facts)
        elif comparison.unchecked:
            yield note(
                "not checked whether {served_by} changes answers: {reason}",
                served_by=served_by,
                reason=comparison.unchecked,
            )


def _changed_answers(comparison: Answers) -> tuple[str, dict[str, Any]]:
    """Return the words for changed answers, and their facts but for `served_by`."""
    words = "{answers_changed} of {prompts} greedy answers changed when {served_by} served their prompts"
    facts: dict[str, Any] = {
        "answers_changed": comparison.changed,
        "prompts": comparison.prompts,
    }
    first = comparison.first_difference
    if first is None:
        return words, facts
    facts |= {"token": first.token + 1, "tolerance_nats": comparison.tolerance_nats}
    words += ": at token {token}, "
    if first.margin_nats is None:
        words += "more than the likeliest few"
    else:
        words += "{margin_nats:.2f} nats"
        facts["margin_nats"] = first.margin_nats
    return words + " apart ({tolerance_nats:g} are numerics)", facts


@check("R13")
def known_wrong_answers(level: JudgedLevel) -> Outcome | None:
    """The server's arguments are not among those that are known to give wrong answers."""
    reason = level.run.described.wrong_answers
    if not reason:
        return None
    return fail("invalid: {reason}; it must be measured again", reason=reason)


@check("R14")
def provenance(level: JudgedLevel) -> Iterator[Outcome]:
    """The run records what ran: the server's arguments, and the versions of server and load generator."""
    run = level.run
    known = {
        "the server's arguments": run.server.get("argv"),
        f"the version of {run.described.server}": run.described.server_version,
        "the version of GuideLLM": run.versions.get("guidellm")
        or run.versions.get("load generator"),
    }
    differing = {
        tool: str(version)
        for tool, version in run.specification.get("versions", {}).items()
        if run.versions.get(tool, version) != version
    }
    if lacking := [name for name, value in known.items() if not value]:
        yield warn("not recorded: {missing}", missing=lacking)
    elif differing:
        yield fail(
            "{differences:; }",
            differences=[
                f"{tool} {run.versions[tool]} ran, {version} was declared"
                for tool, version in differing.items()
            ],
            programs=[*differing],
            versions_run=[run.versions[tool] for tool in differing],
            versions_declared=[*differing.values()],
        )


@check("R16")
def alone_on_nodes(level: JudgedLevel) -> Iterator[Outcome]:
    """On a cluster, no other pod used a GPU, or reserved cores, of the nodes that served."""
    if neighbours := level.run.cluster.get("neighbours"):
        words = "shared node: {neighbours}"
        if len(neighbours) > 3:
            words += " and {further_neighbours} more"
        yield warn(
            words + " ran there, too",
            neighbours=neighbours[:3],
            further_neighbours=max(0, len(neighbours) - 3),
        )


@check("R16")
def disturbed(level: JudgedLevel) -> Iterator[Outcome]:
    """On this host, other programs took at most 10 % of the processors' time during the level."""
    share = level.entry.others_cpu_percent
    if share is not None and share > DISTURBED_PERCENT:
        yield warn(
            "other programs on this host took {others_cpu_percent:.0f} % of its processors' time: what was measured is"
            " slower than the server is; measure again when they have ended",
            others_cpu_percent=share,
        )


@check("R15")
def kv_bytes(level: JudgedLevel) -> Iterator[Outcome]:
    """Bytes per token and the tier's size follow from the model's geometry."""
    budget, declared = level.run.budget, level.run.kv_bytes_per_token
    expected = level.run.described.kv_bytes_per_token
    if expected is None or declared is None:
        return
    size, tokens = budget.get("tier_bytes"), budget.get("tokens")
    if declared != expected:
        yield fail(
            "{declared_bytes} bytes per token declared, the geometry gives {geometry_bytes}",
            declared_bytes=declared,
            geometry_bytes=expected,
        )
    elif level.run.cell.cpu_blocks and size is not None and tokens is not None:
        needed, block = (
            tokens * expected,
            int(level.run.specification.get("block_size", BLOCK_TOKENS)) * expected,
        )
        if abs(size - needed) >= max(block, _TOLERANCE * needed):
            yield fail(
                "the tier has {tier_gb:.3g} GB ({tier_gib:.3g} GiB), its {tokens:,} tokens need {needed_gb:.3g} GB"
                " ({needed_gib:.3g} GiB)",
                tier_gb=size / 1e9,
                tier_gib=size / GIB,
                tokens=tokens,
                needed_gb=needed / 1e9,
                needed_gib=needed / GIB,
            )


@check("R15")
def kv_capacity(level: JudgedLevel) -> Outcome | None:
    """The device's cache is as large as the server said at its start, within 2 %."""
    facts, run = level.run.server.get("facts", {}), level.run
    reported, concurrency = (
        facts.get("kv_cache_tokens"),
        facts.get("max_concurrency") or 0,
    )
    longest = run.specification.get("model", {}).get("max_model_len") or 0
    sizes = {
        "the budget": run.budget.get("device_tokens"),
        "its maximum concurrency": longest * concurrency,
    }
    for what, tokens in sizes.items():
        if reported is not None and tokens and abs(reported / tokens - 1) > _TOLERANCE:
            return fail(
                "the server's cache holds {reported_tokens:,.0f} tokens, but by {source} {tokens:,.0f}",
                reported_tokens=reported,
                source=what,
                tokens=tokens,
            )
    return None


@check("R15")
def tier_capacity(level: JudgedLevel) -> Outcome | None:
    """The tier in host memory holds as many tokens as the cell's `cpu_blocks`, within 2 % or one block of the server.

    Compared with all that the run records: tokens and bytes of its budget, and what the server reported.
    """
    run, budget = level.run, level.run.budget
    requested, held = run.cell.cpu_blocks * BLOCK_TOKENS, budget.get("tier_bytes") or 0
    if not requested:
        return None
    sizes = {
        "its budget is": budget.get("tokens"),
        "the server reported": budget.get("reported_tokens"),
    }
    if run.kv_bytes_per_token and held:
        sizes["its bytes are those of"] = held // run.kv_bytes_per_token
    allowed = max(
        _TOLERANCE * requested, int(run.specification.get("block_size", BLOCK_TOKENS))
    )
    for source, tokens in sizes.items():
        if tokens is not None and abs(tokens - requested) > allowed:
            return fail(
                "a tier of {cpu_blocks:,} blocks holds {requested_tokens:,} tokens, {source} {tokens:,}: "
                "give the server the size asked for, or name the cell after its real size",
                cpu_blocks=run.cell.cpu_blocks,
                requested_tokens=requested,
                source=source,
                tokens=tokens,
            )
    beyond = (budget.get("reported_bytes") or 0) - held
    if not held or beyond <= 0:
        return None
    return note(
        "the server uses {beyond_mib:,.1f} MiB more than the tier's {tier_gib:.3g} GiB",
        beyond_mib=beyond / 2**20,
        tier_gib=held / GIB,
    )


@check("R16")
def hardware_probed(level: JudgedLevel) -> Iterator[Outcome]:
    """The hardware was probed, and its GPUs can hold the cache that the server reported."""
    facts, run = level.run.hardware, level.run
    lacking = [
        name for name in ("cpu_model", "cpus", "memory_bytes") if not facts.get(name)
    ]
    gpus, build = facts.get("gpus") or [], run.specification.get("build")
    if build and not on_cpu(build) and not gpus:
        lacking.append("gpus")
    for name in ("name", "memory_bytes"):
        if any(not gpu.get(name) for gpu in gpus):
            lacking.append(f"{name} of a GPU")
    cache = (run.server.get("facts", {}).get("kv_cache_tokens") or 0) * (
        run.kv_bytes_per_token or 0
    )
    memory = sum(gpu.get("memory_bytes") or 0 for gpu in gpus)
    if lacking:
        yield warn("not probed: {missing}", missing=lacking)
    elif gpus and cache > memory:
        yield fail(
            "a cache of {cache_gib:.3g} GiB does not fit {memory_gib:.3g} GiB of GPU memory",
            cache_gib=cache / GIB,
            memory_gib=memory / GIB,
        )


@check("R19")
def counter_names(level: JudgedLevel) -> Iterator[Outcome]:
    """The counters that the arm requires have names that this server can have."""
    wrong = level.run.described.invented_counters
    if wrong:
        yield fail(
            "no version of {server} has {counters}",
            server=level.run.described.server,
            counters=wrong,
        )
    elif level.run.required_counters and not level.entry.counters:
        yield warn(
            "none of the server's counters were read, so nothing proves the arm active"
        )


@check("R19")
def tpot_definition(level: JudgedLevel) -> Iterator[Outcome]:
    """TPOT includes the first token, as GuideLLM 0.4 and later define it: latency = TPOT x output tokens."""
    version = str(level.row.get("guidellm_version", ""))
    try:
        # Reports of another program are converted to this definition.
        Version("0" if version == VLLM_BENCH else version)
    except InvalidVersion:
        yield warn(
            "GuideLLM {version}: its definition of TPOT is not known",
            version=version or "of unknown version",
        )
        return
    requests, tokens = level.requests, level.requests.column("output_tokens")
    waited = 1000 * (requests.column("last_token") - requests.column("start"))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = (requests.column("tpot_ms") * tokens / waited)[
            requests.has_status("completed") & (tokens > 0)
        ]
    known = ratios[np.isfinite(ratios)]
    if len(known) and abs(float(np.median(known)) - 1) > _TOLERANCE:
        yield fail(
            "TPOT x output tokens is {ratio:.2f} of the time to the last token",
            ratio=np.median(known),
        )
