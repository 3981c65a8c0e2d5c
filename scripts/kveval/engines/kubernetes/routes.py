"""Addresses of a run as pods and nodes see them: where the load is sent, and where metrics are read.

A cluster's own exporters are found, too: NVIDIA's DCGM exporter on the servers' nodes, the Envoy of Istio. Where the
account may not list their pods, the run says so.
"""

import functools
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeVar

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError, Refused
from kveval.engines.kubernetes.api.kinds import (
    GATEWAY,
    GATEWAY_CLASS,
    POD,
    POOL,
    ROUTE,
    Document,
    Kind,
    annotations_of,
    labels_of,
    status_of,
)
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import target_url
from kveval.engines.kubernetes.pods import container_of, direct_url
from kveval.engines.kubernetes.recordings import reaches
from kveval.engines.kubernetes.replicas import SERVER, ClusterServer
from kveval.engines.protocol import Log
from kveval.stacks.registry import SIDECARS

# Labels set by NVIDIA's GPU operator, and by the exporter's own chart and manifest, also in the variant of GKE.
_DCGM = {
    ("app", "nvidia-dcgm-exporter"),
    ("app.kubernetes.io/name", "dcgm-exporter"),
    ("app.kubernetes.io/name", "gke-managed-dcgm-exporter"),
}
_DCGM_PORT = "9400"
T = TypeVar("T")
# On the pods of a Gateway: https://gateway-api.sigs.k8s.io/geps/gep-1762/
_OF_GATEWAY = "gateway.networking.k8s.io/gateway-name"
# A cloud load balancer may need minutes for a cell's own Gateway, and its routes reach the proxies even later.
_PROGRAMMED_S = 600.0
_POLL_S = 2.0
_ANSWER_S = 60.0
_ASK = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode(), {"Content-Type": "application/json"})
try:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(request, timeout=float(sys.argv[3])).read()
except urllib.error.HTTPError as error:
    sys.exit(f"HTTP {error.code}: {error.read(300).decode(errors='replace')}")
except OSError as error:
    sys.exit(str(error))
"""


class NotYet(ClusterError):
    """Something that is waited for is not there; the message says what is missing."""


def with_controller(api: Api, site: Cluster) -> Cluster:
    """Return the site with the controller of its Gateway's class, as far as the account may read it."""
    gateway = site.gateway
    if gateway is None or gateway.controller is not None:
        return site
    try:
        document = (
            None
            if gateway.create
            else api.read(GATEWAY, gateway.name, gateway.namespace or site.namespace)
        )
        name = (
            gateway.class_name
            if document is None
            else str(document["spec"].get("gatewayClassName"))
        )
        named = None if name is None else api.read(GATEWAY_CLASS, name, "")
    except ClusterError:
        named, name = None, gateway.class_name
    controller = None if named is None else str(named["spec"]["controllerName"])
    # By alias, as a campaign would declare the class and its controller.
    gateway_with_controller = gateway.model_copy(
        update={"class_name": name, "controller": controller}
    )
    return site.model_copy(update={"gateway": gateway_with_controller})


def gateway_url(context: RunContext) -> str:
    """Return the Gateway's URL from its status, once it has one. Raises ClusterError after ten minutes."""
    name, namespace = context.gateway_name, context.gateway_namespace

    def url() -> str:
        document = context.api.read(GATEWAY, name, namespace)
        if document is None:
            raise ClusterError(
                f"there is no Gateway {namespace}/{name}: correct cluster.gateway, or have one created"
            )
        addresses = status_of(document).get("addresses") or []
        listeners = [
            entry
            for entry in document["spec"].get("listeners") or []
            if entry.get("protocol") == "HTTP"
        ]
        if not listeners:
            message = f"Gateway {namespace}/{name} has no HTTP listener: declare another, or set cluster.gateway.url"
            raise ClusterError(message)
        if not addresses:
            raise NotYet(
                f"Gateway {namespace}/{name} has no address: is it programmed? or set cluster.gateway.url"
            )
        return f"http://{addresses[0]['value']}:{listeners[0]['port']}"

    return _awaited(url, time.monotonic() + _PROGRAMMED_S)


def await_route(context: RunContext, server: ClusterServer) -> str:
    """Return the URL that a load is sent to, as pods see it, once requests there reach a server. Raises ClusterError."""
    url = target_url(context) or gateway_url(context)
    require_routed(context, server, url)
    return url


def require_routed(context: RunContext, server: ClusterServer, url: str) -> None:
    """Wait until the Gateway has accepted the route and the pool, and a request to `url` was answered by a server.

    Raises ClusterError after ten minutes, with the refusal or with the last answer.
    """
    if context.deployment.route == "service":
        return
    deadline = time.monotonic() + _PROGRAMMED_S
    if context.deployment.route == "gateway":
        for kind in (ROUTE, POOL):
            _awaited(functools.partial(_require_accepted, context, kind), deadline)
    body = {
        "model": context.specification.model.served_name,
        "prompt": "Hello",
        "max_tokens": 1,
    }
    argv = [
        "python3",
        "-c",
        _ASK,
        f"{url}/v1/completions",
        json.dumps(body),
        str(_ANSWER_S),
    ]
    asker = server.replicas[0].name

    def ask() -> None:
        done = context.api.exec(
            context.namespace, asker, SERVER, argv, timeout_s=_ANSWER_S + 15.0
        )
        if done.returncode:
            raise NotYet(
                f"no request reached a server through {url}: {done.error_text}"
            )

    _awaited(ask, deadline)


