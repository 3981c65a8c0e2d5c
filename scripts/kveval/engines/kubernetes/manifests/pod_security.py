"""Kubernetes' restricted pod security standard, and secrets that would be readable in a manifest.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kveval.engines.kubernetes.manifests.templates import ManifestProblem

ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
RECORDER_CAPABILITIES = {"DAC_READ_SEARCH", "SYS_PTRACE"}
"""What the recorder may do beside sharing the node's processes and network: nothing else."""
_SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY)$")


def pod_problems(spec: Mapping[str, Any], *, privileged: bool = False) -> Iterator[ManifestProblem]:
    """Say where a pod goes beyond the standard, or beyond the recorder's stated privileges where it is `privileged`."""
    context = spec.get("securityContext", {})
    for key in ("hostPID", "hostNetwork", "hostIPC"):
        if spec.get(key) and (not privileged or key == "hostIPC"):
            yield _beyond(key, f"{key} is set")
    if context.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield _beyond("seccompProfile", "securityContext.seccompProfile.type must be RuntimeDefault")
    if not privileged and context.get("runAsNonRoot") is not True:
        yield _beyond("runAsNonRoot", "securityContext.runAsNonRoot must be true")
    if not privileged and context.get("runAsUser") == 0:
        yield _beyond("runAsUser", "securityContext.runAsUser must not be 0")
    for volume in spec.get("volumes", []):
        for kind in volume.keys() - {"name"} - ALLOWED_VOLUMES:
            yield _beyond(kind, f"volume {volume['name']} is of kind {kind}")
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for problem in _container_problems(container, privileged=privileged):
            yield problem._replace(text=f"container {container['name']}: {problem.text}")


def _beyond(field: str, text: str) -> ManifestProblem:
    return ManifestProblem("pod_security", field, text)


def _container_problems(container: Mapping[str, Any], *, privileged: bool) -> Iterator[ManifestProblem]:
    context = container.get("securityContext", {})
    capabilities = context.get("capabilities", {})
    if context.get("allowPrivilegeEscalation") is not False:
        yield _beyond("allowPrivilegeEscalation", "allowPrivilegeEscalation must be false")
    if context.get("privileged"):
        yield _beyond("privileged", "privileged is set")
    if "ALL" not in capabilities.get("drop", []):
        yield _beyond("capabilities.drop", "capabilities.drop must have ALL")
    excess = set(capabilities.get("add", [])) - (RECORDER_CAPABILITIES if privileged else set())
    if excess:
        added = ", ".join(sorted(excess))
        yield ManifestProblem("capability", added, f"capabilities.add has {added}")
    if not privileged and context.get("runAsUser") == 0:
        yield _beyond("runAsUser", "runAsUser must not be 0")
    for port in container.get("ports", []):
        if "hostPort" in port:
            yield _beyond("hostPort", f"port {port['hostPort']} is the node's")
    for variable in container.get("env", []):
        if _SECRET.search(variable["name"]) and "value" in variable:
            text = f"{variable['name']} has a value; valid is valueFrom.secretKeyRef"
            yield ManifestProblem("secret_in_clear", variable["name"], text)
