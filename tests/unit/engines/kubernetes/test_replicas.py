"""Servers of several replicas: asked, watched and described pod by pod."""

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.support.cluster_cells import FULL_SITE
from tests.support.cluster_run import SPECIFICATION, run_context
from tests.support.config_files import CONFIG, LMCACHE, RAW
from tests.support.fake_cluster import Call, FakeTransport, made, ok, status
from tests.support.known_crash import KNOWN, LOG, NAME

from kveval.campaign.site import Cluster
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.pod_logs import Follower
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.deployment import ClusterDeployer
from kveval.engines.kubernetes.pods import fetch_from_pod
from kveval.engines.kubernetes.replicas import ClusterServer, Replica
from kveval.engines.kubernetes.wait.rollout import RolloutError
from kveval.engines.servers.answers import PROMPTS, QUESTIONS
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import ServerDied
from kveval.engines.watchdog import StallError
from kveval.host.gpu_conditions import GpuWatch
from kveval.measure.known_defects import recognised
from kveval.stacks.lmcache import LMCacheServer
from kveval.stacks.sidecar import SidecarError
from kveval.stacks.vllm import VLLM

POD_OF_SERVER = made("Pod", "server-0")


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
    tmp_path: Path,
    answers: Callable[[Call], Reply],
    environment: dict[str, str] | None = None,
) -> ClusterServer:
    here = replace(
        run_context(FakeTransport(answers, environment=environment)),
        specification=SPECIFICATION,
    )
    pods = [
        made("Pod", f"server-{number}", spec={"containers": []}) for number in range(2)
    ]
    replicas = [
        Replica(
            pod,
            Endpoint(
                VLLM,
                "m",
                fetch_from_pod(here, pod, 8000),
                tmp_path / f"server-{number}.log",
                "0.32.0",
                number,
            ),
            Follower(here.api, pod, "server", tmp_path / f"server-{number}.log"),
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
            text = (
                self.former
                if call.query.get("previous")
                else "INFO 11-22 14:34:02 [api_server.py:1] starting\n"
            )
            return Reply(200, {}, text.encode()) if text else status(400, "BadRequest")
        if "/pods/" in call.path and "/proxy" not in call.path:
            pod = made("Pod", call.path.rpartition("/")[2])
            ended = {"exitCode": 1, "finishedAt": "2026-01-01T00:00:00Z"}
            state = {
                "name": "server",
                "restartCount": 1,
                "lastState": {"terminated": ended},
                "state": {"running": {}},
            }
            return ok(
                pod | {"status": {"phase": "Running", "containerStatuses": [state]}}
            )
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


class Deleted(Replicas):
    """Pods of which one is deleted."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def __call__(self, call: Call) -> Reply:
        if "/pods/" in call.path and call.path.rpartition("/")[2] not in (
            *self.names,
            "log",
        ):
            return ok(
                made("Pod", call.path.rpartition("/")[2])
                | {"status": {"phase": "Running"}}
            )
        return status(404, "NotFound")


def beside(server: ClusterServer, component: str, tmp_path: Path, log: str) -> str:
    """Have a pod of a component watched, too, whose log says `log`; return the pod's name."""
    pod = made(
        "Pod",
        f"{component}-0",
        {"kveval.dev/component": component},
        spec={"containers": []},
    )
    follower = Follower(
        server.context.api, pod, component, tmp_path / f"{component}.log"
    )
    follower.close()
    follower.log.write_text(log)
    server.watched, server.followers = [*server.watched, pod], [follower]
    return f"{component}-0"


@pytest.mark.parametrize(
    ("component", "title"), [("redis", "redis"), ("epp", "the endpoint picker")]
)
def test_a_sidecars_pod_that_dies_is_named_with_its_own_log(
    tmp_path: Path, component: str, title: str
) -> None:
    server = two_servers(tmp_path, Deleted(f"{component}-0"))
    (tmp_path / "server-0.log").write_text("ValueError: of the server, which is well\n")
    beside(server, component, tmp_path, "OSError: its own reason\n")
    with pytest.raises(SidecarError) as error:
        server.require_alive()
    log = tmp_path / f"{component}.log"
    said = f"{title} died: Pod bench/{component}-0 was deleted while it was in use: OSError: its own reason; see {log} and "
    assert str(error.value) == f"{said}{tmp_path / 'cluster.log'}"
    assert error.value.facts == {"program": component, "log": str(log)}
    # A watchdog asks, and the load generator's end does: one death, one entry.
    with pytest.raises(SidecarError):
        server.require_alive()
    assert (tmp_path / "cluster.log").read_text().count("--- ") == 1


def test_of_several_servers_the_one_that_dies_is_quoted(tmp_path: Path) -> None:
    server = two_servers(tmp_path, Deleted("server-1"))
    for number in range(2):
        (tmp_path / f"server-{number}.log").write_text(
            f"ValueError: of server {number}\n"
        )
    with pytest.raises(
        ServerDied,
        match=r"bench/server-1 was deleted while it was in use: ValueError: of server 1;",
    ):
        server.require_alive()


@pytest.mark.parametrize(
    ("component", "facts", "words"),
    [
        (
            "model-server",
            {"container": "server", "exit_code": 126},
            ": exec /usr/bin/server: exec format error",
        ),
        (
            "redis",
            {"container": "redis", "exit_code": 126},
            ": exec /usr/bin/redis: exec format error",
        ),
        # It runs, and its only line need not be why it is not ready.
        ("redis", {}, ""),
    ],
)
def test_a_container_that_does_not_start_is_quoted_from_its_own_log(
    tmp_path: Path, component: str, facts: dict[str, object], words: str
) -> None:
    name = "server" if component == "model-server" else component
    pod = made(
        "Pod",
        "pod-0",
        {"kveval.dev/component": component},
        spec={"containers": [{"name": name}]},
    )

    def answer(call: Call) -> Reply:
        return (
            Reply(200, {}, f"exec /usr/bin/{name}: exec format error\n".encode())
            if "/log" in call.path
            else ok(pod)
        )

    site = Cluster.model_validate({"namespace": "bench", **FULL_SITE})
    lease = SimpleNamespace(document={"metadata": {}})
    deployer = ClusterDeployer(
        run_context(FakeTransport(answer), site), lease, tmp_path, print
    )  # type: ignore[arg-type]
    error = RolloutError(
        "Deployment bench/x: Failed: see its last log lines", "Failed", "pod-0", **facts
    )
    assert (
        str(deployer._explained(error))
        == f"Deployment bench/x: Failed: see its last log lines{words}"
    )


def test_evidence_of_two_failures_is_told_apart(tmp_path: Path) -> None:
    for reason in ("one", "other"):
        error = RolloutError(reason, "Failed", "pod-0", evidence="\n| events")
        assert error.keep_evidence(tmp_path).startswith(f"{reason}; see ")
    kept = (tmp_path / "cluster.log").read_text()
    assert re.fullmatch(
        r"--- 20\S+Z\none\n\| events\n--- 20\S+Z\nother\n\| events\n", kept
    )


def test_every_replica_is_asked_warmed_up_and_emptied(tmp_path: Path) -> None:
    answers = Replicas()
    server = two_servers(tmp_path, answers)
    assert server.counters() == {"vllm:generation_tokens_total": 21.0}
    server.warm_up(100)
    server.reset_caches()
    for number in range(2):
        assert answers.asked.count(f"POST server-{number}:8000/v1/completions") == 2
        assert answers.asked.count(f"POST server-{number}:8000/reset_prefix_cache") == 1


class Declared(Replicas):
    """Two servers, and LMCache beside them, which tell their releases."""

    def __init__(self, lmcache: str) -> None:
        super().__init__()
        self.lmcache = lmcache

    def __call__(self, call: Call) -> Reply:
        pod, _, path = call.path.partition("/pods/")[2].partition("/proxy")
        if path == "/version":
            return ok(
                {"version": self.lmcache if pod.startswith("server-0:6") else "0.32.0"}
            )
        if path == "/v1/models":
            return ok({"data": [{"id": "m"}]})
        if path == "/status":
            return ok({"storage_manager": {"l1_managers": {}, "store_controllers": {}}})
        return (
            Reply(200, {}, b"")
            if call.path.endswith("/log")
            else super().__call__(call)
        )


@pytest.mark.parametrize("found", ["0.5.6-g3e11e108", "0.4.0"])
def test_sidecars_in_pods_tell_their_release_as_servers_do(
    tmp_path: Path, found: str
) -> None:
    server = two_servers(tmp_path, Declared(found))
    fetch = fetch_from_pod(server.context, POD_OF_SERVER, 6000)
    lmcache = LMCacheServer(["lmcache", "server"], "lmcache.log", fetch)
    server.sidecars = [lmcache]
    versions = SPECIFICATION.versions | {"vllm": "0.32.0", "lmcache": "0.5.6"}
    specification = msgspec.structs.replace(SPECIFICATION, versions=versions)
    if found == "0.4.0":
        with pytest.raises(SidecarError) as error:
            server.require_declared(specification)
        assert error.value.code == "other_version"
    else:
        server.require_declared(specification)
        assert [(one.name, one.version) for one in server.sidecar_facts] == [
            ("lmcache", found)
        ]


class Answering(Replicas):
    """Two servers whose tiers keep what they have answered; the tier of the one named in `wrong` returns other text."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong = wrong
        self.kept: dict[str, dict[str, int]] = {
            f"server-{number}": {} for number in range(2)
        }
        self.hits = {"server-0": 0, "server-1": 0}

    def __call__(self, call: Call) -> Reply:
        pod, _, path = call.path.partition("/pods/")[2].partition(":8000/proxy")
        if path == "/metrics":
            page = "# TYPE vllm:external_prefix_cache_hits_total counter\n"
            return Reply(
                200,
                {},
                f"{page}vllm:external_prefix_cache_hits_total {self.hits[pod]}\n".encode(),
            )
        if path != "/v1/completions":
            return super().__call__(call)
        prompt, kept = call.body["prompt"], self.kept[pod]
        known = prompt in kept
        self.hits[pod] += 800 * known
        token = kept.setdefault(prompt, len(kept))
        top = (
            [{f"token_id:{token}": -0.1, "token_id:99": -9.0}]
            if "logprobs" in call.body
            else None
        )
        choice = {
            "token_ids": [99 if known and pod == self.wrong else token],
            "logprobs": {"top_logprobs": top},
        }
        return ok({"choices": [choice], "usage": {"prompt_tokens": 800}})


@pytest.mark.parametrize("wrong", ["", "server-1"])
def test_every_replica_is_asked_in_its_own_pod_whether_its_tier_changes_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr("kveval.engines.servers.answers.STORING_S", (0.0,))
    monkeypatch.setattr("kveval.engines.servers.answers._COUNTED_S", 0.0)
    answers = Answering(wrong)
    server = two_servers(tmp_path, answers)
    found = server.check_answers(tier=True, longest=8192)
    asked = PROMPTS * QUESTIONS
    changed = asked if wrong else 0
    assert (found.prompts, found.changed) == (2 * asked, changed)
    assert found.same == 2 * asked - changed
    assert (found.served_from, found.served_tokens, found.unchecked) == (
        "tier",
        8 * 800,
        "",
    )
    # What one stored must not serve another.
    assert not answers.kept["server-0"].keys() & answers.kept["server-1"].keys()


@pytest.mark.parametrize("there", [True, False])
def test_gpus_are_asked_in_every_pod_and_need_not_answer(
    tmp_path: Path, there: bool
) -> None:
    program = tmp_path / "nvidia-smi"
    says = (
        'echo "GPU-$$, H100, 1755, 1980, 700, 689, 64, 100, 0x4"' if there else "exit 9"
    )
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    server = two_servers(tmp_path, Replicas(), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    watch = GpuWatch(lambda asked: server.in_every(["nvidia-smi", *asked]))
    watch.sample()
    assert [found["index"] for found in watch.conditions()] == ([0, 1] if there else [])


def test_a_replica_without_requests_may_rest_while_another_works(
    tmp_path: Path,
) -> None:
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
        return (
            Reply(200, {}, self.page)
            if call.path.endswith("/metrics")
            else super().__call__(call)
        )


@pytest.mark.parametrize(
    "page", [b"# HELP \xff\n", b"vllm:generation_tokens_total 1.2.3\n"]
)
def test_a_page_that_is_garbled_counts_as_no_answer(
    page: bytes, tmp_path: Path
) -> None:
    for check, _ in two_servers(tmp_path, Garbled(page)).stall_checks(
        limit_s=60.0, idle_s=0.0, loaded_s=0.0
    ):
        check()
        check()


def test_replicas_that_all_rest_for_too_long_are_reported(tmp_path: Path) -> None:
    *_, (together, _) = two_servers(tmp_path, Replicas()).stall_checks(
        limit_s=0.01, idle_s=0.05, loaded_s=0.0
    )
    together()
    together()
    time.sleep(0.1)
    with pytest.raises(StallError) as error:
        together()
    assert error.value.code == "no_token_nor_request"
