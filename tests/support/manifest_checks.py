"""Rules for rendered documents that no schema has: references, labels, custom kinds, pod security, no secret in clear.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.manifests.templates import MANIFESTS

_SCHEMAS = MANIFESTS / "schemas"
CUSTOM_KINDS = (
    "InferencePool",
    "HTTPRoute",
    "Gateway",
    "DestinationRule",
    "HealthCheckPolicy",
    "GCPBackendPolicy",
)
_LABELS = (
    names.MANAGED_BY,
    names.NAME,
    *(f"{names.PREFIX}/{part}" for part in ("campaign", "cell", "run", "component")),
)
_CONFIG_MAP_BYTES = 2**20
_NAME_LENGTH = 63
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

Place = tuple[str | int, ...]


class ManifestProblem(NamedTuple):
    """One thing that is wrong with a document: a name for its kind, the field or value it is about, what to read."""

    code: str
    about: str
    text: str
    document: str = ""
    """Kind and name."""

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


def problems(documents: Sequence[Document]) -> list[ManifestProblem]:
    """Return what is wrong; as text, one line each: kind, name, what, what would be right."""
    own = [
        problem._replace(document=_title(document))
        for document in documents
        for problem in _own_problems(document)
    ]
    return [*own, *_clashes(documents), *_broken_references(documents)]


def pod_templates(documents: Iterable[Document]) -> Iterator[tuple[Document, Document]]:
    """Yield every document that makes pods, with the template of its pods (of a Pod, itself)."""
    for document in documents:
        if document["kind"] == "Pod":
            yield document, document
        elif document["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield document, document["spec"]["template"]


def _own_problems(document: Document) -> Iterator[ManifestProblem]:
    metadata = document["metadata"]
    name = metadata["name"]
    if not _NAME.fullmatch(name) or len(name) > _NAME_LENGTH:
        text = (
            f"name {name!r} is no RFC 1123 label of at most {_NAME_LENGTH} characters"
        )
        yield ManifestProblem("name", name, text)
    # A namespace is nobody's of ours: it stays.
    yield from (
        _label_problems(metadata.get("labels", {}))
        if document["kind"] != "Namespace"
        else ()
    )
    if document["kind"] in CUSTOM_KINDS:
        for error in _validator(document["kind"]).iter_errors(document):
            path = ".".join(map(str, error.absolute_path))
            yield ManifestProblem("schema", path, f"{path}: {error.message}")
    if document["kind"] == "ConfigMap":
        size = sum(
            len(key) + len(text.encode())
            for key, text in document.get("data", {}).items()
        )
        if size > _CONFIG_MAP_BYTES:
            yield ManifestProblem(
                "too_large",
                "data",
                f"{size} bytes, a ConfigMap holds {_CONFIG_MAP_BYTES}",
            )
    for keys, value in _numbers_for_text(document):
        path = ".".join(map(str, keys))
        yield ManifestProblem(
            "number", path, f"{path}: the quantity {value!r} must be text"
        )
    for _, template in pod_templates([document]):
        yield from _label_problems(template["metadata"].get("labels", {}))
        yield from pod_problems(
            template["spec"], privileged=document["kind"] == "DaemonSet"
        )


def _label_problems(labels: Mapping[str, str]) -> Iterator[ManifestProblem]:
    for label in _LABELS:
        if label not in labels:
            yield ManifestProblem("no_label", label, f"lacks the label {label}")
    for label, value in labels.items():
        if len(value) > names.VALUE_LENGTH or not _LABEL_VALUE.fullmatch(value):
            yield ManifestProblem(
                "label_value", label, f"label {label} cannot have the value {value!r}"
            )


def _numbers_for_text(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield quantities that are no text: old API servers refuse numbers in server-side apply."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if (
                path
                and path[-1] in ("requests", "limits")
                and not isinstance(item, str)
            ):
                yield (*path, key), item
            yield from _numbers_for_text(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers_for_text(item, (*path, index))


def _clashes(documents: Sequence[Document]) -> Iterator[ManifestProblem]:
    seen: set[tuple[str, str, str]] = set()
    for document in documents:
        metadata = document["metadata"]
        key = (document["kind"], metadata.get("namespace", ""), metadata["name"])
        if key in seen:
            yield ManifestProblem(
                "twice", metadata["name"], "rendered twice", _title(document)
            )
        seen.add(key)


def _broken_references(documents: Sequence[Document]) -> Iterator[ManifestProblem]:
    templates = list(pod_templates(documents))
    by_kind: dict[str, dict[str, Document]] = {}
    for document in documents:
        by_kind.setdefault(document["kind"], {})[document["metadata"]["name"]] = (
            document
        )
    for document, template in templates:
        title = _title(document)
        labels = template["metadata"]["labels"]
        for label, value in (
            document["spec"].get("selector", {}).get("matchLabels", {}).items()
        ):
            if labels.get(label) != value:
                text = f"selects {label}={value}, which its own pods do not have"
                yield ManifestProblem("selector", label, text, title)
        for volume in template["spec"].get("volumes", []):
            config_map = volume.get("configMap", {}).get("name")
            if config_map is not None and config_map not in by_kind.get(
                "ConfigMap", {}
            ):
                text = f"mounts ConfigMap {config_map}, which is not rendered"
                yield ManifestProblem(
                    "not_rendered", f"ConfigMap {config_map}", text, title
                )
    labelled = [template["metadata"]["labels"] for _, template in templates]
    for document in documents:
        for selector in _selectors(document):
            if not any(selector.items() <= labels.items() for labels in labelled):
                text = "selects no pod that is rendered"
                yield ManifestProblem(
                    "selects_no_pod", ",".join(selector), text, _title(document)
                )
        for kind, name in _named(document):
            if name not in by_kind.get(kind, {}):
                text = f"names {kind} {name}, which is not rendered"
                yield ManifestProblem(
                    "not_rendered", f"{kind} {name}", text, _title(document)
                )


def _selectors(document: Document) -> Iterator[Mapping[str, str]]:
    if document["kind"] == "Service":
        yield document["spec"]["selector"]
    if document["kind"] == "InferencePool":
        yield document["spec"]["selector"]["matchLabels"]


def _named(document: Document) -> Iterator[tuple[str, str]]:
    """Yield kind and name of the documents that one refers to, as far as they are rendered beside it."""
    spec = document.get("spec", {})
    match document["kind"]:
        case "InferencePool":
            yield "Service", spec["endpointPickerRef"]["name"]
        case "HTTPRoute":
            yield from (
                (ref["kind"], ref["name"])
                for rule in spec["rules"]
                for ref in rule["backendRefs"]
            )
        case "HealthCheckPolicy" | "GCPBackendPolicy":
            yield spec["targetRef"]["kind"], spec["targetRef"]["name"]
        case "RoleBinding":
            yield document["roleRef"]["kind"], document["roleRef"]["name"]
            yield from (
                (subject["kind"], subject["name"]) for subject in document["subjects"]
            )


def _title(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


@functools.cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(
        json.loads((_SCHEMAS / f"{kind.lower()}.json").read_text())
    )


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


def pod_problems(
    spec: Mapping[str, Any], *, privileged: bool = False
) -> Iterator[ManifestProblem]:
    """Say where a pod goes beyond the standard, or beyond the recorder's stated privileges where it is `privileged`."""
    context = spec.get("securityContext", {})
    for key in ("hostPID", "hostNetwork", "hostIPC"):
        if spec.get(key) and (not privileged or key == "hostIPC"):
            yield _beyond(key, f"{key} is set")
    if context.get("seccompProfile", {}).get("type") not in (
        "RuntimeDefault",
        "Localhost",
    ):
        yield _beyond(
            "seccompProfile",
            "securityContext.seccompProfile.type must be RuntimeDefault",
        )
    if not privileged and context.get("runAsNonRoot") is not True:
        yield _beyond("runAsNonRoot", "securityContext.runAsNonRoot must be true")
    if not privileged and context.get("runAsUser") == 0:
        yield _beyond("runAsUser", "securityContext.runAsUser must not be 0")
    for volume in spec.get("volumes", []):
        for kind in volume.keys() - {"name"} - ALLOWED_VOLUMES:
            yield _beyond(kind, f"volume {volume['name']} is of kind {kind}")
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for problem in _container_problems(container, privileged=privileged):
            yield problem._replace(
                text=f"container {container['name']}: {problem.text}"
            )


def _beyond(field: str, text: str) -> ManifestProblem:
    return ManifestProblem("pod_security", field, text)


def _container_problems(
    container: Mapping[str, Any], *, privileged: bool
) -> Iterator[ManifestProblem]:
    context = container.get("securityContext", {})
    capabilities = context.get("capabilities", {})
    if context.get("allowPrivilegeEscalation") is not False:
        yield _beyond(
            "allowPrivilegeEscalation", "allowPrivilegeEscalation must be false"
        )
    if context.get("privileged"):
        yield _beyond("privileged", "privileged is set")
    if "ALL" not in capabilities.get("drop", []):
        yield _beyond("capabilities.drop", "capabilities.drop must have ALL")
    excess = set(capabilities.get("add", [])) - (
        RECORDER_CAPABILITIES if privileged else set()
    )
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
