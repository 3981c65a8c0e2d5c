"""Mistakes in manifests are found, and named with what would be right."""

import copy

import pytest
from tests.support.cluster_cells import cells, rendered
from tests.support.config_files import RELEASES

from kveval.engines.kubernetes.manifests.recorder import recording_documents
from kveval.engines.kubernetes.manifests.templates import ManifestError
from kveval.engines.kubernetes.manifests.validation import problems, require_valid


@pytest.fixture
def documents():
    specifications, site = cells(RELEASES[1])
    found = [
        *rendered(specifications["Qwen3-14B/llm-d-redis/0"], site),
        *recording_documents("feb-2026", site, {"gateway": "http://gateway:15020/metrics"}),
    ]
    return copy.deepcopy(found)


def first(documents, kind, component=None):
    return next(
        document
        for document in documents
        if document["kind"] == kind and component in (None, document["metadata"]["labels"]["kveval.dev/component"])
    )


def pod(documents, component="model-server", kind="Deployment"):
    return first(documents, kind, component)["spec"]["template"]["spec"]


def test_what_is_rendered_is_right(documents):
    require_valid(documents)


MISTAKES = {
    "no label": (lambda d: d[0]["metadata"]["labels"].pop("kveval.dev/run"), "lacks the label kveval.dev/run"),
    "long name": (lambda d: d[0]["metadata"].update(name="a" * 64), "no RFC 1123 label"),
    "bad label": (lambda d: d[0]["metadata"]["labels"].update(x="a/b"), "cannot have the value 'a/b'"),
    "twice": (lambda d: d.append(d[0]), "rendered twice"),
    "selector": (
        lambda d: first(d, "Deployment")["spec"]["selector"]["matchLabels"].update(other="1"),
        "selects other=1, which its own pods do not have",
    ),
    "service": (lambda d: first(d, "Service")["spec"]["selector"].update(other="1"), "selects no pod"),
    "pool": (
        lambda d: first(d, "InferencePool")["spec"]["selector"]["matchLabels"].update(other="1"),
        "selects no pod",
    ),
    "picker": (
        lambda d: first(d, "InferencePool")["spec"]["endpointPickerRef"].update(name="nobody"),
        "names Service nobody, which is not rendered",
    ),
    "failure mode": (
        lambda d: first(d, "InferencePool")["spec"]["endpointPickerRef"].update(failureMode="Open"),
        "'Open' is not one of ['FailOpen', 'FailClose']",
    ),
    "unknown field": (lambda d: first(d, "InferencePool")["spec"].update(targetPort=1), "'targetPort' was unexpected"),
    "no port": (
        lambda d: first(d, "InferencePool")["spec"]["endpointPickerRef"].pop("port"),
        "'port' is a required property",
    ),
    "route": (
        lambda d: first(d, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0].update(name="nobody"),
        "names InferencePool nobody",
    ),
    "route without parent": (lambda d: first(d, "HTTPRoute")["spec"].update(parentRefs=[]), "parentRefs"),
    "path": (
        lambda d: first(d, "HTTPRoute")["spec"]["rules"][0]["matches"][0]["path"].update(value="v1"),
        "'v1' does not match",
    ),
    "timeout": (
        lambda d: first(d, "HTTPRoute")["spec"]["rules"][0]["timeouts"].update(request="5 minutes"),
        "'5 minutes' does not match",
    ),
    "role": (lambda d: first(d, "RoleBinding")["roleRef"].update(name="other"), "names Role other"),
    "volume": (
        lambda d: pod(d, "epp")["volumes"][0]["configMap"].update(name="other"),
        "mounts ConfigMap other, which is not rendered",
    ),
    "too large": (lambda d: first(d, "ConfigMap")["data"].update(big="x" * 2**20), "a ConfigMap holds 1048576"),
    "number": (
        lambda d: pod(d)["containers"][0]["resources"]["limits"].update({"nvidia.com/gpu": 2}),
        "the quantity 2 must be text",
    ),
    "token": (lambda d: pod(d)["containers"][0]["env"].append({"name": "HF_TOKEN", "value": "x"}), "secretKeyRef"),
    "root": (lambda d: pod(d)["securityContext"].update(runAsNonRoot=False), "runAsNonRoot must be true"),
    "user 0": (lambda d: pod(d)["securityContext"].update(runAsUser=0), "runAsUser must not be 0"),
    "seccomp": (lambda d: pod(d)["securityContext"].pop("seccompProfile"), "seccompProfile.type must be"),
    "escalation": (lambda d: pod(d)["containers"][0].pop("securityContext"), "allowPrivilegeEscalation must be false"),
    "capability": (
        lambda d: pod(d)["containers"][0]["securityContext"]["capabilities"].update(add=["IPC_LOCK"]),
        "capabilities.add has IPC_LOCK",
    ),
    "host path": (lambda d: pod(d)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}), "is of kind hostPath"),
    "host network": (lambda d: pod(d).update(hostNetwork=True), "hostNetwork is set"),
    "host port": (lambda d: pod(d)["containers"][0]["ports"][0].update(hostPort=80), "port 80 is the node's"),
    "privileged recorder": (
        lambda d: pod(d, "recorder", "DaemonSet")["containers"][0]["securityContext"].update(privileged=True),
        "privileged is set",
    ),
    "recorder with more": (
        lambda d: pod(d, "recorder", "DaemonSet")["containers"][0]["securityContext"]["capabilities"]["add"].append(
            "SYS_ADMIN"
        ),
        "capabilities.add has SYS_ADMIN",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(documents, mistake):
    change, says = MISTAKES[mistake]
    change(documents)
    found = problems(documents)
    assert [problem for problem in found if says in problem], found
    with pytest.raises(ManifestError, match=": "):
        require_valid(documents)


def test_the_recorder_has_two_capabilities_and_no_privileges(documents):
    spec = pod(documents, "recorder", "DaemonSet")
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["privileged"] is False
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH", "SYS_PTRACE"]}
    assert not any("hostPath" in volume for volume in spec["volumes"])
    assert first(documents, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
