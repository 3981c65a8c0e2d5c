"""The cluster engine's own decisions, on stand-ins for the way to a cluster; the whole runs in test_kubernetes_*."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_cells import cells
from tests.support.config_files import CONFIG, LMCACHE, RAW, RELEASES
from tests.support.fake_cluster import Call, FakeTransport, Objects, made, ok, status
from tests.support.known_crash import KNOWN, LOG, NAME

from kveval.config.site import Cluster
from kveval.engines.counters import parse_counters
from kveval.engines.kubernetes import leases, merge_metrics, recorder_scripts
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import Refused
from kveval.engines.kubernetes.api.pod_logs import Follower
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.deployment import ClusterServerHandle
from kveval.engines.kubernetes.engine import images_of, own_ports
from kveval.engines.kubernetes.manifests.rendering import PORTS, Rendered
from kveval.engines.kubernetes.nodes import adoptable, describe, labelled_gpu, stable
from kveval.engines.kubernetes.pod_http import Reach
from kveval.engines.kubernetes.recordings import process_block
from kveval.engines.kubernetes.replicas import ClusterServer, Replica
from kveval.engines.kubernetes.run_place import RunContext
from kveval.engines.kubernetes.sidecars import PodKeyValueStore, environment
from kveval.engines.protocol import ServerDied
from kveval.engines.servers.program import SidecarError
from kveval.engines.servers.vllm import VllmProgram
from kveval.engines.watchdog import StallError
from kveval.host.gpu_conditions import GpuWatch
from kveval.host.http import HttpError
from kveval.measure.known_defects import recognised
from kveval.spec.loading import load_config
from kveval.store.lock import owner

SPECIFICATION = cells(RELEASES[0])[0]["Qwen3-0.6B/native-offload/10000"]
SITE = Cluster.model_validate({"namespace": "bench", "address": "service"})
POD_OF_SERVER = made("Pod", "server-0")


def place(transport: FakeTransport, site: Cluster = SITE) -> RunContext:
    return RunContext(SPECIFICATION, site, 1, "spring", PORTS, "0123456789abcdef", Api(transport, outage_s=0))


# Leases


MARK = {leases.MARK_ANNOTATION: "r1"}


class LeaseServer:
    """The one Lease of a run, with the API server's optimistic locking."""

    def __init__(self, holder: str | None = None) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        if holder is not None:
            self.lease = {
                "metadata": {"name": "x", "namespace": "bench", "uid": "u"},
                "spec": {"holderIdentity": holder},
            }
            self._count()

    def _count(self) -> None:
        assert self.lease is not None
        self.version += 1
        self.lease["metadata"]["resourceVersion"] = str(self.version)

    def __call__(self, call: Call) -> Reply:
        if call.path.endswith("coordination.k8s.io/v1"):
            verbs = ["get", "list", "create", "patch", "delete"]
            return ok({"resources": [{"name": "leases", "kind": "Lease", "namespaced": True, "verbs": verbs}]})
        if call.method == "POST":
            return self._create(call.body)
        if call.path.endswith("/leases"):
            return ok({"items": [self.lease] if self.lease else [], "metadata": {}})
        if self.lease is None:
            return status(404, "NotFound")
        if call.method == "DELETE":
            self.lease = None
            return ok({})
        return self._patch(call.body) if call.method == "PATCH" else ok(self.lease)

    def _create(self, document: Mapping[str, Any]) -> Reply:
        if self.lease is not None:
            return status(409, "AlreadyExists")
        self.lease = json.loads(json.dumps(document))
        self.lease["metadata"]["uid"] = "u"
        self._count()
        return ok(self.lease, 201)

    def _patch(self, change: Mapping[str, Any]) -> Reply:
        assert self.lease is not None
        if change["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return status(409, "Conflict")
        self.lease["spec"] |= change["spec"]
        self._count()
        return ok(self.lease)


def left_by_a_dead_process() -> LeaseServer:
    dead = subprocess.Popen(["true"])
    dead.wait()
    return LeaseServer(holder=owner().replace(f"-{owner().split('-')[-2]}-", f"-{dead.pid}-"))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_POLL_S", 0.02)
    monkeypatch.setattr(leases, "_RENEW_S", 0.05)


@pytest.mark.usefixtures("fast")
def test_a_lease_is_held_renewed_and_given_back() -> None:
    server = LeaseServer()
    with leases.held(place(FakeTransport(server)), pytest.fail, MARK):
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == owner()
        before = server.lease["spec"]["renewTime"]
        time.sleep(0.2)
        assert server.lease["spec"]["renewTime"] > before
        assert leases.mark_of(server.lease) == "r1"
    assert server.lease is None


@pytest.mark.usefixtures("fast")
def test_a_lease_that_is_not_renewed_is_taken_over_and_its_holder_notices() -> None:
    server = LeaseServer(holder="elsewhere-1-1")
    said: list[str] = []
    begin = time.monotonic()
    with leases.held(place(FakeTransport(server)), said.append, MARK, duration_s=0.3) as lease:
        assert time.monotonic() - begin >= 0.3
        lease.check()
        assert server.lease is not None
        server.lease["spec"]["holderIdentity"] = "another-2-2"
        time.sleep(0.2)
        with pytest.raises(leases.LeaseLost) as error:
            lease.check()
        assert error.value.facts["holder"] == "another-2-2"
    # What another holds is not given back.
    assert server.lease is not None
    assert ["elsewhere-1-1" in text for text in said] == [True]


@pytest.mark.usefixtures("fast")
def test_a_lease_that_may_no_longer_be_renewed_is_lost_once_it_has_expired() -> None:
    server = LeaseServer()

    def answer(call: Call) -> Reply:
        return status(403, "Forbidden") if call.method == "PATCH" else server(call)

    with leases.held(place(FakeTransport(answer)), pytest.fail, MARK, duration_s=1) as lease:
        begin = time.monotonic()
        with pytest.raises(leases.LeaseLost) as error:
            while time.monotonic() < begin + 10:
                lease.check()
                time.sleep(0.02)
        assert time.monotonic() - begin >= 1
    assert error.value.code == "lease_not_renewed"


@pytest.mark.usefixtures("fast")
def test_a_lease_that_nobody_took_during_an_outage_is_still_held() -> None:
    server, away = LeaseServer(), False

    def answer(call: Call) -> Reply:
        return status(503, "ServiceUnavailable") if away else server(call)

    with leases.held(place(FakeTransport(answer)), pytest.fail, MARK, duration_s=0.1) as lease:
        away = True
        time.sleep(0.4)
        before, away, begin = server.version, False, time.monotonic()
        while server.version == before and time.monotonic() < begin + 10:
            time.sleep(0.02)
        lease.check()
        assert server.version > before


@pytest.mark.usefixtures("fast")
def test_a_holder_of_this_host_that_is_gone_is_not_waited_for() -> None:
    begin = time.monotonic()
    with leases.held(place(FakeTransport(left_by_a_dead_process())), pytest.fail, MARK, duration_s=60):
        assert time.monotonic() - begin < 10


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("code", [403, 422])
def test_a_takeover_that_is_refused_is_not_repeated(code: int) -> None:
    server = left_by_a_dead_process()
    patches: list[Call] = []

    def answer(call: Call) -> Reply:
        if call.method != "PATCH":
            return server(call)
        assert not patches, "tried again"
        patches.append(call)
        return status(code, "Refused")

    with (
        pytest.raises(Refused) as error,
        leases.held(place(FakeTransport(answer)), pytest.fail, MARK),
    ):
        pytest.fail("the Lease is not held")
    assert error.value.status == code


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(("method", "code"), [("PATCH", 409), ("PATCH", 404), ("GET", 404)])
def test_a_lease_that_changes_meanwhile_is_looked_at_again_after_a_pause(method: str, code: int) -> None:
    server, left = left_by_a_dead_process(), [status(code, "Changed")] * 3

    def answer(call: Call) -> Reply:
        asked = call.method == method and "/leases/" in call.path
        return left.pop() if asked and left else server(call)

    begin = time.monotonic()
    with leases.held(place(FakeTransport(answer)), pytest.fail, MARK):
        assert time.monotonic() - begin >= 3 * leases._POLL_S
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == owner()


@pytest.mark.usefixtures("fast")
def test_an_outage_of_the_api_server_makes_no_holder_count_as_dead() -> None:
    server = LeaseServer(holder="elsewhere-1-1")
    looks, begin = 0, ""

    def answer(call: Call) -> Reply:
        nonlocal looks, begin
        looks += call.method == "GET" and "/leases/" in call.path
        if looks == 2:
            time.sleep(0.4)
        if looks == 6 and not begin:
            server.lease, begin = None, leases.renewed()["renewTime"]
        return server(call)

    transport = FakeTransport(answer)
    with leases.held(place(transport), lambda text: None, MARK, duration_s=0.3):
        assert looks == 6
        # Whoever waited for long counts as living at once.
        assert server.lease is not None
        assert server.lease["spec"]["renewTime"] >= begin
        assert "PATCH" not in {call.method for call in transport.calls}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("taken", [True, False])
def test_a_job_whose_run_was_taken_over_leaves_the_objects_to_the_other(taken: bool, tmp_path: Path) -> None:
    server = LeaseServer()
    said: list[str] = []
    objects = Objects(made("Pod", "server", place(FakeTransport()).labels("model-server")))

    def answer(call: Call) -> Reply:
        return (server if "coordination.k8s.io" in call.path else objects)(call)

    here = place(FakeTransport(answer))
    with leases.held(here, pytest.fail, MARK) as lease:
        if taken:
            assert server.lease is not None
            server.lease["spec"]["holderIdentity"] = "another-2-2"
        handle = ClusterServerHandle(here, lease, Rendered((), ()), tmp_path, 16, said.append)
        handle.close()
    assert objects.deleted == ([] if taken else ["Pod server"])
    assert ["another-2-2" in text for text in said] == [True] * taken
    assert [handle.left] * taken == said


def test_only_leases_that_were_renewed_lately_live() -> None:
    server = LeaseServer(holder="elsewhere-1-1")
    assert server.lease is not None
    api = place(FakeTransport(server)).api
    server.lease["spec"] |= leases.renewed()
    assert len(leases.living(api, "bench", "spring")) == 1
    # An API server that was away for two minutes could not be told that it lives.
    stamp = (datetime.now(UTC) - timedelta(seconds=120)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    server.lease["spec"]["renewTime"] = stamp
    assert len(leases.living(api, "bench", "spring")) == 1
    server.lease["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z"
    assert leases.living(api, "bench", "spring") == []


# Hardware


def node(gpus: int = 8, product: str = "H100", memory: str = "1056Gi", **changes: Any) -> dict[str, Any]:
    return made(
        "Node",
        changes.pop("name", "a"),
        {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "81559", **changes.pop("labels", {})},
        status={
            "capacity": {"cpu": "64", "memory": memory, "nvidia.com/gpu": str(gpus)},
            "nodeInfo": {"architecture": "amd64", "kernelVersion": changes.pop("kernel", "6.1")},
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
    others = [node(product="A100"), node(gpus=4), node(labels={"node.kubernetes.io/instance-type": "a3"})]
    others += [node(labels={"nvidia.com/gpu.memory": "40960"})]
    assert len({fingerprint(other) for other in [node(), *others]}) == 5


def test_what_is_adopted_is_of_one_kind_of_node_unless_several_serve() -> None:
    kinds = [node(), node(name="b"), node(name="c", product="L40S")]
    assert adoptable(kinds, GPU, servers=1) == [fingerprint(kinds[0]), fingerprint(kinds[2])]
    assert adoptable(kinds, GPU, servers=2) == [*adoptable(kinds, GPU, servers=1), fingerprint(kinds[0], kinds[2])]
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
    reach = Reach(place(transport), POD_OF_SERVER, 8000)
    assert reach.ask("/version?a=b") == {"version": "0.11.2"}
    assert transport.calls[-1].path == "/api/v1/namespaces/bench/pods/server-0:8000/proxy/version"
    assert transport.calls[-1].query == {"a": "b"}
    shared = SITE.model_copy(update={"shared_network": True, "address": "http://127.0.0.1:{port}"})
    assert Reach(place(transport, shared), POD_OF_SERVER, 8123).direct == "http://127.0.0.1:8123"


@pytest.mark.parametrize("code", [404, 500, 502, 503])
def test_what_a_proxied_pod_answers_is_not_taken_for_an_api_server_that_is_away(code: int) -> None:
    transport = FakeTransport(lambda call: status(code, "ServiceUnavailable", "connection refused"))
    retrying = RunContext(SPECIFICATION, SITE, 1, "spring", PORTS, "0", Api(transport))
    begin = time.monotonic()
    with pytest.raises(HttpError) as error:
        Reach(retrying, POD_OF_SERVER, 8000).ask("/health")
    assert error.value.facts["pod"] == "server-0"
    assert time.monotonic() - begin < 5


def store(tmp_path: Path, script: str) -> PodKeyValueStore:
    client = tmp_path / "redis-cli"
    client.write_text(f"#!/bin/sh\n{script}\n")
    client.chmod(0o755)
    transport = FakeTransport(environment={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    pod = made("Pod", "redis-0", spec={"containers": [{"name": "redis", "command": ["redis-server"], "args": ["--x"]}]})
    # The stand-in starts programs itself and finds them by this process's PATH.
    return PodKeyValueStore(place(transport), pod, "redis", 6379, "redis.log")


def test_a_store_in_a_pod_is_asked_with_its_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    info = "redis_version:7.4.2\\r\\nused_memory:10\\r\\ntotal_net_input_bytes:1\\r\\ntotal_net_output_bytes:2\\r\\n"
    info += "keyspace_hits:3\\r\\nkeyspace_misses:4\\r\\n"
    found = store(tmp_path, f'case "$3" in INFO) printf "{info}" ;; DBSIZE) echo 7 ;; *) echo OK ;; esac')
    found.identify({})
    assert found.version == "7.4.2"
    assert found.counters()["redis_keys"] == 7
    assert found.argv == ["redis-server", "--x"]
    broken = store(tmp_path, "echo no route >&2; exit 1")
    with pytest.raises(SidecarError) as error:
        broken._ask("DBSIZE")
    assert error.value.code == "no_answer"
    assert error.value.facts == {"program": "redis", "command": "DBSIZE", "said": "no route", "log": "redis.log"}


def test_a_containers_environment_is_shown_without_what_comes_from_secrets() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ]
    pod = made("Pod", "x", spec={"containers": [{"name": "server", "env": env}]})
    assert environment(pod, "server") == {"A": "1", "IP": "{status.podIP}", "TOKEN": "{secret hub/token}"}


def test_what_was_pulled_is_read_from_pods() -> None:
    pulled = {"name": "load", "state": {"running": {}}, "imageID": "registry/guidellm@sha256:ab"}
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
    (tmp_path / "pcp.env").write_text(f"PCP_BIN_DIR={binaries} PCP_BINADM_DIR={binaries} PCP_VERSION=7.2.1\n")
    (binaries / "pmlogger").write_text(
        '#!/bin/sh\ntrap "exit 0" TERM\necho "$@" > "$(dirname "$2")/started"\nwhile :; do sleep 0.05; done\n'
    )
    (binaries / "pmlogger").chmod(0o755)
    groups = tmp_path / "groups"
    groups.mkdir()
    for name, text in {"once": "ONCE", "host": "HOST", "vllm": "log @SOURCE@", "access": "ACCESS"}.items():
        (groups / name).write_text(text + "\n")

    def run(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        text = script.replace("/etc/pcp.env", str(tmp_path / "pcp.env"))
        argv = ["sh", "-c", text, str(tmp_path / "runs" / "rabc"), *arguments]
        env = {"PATH": f"{binaries}:/usr/bin:/bin", "PCP_VAR_DIR": str(state / "var")}
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=30)

    return run


def test_a_recording_is_started_stopped_and_removed_with_its_sources(
    recorder: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    folder, sources = tmp_path / "runs" / "rabc", tmp_path / "state" / "var" / "pmdas" / "openmetrics" / "config.d"
    assert recorder(recorder_scripts.SOURCES, "", "vllm_rabc", "http://10.0.0.1:8000/metrics").returncode == 0
    (sources / "dcgm.url").write_text("http://n:9400/metrics\n")
    assert (sources / "vllm_rabc.url").read_text() == "http://10.0.0.1:8000/metrics\n"
    block = process_block([12, 34])
    begun = recorder(recorder_scripts.START, str(tmp_path / "groups"), block, "1000", "vllm_rabc", "vllm")
    assert begun.returncode == 0, begun.stderr
    deadline = time.monotonic() + 10
    while not (folder / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    text = (folder / "pmlogger.conf").read_text()
    assert text.startswith("ONCE\nHOST\nlog mandatory on default {\n    proc.psinfo.rss [ 12, 34 ]")
    assert text.endswith("log vllm_rabc\nACCESS\n")
    assert "-t 1000msec" in (folder / "started").read_text()
    assert recorder(recorder_scripts.LIST).stdout.split() == ["rabc"]
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
    program = Path(merge_metrics.__file__).read_text()
    assert recorder(recorder_scripts.SOURCES, program, "vllm_rabc", urls).returncode == 0
    source = tmp_path / "state" / "var" / "pmdas" / "openmetrics" / "config.d" / "vllm_rabc"
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


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=4))
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


class Replicas:
    """Two model servers behind the API server's proxy."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, call: Call) -> Reply:
        pod, _, path = call.path.partition("/pods/")[2].partition("/proxy")
        if not path:
            return status(404, "NotFound")
        self.asked.append(f"{call.method} {pod}{path}")
        number = int(pod[len("server-")])
        if path == "/metrics":
            page = "# TYPE vllm:generation_tokens_total counter\n"
            page += f"vllm:generation_tokens_total {10 + number}\nvllm:num_requests_running {number}\n"
            return Reply(200, {}, page.encode())
        if path == "/v1/completions":
            return ok({"usage": {"completion_tokens": 4}})
        return ok({"success": True})


def two_servers(
    tmp_path: Path, answers: Callable[[Call], Reply], environment: dict[str, str] | None = None
) -> ClusterServer:
    here = replace(place(FakeTransport(answers, environment=environment)), specification=SPECIFICATION)
    pods = [made("Pod", f"server-{number}") for number in range(2)]
    replicas = [
        Replica(
            pod,
            Reach(here, pod, 8000),
            Follower(here.api, pod, "server", tmp_path / f"server-{number}.log"),
            VllmProgram(),
        )
        for number, pod in enumerate(pods)
    ]
    for replica in replicas:
        replica.follower.close()
    return ClusterServer(here, replicas, [], pods)


class Restarted(Replicas):
    """The same after the kubelet has started the first server's container anew, with and without its former log."""

    def __init__(self, former: str) -> None:
        super().__init__()
        self.former = former

    def __call__(self, call: Call) -> Reply:
        if call.path.endswith("/log"):
            text = self.former if call.query.get("previous") else "INFO 11-22 14:34:02 [api_server.py:1] starting\n"
            return Reply(200, {}, text.encode()) if text else status(400, "BadRequest")
        if "/pods/" in call.path and "/proxy" not in call.path:
            pod = made("Pod", call.path.rpartition("/")[2])
            ended = {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}
            state = {"name": "server", "restartCount": 1, "lastState": {"terminated": ended}, "state": {"running": {}}}
            return ok(pod | {"status": {"phase": "Running", "containerStatuses": [state]}})
        return super().__call__(call)


@pytest.mark.parametrize(("former", "defect"), [(LOG, NAME), ("", None)])
def test_of_a_container_that_was_started_anew_the_former_log_tells(
    tmp_path: Path, former: str, defect: str | None
) -> None:
    server = two_servers(tmp_path, Restarted(former))
    with pytest.raises(ServerDied) as error:
        server.require_alive()
    log = error.value.facts["log"]
    assert (log.read_text() == LOG) == bool(former)
    lmcache = load_config(RAW["config"], CONFIG).specification(LMCACHE)
    assert recognised(error.value, lmcache, KNOWN) == defect


def test_every_replica_is_asked_warmed_up_and_emptied(tmp_path: Path) -> None:
    answers = Replicas()
    server = two_servers(tmp_path, answers)
    assert server.counters() == {"vllm:generation_tokens_total": 21.0}
    server.warm_up(100)
    server.reset_caches()
    for number in range(2):
        assert answers.asked.count(f"POST server-{number}:8000/v1/completions") == 2
        assert answers.asked.count(f"POST server-{number}:8000/reset_prefix_cache") == 1


class Answering(Replicas):
    """Two servers whose tiers keep what they have answered; the tier of the one named in `wrong` returns other text."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.kept: dict[str, dict[str, int]] = {f"server-{number}": {} for number in range(2)}
        self.hits = {"server-0": 0, "server-1": 0}

    def __call__(self, call: Call) -> Reply:
        pod, _, path = call.path.partition("/pods/")[2].partition(":8000/proxy")
        if path == "/metrics":
            page = "# TYPE vllm:external_prefix_cache_hits_total counter\n"
            return Reply(200, {}, f"{page}vllm:external_prefix_cache_hits_total {self.hits[pod]}\n".encode())
        if path != "/v1/completions":
            return super().__call__(call)
        prompt, kept = call.body["prompt"], self.kept[pod]
        known = prompt in kept
        self.hits[pod] += 800 * known
        token = kept.setdefault(prompt, len(kept))
        top = [{f"token_id:{token}": -0.1, "token_id:99": -9.0}] if "logprobs" in call.body else None
        choice = {"token_ids": [99 if known and pod == self.wrong else token], "logprobs": {"top_logprobs": top}}
        return ok({"choices": [choice], "usage": {"prompt_tokens": 800}})


@pytest.mark.parametrize(("wrong", "changed"), [("", 0), ("server-1", 4)])
def test_every_replica_is_asked_in_its_own_pod_whether_its_tier_changes_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, changed: int
) -> None:
    monkeypatch.setattr("kveval.engines.servers.answers._STORING_S", (0.0,))
    answers = Answering(wrong)
    server = two_servers(tmp_path, answers)
    server.version = "0.32.0"
    found = server.check_answers(tier=True, longest=8192)
    assert (found.prompts, found.changed, found.same) == (8, changed, 8 - changed)
    assert (found.served_from, found.served_tokens, found.unchecked) == ("tier", 8 * 800, "")
    # What one stored must not serve another.
    assert not answers.kept["server-0"].keys() & answers.kept["server-1"].keys()


@pytest.mark.parametrize("there", [True, False])
def test_gpus_are_asked_in_every_pod_and_need_not_answer(tmp_path: Path, there: bool) -> None:
    program = tmp_path / "nvidia-smi"
    says = 'echo "GPU-$$, H100, 1755, 1980, 700, 689, 64, 100, 0x4"' if there else "exit 9"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    server = two_servers(tmp_path, Replicas(), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    watch = GpuWatch(lambda asked: server.in_every(["nvidia-smi", *asked]))
    watch.sample()
    assert [found["index"] for found in watch.conditions()] == ([0, 1] if there else [])


def test_a_replica_without_requests_may_rest_while_another_works(tmp_path: Path) -> None:
    server = two_servers(tmp_path, Replicas())
    checks = server.stall_checks(limit_s=0.01, idle_s=1000.0, loaded_s=0.0)
    # One per replica, and one over all of them.
    assert len(checks) == 3
    first, second, together = (check for check, _ in checks)
    for check in (first, second, together):
        check()
        check()
    time.sleep(0.02)
    first()
    together()
    with pytest.raises(StallError) as error:
        second()
    assert (error.value.code, error.value.facts["requests"]) == ("no_token", 1)


class Garbled(Replicas):
    """The same, but their metrics are not text, or no numbers."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.page = page

    def __call__(self, call: Call) -> Reply:
        return Reply(200, {}, self.page) if call.path.endswith("/metrics") else super().__call__(call)


@pytest.mark.parametrize("page", [b"# HELP \xff\n", b"vllm:generation_tokens_total 1.2.3\n"])
def test_a_page_that_is_garbled_counts_as_no_answer(page: bytes, tmp_path: Path) -> None:
    for check, _ in two_servers(tmp_path, Garbled(page)).stall_checks(limit_s=60.0, idle_s=0.0, loaded_s=0.0):
        check()
        check()


def test_replicas_that_all_rest_for_too_long_are_reported(tmp_path: Path) -> None:
    *_, (together, _) = two_servers(tmp_path, Replicas()).stall_checks(limit_s=0.01, idle_s=0.05, loaded_s=0.0)
    together()
    together()
    time.sleep(0.1)
    with pytest.raises(StallError) as error:
        together()
    assert error.value.code == "no_token_nor_request"


def test_a_place_selects_its_own_objects_alone() -> None:
    here = place(FakeTransport())
    asked = here.selector("model-server")
    assert "kveval.dev/campaign=spring" in asked
    assert "kveval.dev/run=1" in asked
    other = replace(here, run=2)
    assert other.selector() != here.selector()
    assert other.name("model-server") != here.name("model-server")
