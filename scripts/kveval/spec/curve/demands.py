"""The requests of a level for `service`: when each arrives, and how much of its prompt each cache holds."""

import itertools
import random
from collections.abc import Sequence

import numpy as np

from kveval.load import levels as workloads
from kveval.load import traces
from kveval.load.workload import WorkloadSpec
from kveval.spec.curve.curve import dealt, served_by_request
from kveval.spec.curve.of_cells import prompts_of, serving_of
from kveval.spec.curve.service import Demanded, Floats
from kveval.spec.specification import Specification


def demands(
    specification: Specification,
    level: int,
    run: int,
    requests: int,
    device_tokens: float,
    tier_tokens: Sequence[float],
) -> list[list[Demanded]]:
    """Return a level's first requests, by size of the tier and by server.

    `requests`: the most that a closed loop may send; an open loop sends those of the level's time.
    `tier_tokens`: sizes of one server's tier, of which only what is used before eviction.
    """
    workload, serving = specification.workload, serving_of(specification)
    times = _arrivals_s(workload, level, run)
    prompts = prompts_of(workload, level, run, serving.block, requests if times is None else len(times))
    server = dealt(prompts, serving.servers, serving.by_prefix)
    found: list[list[Demanded]] = [[] for _ in tier_tokens]
    for number in range(serving.servers):
        own = prompts.served_by(server == number)
        on_device, in_tier = served_by_request(own, serving.block, device_tokens, tier_tokens, serving.rules)
        kept = own.counted
        for of_size, added in zip(found, in_tier, strict=True):
            of_size.append(
                Demanded(
                    arrivals_s=None if times is None else times[server[prompts.counted] == number],
                    input_tokens=own.input_tokens[kept],
                    output_tokens=np.maximum(1, own.output_tokens[kept]),
                    on_device=on_device[kept],
                    in_tier=added[kept],
                    groups=own.first_ids[kept],
                )
            )
    return found


def _arrivals_s(workload: WorkloadSpec, level: int, run: int) -> Floats | None:
    """Arrival times within a level, s, drawn as the load generator draws them; None in a closed loop."""
    if workload.profile not in workloads.OPEN_LOOP:
        return None
    if workload.profile in workloads.REPLAYS:
        seed = workload.seed + 100_000 * run + workload.given_levels.index(level)
        rows = traces.rows(workload, level, seed)
        return np.array([row.timestamp for row in rows if row.timestamp < workload.seconds])
    rate = workloads.rate_req_s_at(workload, level) or 0.0
    count = int(rate * workload.seconds)
    if workload.profile == "constant":
        return np.arange(count) / rate
    generator = random.Random(run)
    return np.array([*itertools.accumulate(generator.expovariate(rate) for _ in range(count))])
