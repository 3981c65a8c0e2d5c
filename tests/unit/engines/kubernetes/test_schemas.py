"""Every document of every cell is what the API servers of Kubernetes 1.25 to 1.37, and the custom kinds, take."""

import functools
import json
from collections.abc import Mapping
from importlib.resources import files

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions
from referencing import Registry, Resource
from tests.support.cluster_cells import all_documents, cells
from tests.support.config_files import RAW, RELEASES
from tests.support.manifest_checks import CUSTOM_KINDS, problems

from kveval.engines.kubernetes.leases import lease_document, run_metadata
from kveval.engines.kubernetes.manifests.lifetime import run_lifetime
from kveval.engines.kubernetes.manifests.recorder import installed_documents
from kveval.engines.kubernetes.manifests.rendering import context_of
from kveval.engines.kubernetes.manifests.templates import MANIFESTS

BUNDLED = tuple(dict.fromkeys(all_versions()))
_FOLDER = files(kubernetes_validate) / "kubernetes-json-schema"


@functools.cache
def registry(version):
    folder = _FOLDER / f"v{version}-local-strict"
    return (
        Resource.from_contents(json.loads((folder / "_definitions.json").read_text()))
        @ Registry()
    )


@functools.cache
def validator(version, kind, api_version):
    """Return kubernetes-validate's strict schema of a kind, read once."""
    group, _, rest = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.split('.')[0] + '-' if group else ''}{rest}.json"
    schema = json.loads((_FOLDER / f"v{version}-local-strict" / name).read_text())
    return Draft202012Validator(
        schema, registry=Resource.from_contents(schema) @ registry(version)
    )


def shape(value):
    """Return a document without its texts: two of one shape are valid or not together."""
    if isinstance(value, Mapping):
        return tuple((key, shape(item)) for key, item in sorted(value.items()))
    if isinstance(value, list):
        return tuple(dict.fromkeys(shape(item) for item in value))
    return type(value).__name__


def built_in():
    return [
        (title, document)
        for title, documents in all_documents()
        for document in documents
        if document["kind"] not in CUSTOM_KINDS
    ]


@functools.cache
def shapes():
    """Return a document of each shape, with its title, by shape."""
    return {shape(document): (title, document) for title, document in built_in()}


def findings(version, documents):
    return [
        f"{title}: {document['kind']}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
        for title, document in documents
        for error in validator(
            version, document["kind"], document["apiVersion"]
        ).iter_errors(document)
    ]


def test_the_bundled_versions_are_those_that_are_promised():
    assert [version.rpartition(".")[0] for version in BUNDLED] == [
        f"1.{minor}" for minor in range(25, 38)
    ]


def test_references_labels_security_and_custom_kinds():
    assert [
        f"{title}: {problem}"
        for title, documents in all_documents()
        for problem in problems(documents)
    ] == []


@pytest.mark.parametrize("version", BUNDLED)
def test_every_shape_of_document_is_valid_in_every_version(version):
    assert len(shapes()) > 30
    assert findings(version, shapes().values()) == []


@pytest.mark.parametrize("version", BUNDLED)
def test_what_ends_a_run_and_what_an_administrator_installs_is_valid(version):
    specifications, site = cells(RELEASES[0])
    context = context_of(next(iter(specifications.values())), site, 1, "c")
    lease = lease_document(run_metadata(context), "host-1-1")
    made = [run_lifetime(context), lease, *installed_documents(site)]
    assert findings(version, [("beside", document) for document in made]) == []


@pytest.mark.workflow
@pytest.mark.parametrize("version", [BUNDLED[0], BUNDLED[-1]])
def test_every_document_is_valid_in_the_oldest_and_the_newest_version(version):
    assert findings(version, built_in()) == []


def custom_findings(release, documents):
    """Return what the definitions that a release of llm-d names have against its documents, and the kinds looked at."""
    router = RAW["releases"][release]["router"]
    named = {
        "InferencePool": router["inference_extension"],
        "HTTPRoute": router["gateway_api"],
    }
    named["Gateway"] = named["HTTPRoute"]
    found, seen = [], set()
    for document in documents:
        if (kind := document["kind"]) in named:
            seen.add(kind)
            schema = json.loads(_of_version(kind, named[kind]).read_text())
            assert schema["$comment"].endswith(f" at {named[kind]}")
            found += [
                error.message
                for error in Draft202012Validator(schema).iter_errors(document)
            ]
    return found, seen


def _of_version(kind, version):
    """Return the schema of one version of a kind: that of the newest release of llm-d has no version in its name."""
    own = MANIFESTS / "schemas" / f"{kind.lower()}-{version}.json"
    return own if own.exists() else own.with_name(f"{kind.lower()}.json")


@pytest.mark.parametrize("release", RELEASES)
def test_custom_kinds_are_those_of_the_versions_that_the_release_names(release):
    documents = [
        found
        for title, run in all_documents()
        if title.startswith(f"{release} ")
        for found in run
    ]
    found, seen = custom_findings(release, documents)
    assert found == []
    assert seen == {"InferencePool", "HTTPRoute", "Gateway"}
    changed = json.loads(
        json.dumps(next(one for one in documents if one["kind"] == "InferencePool"))
    )
    changed["spec"]["targetPortNumber"] = 8000
    assert "targetPortNumber" in custom_findings(release, [changed])[0][0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["spec"].update(replica=2), "replica"),
        (
            lambda d: d["spec"]["template"]["spec"]["containers"][0].update(
                imagePullPolicies="Always"
            ),
            "imagePullPol",
        ),
        (lambda d: d["spec"].update(replicas="2"), "'2'"),
    ],
)
def test_a_mistake_would_be_found(change, says):
    document = json.loads(
        json.dumps(next(d for _, d in built_in() if d["kind"] == "Deployment"))
    )
    change(document)
    found = findings(BUNDLED[-1], [("changed", document)])
    assert found
    assert says in found[0]
