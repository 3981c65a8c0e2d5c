"""Faults really done to a run on a cluster: each is named, nothing of ours is left, and the next run completes.

The cluster is real but for its node (see cluster_chain.py); vLLM and GuideLLM are stand-ins.
"""

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster_chain import (
    NAMESPACE,
    OWN_PCP_NAMESPACE,
    Cluster,
    cluster_chain,
    needs_cluster,
    pods,
)
from tests.support.fault_chain import PATIENCE_S, Chain, Job
from tests.support.testbed import wait_until
from tests.workflow.test_server_faults import has

from kveval.engines.kubernetes.api.kinds import JOB, POD
from kveval.engines.kubernetes.api.kinds import NAMESPACE as NAMESPACES
from kveval.engines.kubernetes.api.names import selector

pytestmark = [pytest.mark.workflow, pytest.mark.cluster, needs_cluster]


@pytest.fixture
def chain(tmp_path: Path, cluster: Cluster) -> Iterator[Chain]:
    cluster.fault(None)
    made = cluster_chain(tmp_path, cluster)
    yield made
    assert made.left(15) == []


def long_level(chain: Chain) -> None:
    chain.configure(workloads={"short": {"seconds": 40}})


def own_namespace(chain: Chain) -> None:
    chain.configure(**OWN_PCP_NAMESPACE)


def in_level(job: Job, cluster: Cluster) -> None:
    """Wait until requests are on their way."""
    job.wait_for(r"2 streams \(level 1 of \d\)", 2 * PATIENCE_S)
    wait_until(
        lambda: f"{cluster.shims}/guidellm.py" in processes(),
        "this cluster's load generator",
        PATIENCE_S,
    )
    time.sleep(1.0)


def processes() -> str:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # Ended meanwhile.
        with contextlib.suppress(OSError):
            found.append(path.read_text(errors="replace"))
    return " ".join(found)


def annotated(component: str, **modes: str) -> Callable[[Chain], None]:
    annotations = {f"fakelet/{name}": value for name, value in modes.items()}
    return lambda chain: chain.configure(
        cluster={"component_annotations": {component: annotations}}
    )


def healed(chain: Chain) -> None:
    chain.campaign["cluster"] = {
        **chain.campaign["cluster"],
        "component_annotations": {},
        "rollout_timeout_s": 60,
    }
    chain.campaign["workloads"]["short"] = {
        **chain.campaign["workloads"]["short"],
        "seconds": 2,
    }


def pending(chain: Chain) -> None:
    annotated("model-server", mode="pending")(chain)
    chain.configure(cluster={"schedule_timeout_s": 1, "rollout_timeout_s": 5})


def server_deleted(job: Job, cluster: Cluster) -> None:
    in_level(job, cluster)
    (pod,) = pods(cluster, "model-server")
    cluster.api.delete(POD, pod["metadata"]["name"], NAMESPACE, grace_s=0)


def recorder_deleted(job: Job, cluster: Cluster) -> None:
    in_level(job, cluster)
    (pod,) = [
        found
        for found in cluster.api.list(POD)
        if "cluster-faults-recorder" in found["metadata"]["name"]
    ]
    cluster.api.delete(
        POD, pod["metadata"]["name"], pod["metadata"]["namespace"], grace_s=0
    )


@dataclass(frozen=True)
class Fault:
    """A row: what is configured, what is done to the running job, the cause expected, seconds until it is said."""

    name: str
    cause: str
    limit_s: float
    configure: Callable[[Chain], None] = lambda chain: None
    act: Callable[[Job, Cluster], None] | None = None
    generator: str | None = None


