"""The way of the requests: whose Gateway it is, what has to be accepted, and that a request comes through."""

from types import SimpleNamespace

import pytest

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import routes
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.exec import Executed

ACCEPTED = [
    {"type": "Accepted", "status": "True"},
    {"type": "ResolvedRefs", "status": "True"},
]
REFUSED = [
    {"type": "Accepted", "status": "True"},
    {"type": "ResolvedRefs", "status": "False", "reason": "NoKind"},
]


class StubApi:
    """Answers reads by kind and commands in turn, the last for ever."""

    def __init__(self, objects=None, answers=()):
        self.objects, self.answers, self.asked = objects or {}, list(answers), []

    def read(self, kind, name, namespace=""):
        found = self.objects.get(kind.kind)
        if isinstance(found, Exception):
            raise found
        return (
            found.pop(0)
            if isinstance(found, list) and len(found) > 1
            else found[0]
            if found
            else None
        )

    def exec(self, namespace, pod, container, argv, timeout_s):
        self.asked.append((pod, container, argv))
        code, said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return Executed(b"", said.encode(), code)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(routes, "_POLL_S", 0.001)
    monkeypatch.setattr(routes, "_PROGRAMMED_S", 0.1)


def status(conditions):
    return {"status": {"parents": [{"conditions": conditions}]}}


def run_context(api, route="gateway"):
    model = SimpleNamespace(served_name="m")
    return SimpleNamespace(
        api=api,
        namespace="kv",
        gateway_name="gw",
        name=lambda component: component,
        deployment=SimpleNamespace(route=route),
        specification=SimpleNamespace(model=model),
    )


SERVER = SimpleNamespace(replicas=[SimpleNamespace(name="server-0")])


def site(**gateway):
    return Cluster.model_validate({"gateway": {"name": "gw", **gateway}})


@pytest.mark.parametrize(
    ("controller", "provider"),
    [
        ("openshift.io/gateway-controller/v1", "istio"),
        ("openshift.io/gateway-controller", "istio"),
        ("istio.io/gateway-controller", "istio"),
        ("networking.gke.io/gateway", "gke"),
        ("kgateway.dev/kgateway", "none"),
    ],
)
@pytest.mark.parametrize("created", [True, False])
def test_whose_a_gateway_is_says_the_controller_of_its_class(
    controller, provider, created
):
    objects = {
        "Gateway": [{"spec": {"gatewayClassName": "ours"}}],
        "GatewayClass": [{"spec": {"controllerName": controller}}],
    }
    given = site(**({"create": True, "class": "istio"} if created else {}))
    told = routes.with_controller(StubApi(objects), given).gateway
    assert (told.controller, told.provider) == (controller, provider)


def test_a_class_that_may_not_be_read_is_told_by_its_name():
    denied = {
        "Gateway": ClusterError("forbidden"),
        "GatewayClass": ClusterError("forbidden"),
    }
    assert (
        routes.with_controller(
            StubApi(denied), site(**{"class": "openshift-default"})
        ).gateway.provider
        == "istio"
    )
    assert routes.with_controller(StubApi(denied), site()).gateway.provider == "none"
    bare = Cluster.model_validate({})
    assert routes.with_controller(StubApi(denied), bare) is bare


def test_a_request_goes_through_once_everything_is_accepted():
    answers = [(1, "HTTP 503: no healthy upstream"), (0, "")]
    api = StubApi(
        {"HTTPRoute": [{}, status(ACCEPTED)], "InferencePool": [status(ACCEPTED)]},
        answers,
    )
    routes.require_routed(run_context(api), SERVER, "http://gw:80")
    assert [(pod, container, argv[3]) for pod, container, argv in api.asked] == 2 * [
        ("server-0", "server", "http://gw:80/v1/completions")
    ]


def test_a_proxy_of_its_own_is_asked_and_nothing_else_read():
    api = StubApi(answers=[(0, "")])
    routes.require_routed(run_context(api, "standalone"), SERVER, "http://epp:8081")
    assert len(api.asked) == 1
    routes.require_routed(run_context(api, "service"), SERVER, "http://server:8000")
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ({"HTTPRoute": [status(REFUSED)]}, ["HTTPRoute", "ResolvedRefs", "NoKind"]),
        (
            {"HTTPRoute": [status(ACCEPTED)], "InferencePool": [status([])]},
            ["InferencePool", "gw"],
        ),
        (
            {"HTTPRoute": [status(ACCEPTED)], "InferencePool": [status(ACCEPTED)]},
            ["http://gw:80", "HTTP 503: no healthy upstream"],
        ),
    ],
)
def test_what_does_not_let_requests_through_is_named(objects, says):
    with pytest.raises(ClusterError) as refused:
        routes.require_routed(
            run_context(StubApi(objects, [(1, "HTTP 503: no healthy upstream")])),
            SERVER,
            "http://gw:80",
        )
    assert all(word in str(refused.value) for word in says)


@pytest.mark.parametrize(
    ("gateway", "found"),
    [
        (
            {
                "spec": {"listeners": [{"protocol": "HTTP", "port": 80}]},
                "status": {"addresses": [{"value": "10.0.0.1"}]},
            },
            "http://10.0.0.1:80",
        ),
        ({"spec": {"listeners": [{"protocol": "HTTP", "port": 80}]}}, "address"),
        (
            {"spec": {"listeners": [{"protocol": "HTTPS", "port": 443}]}},
            "HTTP listener",
        ),
        (None, "no Gateway"),
    ],
)
def test_the_address_of_a_gateway(gateway, found):
    there = SimpleNamespace(
        api=StubApi({"Gateway": [gateway]} if gateway else {}),
        gateway_name="gw",
        gateway_namespace="kv",
    )
    if found.startswith("http"):
        assert routes.gateway_url(there) == found
        return
    with pytest.raises(ClusterError) as refused:
        routes.gateway_url(there)
    assert found in str(refused.value)
