"""llm-d's router: the documents of its own charts (manifests/llm-d), with a cell's additions (router.yaml.j2)."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.manifests.context import RenderContext
from kveval.engines.kubernetes.manifests.templates import MANIFESTS

PROXY_PORT = 8081
"""Port of the charts' Envoy, which gets the requests if there is no Gateway."""
_NAME = re.compile(r"kveval-router(?:-([a-z]+(?:-[a-z]+)*))?")
_OF_PROVIDER = {
    "DestinationRule": "istio",
    "GCPBackendPolicy": "gke",
    "HealthCheckPolicy": "gke",
}
# From llm-d's charts; the chart of the oldest release has none.
_PICKER_RESOURCES = {
    "requests": {"cpu": "8", "memory": "8Gi"},
    "limits": {"memory": "16Gi"},
}


def router(context: RenderContext) -> tuple[Document, ...]:
    """Return the documents of a cell's router, from its release's chart. Raises ManifestError for a bad template."""
    added = {document["kind"]: document for document in context.documents("router")}
    return tuple(
        _completed(_named(document, context), added.get(document["kind"], {}), context)
        for document in _chart(str(context.deployment.router))
        if _OF_PROVIDER.get(document["kind"], context.provider) == context.provider
    )


@functools.cache
def _chart(name: str) -> tuple[Document, ...]:
    text = (MANIFESTS / "llm-d" / f"{name}.yaml").read_text(encoding="utf-8")
    return tuple(yaml.load_all(text, Loader=yaml.CSafeLoader))


def _named(value: Any, context: RenderContext) -> Any:
    """Put the cell's names into a document of a chart."""
    if isinstance(value, Mapping):
        return {key: _named(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item, context) for item in value]
    if not isinstance(value, str):
        return value
    if value == "kveval-plugins":
        # JSON is YAML, too.
        return json.dumps(context.filled(context.deployment.picker), indent=1)
    selector = ",".join(
        f"{name}={label}" for name, label in context.pod_labels("model-server").items()
    )
    text = value.replace("kveval-selector=kveval-selector", selector)
    text = text.replace("kveval-namespace", context.site.namespace)
    return _NAME.sub(lambda match: context.name(match[1] or "routing"), text)


def _completed(document: Document, added: Document, context: RenderContext) -> Document:
    result: Document = _merged(document, added)
    own = context.metadata("epp", result["metadata"]["name"])
    result["metadata"] = _merged(result["metadata"], own)
    if result["kind"] == "Deployment":
        pod = result["spec"]["template"]["spec"]
        names = {
            container["name"]
            for container in added["spec"]["template"]["spec"]["containers"]
        }
        pod["containers"] = [
            container for container in pod["containers"] if container["name"] in names
        ]
        for container in pod["containers"]:
            container["resources"] = _merged(
                _PICKER_RESOURCES, container.get("resources", {})
            )
        mounted = {
            mount["name"]
            for container in pod["containers"]
            for mount in container.get("volumeMounts", [])
        }
        pod["volumes"] = [
            volume for volume in pod["volumes"] if volume["name"] in mounted
        ]
    return result


def _merged(value: Any, added: Any) -> Any:
    """Merge as kubectl does: fields by name, list items by mountPath or name, null removes; a command is replaced."""
    if isinstance(value, Mapping) and isinstance(added, Mapping):
        both = {
            key: item if key == "command" else _merged(value.get(key), item)
            for key, item in added.items()
            if item is not None
        }
        return {
            key: item
            for key, item in {**value, **both}.items()
            if key not in added or added[key] is not None
        }
    if isinstance(value, list) and isinstance(added, list):
        named = {_key(item): item for item in added if _key(item)}
        kept = [
            _merged(item, named.pop(_key(item), item)) if _key(item) in named else item
            for item in value
        ]
        return [
            *kept,
            *(item for item in added if not _key(item) or _key(item) in named),
        ]
    return value if added is None else added


def _key(item: Any) -> str:
    return (
        str(item.get("mountPath") or item.get("name") or "")
        if isinstance(item, Mapping)
        else ""
    )
