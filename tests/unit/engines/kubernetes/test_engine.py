"""The cluster engine's own decisions, on stand-ins for the way to a cluster; the whole runs in test_kubernetes_*."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_run import SITE, SPECIFICATION, run_context
from tests.support.fake_cluster import FakeTransport, made, ok, status

from kveval.engines import merge_metrics
from kveval.engines.kubernetes import recorder_scripts
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.engine import own_ports
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import PORTS
from kveval.engines.kubernetes.nodes import adoptable, describe, labelled_gpu, stable
from kveval.engines.kubernetes.pods import (
    direct_url,
    environment,
    fetch_from_pod,
    images_of,
    sidecar_container,
    waypoint,
)
from kveval.engines.kubernetes.recordings import process_block
from kveval.host.http import HttpError
from kveval.stacks.counters import parse_counters
from kveval.stacks.keyvalue import KeyValueStore, Redis
from kveval.stacks.sidecar import SidecarError

POD_OF_SERVER = made("Pod", "server-0")


def node(
    gpus: int = 8, product: str = "H100", memory: str = "1056Gi", **changes: Any
) -> dict[str, Any]:
    return made(
        "Node",
        changes.pop("name", "a"),
        {
            "nvidia.com/gpu.product": product,
            "nvidia.com/gpu.memory": "81559",
            **changes.pop("labels", {}),
        },
        status={
            "capacity": {"cpu": "64", "memory": memory, "nvidia.com/gpu": str(gpus)},
            "nodeInfo": {
                "architecture": "amd64",
                "kernelVersion": changes.pop("kernel", "6.1"),
            },
        },
    )


GPU = "nvidia.com/gpu"
CARD = {"name": "H100", "memory_bytes": 81559 * 2**20, "driver": "570.1"}


def fingerprint(*nodes: Mapping[str, Any]) -> str:
    return str(describe(nodes, GPU, [])["fingerprint"])


def test_the_fingerprint_is_of_kinds_of_nodes_not_of_their_number() -> None:
    assert fingerprint(node()) == fingerprint(node(), node(name="b", kernel="6.6"))
    # Kernels keep slightly different amounts for themselves.
    assert fingerprint(node()) == fingerprint(node(memory=str(1056 * 2**30 - 10**6)))
    others = [
        node(product="A100"),
        node(gpus=4),
        node(labels={"node.kubernetes.io/instance-type": "a3"}),
    ]
    others += [node(labels={"nvidia.com/gpu.memory": "40960"})]
    assert len({fingerprint(other) for other in [node(), *others]}) == 5


def test_what_is_adopted_is_of_one_kind_of_node_unless_several_serve() -> None:
    kinds = [node(), node(name="b"), node(name="c", product="L40S")]
    assert adoptable(kinds, GPU, servers=1) == [
        fingerprint(kinds[0]),
        fingerprint(kinds[2]),
    ]
    assert adoptable(kinds, GPU, servers=2) == [
        *adoptable(kinds, GPU, servers=1),
        fingerprint(kinds[0], kinds[2]),
    ]
    assert adoptable([], GPU, servers=1) == []


def test_hardware_is_described_as_a_hosts_is() -> None:
    found = describe([node(name="b", kernel="6.6"), node()], GPU, [CARD, CARD])
    assert found["cpus"] == 64
    assert found["kernel"] == "6.1"
    assert found["memory_bytes"] == 1056 * 2**30
    assert found["gpus"] == [CARD, CARD]
    assert found["nodes"] == ["a", "b"]
    assert found["machines"] == [stable(node(), GPU)] * 2
    assert labelled_gpu(node(), GPU) == {**CARD, "driver": ""}


# Pods


def test_a_pod_is_asked_through_the_api_server_or_where_the_address_leads() -> None:
    transport = FakeTransport(lambda call: ok({"version": "0.11.2"}))
    fetch = fetch_from_pod(run_context(transport), POD_OF_SERVER, 8000)
    assert json.loads(fetch("/version?a=b")) == {"version": "0.11.2"}
    assert (
        transport.calls[-1].path
        == "/api/v1/namespaces/bench/pods/server-0:8000/proxy/version"
    )
    assert transport.calls[-1].query == {"a": "b"}
    assert waypoint(run_context(transport), 8000) == "the API server"
    shared = SITE.model_copy(
        update={"shared_network": True, "address": "http://127.0.0.1:{port}"}
    )
    assert direct_url(run_context(transport, shared), 8123) == "http://127.0.0.1:8123"
    assert waypoint(run_context(transport, shared), 8123) == ""


@pytest.mark.parametrize("code", [404, 500, 502, 503])
def test_what_a_proxied_pod_answers_is_not_taken_for_an_api_server_that_is_away(
    code: int,
) -> None:
    transport = FakeTransport(
        lambda call: status(code, "ServiceUnavailable", "connection refused")
    )
    retrying = RunContext(SPECIFICATION, SITE, 1, "spring", PORTS, "0", Api(transport))
    begin = time.monotonic()
    with pytest.raises(HttpError) as error:
        fetch_from_pod(retrying, POD_OF_SERVER, 8000)("/health")
    assert error.value.facts["pod"] == "server-0"
    assert time.monotonic() - begin < 5


def store(tmp_path: Path, script: str) -> KeyValueStore:
    client = tmp_path / "redis-cli"
    client.write_text(f"#!/bin/sh\n{script}\n")
    client.chmod(0o755)
    transport = FakeTransport(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    pod = made(
        "Pod",
        "redis-0",
        spec={
            "containers": [
                {"name": "redis", "command": ["redis-server"], "args": ["--x"]}
            ]
        },
    )
    # The stand-in starts programs itself and finds them by this process's PATH.
    container = sidecar_container(run_context(transport), pod, "redis", "redis.log")
    return Redis.in_pod(container)


def test_a_store_in_a_pod_is_asked_with_its_own_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    info = "redis_version:7.4.2\\r\\nused_memory:10\\r\\ntotal_net_input_bytes:1\\r\\ntotal_net_output_bytes:2\\r\\n"
    info += "keyspace_hits:3\\r\\nkeyspace_misses:4\\r\\n"
    found = store(
        tmp_path,
        f'case "$3" in INFO) printf "{info}" ;; DBSIZE) echo 7 ;; *) echo OK ;; esac',
    )
    found.identify({})
    assert found.version == "7.4.2"
    assert found.counters()["redis_keys"] == 7
    assert found.argv == ["redis-server", "--x"]
    broken = store(tmp_path, "echo no route >&2; exit 1")
    with pytest.raises(SidecarError) as error:
        broken.ask("DBSIZE")
    assert error.value.code == "no_answer"
    assert error.value.facts == {
        "program": "redis",
        "command": "DBSIZE",
        "said": "no route",
        "log": "redis.log",
    }


def test_a_containers_environment_is_shown_without_what_comes_from_secrets() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}},
        },
    ]
    pod = made("Pod", "x", spec={"containers": [{"name": "server", "env": env}]})
    assert environment(pod, "server") == {
        "A": "1",
        "IP": "{status.podIP}",
        "TOKEN": "{secret hub/token}",
    }


def test_what_was_pulled_is_read_from_pods() -> None:
    pulled = {
        "name": "load",
        "state": {"running": {}},
        "imageID": "registry/guidellm@sha256:ab",
    }
    assert images_of([made("Pod", "x", status={"containerStatuses": [pulled]})]) == {
        "load": "registry/guidellm@sha256:ab"
    }


def test_ports_of_a_shared_network_are_all_different() -> None:
    ports = own_ports()
    assert ports.keys() == PORTS.keys()
    assert len(set(ports.values())) == len(PORTS)


# The recorder's scripts, run here with stand-ins for PCP's programs


@pytest.fixture
def recorder(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Run a script of the recorder with /etc/pcp.env and pmlogger replaced."""
    binaries, state = tmp_path / "bin", tmp_path / "state"
    sources = state / "var" / "pmdas" / "openmetrics" / "config.d"
    binaries.mkdir()
    sources.mkdir(parents=True)
    (tmp_path / "pcp.env").write_text(
        f"PCP_BIN_DIR={binaries} PCP_BINADM_DIR={binaries} PCP_VERSION=7.2.1\n"
    )
    (binaries / "pmlogger").write_text(
        '#!/bin/sh\ntrap "exit 0" TERM\necho "$@" > "$(dirname "$2")/started"\nwhile :; do sleep 0.05; done\n'
    )
    (binaries / "pmlogger").chmod(0o755)
    groups, start = tmp_path / "groups", tmp_path / "start"
    start.mkdir()
    shutil.copy(merge_metrics.__file__, start / "merge.py")
    groups.mkdir()
    for name, text in {
        "once": "ONCE",
        "host": "HOST",
        "vllm": "log @SOURCE@",
        "access": "ACCESS",
    }.items():
        (groups / name).write_text(text + "\n")

    def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        text = script.replace("/etc/pcp.env", str(tmp_path / "pcp.env"))
        argv = ["sh", "-c", text, str(tmp_path / "runs" / "rabc"), *arguments]
        env = {"PATH": f"{binaries}:/usr/bin:/bin", "PCP_VAR_DIR": str(state / "var")}
        env |= {"KVEVAL_GROUPS": str(groups), "KVEVAL_START": str(start)}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30)

    return run


