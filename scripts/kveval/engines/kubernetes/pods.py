"""A cell's pods: HTTP to them, the sidecars in them, and what they declare.

HTTP goes directly if a URL leads to the pod, otherwise by the API server's proxy, which needs no route to pods.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from kveval.engines.kubernetes.api.errors import AWAY, ClusterError
from kveval.engines.kubernetes.api.kinds import POD, status_of
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import fill_url
from kveval.engines.watchdog import WAY_LOST
from kveval.host.http import HttpError, fetch_from
from kveval.stacks.sidecar import Container
from kveval.stacks.talk import Fetch


def fetch_from_pod(context: RunContext, pod: Mapping[str, Any], port: int) -> Fetch:
    """Return what sends requests to one port of one pod; it raises HttpError."""
    if direct := direct_url(context, port):
        return fetch_from(direct)
    api, namespace, name = context.api, context.namespace, str(pod["metadata"]["name"])
    target = f"{POD.path(namespace, f'{name}:{port}')}/proxy"

    def fetched(
        path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0
    ) -> bytes:
        path, _, query = path.partition("?")
        pairs = dict(parse_qsl(query))
        try:
            # Not retried, because a status here may be the answer of the proxied server.
            answer = api.of_pod(
                namespace,
                name,
                lambda: api.once(
                    method, target + path, query=pairs, body=body, timeout_s=timeout_s
                ),
                final=AWAY,
            )
        except ClusterError as error:
            # Without a status nothing is known about the pod: the API server, or the pod's node, does not answer.
            code = WAY_LOST if error.status is None else ""
            raise HttpError(
                f"{method} {path} of pod {name} failed: {error}", code=code, pod=name
            ) from error
        return answer.body

    return fetched


def direct_url(context: RunContext, port: int) -> str | None:
    """Return the URL of a port if pods share one network with this program, None if they have their own."""
    site = context.site
    if not site.shared_network or site.address in ("gateway", "service"):
        return None
    return fill_url(site.address, context, port)


def waypoint(context: RunContext, port: int) -> str:
    """Return what requests to a port of a pod pass on their way, "" for nothing; its time adds to theirs."""
    return "" if direct_url(context, port) else "the API server"


def sidecar_container(
    context: RunContext, pod: Mapping[str, Any], name: str, log: object
) -> Container:
    """Return a pod's container of this name as a sidecar's; `log`: the copy of its log."""

    def run(argv: Sequence[str]) -> str:
        pod_name = str(pod["metadata"]["name"])
        try:
            done = context.api.exec(
                context.namespace, pod_name, name, argv, timeout_s=15.0
            )
        except ClusterError as error:
            raise ValueError(str(error)) from error
        if done.returncode:
            raise ValueError(done.error_text)
        return done.text

    return Container(
        argv=command_line(pod, name),
        image=str(container_of(pod, name).get("image", "")),
        log=log,
        ports=context.ports,
        fetch=functools.partial(fetch_from_pod, context, pod),
        run=run,
    )


def container_of(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a container of a pod's specification, {} if it has none of this name."""
    return next(
        (entry for entry in pod["spec"]["containers"] if entry["name"] == name), {}
    )


def command_line(pod: Mapping[str, Any], container: str) -> list[str]:
    """Return a container's command with its arguments, from the pod's specification."""
    spec = container_of(pod, container)
    return [*(spec.get("command") or []), *(spec.get("args") or [])]


def environment(pod: Mapping[str, Any], container: str) -> dict[str, str]:
    """Return a container's environment; for a value from a Secret or the like, only its source is named."""
    return {
        entry["name"]: _value(entry)
        for entry in container_of(pod, container).get("env") or []
    }


def _value(entry: Mapping[str, Any]) -> str:
    if "valueFrom" not in entry:
        return str(entry.get("value", ""))
    source = entry["valueFrom"]
    for kind, fields in source.items():
        if kind == "fieldRef":
            return f"{{{fields['fieldPath']}}}"
        if "name" in fields:
            return f"{{{kind.removesuffix('KeyRef')} {fields['name']}/{fields['key']}}}"
    return "{elsewhere}"


def images_of(pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the image of every container as it was pulled, including its digest, by the container's name."""
    return {
        str(status["name"]): str(status.get("imageID") or status.get("image") or "")
        for pod in pods
        for status in status_of(pod).get("containerStatuses") or []
    }


def nodes_of(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the nodes that pods run on."""
    return sorted({str(pod["spec"].get("nodeName", "")) for pod in pods})
