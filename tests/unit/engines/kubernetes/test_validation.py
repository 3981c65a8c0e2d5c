"""The rules that the rendered documents are held to find each kind of mistake."""

import copy

import pytest
from tests.support.cluster_cells import rendered, variants
from tests.support.config_files import RELEASES
from tests.support.manifest_checks import problems

from kveval.engines.kubernetes.manifests.recorder import recording_documents


@pytest.fixture
def documents():
    specifications, site = variants(RELEASES[1])[0]
    found = [
        *rendered(specifications["Qwen3-14B/llm-d-redis/0"], site),
        *recording_documents("feb-2026", site),
    ]
    return copy.deepcopy(found)


def first(documents, kind, component=None):
    return next(
        document
        for document in documents
        if document["kind"] == kind
        and component in (None, document["metadata"]["labels"]["kveval.dev/component"])
    )


def pod(documents, component="model-server", kind="Deployment"):
    return first(documents, kind, component)["spec"]["template"]["spec"]


def test_what_is_rendered_is_right(documents):
    assert problems(documents) == []


MISTAKES = {
    "no label": (
        lambda d: d[0]["metadata"]["labels"].pop("kveval.dev/run"),
        "no_label",
        "kveval.dev/run",
    ),
    "long name": (lambda d: d[0]["metadata"].update(name="a" * 64), "name", "a" * 64),
    "bad label": (
        lambda d: d[0]["metadata"]["labels"].update(x="a/b"),
        "label_value",
        "x",
    ),
    "twice": (lambda d: d.append(d[0]), "twice", None),
    "selector": (
        lambda d: first(d, "Deployment")["spec"]["selector"]["matchLabels"].update(
            other="1"
        ),
        "selector",
        "other",
    ),
    "service": (
        lambda d: first(d, "Service")["spec"]["selector"].update(other="1"),
        "selects_no_pod",
        None,
    ),
    "pool": (
        lambda d: first(d, "InferencePool")["spec"]["selector"]["matchLabels"].update(
            other="1"
        ),
        "selects_no_pod",
        None,
    ),
    "picker": (
        lambda d: first(d, "InferencePool")["spec"]["endpointPickerRef"].update(
            name="nobody"
        ),
        "not_rendered",
        "Service nobody",
    ),
    "failure mode": (
        lambda d: first(d, "InferencePool")["spec"]["endpointPickerRef"].update(
            failureMode="Open"
        ),
        "schema",
        "spec.endpointPickerRef.failureMode",
    ),
    "unknown field": (
        lambda d: first(d, "InferencePool")["spec"].update(targetPort=1),
        "schema",
        "spec",
    ),
    "no port": (
        lambda d: first(d, "InferencePool")["spec"]["endpointPickerRef"].pop("port"),
        "schema",
        "spec.endpointPickerRef",
    ),
    "route": (
        lambda d: first(d, "HTTPRoute")["spec"]["rules"][0]["backendRefs"][0].update(
            name="nobody"
        ),
        "not_rendered",
        "InferencePool nobody",
    ),
    "route without parent": (
        lambda d: first(d, "HTTPRoute")["spec"].update(parentRefs=[]),
        "schema",
        "spec.parentRefs",
    ),
    "path": (
        lambda d: first(d, "HTTPRoute")["spec"]["rules"][0]["matches"][0][
            "path"
        ].update(value="v1"),
        "schema",
        "spec.rules.0.matches.0.path.value",
    ),
    "timeout": (
        lambda d: first(d, "HTTPRoute")["spec"]["rules"][0]["timeouts"].update(
            request="5 minutes"
        ),
        "schema",
        "spec.rules.0.timeouts.request",
    ),
    "role": (
        lambda d: first(d, "RoleBinding")["roleRef"].update(name="other"),
        "not_rendered",
        "Role other",
    ),
    "volume": (
        lambda d: next(v for v in pod(d, "epp")["volumes"] if "configMap" in v)[
            "configMap"
        ].update(name="other"),
        "not_rendered",
        "ConfigMap other",
    ),
    "too large": (
        lambda d: first(d, "ConfigMap")["data"].update(big="x" * 2**20),
        "too_large",
        "data",
    ),
    "number": (
        lambda d: pod(d)["containers"][0]["resources"]["limits"].update(
            {"nvidia.com/gpu": 2}
        ),
        "number",
        "spec.template.spec.containers.0.resources.limits.nvidia.com/gpu",
    ),
    "token": (
        lambda d: pod(d)["containers"][0]["env"].append(
            {"name": "HF_TOKEN", "value": "x"}
        ),
        "secret_in_clear",
        "HF_TOKEN",
    ),
    "root": (
        lambda d: pod(d)["securityContext"].update(runAsNonRoot=False),
        "pod_security",
        "runAsNonRoot",
    ),
    "user 0": (
        lambda d: pod(d)["securityContext"].update(runAsUser=0),
        "pod_security",
        "runAsUser",
    ),
    "seccomp": (
        lambda d: pod(d)["securityContext"].pop("seccompProfile"),
        "pod_security",
        "seccompProfile",
    ),
    "escalation": (
        lambda d: pod(d)["containers"][0].pop("securityContext"),
        "pod_security",
        "allowPrivilegeEscalation",
    ),
    "capability": (
        lambda d: pod(d)["containers"][0]["securityContext"]["capabilities"].update(
            add=["IPC_LOCK"]
        ),
        "capability",
        "IPC_LOCK",
    ),
    "host path": (
        lambda d: pod(d)["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        "pod_security",
        "hostPath",
    ),
    "host network": (
        lambda d: pod(d).update(hostNetwork=True),
        "pod_security",
        "hostNetwork",
    ),
    "host port": (
        lambda d: pod(d)["containers"][0]["ports"][0].update(hostPort=80),
        "pod_security",
        "hostPort",
    ),
    "privileged recorder": (
        lambda d: pod(d, "recorder", "DaemonSet")["containers"][0][
            "securityContext"
        ].update(privileged=True),
        "pod_security",
        "privileged",
    ),
    "recorder with more": (
        lambda d: pod(d, "recorder", "DaemonSet")["containers"][0]["securityContext"][
            "capabilities"
        ]["add"].append("SYS_ADMIN"),
        "capability",
        "SYS_ADMIN",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(documents, mistake):
    change, code, about = MISTAKES[mistake]
    change(documents)
    found = problems(documents)
    assert [
        problem
        for problem in found
        if problem.code == code and about in (None, problem.about)
    ], found


def test_the_recorder_has_two_capabilities_and_no_privileges(documents):
    spec = pod(documents, "recorder", "DaemonSet")
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context["privileged"] is False
    assert context["capabilities"] == {
        "drop": ["ALL"],
        "add": ["DAC_READ_SEARCH", "SYS_PTRACE"],
    }
    assert not any("hostPath" in volume for volume in spec["volumes"])
    (namespace,) = (
        document for document in documents if document["kind"] == "Namespace"
    )
    assert (
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "privileged"
    )
