"""Whether more requests arrive than a server can compute: without a tier, and with the campaign's largest."""

from collections.abc import Iterator, Sequence

from kveval.configuration.config import Config
from kveval.load import levels as workloads
from kveval.plugins.curve.plan.curves import LevelCurves
from kveval.plugins.curve.plan.loading import compute_times
from kveval.plugins.curve.simulation.break_even import ComputeTime
from kveval.plugins.curve.simulation.cells import mean_prompt_tokens
from kveval.workflow.planning.stored import StoreIndex


def overload_lines(
    config: Config, levels: Sequence[LevelCurves], store: StoreIndex
) -> Iterator[str]:
    """Yield a line for the highest level of a model at which requests arrive faster than their prompts are computed.

    What requests take beside that, such as answers, is left out: fewer are served in truth. Rates are of all servers.
    """
    for curves in sorted(levels, key=lambda one: one.level, reverse=True):
        line = _overload(config, curves, store)
        if line:
            yield line
            return


def _overload(config: Config, curves: LevelCurves, store: StoreIndex) -> str:
    cell = curves.widest_cell
    specification = config.specification(cell)
    workload = specification.workload
    if workload.profile not in workloads.OPEN_LOOP:
        return ""
    rate = workloads.rate_req_s_at(workload, curves.level)
    known = compute_times(config, cell, store)
    if rate is None or known is None:
        return ""
    fast, _, source = known
    servers = (
        1 if specification.deployment is None else specification.deployment.replicas
    )
    tokens = mean_prompt_tokens(workload, curves.level)
    # The most that may be served: where sizes or speeds are ranges, what certainly is too much counts.
    device = (curves.device_hit_range or (0.0, curves.widest.device.ceiling))[1]
    tiers = {one: curves.hit_share_range(one) for one in curves.cells if one.cpu_blocks}
    best = max(tiers, key=lambda one: (tiers[one] or (0.0, 0.0))[1], default=cell)
    share = max(device, (tiers.get(best) or (0.0, curves.widest.device.ceiling))[1])
    alone, tier = (servers / _seconds(fast, tokens, part) for part in (device, share))
    if rate <= alone:
        return ""
    unit = workloads.level_unit(workload)
    size = config.specification(best).budget.size
    end = (
        "so that requests queue without end, and what follows is of requests that wait"
        if rate > tier
        else "so that they queue without end unless there is such a tier"
    )
    return (
        f"{curves.model}: overloaded at {curves.level} {unit}: {rate:.3g} requests/s come, at most {alone:.3g} are served"
        f" without a tier and {tier:.3g} with {best.scenario} of {size}, {end}; prompts of {tokens:,} tokens, of which"
        f" {100 * device:.0f} % and {100 * share:.0f} % are found, {source}"
    )


def _seconds(compute: ComputeTime, tokens: int, share: float) -> float:
    """Return the seconds to compute what is not found of a prompt; its last token always is."""
    found = min(tokens - 1, round(share * tokens))
    return compute.seconds(tokens) - compute.seconds(found)