def _require_accepted(context: RunContext, kind: Kind) -> None:
    """Raise NotYet unless a Gateway has accepted this run's object of `kind`."""
    name = context.name("routing")
    document = context.api.read(kind, name, context.namespace) or {}
    parents: list[dict[str, Any]] = status_of(document).get("parents") or []
    conditions = [
        condition for parent in parents for condition in parent.get("conditions") or []
    ]
    refusing = [
        condition
        for condition in conditions
        if condition["type"] in ("Accepted", "ResolvedRefs")
        and condition["status"] != "True"
    ]
    if refusing:
        why = f"{refusing[0].get('reason', '')}: {refusing[0].get('message', '')}"
        raise NotYet(
            f"{kind.kind} {name} is not {refusing[0]['type']} by Gateway {context.gateway_name}: {why}"
        )
    if not any(condition["type"] == "Accepted" for condition in conditions):
        raise NotYet(
            f"no Gateway has accepted {kind.kind} {name}: does {context.gateway_name} serve this kind?"
        )


def _awaited(look: Callable[[], T], deadline: float) -> T:
    """Return what `look` returns, once it raises no NotYet. Raises ClusterError after `deadline`, time.monotonic()."""
    while True:
        try:
            return look()
        except NotYet as missing:
            if time.monotonic() > deadline:
                message = f"{missing} (after {_PROGRAMMED_S:.0f} s)"
                raise ClusterError(message) from missing
        time.sleep(_POLL_S)


def sources_of(context: RunContext, server: ClusterServer) -> dict[str, str]:
    """Return the metrics URLs of a run by name, as its nodes see them; those of replicas are separated by spaces."""
    ports = context.ports
    program = server.program
    urls = [
        f"{_base(context, replica.pod, ports['port'])}{program.metrics_path}"
        for replica in server.replicas
    ]
    sources = {program.name: " ".join(urls)}
    for sidecar in SIDECARS.values():
        for pod in server.watched:
            if sidecar.metrics_port and container_of(pod, sidecar.name):
                port = ports[sidecar.metrics_port]
                url = f"{_base(context, pod, port)}/metrics"
                sources.setdefault(sidecar.name, url)
    return sources


def _base(context: RunContext, pod: Document, port: int) -> str:
    return direct_url(context, port) or f"http://{_host(pod)}:{port}"


def _host(pod: Document) -> str:
    """Return a pod's address as a part of URLs; "" if it has none yet."""
    address = str(status_of(pod).get("podIP") or "")
    return f"[{address}]" if ":" in address else address


def exporters_of(
    context: RunContext, nodes: Collection[str], recorder: Document, say: Log
) -> dict[str, str]:
    """Return the cluster's own metrics URLs, by name, that the site does not declare and pod `recorder` can read.

    What is not recorded for want of a right or of an exporter is said, with what brings it.
    """
    exporters: dict[str, Callable[[], list[str]]] = {}
    if context.deployment.gpus:
        exporters["dcgm"] = lambda: dcgm_urls(context.api, nodes)
    if context.deployment.route == "gateway":
        exporters["gateway"] = lambda: gateway_urls(
            context.api, context.gateway_namespace, context.gateway_name
        )
    recorded = {}
    for source, look in exporters.items():
        if source in context.site.recorder.sources:
            continue
        try:
            urls = look()
        except Refused:
            lacking = unrecorded(source)
        else:
            if urls and reaches(context, recorder, urls):
                recorded[source] = " ".join(urls)
                continue
            name = recorder["metadata"]["name"]
            why = f"pod {name} cannot read {', '.join(urls)}"
            lacking = unrecorded(source, why if urls else "no exporter was found")
        say(". What helps: ".join(lacking))
    return recorded


def unrecorded(source: str, why: str = "") -> tuple[str, str]:
    """Return that the metrics of an exporter of the cluster's own are not recorded, and what brings them.

    `why`: "" where the account may not list the exporter's pods.
    """
    what = {"dcgm": "GPU metrics", "gateway": "metrics of the Gateway's proxy"}[source]
    key = f"cluster.recorder.sources: {{{source}: URL}}"
    if why:
        return f"no {what} are recorded: {why}", f"an exporter, and {key}"
    right = (
        "the right to list pods, as docs/cluster-site.md#several-cells-at-once has it"
    )
    return (
        f"no {what} are recorded: this account may not list the pods of their exporter",
        f"{right}; or {key}",
    )


def is_dcgm(pod: Document) -> bool:
    """Tell whether a pod is NVIDIA's DCGM exporter, by its labels."""
    return not _DCGM.isdisjoint(labels_of(pod).items())


def dcgm_urls(api: Api, nodes: Collection[str]) -> list[str]:
    """Return the URLs of the DCGM exporters on these nodes. Raises Refused where the account may not list all pods."""
    places = [f"spec.nodeName={node}" for node in sorted(nodes)]
    pods = [pod for fields in places for pod in api.list(POD, fields=fields)]
    return list(_urls(filter(is_dcgm, pods)))


def gateway_urls(api: Api, namespace: str, name: str) -> list[str]:
    """Return the metrics URLs of a Gateway's pods that have the annotation prometheus.io/port, as Istio's do.

    Raises Refused where the account may not list the pods of that namespace.
    """
    pods = api.list(POD, namespace, f"{_OF_GATEWAY}={name}")
    return list(
        _urls(pod for pod in pods if "prometheus.io/port" in annotations_of(pod))
    )


def _urls(pods: Iterable[Document]) -> Iterator[str]:
    for pod in pods:
        annotations = annotations_of(pod)
        if host := _host(pod):
            port, path = (
                annotations.get("prometheus.io/port", _DCGM_PORT),
                annotations.get("prometheus.io/path", "/metrics"),
            )
            yield f"http://{host}:{port}{path}"
