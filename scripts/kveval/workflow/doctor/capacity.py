"""Whether a cluster's nodes have the GPUs and the memory that a campaign asks for."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kveval.campaign.site import Cluster
from kveval.campaign.sizing import GIB
from kveval.engines.kubernetes.api.kinds import labels_of
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER
from kveval.engines.kubernetes.api.probe import Answer
from kveval.engines.kubernetes.manifests.requirements import (
    Node,
    PodNeed,
    accepts,
    node_of,
    pod_needs,
    untolerated,
)
from kveval.engines.preflight import MEMORY_SHARE, memory_bytes, shared_memory_bytes
from kveval.host.findings import FindingRow, error, ok, pluralize, warning
from kveval.workflow.doctor.documents import CampaignDocuments, CellPlan

SERVER = "model-server"
_KEYS = {
    SERVER: "matrix: fewer cpu_blocks, or a smaller cpu_gib; cluster.node_selector, tolerations",
    "load": "cluster.load",
    "epp": "cluster.router_requests",
}
"""The configuration keys that set what a component's pods request, and on which nodes."""
Held = tuple[str, str, Mapping[str, float]]
"""What a pod of others holds: its namespace, its node, its requests."""
SCALED = "nothing, if an autoscaler adds such a node: kveval deploy-one shows it"
# The size of a container's /dev/shm without a volume.
_DEFAULT_SHARED_MEMORY = 64 * 2**20


def capacity(plan: CampaignDocuments, nodes: Answer, pods: Answer) -> list[FindingRow]:
    """Return the findings on GPUs, host memory and /dev/shm.

    Each pod is checked by itself: only the cluster's scheduler knows whether all of them fit at the same time.
    `nodes`: the list of nodes; `pods`: all pods that run, for what others hold; both may be denied.
    """
    found = list(_shared_memory(plan.cells))
    if not nodes.ok:
        fix = (
            "an account that may list nodes; see `The account` in docs/cluster-site.md"
        )
        return [*found, warning("nodes", f"cannot be read: {nodes.message}", fix)]
    there = [node_of(thing) for thing in nodes.body.get("items", [])]
    return [
        *_gpus(plan, there, pods),
        *_others(plan, there),
        *_host_memory(plan, there),
        *found,
    ]


def _servers(cell: CellPlan) -> list[PodNeed]:
    return [need for need in pod_needs(cell.serving) if need.component == SERVER]


