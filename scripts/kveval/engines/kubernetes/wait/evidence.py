"""The lines below an error's first: what the cluster noted and what the container printed last."""

import contextlib
from collections.abc import Mapping
from typing import Any

from kveval.engines.kubernetes.api.client import Api, event_time
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import VOLUME_CLAIM, Document, described

_EVENTS = 8
_LOG_LINES = 20


def evidence(
    api: Api,
    document: Mapping[str, Any] | None,
    pod: Mapping[str, Any] | None = None,
    container: str = "",
    previous: bool = False,
) -> str:
    """Return the last events of an object and of its pod, and the last lines of a container's log, if any.

    `previous`: the container was started anew since; the log before that tells more. Never raises ClusterError.
    """
    parts = [_events(api, found) for found in (document, pod, *_unbound(api, pod)) if found is not None]
    if pod is not None:
        parts.append(_log(api, pod, container, previous))
    return "".join(f"\n{part}" for part in parts if part)


def _unbound(api: Api, pod: Mapping[str, Any] | None) -> list[Document]:
    """Return the claims of a pod that have no volume: their events say why, the pod's only that they have none."""
    volumes = (pod or {}).get("spec", {}).get("volumes") or []
    names = [volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume]
    found = []
    for name in names:
        with contextlib.suppress(ClusterError):
            found.append(api.read(VOLUME_CLAIM, name, (pod or {})["metadata"]["namespace"]))
    return [claim for claim in found if claim and (claim.get("status") or {}).get("phase") != "Bound"]


def _events(api: Api, document: Mapping[str, Any]) -> str:
    try:
        found = api.events(document)[-_EVENTS:]
    except ClusterError as error:
        return f"events of {described(document)} could not be read: {error}"
    lines = []
    for event in found:
        often = f" (x{event['count']})" if (event.get("count") or 1) > 1 else ""
        message = " ".join(str(event.get("message") or "").split())
        lines.append(f"  {event_time(event)} {event.get('type')} {event.get('reason')}{often}: {message}")
    return "\n".join([f"events of {described(document)}:", *lines]) if lines else ""


def _log(api: Api, pod: Mapping[str, Any], container: str, previous: bool) -> str:
    metadata = pod["metadata"]
    status = pod.get("status") or {}
    # A container that never ran has no log: asking for it would only add a refusal to the message.
    states = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    ran = [found["name"] for found in states if _has_run(found)]
    name = container or (ran[-1] if ran else "")
    if name not in ran:
        return ""
    text = _read(api, metadata, name, previous) or (_read(api, metadata, name, False) if previous else "")
    lines = text.rstrip().splitlines()
    if not lines:
        return f"the log of container {name} of pod {metadata['name']} is empty"
    return "\n".join([f"last log lines of container {name} of pod {metadata['name']}:", *(f"  {x}" for x in lines)])


def _has_run(status: Mapping[str, Any]) -> bool:
    states = [status.get("state") or {}, status.get("lastState") or {}]
    waits_for_restart = (states[0].get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    return waits_for_restart or any("running" in state or "terminated" in state for state in states)


def _read(api: Api, metadata: Mapping[str, Any], container: str, previous: bool) -> str:
    try:
        return api.logs(metadata["namespace"], metadata["name"], container, previous=previous, tail=_LOG_LINES)
    except ClusterError:
        return ""  # it is gone with its node or its pod