# Of the 6 s a part is over, on a busy machine a second, when the documents are applied and the wait begins.
OVERDUE = r"is not done after [56] s: 0 of 1 replicas are available"
FAULTS = [
    Fault(
        "image cannot be pulled",
        r"ImagePullBackOff: .*model-server",
        30,
        annotated("model-server", mode="imagepull"),
    ),
    Fault(
        "server crashes",
        r"CrashLoopBackOff: .*model-server",
        30,
        annotated("model-server", mode="crashloop"),
    ),
    Fault("server stays pending", rf"(?:{OVERDUE})", 40, pending),
    Fault(
        "generator fails",
        r"GuideLLM failed \(exit code 1\): ValueError: the data configuration is wrong; see .*guidellm-0002\.log",
        60,
        own_namespace,
        generator="fails",
    ),
    Fault(
        "server's pod deleted in a level",
        r"the server died: Pod \S+ was deleted while it was in use; see .*server\.log",
        10,
        long_level,
        server_deleted,
    ),
    Fault(
        "recorder's pod deleted in a level",
        r"the recorder's pod \S+ was deleted",
        20,
        long_level,
        recorder_deleted,
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named_leaves_nothing_and_the_next_run_completes(
    chain: Chain, cluster: Cluster, fault: Fault, record_fault: Callable[..., None]
) -> None:
    fault.configure(chain)
    cluster.fault(fault.generator)
    job = chain.start()
    if fault.act is None:
        job.wait_for(
            "starting the server"
            if fault.generator is None
            else r"2 streams \(level 1 of 1\)",
            2 * PATIENCE_S,
        )
    else:
        fault.act(job, cluster)
    begin = time.monotonic()
    job.wait_for(f"(?:failed, tearing down|FAILED): .*{fault.cause}", fault.limit_s)
    record_fault(fault.name, time.monotonic() - begin, fault.limit_s)
    assert job.end(2 * PATIENCE_S) == 1, job.words()
    assert not chain.pointer.exists()
    assert cluster.ours() == []
    healed(chain)
    cluster.fault(None)
    again = chain.start()
    assert again.end(3 * PATIENCE_S) == 0, again.words()
    assert cluster.ours() == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            NAMESPACE,
            "the servers and the load of this run; DaemonSet kveval-pcp-of-a-run/",
        ),
        (OWN_PCP_NAMESPACE["cluster"]["pcp_namespace"], "the recorder"),
    ],
)
def test_a_namespace_that_somebody_deletes_is_named(
    chain: Chain, cluster: Cluster, name: str, said: str
) -> None:
    long_level(chain)
    own_namespace(chain)
    job = chain.start()
    in_level(job, cluster)
    cluster.api.delete(NAMESPACES, name)
    try:
        assert job.end(2 * PATIENCE_S) == 1, job.words()
        assert (
            f"FAILED: namespace {name} was deleted, and with it {said}"
            in job.log_text()
        )
        # What was to be removed there has gone.
        assert "was not removed" not in job.log_text()
        assert cluster.gone(PATIENCE_S) == []
    finally:
        wait_until(
            lambda: cluster.api.read(NAMESPACES, name) is None,
            "the namespace's end",
            PATIENCE_S,
        )
        cluster.make_namespace(NAMESPACE)


def test_a_store_that_is_deleted_is_named_and_not_the_server(
    chain: Chain, cluster: Cluster
) -> None:
    if not (has("redis-server") and has("lmcache")):
        pytest.skip("no redis-server or no lmcache: bash scripts/setup.sh redis server")
    chain.cell = "Qwen3-0.6B/lmcache-redis/10000"
    chain.configure(server={"lmcache": "0.5.6"}, workloads={"short": {"seconds": 40}})
    job = chain.start()
    in_level(job, cluster)
    (pod,) = pods(cluster, "redis")
    cluster.api.delete(POD, pod["metadata"]["name"], NAMESPACE, grace_s=0)
    job.wait_for(
        r"FAILED: redis died: Pod \S+ was deleted while it was in use; see .*redis\.log",
        2 * PATIENCE_S,
    )
    assert job.end(2 * PATIENCE_S) == 1, job.words()
    assert cluster.ours() == []


def test_a_load_that_somebody_deletes_is_sent_once_more(
    chain: Chain, cluster: Cluster
) -> None:
    chain.configure(workloads={"short": {"seconds": 10}})
    job = chain.start()
    in_level(job, cluster)
    (load,) = cluster.api.list(JOB, NAMESPACE, selector(component="load"))
    cluster.api.delete(JOB, load["metadata"]["name"], NAMESPACE)
    job.wait_for(r"pod \S+ was deleted while it ran; .*once more", 20)
    assert job.end(3 * PATIENCE_S) == 0, job.words()
    assert cluster.ours() == []


def test_a_run_outlasts_an_api_server_that_is_killed_and_comes_back(
    chain: Chain, cluster: Cluster
) -> None:
    chain.configure(workloads={"short": {"seconds": 15}})
    job = chain.start()
    in_level(job, cluster)
    with cluster.without_api_server():
        time.sleep(5)
    assert job.end(3 * PATIENCE_S) == 0, job.words()
    assert cluster.ours() == []


def test_sigterm_ends_the_run_and_removes_it(chain: Chain, cluster: Cluster) -> None:
    long_level(chain)
    own_namespace(chain)
    job = chain.start()
    in_level(job, cluster)
    job.process.send_signal(signal.SIGTERM)
    assert job.end(2 * PATIENCE_S) == 2
    assert "stopped by SIGTERM" in job.log_text()
    assert cluster.ours() == []