def takers(need: PodNeed, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes that accept a pod and are large enough for it when nothing else runs there."""
    return [
        node
        for node in nodes
        if accepts(node, need.spec) and _is_large_enough(node, need)
    ]


def _is_large_enough(node: Node, need: PodNeed) -> bool:
    return all(
        node.allocatable.get(name, 0.0) >= amount
        for name, amount in need.requests.items()
    )


def _gpus(
    plan: CampaignDocuments, nodes: Sequence[Node], pods: Answer
) -> Iterator[FindingRow]:
    """Yield each kind of problem with room for servers once, of the largest server; else that there is room."""
    amounts = (plan.site.gpu_resource, "memory")
    pairs = [(need, cell.path) for cell in plan.cells for need in _servers(cell)]
    pairs.sort(
        key=lambda pair: [pair[0].requests.get(name, 0.0) for name in amounts],
        reverse=True,
    )
    held = _held(pods) if pods.ok else None
    found = [_of_server(plan.site, need, path, nodes, held) for need, path in pairs]
    wrong: dict[str, FindingRow] = {}
    for finding in found:
        if finding.level != "ok":
            wrong.setdefault(finding.code, finding)
    yield from [*wrong.values()] or found[:1]


def _of_server(
    site: Cluster,
    need: PodNeed,
    path: str,
    nodes: Sequence[Node],
    held: Sequence[Held] | None,
) -> FindingRow:
    """Return the finding on room for the servers of one cell. `held`: by the pods of others, None if not known."""
    resource = site.gpu_resource
    each = need.requests.get(resource, 0.0)
    asked = each * need.copies * site.slots
    usable = [node for node in nodes if accepts(node, need.spec)]
    having = _amounts(usable, resource)
    if each and not any(having.values()):
        with_gpus = [node for node in nodes if node.allocatable.get(resource)]
        return _no_gpus(
            site, _amounts(nodes, resource), having, kept_out(with_gpus, need.spec)
        )
    check = "GPUs" if each else "nodes"
    if not takers(need, nodes):
        return _no_room(check, need, path, nodes, resource)
    servers = f"{pluralize(need.copies, 'server')} with {each:g} each"
    said = f"{_listed(having)} of {resource}; {path} takes {each * need.copies:g} ({servers}), {site.slots} at once"
    if not each:
        said = f"{len(usable)} nodes take the servers, which ask for no {resource}{kept_out(nodes, need.spec)}"
    told = {
        "nodes": having,
        "cell": path,
        "asked": each * need.copies,
        "slots": site.slots,
    }
    if each and asked > sum(having.values()):
        return warning(
            check, f"{said}: too few", f"cluster.slots; {SCALED}", "too_few", **told
        )
    if held is not None and not takers(need, free := _without(nodes, held)):
        left = _amounts(free, resource)
        of_nodes = {
            name: amount - left[name]
            for name, amount in _amounts(nodes, resource).items()
            if amount > left[name]
        }
        owners = sorted(
            {owner for owner, _, amount in held if amount.get(resource) or not each}
        )
        fix = (
            "wait, or ask them; the campaign's servers stay Pending until there is room"
        )
        said = f"{said}; but now others hold {_listed(of_nodes)}: pods of {', '.join(owners)}"
        return warning(check, said, fix, "held_by_others", held=of_nodes, owners=owners)
    hidden = "; what others hold now is not known" if held is None else ""
    said = f"{said}; whether all fit at the same time: kveval deploy-one{hidden}"
    return ok(check, said, "held_unknown" if held is None else "", **told)


def _no_gpus(
    site: Cluster, others: Mapping[str, int], selected: Mapping[str, int], taints: str
) -> FindingRow:
    if any(others.values()):
        fix = "cluster.node_selector and cluster.tolerations, as `kubectl describe node` shows labels and taints"
        said = f"{_listed(others)} of {site.gpu_resource}, but none of these nodes takes the servers{taints}"
        return warning("GPUs", said, f"{fix}; {SCALED}", "not_taken", nodes=others)
    nodes = (
        f"{len(selected)} nodes would take the servers"
        if selected
        else "no node takes the servers"
    )
    fix = "install the GPU operator or device plugin; or cluster.gpu_resource, as `kubectl describe node` names it"
    return warning(
        "GPUs",
        f"{nodes}, and none offers {site.gpu_resource}",
        f"{fix}; {SCALED}",
        "none_offered",
    )


def _others(plan: CampaignDocuments, nodes: Sequence[Node]) -> Iterator[FindingRow]:
    """Yield a finding for each kind of other pod (load, Redis, endpoint picker) with one that no node can take."""
    documents = [one for cell in plan.cells for one in (*cell.serving, *cell.driving)]
    unplaced: dict[str, PodNeed] = {}
    for need in pod_needs(documents):
        if need.component != SERVER and not takers(need, nodes):
            unplaced.setdefault(need.component, need)
    for component, need in unplaced.items():
        yield _no_room("nodes", need, component, nodes, plan.site.gpu_resource)


def kept_out(nodes: Iterable[Node], pod: Mapping[str, Any]) -> str:
    """Return which taints keep a pod off nodes that it selects, as the end of a sentence; "" if no taint does."""
    selector = (pod.get("nodeSelector") or {}).items()
    by_taint: dict[str, list[str]] = {}
    for node in nodes:
        if selector <= node.labels.items():
            for taint in untolerated(node, pod):
                by_taint.setdefault(taint, []).append(node.name)
    return "".join(
        f"; not tolerated: taint {taint} of {_names(names)}"
        for taint, names in by_taint.items()
    )


def _names(names: Sequence[str]) -> str:
    more = [f"{len(names) - 4} more nodes"] if len(names) > 4 else []
    return ", ".join([*names[:4], *more])


def _no_room(
    check: str, need: PodNeed, what: str, nodes: Sequence[Node], gpu: str
) -> FindingRow:
    """Return the finding that no node has what a pod requests, with what the nodes that accept it have."""
    usable = [node for node in nodes if accepts(node, need.spec)]
    has = "; ".join(
        f"{node.name} has {_asked(node.allocatable, gpu)}" for node in usable[:4]
    )
    offers = has or "and no node takes it (selector, taints, not ready)"
    offers += kept_out(nodes, need.spec)
    keys = _KEYS.get(need.component, "cluster.node_selector, tolerations")
    told = {
        "owner": need.owner,
        "requests": need.requests,
        "nodes": {one.name: one.allocatable for one in usable},
    }
    said = f"{what}: {need.owner} asks for {_asked(need.requests, gpu)}, {offers}"
    return warning(
        check, said, f"{keys}: what and where pods ask for; {SCALED}", "no_room", **told
    )


def _asked(amounts: Mapping[str, float], gpu: str) -> str:
    parts = [f"{amounts[gpu]:g} {gpu}"] if amounts.get(gpu) else []
    parts += [f"{amounts['memory'] / GIB:.0f} GiB"] if amounts.get("memory") else []
    parts += [f"{amounts['cpu']:g} CPUs"] if amounts.get("cpu") else []
    return ", ".join(parts) or "nothing"


def _amounts(nodes: Sequence[Node], resource: str) -> dict[str, int]:
    return {node.name: int(node.allocatable.get(resource, 0)) for node in nodes}


def _held(pods: Answer) -> list[Held]:
    found = []
    for pod in pods.body.get("items", []):
        node = pod.get("spec", {}).get("nodeName")
        if node and labels_of(pod).get(MANAGED_BY) != MANAGER:
            (need,) = pod_needs([{**pod, "kind": "Pod"}])
            found.append(
                (str(pod["metadata"].get("namespace", "")), str(node), need.requests)
            )
    return found


def _without(nodes: Sequence[Node], held: Iterable[Held]) -> list[Node]:
    """Return the nodes with what others leave of them."""
    taken: dict[str, list[Mapping[str, float]]] = {}
    for _, node, amounts in held:
        taken.setdefault(node, []).append(amounts)

    def left(node: Node) -> dict[str, float]:
        amounts = dict(node.allocatable)
        for requests in taken.get(node.name, ()):
            for name in amounts:
                amounts[name] -= requests.get(name, 0.0)
        return amounts

    return [replace(node, allocatable=left(node)) for node in nodes]


def _listed(amounts: Mapping[str, int]) -> str:
    shown = [f"{name}: {amount}" for name, amount in amounts.items()]
    return (
        ", ".join(
            [*shown[:4], *([f"{len(shown) - 4} more nodes"] if len(shown) > 4 else [])]
        )
        or "no node"
    )


def _host_memory(
    plan: CampaignDocuments, nodes: Sequence[Node]
) -> Iterator[FindingRow]:
    """Compare the tiers in host memory with each node's memory, for as many servers as its GPUs allow."""
    worst, share = None, 0.0
    for cell in plan.cells:
        for need in _servers(cell):
            gpus = need.requests.get(plan.site.gpu_resource, 0.0)
            for node in takers(need, nodes):
                room = (
                    node.allocatable.get(plan.site.gpu_resource, 0.0) // gpus
                    if gpus
                    else math.inf
                )
                servers = min(need.copies * plan.site.slots, room)
                of_node = (
                    servers
                    * memory_bytes(cell.specification)
                    / node.allocatable["memory"]
                )
                if of_node >= share:
                    worst, share = (cell, node, servers), of_node
    if worst is None:
        return
    cell, node, servers = worst
    tier, total = (
        memory_bytes(cell.specification) / GIB,
        node.allocatable["memory"] / GIB,
    )
    size = cell.specification.budget.size
    named = f"{cell.path}, a tier of {size}," if size.cpu_blocks else cell.path
    said = (
        f"{named} keeps {tier:.1f} GiB of KV cache in host memory; {node.name} may have {servers:.0f} such servers:"
        f" {share:.0%} of its {total:.0f} GiB"
    )
    if share > MEMORY_SHARE:
        fix = "matrix: fewer cpu_blocks, or a smaller cpu_gib; or fewer replicas, fewer cluster.slots, nodes with more memory"
        yield (error if share > 1 else warning)("host memory", said, fix, share=share)
    else:
        yield ok("host memory", said, share=share)


def _shared_memory(cells: Sequence[CellPlan]) -> Iterator[FindingRow]:
    """Compare what a server allocates in /dev/shm, and in total, with what its pod allows."""
    largest = (0, "")
    for cell in cells:
        shared, tier = (
            shared_memory_bytes(cell.specification),
            memory_bytes(cell.specification),
        )
        # A tier in shared memory is already part of `shared`.
        needed = max(shared, tier) if shared >= tier else shared + tier
        largest = max(largest, (shared, cell.path))
        for need in _servers(cell):
            volume = (
                _DEFAULT_SHARED_MEMORY
                if need.shared_memory is None
                else need.shared_memory
            )
            if volume and volume < shared:
                said = f"{cell.path} allocates {shared / GIB:.1f} GiB there, {need.owner} has {volume / GIB:.1f} GiB"
                fix = "matrix: fewer cpu_blocks, or a smaller cpu_gib; or an emptyDir of medium Memory that large"
                yield error(
                    "/dev/shm",
                    said,
                    fix,
                    cell=cell.path,
                    needed_bytes=shared,
                    there_bytes=volume,
                )
                return
            if need.memory_limit and need.memory_limit < needed:
                said = (
                    f"{cell.path} needs {needed / GIB:.1f} GiB for its tier and queues alone, {need.owner} is killed"
                    f" above {need.memory_limit / GIB:.1f} GiB"
                )
                fix = (
                    "matrix: fewer cpu_blocks, or a smaller cpu_gib; or a larger limit"
                )
                yield error(
                    "memory limit",
                    said,
                    fix,
                    cell=cell.path,
                    limit_bytes=need.memory_limit,
                )
                return
    if largest[0]:
        yield ok(
            "/dev/shm",
            f"every server has room there; the most is {largest[0] / GIB:.1f} GiB, of {largest[1]}",
        )
    else:
        yield ok(
            "/dev/shm", "no server allocates there: tiers are memory of the process"
        )
