"""Other users of the nodes that a run measures on: campaigns wait for each other, and foreign pods are recorded.

A run announces its nodes by a Lease in the recorder's namespace, which campaigns share. Of two campaigns on one node,
the later one waits, unless cluster.share_nodes is set; run.json lists the foreign pods on the run's nodes.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kveval.engines.kubernetes import leases
from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.api.errors import Refused
from kveval.engines.kubernetes.api.kinds import POD, Document
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.recorder import full_name
from kveval.engines.kubernetes.manifests.requirements import quantity
from kveval.engines.protocol import Log

COMPONENT = "nodes"
NODES_ANNOTATION = f"{names.PREFIX}/nodes"
# The API server's times are whole seconds: after this pause, two Leases made in the same second see each other.
_SETTLE_S = 1.1
_POLL_S = 2.0
_REMIND_S = 30.0
# Pods that request fewer CPUs hardly disturb a measurement: agents, exporters, operators.
_BUSY_CPUS = 1.0


class Neighbours:
    """Foreign pods on a run's nodes, as seen at its start and at its end."""

    def __init__(self, context: RunContext, nodes: Sequence[str]) -> None:
        self._context, self._nodes = context, nodes
        self._seen: set[str] = set()
        self._all_seen = True

    def look(self) -> None:
        """Add the foreign pods that are on the nodes now."""
        context, resource = self._context, self._context.site.gpu_resource
        for node in self._nodes:
            fields = f"spec.nodeName={node},status.phase=Running"
            try:
                pods = context.api.list(POD, fields=fields)
            except Refused:
                # An account that may not list all pods sees those of its own namespace only.
                self._all_seen = False
                pods = context.api.list(POD, context.namespace, fields=fields)
            own = context.run_labels.items()
            for pod in pods:
                metadata = pod["metadata"]
                if not own <= (metadata.get("labels") or {}).items() and is_busy(
                    pod, resource
                ):
                    self._seen.add(
                        f"{node}: {metadata['namespace']}/{metadata['name']}"
                    )

    def facts(self) -> dict[str, Any]:
        """Return the entries of run.json: the pods, and whether those of all namespaces could be seen."""
        return {
            "neighbours": sorted(self._seen),
            "neighbours_of": "cluster" if self._all_seen else "namespace",
        }


@contextlib.contextmanager
def announce(
    context: RunContext, nodes: Sequence[str], say: Log
) -> Iterator[Neighbours]:
    """Announce a measurement on `nodes`, wait for earlier campaigns there, and note foreign pods before and after."""
    neighbours = Neighbours(context, nodes)
    with contextlib.ExitStack() as stack:
        try:
            about = {NODES_ANNOTATION: ",".join(nodes)}
            name, place = (
                full_name(context.campaign, context.site),
                context.site.pcp_namespace,
            )
            lease = stack.enter_context(
                leases.hold_for_run(
                    replace(context, campaign=name), say, about, COMPONENT, place
                )
            )
        except Refused as error:
            say(
                f"other campaigns cannot be told that this run measures on {', '.join(nodes)} ({error})"
            )
        else:
            _wait_for_turn(context, lease.document, nodes, say)
        neighbours.look()
        try:
            yield neighbours
        finally:
            with contextlib.suppress(Refused):
                neighbours.look()


def _wait_for_turn(
    context: RunContext, own: Document, nodes: Sequence[str], say: Log
) -> None:
    """Wait until no other campaign's run that came earlier measures on one of the nodes."""
    time.sleep(_SETTLE_S)
    reminded = float("-inf")
    while before := earlier(
        leases.living_leases(context.api, context.site.pcp_namespace, None, COMPONENT),
        own,
        nodes,
    ):
        text = f"{_campaign(before[0])} ({leases.holder_of(before[0])})"
        if context.site.share_nodes:
            say(f"campaign {text} also measures on {', '.join(nodes)}")
            return
        if time.monotonic() - reminded >= _REMIND_S:
            say(
                f"waiting: campaign {text} measures on {', '.join(nodes)}; set cluster.share_nodes not to wait"
            )
            reminded = time.monotonic()
        time.sleep(_POLL_S)


def earlier(
    others: Sequence[Document], own: Mapping[str, Any], nodes: Sequence[str]
) -> list[Document]:
    """Return the Leases of other campaigns, made before `own`, for one of the nodes."""

    def announces(metadata: Mapping[str, Any]) -> set[str]:
        return set(
            (metadata.get("annotations") or {}).get(NODES_ANNOTATION, "").split(",")
        )

    candidates = [
        lease
        for lease in others
        if _campaign(lease) != _campaign(own) and _age(lease) < _age(own)
    ]
    return [lease for lease in candidates if announces(lease["metadata"]) & set(nodes)]


def is_busy(pod: Mapping[str, Any], gpu_resource: str) -> bool:
    """Tell whether a pod may disturb a measurement: it requests a GPU or a whole CPU and is not from a DaemonSet."""
    if any(
        owner.get("kind") == "DaemonSet"
        for owner in pod["metadata"].get("ownerReferences") or []
    ):
        return False
    requests = [
        (container.get("resources") or {}).get("requests") or {}
        for container in pod["spec"]["containers"]
    ]
    gpus = sum(quantity(request.get(gpu_resource)) for request in requests)
    cpus = sum(quantity(request.get("cpu")) for request in requests)
    return gpus > 0 or cpus >= _BUSY_CPUS


def _campaign(lease: Mapping[str, Any]) -> str:
    return str(lease["metadata"]["labels"].get(f"{names.PREFIX}/campaign"))


def _age(lease: Mapping[str, Any]) -> tuple[str, str]:
    return str(lease["metadata"].get("creationTimestamp")), str(
        lease["metadata"].get("uid")
    )
