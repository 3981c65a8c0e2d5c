"""Metrics endpoints that a cluster has anyway, found by the labels that their makers give them."""

import dataclasses
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

DCGM = {"app": "nvidia-dcgm-exporter"}
GKE = {"app.kubernetes.io/name": "gke-managed-dcgm-exporter"}
ISTIO = {"prometheus.io/port": "15020", "prometheus.io/path": "/stats/prometheus"}
PODS = {
    "spec.nodeName=gpu-0": [
        made("Pod", "a", DCGM, spec={}, status={"podIP": "10.1.0.1"}),
        made("Pod", "another", {"app": "other"}, spec={}, status={"podIP": "10.1.0.4"}),
        made("Pod", "starting", DCGM, spec={}, status={}),
    ],
    "spec.nodeName=gpu-2": [
        made("Pod", "c", GKE, spec={}, status={"podIP": "fd00::3"})
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
                "items": PODS.get(
                    call.query.get("labelSelector") or call.query["fieldSelector"], []
                ),
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


@pytest.mark.parametrize(
    ("node", "answers", "said"),
    [
        ("gpu-0", False, "this account may not list"),
        ("gpu-1", True, "no exporter was found"),
        ("gpu-0", True, "pod recorder-0 cannot read http://10.1.0.1:9400/metrics"),
    ],
    ids=["no right", "none there", "not reached"],
)
def test_gpu_metrics_that_are_not_recorded_are_said_with_what_brings_them(
    monkeypatch: pytest.MonkeyPatch, node: str, answers: bool, said: str
) -> None:
    monkeypatch.setattr(routes, "reaches", lambda *given: False)
    context = dataclasses.replace(
        run_context(FakeTransport()), api=api(answers=answers)
    )
    lines: list[str] = []
    recorder = {"metadata": {"name": "recorder-0"}}
    assert routes.exporters_of(context, {node}, recorder, lines.append) == {}
    (line,) = [line for line in lines if "GPU" in line]
    assert line.startswith(f"no GPU metrics are recorded: {said}")
    assert line.endswith(" cluster.recorder.sources: {dcgm: URL}")


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
