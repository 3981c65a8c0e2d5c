"""Whether a cluster's nodes have the GPUs and the memory that a campaign asks for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kveval.config.site import Cluster
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER
from kveval.engines.kubernetes.api.probe import Answer
from kveval.engines.kubernetes.manifests.requirements import Node, PodNeed, accepts, node_of, place, pod_needs
from kveval.engines.preflight import memory_bytes, shared_memory_bytes
from kveval.host.findings import Finding, error, ok, warning
from kveval.workflow.doctor.documents import CampaignDocuments, CellPlan

MEMORY_SHARE = 0.7
"""Share of a node's memory above which tiers leave too little for the servers themselves and the page cache."""
SERVER = "model-server"
_GIB = 2**30
# What a container has at /dev/shm without a volume there.
_DEFAULT_SHARED_MEMORY = 64 * 2**20


def capacity(plan: CampaignDocuments, nodes: Answer, pods: Answer) -> list[Finding]:
    """Return what is to be said of GPUs, host memory and /dev/shm.

    `nodes`: the list of nodes; `pods`: of all pods that run, for what others hold; both perhaps denied.
    """
    found = list(_shared_memory(plan.cells))
    if not nodes.found:
        fix = "an account that may list nodes; see `cluster permissions` in docs/cluster.md"
        return [*found, warning("nodes", f"cannot be looked at: {nodes.message}", fix)]
    there = [node_of(thing) for thing in nodes.body.get("items", [])]
    return [*_gpus(plan, there, pods), *_host_memory(plan, there), *found]


def _servers(cell: CellPlan) -> list[PodNeed]:
    return pod_needs(cell.serving)


def _fits(cells: Sequence[CellPlan], nodes: Sequence[Node], resources: Sequence[str]) -> bool:
    return not place([need for cell in cells for need in _servers(cell)], nodes, resources)[1]


def _total(cell: CellPlan, resource: str) -> float:
    return sum(need.copies * need.requests.get(resource, 0.0) for need in _servers(cell))


def _gpus(plan: CampaignDocuments, nodes: Sequence[Node], pods: Answer) -> Iterator[Finding]:
    site, resource = plan.site, plan.site.gpu_resource
    resources = [resource, "memory", "cpu"]
    largest = max(plan.cells, key=lambda cell: (_total(cell, resource), _total(cell, "memory")))
    asked = _total(largest, resource)
    usable = [node for node in nodes if any(accepts(node, need.spec) for need in _servers(largest))]
    having = {node.name: int(node.allocatable.get(resource, 0)) for node in usable}
    said = f"{_listed(having)} of {resource}; {largest.path} takes {asked:g}, {site.slots} at once"
    if asked and not any(having.values()):
        others = {node.name: int(node.allocatable.get(resource, 0)) for node in nodes}
        yield _no_gpus(site, others, having)
        return
    alone = [cell.path for cell in plan.cells if not _fits([cell], nodes, resources)]
    if alone:
        fix = f"models: tensor_parallel_size; server: replicas; cluster.node_selector, tolerations{_others(alone)}"
        shortage, told = _shortage(plan, alone[0], nodes)
        yield error("GPUs", f"{alone[0]} has no room, on no nodes: {shortage}", fix, "no_room", cell=alone[0], **told)
        return
    slots = max(count for count in range(1, site.slots + 1) if count == 1 or _fits([largest] * count, nodes, resources))
    if slots < site.slots:
        yield error("GPUs", f"{said}: only {slots} have room", f"cluster.slots: {slots}", "too_many_slots")
        return
    check = "GPUs" if asked else "nodes"
    said = said if asked else f"{len(usable)} nodes take the servers, which ask for no {resource}"
    free = _without(nodes, _held(pods))
    if pods.found and not _fits([largest] * site.slots, free, resources):
        held = _sums((node, amount.get(resource, 0)) for _, node, amount in _held(pods))
        owners = sorted({owner for owner, _, amount in _held(pods) if amount.get(resource) or not asked})
        fix = "wait, or ask them; the campaign's servers stay Pending until there is room"
        said = f"{said}; but now others hold {_listed(held)}: pods of {', '.join(owners)}"
        yield warning(check, said, fix, "held_by_others", held=held, owners=owners)
    else:
        told = {"nodes": having, "cell": largest.path, "asked": asked, "slots": site.slots}
        code = "" if pods.found else "held_unknown"
        yield ok(check, said + ("" if pods.found else "; what others hold now is not known"), code, **told)


def _no_gpus(site: Cluster, others: Mapping[str, int], selected: Mapping[str, int]) -> Finding:
    if any(others.values()):
        fix = "cluster.node_selector and cluster.tolerations, as `kubectl describe node` shows labels and taints"
        said = f"{_listed(others)} of {site.gpu_resource}, but no such node takes the servers"
        return error("GPUs", said, fix, "not_taken", nodes=others)
    nodes = f"{len(selected)} nodes would take the servers" if selected else "no node takes the servers"
    fix = "install the GPU operator or device plugin; or cluster.gpu_resource, as `kubectl describe node` names it"
    return error("GPUs", f"{nodes}, and none offers {site.gpu_resource}", fix, "none_offered")


def _shortage(plan: CampaignDocuments, path: str, nodes: Sequence[Node]) -> tuple[str, dict[str, Any]]:
    """Say what of a cell found no place, and what the nodes that would take it have; with the figures by name."""
    (cell,) = (one for one in plan.cells if one.path == path)
    left = place(_servers(cell), nodes, [plan.site.gpu_resource, "memory", "cpu"])[1][0]
    asks = _amounts(left.requests, plan.site.gpu_resource)
    takers = [node for node in nodes if accepts(node, left.spec)]
    offers = "; ".join(f"{node.name} has {_amounts(node.allocatable, plan.site.gpu_resource)}" for node in takers[:4])
    said = f"{left.owner} asks for {asks} each, {offers or 'and no node takes it (selector, taints, not ready)'}"
    told = {"requests": left.requests, "nodes": {node.name: node.allocatable for node in takers}}
    return said, {"owner": left.owner, **told}