def test_a_recording_is_started_stopped_and_removed_with_its_sources(
    recorder: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    folder, sources = (
        tmp_path / "runs" / "rabc",
        tmp_path / "state" / "var" / "pmdas" / "openmetrics" / "config.d",
    )
    assert (
        recorder(
            recorder_scripts.SOURCES, "vllm_rabc", "http://10.0.0.1:8000/metrics"
        ).returncode
        == 0
    )
    (sources / "dcgm.url").write_text("http://n:9400/metrics\n")
    assert (sources / "vllm_rabc.url").read_text() == "http://10.0.0.1:8000/metrics\n"
    block = process_block([12, 34])
    begun = recorder(
        recorder_scripts.START,
        block,
        "1000",
        "vllm_rabc",
        "vllm",
    )
    assert begun.returncode == 0, begun.stderr
    deadline = time.monotonic() + 10
    while not (folder / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    text = (folder / "pmlogger.conf").read_text()
    assert text.startswith(
        "ONCE\nHOST\nlog mandatory on default {\n    proc.psinfo.rss [ 12, 34 ]"
    )
    assert text.endswith("log vllm_rabc\nACCESS\n")
    assert "-t 1000msec" in (folder / "started").read_text()
    assert recorder(recorder_scripts.RECORDINGS).stdout.split() == ["rabc"]
    assert recorder(recorder_scripts.STOP).returncode == 0
    # It ended, and whoever asks once more is told that it had.
    assert recorder(recorder_scripts.STOP).returncode == 3
    assert recorder(recorder_scripts.REMOVE).returncode == 0
    assert not folder.exists()
    assert [path.name for path in sources.iterdir()] == ["dcgm.url"]
    assert recorder(recorder_scripts.VERSION).stdout == "7.2.1\n"


def test_a_source_of_several_replicas_is_one_page_with_their_label(
    recorder: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    pages = [
        "# HELP vllm:t tokens\n# TYPE vllm:t_total counter\nvllm:t_total 3\n# TYPE x gauge\nx 1\n",
        "vllm:t_total 4\n",
    ]
    for number, page in enumerate(pages):
        (tmp_path / str(number)).write_text(page)
    urls = " ".join(f"file://{tmp_path}/{number}" for number in range(2))
    assert recorder(recorder_scripts.SOURCES, "vllm_rabc", urls).returncode == 0
    source = (
        tmp_path / "state" / "var" / "pmdas" / "openmetrics" / "config.d" / "vllm_rabc"
    )
    page = subprocess.run([source], capture_output=True, text=True, check=True).stdout
    assert parse_counters(page, "vllm:") == {
        "vllm:t_total": 7.0,
        'vllm:t_total{replica="0"}': 3.0,
        'vllm:t_total{replica="1"}': 4.0,
    }
    # A total of some would pass for that of all.
    (tmp_path / "1").unlink()
    assert subprocess.run([source], capture_output=True).returncode != 0
    assert recorder(recorder_scripts.REMOVE).returncode == 0
    assert not source.exists()


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
        min_size=1,
        max_size=4,
    )
)
def test_merged_pages_have_the_sum_of_all(pages: list[dict[str, int]]) -> None:
    texts = [
        "".join(
            f'# TYPE vllm:n{name}_total counter\nvllm:n{name}_total{{engine="0"}} {value}\n'
            for name, value in page.items()
        )
        for page in pages
    ]
    found = parse_counters(merge_metrics.merged(texts), "vllm:")
    for name in "abc":
        total = sum(page.get(name, 0) for page in pages)
        assert found.get(f"vllm:n{name}_total", 0) == total


def test_without_processes_nothing_is_logged_of_them() -> None:
    assert process_block([]) == ""


def test_a_run_selects_its_own_objects_alone() -> None:
    context = run_context(FakeTransport())
    asked = context.selector()
    assert "kveval.dev/campaign=spring" in asked
    assert "kveval.dev/run=1" in asked
    other = replace(context, run=2)
    assert other.selector() != context.selector()
    assert other.name("model-server") != context.name("model-server")
