"""Checks of rendered documents before an API server sees them: schemas of custom kinds, references, labels.

The schemas of Kubernetes' own kinds are not here; the API server has them, and the tests hold every template to them.
"""

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.manifests.pod_security import pod_problems
from kveval.engines.kubernetes.manifests.templates import MANIFESTS, Document, ManifestError, ManifestProblem

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


def require_valid(documents: Sequence[Document]) -> None:
    """Raise ManifestError with everything that is wrong with the documents of one run, taken together."""
    found = problems(documents)
    if found:
        raise ManifestError("; ".join(map(str, found)), code="not_valid", problems=found)


def problems(documents: Sequence[Document]) -> list[ManifestProblem]:
    """Return what is wrong; as text, one line each: kind, name, what, what would be right."""
    found = [
        problem._replace(document=_title(document)) for document in documents for problem in _own_problems(document)
    ]
    return [*found, *_clashes(documents), *_broken_references(documents)]


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
        text = f"name {name!r} is no RFC 1123 label of at most {_NAME_LENGTH} characters"
        yield ManifestProblem("name", name, text)
    # A namespace is nobody's of ours: it stays.
    yield from _label_problems(metadata.get("labels", {})) if document["kind"] != "Namespace" else ()
    if document["kind"] in CUSTOM_KINDS:
        for error in _validator(document["kind"]).iter_errors(document):
            path = ".".join(map(str, error.absolute_path))
            yield ManifestProblem("schema", path, f"{path}: {error.message}")
    if document["kind"] == "ConfigMap":
        size = sum(len(key) + len(text.encode()) for key, text in document.get("data", {}).items())
        if size > _CONFIG_MAP_BYTES:
            yield ManifestProblem("too_large", "data", f"{size} bytes, a ConfigMap holds {_CONFIG_MAP_BYTES}")
    for keys, value in _numbers_for_text(document):
        path = ".".join(map(str, keys))
        yield ManifestProblem("number", path, f"{path}: the quantity {value!r} must be text")
    for _, template in pod_templates([document]):
        yield from _label_problems(template["metadata"].get("labels", {}))
        yield from pod_problems(template["spec"], privileged=document["kind"] == "DaemonSet")


def _label_problems(labels: Mapping[str, str]) -> Iterator[ManifestProblem]:
    for label in _LABELS:
        if label not in labels:
            yield ManifestProblem("no_label", label, f"lacks the label {label}")
    for label, value in labels.items():
        if len(value) > names.VALUE_LENGTH or not _LABEL_VALUE.fullmatch(value):
            yield ManifestProblem("label_value", label, f"label {label} cannot have the value {value!r}")


def _numbers_for_text(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield quantities that are no text: old API servers refuse numbers in server-side apply."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if path and path[-1] in ("requests", "limits") and not isinstance(item, str):
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
            yield ManifestProblem("twice", metadata["name"], "rendered twice", _title(document))
        seen.add(key)


def _broken_references(documents: Sequence[Document]) -> Iterator[ManifestProblem]:
    templates = list(pod_templates(documents))
    by_kind: dict[str, dict[str, Document]] = {}
    for document in documents:
        by_kind.setdefault(document["kind"], {})[document["metadata"]["name"]] = document
    for document, template in templates:
        title = _title(document)
        labels = template["metadata"]["labels"]
        for label, value in document["spec"].get("selector", {}).get("matchLabels", {}).items():
            if labels.get(label) != value:
                text = f"selects {label}={value}, which its own pods do not have"
                yield ManifestProblem("selector", label, text, title)
        for volume in template["spec"].get("volumes", []):
            wanted = volume.get("configMap", {}).get("name")
            if wanted is not None and wanted not in by_kind.get("ConfigMap", {}):
                text = f"mounts ConfigMap {wanted}, which is not rendered"
                yield ManifestProblem("not_rendered", f"ConfigMap {wanted}", text, title)
    labelled = [template["metadata"]["labels"] for _, template in templates]
    for document in documents:
        for selector in _selectors(document):
            if not any(selector.items() <= labels.items() for labels in labelled):
                text = "selects no pod that is rendered"
                yield ManifestProblem("selects_no_pod", ",".join(selector), text, _title(document))
        for kind, name in _named(document):
            if name not in by_kind.get(kind, {}):
                text = f"names {kind} {name}, which is not rendered"
                yield ManifestProblem("not_rendered", f"{kind} {name}", text, _title(document))


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
            yield from ((ref["kind"], ref["name"]) for rule in spec["rules"] for ref in rule["backendRefs"])
        case "HealthCheckPolicy" | "GCPBackendPolicy":
            yield spec["targetRef"]["kind"], spec["targetRef"]["name"]
        case "RoleBinding":
            yield document["roleRef"]["kind"], document["roleRef"]["name"]
            yield from ((subject["kind"], subject["name"]) for subject in document["subjects"])


def _title(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


@functools.cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((_SCHEMAS / f"{kind.lower()}.json").read_text()))
