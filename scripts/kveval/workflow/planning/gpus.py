"""The GPUs of a campaign's servers, and stored runs that differ from the planned ones in their number alone."""

from collections.abc import Iterator, Mapping, Sequence

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.host.findings import pluralize
from kveval.workflow.planning.plan import Plan
from kveval.workflow.planning.stored import StoreIndex


def gpus_of_server(specification: Specification) -> int:
    """Return the GPUs of one server; 0 if the device is the CPU."""
    return 0 if specification.on_cpu else specification.model.tensor_parallel_size


def told_gpus(specifications: Sequence[Specification]) -> str:
    """Say how many GPUs one server takes, by model and arm where they differ: `1; 2 for Qwen3-32B`."""
    found: dict[int, dict[str, set[str]]] = {}
    for one in specifications:
        found.setdefault(gpus_of_server(one), {}).setdefault(one.cell.model, set()).add(
            one.cell.scenario
        )
    if len(found) < 2:
        return "".join(map(str, found))
    scenarios = {one.cell.model: set[str]() for one in specifications}
    for one in specifications:
        scenarios[one.cell.model].add(one.cell.scenario)
    parts = []
    for gpus, models in sorted(found.items()):
        names = [
            model
            if arms == scenarios[model]
            else f"{model} with {', '.join(sorted(arms))}"
            for model, arms in models.items()
        ]
        parts.append(f"{gpus} for {', '.join(names)}")
    return "; ".join(parts)


def server_gpus(plan: Plan) -> Iterator[str]:
    """Yield the GPUs of each server of a campaign, nothing where the device is the CPU."""
    specifications = [plan.specification(cell) for cell in plan.config.cells]
    if any(map(gpus_of_server, specifications)):
        replicas = {
            one.on_cluster.replicas
            for one in specifications
            if one.deployment is not None
        }
        several = (
            f"; up to {pluralize(max(replicas), 'server')} of a cell"
            if max(replicas, default=1) > 1
            else ""
        )
        yield f"GPUs of a server (tensor_parallel_size): {told_gpus(specifications)}{several}"


def stored_with_other_gpus(
    plan: Plan, store: StoreIndex
) -> Mapping[int, Sequence[Cell]]:
    """Return GPUs of a server -> cells to be measured that are stored with so many, and are the same in all else."""
    others: dict[int, Config] = {}
    found: dict[int, list[Cell]] = {}
    for cell in plan.to_measure:
        planned = plan.specification(cell)
        if not gpus_of_server(planned):
            continue
        runs = store.by_cell.get(cell, ())
        stored = {
            run.specification.get("model", {}).get("tensor_parallel_size", 0)
            for run in runs
        }
        for gpus in sorted(stored - {0, planned.model.tensor_parallel_size}):
            config = others.setdefault(gpus, _with_gpus(plan.config, gpus))
            if _is_stored(config, cell, plan, store):
                found.setdefault(gpus, []).append(cell)
    return found


def _is_stored(config: Config, cell: Cell, plan: Plan, store: StoreIndex) -> bool:
    pilot = config.pilot(cell)
    levels = None if pilot is None else plan.frozen.get(pilot)
    try:
        return bool(store.get(config.measurement_id(cell, levels)).places)
    except ConfigError:
        # So many GPUs cannot share the model as it is declared now.
        return False


def _with_gpus(config: Config, gpus: int) -> Config:
    server = config.campaign.server.model_copy(update={"tensor_parallel_size": gpus})
    return Config(
        config.campaign.model_copy(update={"server": server}),
        config.catalogue,
        config.compared,
    )