def _amounts(amounts: Mapping[str, float], gpu: str) -> str:
    parts = [f"{amounts[gpu]:g} {gpu}"] if amounts.get(gpu) else []
    parts += [f"{amounts['memory'] / _GIB:.0f} GiB"] if amounts.get("memory") else []
    parts += [f"{amounts['cpu']:g} CPUs"] if amounts.get("cpu") else []
    return ", ".join(parts) or "nothing"


def _held(pods: Answer) -> list[tuple[str, str, Mapping[str, float]]]:
    """Return namespace, node and requests of the pods of others."""
    found = []
    for pod in pods.body.get("items", []) if pods.found else []:
        node = pod.get("spec", {}).get("nodeName")
        if node and (pod["metadata"].get("labels") or {}).get(MANAGED_BY) != MANAGER:
            (need,) = pod_needs([{**pod, "kind": "Pod"}])
            found.append((str(pod["metadata"].get("namespace", "")), str(node), need.requests))
    return found


def _without(nodes: Sequence[Node], held: Iterable[tuple[str, str, Mapping[str, float]]]) -> list[Node]:
    taken: dict[str, dict[str, float]] = {}
    for _, node, amounts in held:
        of_node = taken.setdefault(node, {})
        for name, amount in amounts.items():
            of_node[name] = of_node.get(name, 0.0) + amount
    return [
        replace(
            node,
            allocatable={
                name: amount - taken.get(node.name, {}).get(name, 0.0) for name, amount in node.allocatable.items()
            },
        )
        for node in nodes
    ]


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, int]:
    total: dict[str, float] = {}
    for name, amount in pairs:
        total[name] = total.get(name, 0.0) + amount
    return {name: int(amount) for name, amount in total.items() if amount}


def _listed(amounts: Mapping[str, int]) -> str:
    shown = [f"{name}: {amount}" for name, amount in amounts.items()]
    return ", ".join([*shown[:4], *([f"{len(shown) - 4} more nodes"] if len(shown) > 4 else [])]) or "no node"


def _others(paths: Sequence[str]) -> str:
    return f"   (the same of {len(paths) - 1} more cells)" if len(paths) > 1 else ""


def _host_memory(plan: CampaignDocuments, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Compare the tiers in host memory with the nodes that the servers would share."""
    worst, share = None, 0.0
    for cell in plan.cells:
        needs = [need for need in _servers(cell) for _ in range(plan.site.slots)]
        placed, _ = place(needs, nodes, [plan.site.gpu_resource, "memory", "cpu"])
        for node in nodes:
            servers = sum(need.component == SERVER for need in placed[node.name])
            total = node.allocatable.get("memory", 0.0)
            if servers and total and servers * memory_bytes(cell.specification) / total >= share:
                worst, share = (cell, node, servers), servers * memory_bytes(cell.specification) / total
    if worst is None:
        return
    cell, node, servers = worst
    tier, total = memory_bytes(cell.specification) / _GIB, node.allocatable["memory"] / _GIB
    said = (
        f"{cell.path} keeps {tier:.1f} GiB of KV cache in host memory; {node.name} would have {servers} such servers:"
        f" {share:.0%} of its {total:.0f} GiB"
    )
    if share > MEMORY_SHARE:
        fix = "matrix: fewer cpu_blocks; or fewer replicas, fewer cluster.slots, nodes with more memory"
        yield (error if share > 1 else warning)("host memory", said, fix, share=share)
    else:
        yield ok("host memory", said, share=share)


def _shared_memory(cells: Sequence[CellPlan]) -> Iterator[Finding]:
    """Compare what a server allocates in /dev/shm, and in all, with what its pod allows."""
    largest = (0, "")
    for cell in cells:
        shared, tier = shared_memory_bytes(cell.specification), memory_bytes(cell.specification)
        # A tier in shared memory is counted there already.
        needed = max(shared, tier) if shared >= tier else shared + tier
        largest = max(largest, (shared, cell.path))
        for need in _servers(cell):
            if need.component != SERVER:
                continue
            volume = _DEFAULT_SHARED_MEMORY if need.shared_memory is None else need.shared_memory
            if volume and volume < shared:
                said = f"{cell.path} allocates {shared / _GIB:.1f} GiB there, {need.owner} has {volume / _GIB:.1f} GiB"
                fix = "matrix: fewer cpu_blocks; or an emptyDir of medium Memory that large"
                yield error("/dev/shm", said, fix, cell=cell.path, needed_bytes=shared, there_bytes=volume)
                return
            if need.memory_limit and need.memory_limit < needed:
                said = (
                    f"{cell.path} needs {needed / _GIB:.1f} GiB for its tier and queues alone, {need.owner} is killed"
                    f" above {need.memory_limit / _GIB:.1f} GiB"
                )
                fix = "matrix: fewer cpu_blocks; or a larger limit"
                yield error("memory limit", said, fix, cell=cell.path, limit_bytes=need.memory_limit)
                return
    if largest[0]:
        yield ok("/dev/shm", f"every server has room there; the most is {largest[0] / _GIB:.1f} GiB, of {largest[1]}")
    else:
        yield ok("/dev/shm", "no server allocates there: tiers are memory of the process")