def test_the_next_run_removes_what_a_killed_job_left(
    chain: Chain, cluster: Cluster
) -> None:
    long_level(chain)
    own_namespace(chain)
    job = chain.start()
    in_level(job, cluster)
    job.process.kill()
    job.end()
    assert any(name.startswith("Deployment") for name in cluster.ours())
    healed(chain)
    again = chain.start()
    assert again.end(3 * PATIENCE_S) == 0, again.words()
    assert re.search(r"killed run left: Deployment", again.log_text())
    assert cluster.ours() == []


def test_two_jobs_never_measure_the_same_run_at_once(
    chain: Chain, cluster: Cluster
) -> None:
    chain.configure(workloads={"short": {"seconds": 8}})
    first = chain.start()
    first.wait_for("starting the server", PATIENCE_S)
    log = chain.log.rename(chain.log.with_name("first.log"))
    second = chain.start()
    second.wait_for("waiting for this run: .* is measuring it", PATIENCE_S)
    assert first.end(3 * PATIENCE_S) == 0, log.read_text()
    assert second.end(PATIENCE_S) == 0
    # It found what the first had measured.
    assert "starting the server" not in second.log_text()
    assert cluster.ours() == []


def described(chain: Chain) -> dict[str, Any]:
    pointer = json.loads(chain.pointer.read_text())
    run: dict[str, Any] = json.loads((Path(pointer["path"]) / "run.json").read_text())
    return run


def test_restarted_servers_are_new_ones_and_recorded_on(chain: Chain) -> None:
    chain.configure(reset_caches="restart", workloads={"short": {"levels": [1, 2]}})
    job = chain.start()
    assert job.end(4 * PATIENCE_S) == 0, job.words()
    counters = [
        level["counters"]["vllm:generation_tokens_total"]
        for level in described(chain)["levels"]
    ]
    # The second server has counted from the start again: its warm-up, and then the level.
    assert counters[1]["before"] <= counters[0]["before"]
    assert counters[1]["delta"] > 0


def test_servers_are_asked_through_the_api_server_where_pods_have_addresses(
    chain: Chain, pod_addresses: None
) -> None:
    chain.configure(cluster={"shared_network": False})
    job = chain.start()
    assert job.end(4 * PATIENCE_S) == 0, job.words()
    assert (
        described(chain)["levels"][0]["counters"]["vllm:generation_tokens_total"][
            "delta"
        ]
        > 0
    )


@pytest.fixture
def pod_addresses() -> Iterator[None]:
    """Have this machine answer for the addresses that the node gives its pods."""
    try:
        done = ip_route("add")
    except OSError as error:
        pytest.skip(f"no way to give pods addresses here: {error}")
    there = "File exists" in done.stderr
    if done.returncode and not there:
        pytest.skip(f"no way to give pods addresses here: {done.stderr.strip()}")
    yield
    if not there:
        ip_route("delete")


def ip_route(verb: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["ip", "route", verb, "local", "10.244.0.0/16", "dev", "lo"],
        capture_output=True,
        text=True,
    )


def test_companions_are_asked_counted_and_emptied(
    chain: Chain, cluster: Cluster
) -> None:
    if not (has("redis-server") and has("lmcache")):
        pytest.skip("no redis-server or no lmcache: bash scripts/setup.sh redis server")
    chain.cell = "Qwen3-0.6B/lmcache-redis/10000"
    chain.configure(server={"lmcache": "0.5.6"})
    job = chain.start()
    assert job.end(4 * PATIENCE_S) == 0, job.words()
    run = described(chain)
    assert [
        (beside["name"], bool(beside["version"])) for beside in run["companions"]
    ] == [
        ("redis", True),
        ("lmcache", True),
    ]
    assert run["levels"][0]["counters"]["redis_keys"]["before"] == 0
    per_token = run["specification"]["model"]["kv_bytes_per_token"]
    assert run["budget"]["reported_bytes"] == pytest.approx(
        10000 * 16 * per_token, rel=0.02
    )
    assert cluster.ours() == []


def test_between_levels_the_cluster_costs_less_than_five_seconds(
    chain: Chain, record_property: Callable[[str, object], None]
) -> None:
    chain.configure(workloads={"short": {"levels": [1, 2, 3]}})
    job = chain.start()
    assert job.end(4 * PATIENCE_S) == 0, job.words()
    times = described(chain)["times"]
    for name, seconds in times.items():
        record_property(name, seconds)
    assert len(times["between_levels_s"]) == 2
    assert max(times["between_levels_s"]) < 5
    assert (
        times["measured_s"] + times["load_start_s"] + sum(times["between_levels_s"])
        <= times["total_s"]
    )
