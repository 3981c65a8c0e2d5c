"""Metrics endpoints that a cluster has anyway, found by the labels that their makers give them."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cluster_run import run_context
from tests.support.fake_cluster import Call, FakeTransport, made, ok, status

from kveval.engines.kubernetes import recordings, routes
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.transport import Reply

ISTIO = {"prometheus.io/port": "15020", "prometheus.io/path": "/stats/prometheus"}
PODS = {
    "app=nvidia-dcgm-exporter": [
        made("Pod", "a", spec={"nodeName": "gpu-0"}, status={"podIP": "10.1.0.1"}),
        made("Pod", "b", spec={"nodeName": "gpu-1"}, status={"podIP": "10.1.0.2"}),
        made("Pod", "c", spec={"nodeName": "gpu-2"}, status={"podIP": "fd00::3"}),
        made("Pod", "starting", spec={"nodeName": "gpu-0"}, status={}),
    ],
    "gateway.networking.k8s.io/gateway-name=inference": [
        {
            **made("Pod", "g", spec={}, status={"podIP": "10.1.0.9"}),
            "metadata": {"name": "g", "annotations": ISTIO},
        },
        made("Pod", "another-maker", spec={}, status={"podIP": "10.1.0.8"}),
    ],
}


def api(answers: bool = True) -> Api:
    def answer(call: Call) -> Reply:
        if not answers:
            return status(403, "Forbidden")
        return ok(
            {
                "items": PODS.get(str(call.query.get("labelSelector")), []),
                "metadata": {},
            }
        )

    return Api(FakeTransport(answer), outage_s=0)


def test_the_gpus_of_the_nodes_that_serve_are_found() -> None:
    assert routes.dcgm_urls(api(), {"gpu-0", "gpu-2"}) == [
        "http://10.1.0.1:9400/metrics",
        "http://[fd00::3]:9400/metrics",
    ]


def test_a_gateway_is_found_where_its_pods_say_where_their_metrics_are() -> None:
    assert routes.gateway_urls(api(), "gateways", "inference") == [
        "http://10.1.0.9:15020/stats/prometheus"
    ]
    assert routes.gateway_urls(api(), "gateways", "other") == []


def test_what_may_not_be_listed_is_not_found() -> None:
    assert routes.dcgm_urls(api(answers=False), {"gpu-0"}) == []


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "metrics").write_text("a 1\n")
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path)
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_endpoint_counts_when_the_recorder_reads_it(url: str) -> None:
    context, pod = (
        run_context(FakeTransport()),
        made("Pod", "r", spec={"nodeName": "n"}),
    )
    assert recordings.reaches(context, pod, [f"{url}/metrics"])
    assert not recordings.reaches(context, pod, [f"{url}/metrics", f"{url}/none"])
