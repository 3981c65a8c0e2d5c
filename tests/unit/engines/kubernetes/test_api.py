"""Requests to an API server: which are repeated, for how long, and what is said when the patience is over."""

import json
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_cluster import Call, FakeTransport, made, ok, resources, status

from kveval.engines.kubernetes.api import client as api_module
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import (
    ClusterError,
    Interrupted,
    Refused,
    Unreachable,
)
from kveval.engines.kubernetes.api.exec import Execution
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    GATEWAY,
    GATEWAY_CLASS,
    POD,
    POOL,
    Kind,
)
from kveval.engines.kubernetes.api.transport import KubernetesTransport, Reply
from kveval.host.kubeconfig import CONTEXT_VARIABLE

Answer = Reply | Exception
GONE = Unreachable("connection refused")


class Clock:
    """Time that passes only when someone sleeps; takes the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def answering(*answers: Answer) -> Callable[[Call], Reply]:
    """Give the answers one after the other, the last for ever."""
    waiting = list(answers)

    def answer(_: Call) -> Reply:
        found = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if isinstance(found, Exception):
            raise found
        return found

    return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(api_module, "time", found)
    return found


def retrying(
    *answers: Answer, outage_s: float = 300.0, said: list[str] | None = None
) -> Api:
    return Api(
        FakeTransport(answering(*answers)),
        outage_s,
        None if said is None else said.append,
    )


# --- patience


@pytest.mark.parametrize(
    "passing",
    [
        GONE,
        status(503, "ServiceUnavailable"),
        status(500, "InternalError"),
        status(429, "TooManyRequests"),
        status(502, ""),
    ],
    ids=["refused", "503", "500", "429", "502"],
)
def test_an_api_server_that_is_away_is_waited_for(
    passing: Answer, clock: Clock
) -> None:
    asking = retrying(passing, passing, passing, ok({"gitVersion": "v1.30"}))
    assert asking.request("GET", "/version").json() == {"gitVersion": "v1.30"}
    assert len(clock.slept) == 3


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422, 501])
def test_a_final_answer_is_not_asked_for_again(code: int, clock: Clock) -> None:
    asking = retrying(status(code, "Because", "spec.x is wrong"))
    with pytest.raises(Refused) as error:
        asking.request("PATCH", "/api/v1/x")
    assert (error.value.status, error.value.reason, clock.slept) == (
        code,
        "Because",
        [],
    )
    assert error.value.facts == {
        "server": "https://cluster.test",
        "request": "PATCH /api/v1/x",
        "said": "spec.x is wrong",
    }


def test_after_the_outage_the_server_and_its_last_answer_are_named(
    clock: Clock,
) -> None:
    said: list[str] = []
    asking = retrying(GONE, outage_s=100.0, said=said)
    with pytest.raises(ClusterError) as error:
        asking.request("GET", "/x")
    assert error.value.code == "no_usable_answer"
    assert error.value.facts == {
        "server": "https://cluster.test",
        "lasted_s": pytest.approx(100),
    }
    assert error.value.__cause__ is GONE
    assert str(GONE) in str(error.value)
    assert clock.now == pytest.approx(1100.0)
    assert 2 <= len(said) <= 4
    assert re.search(r" 3\d s ", said[0])


def test_without_patience_the_first_failure_is_final(clock: Clock) -> None:
    asking = retrying(GONE, outage_s=0.0)
    with pytest.raises(ClusterError) as error:
        asking.request("GET", "/x")
    assert error.value.code == "no_usable_answer"
    assert clock.slept == []


@pytest.mark.parametrize(
    "answer",
    [
        status(403, "Forbidden"),
        status(401, "Unauthorized"),
        Reply(404, {}, b"404 page not found"),
    ],
)
def test_a_server_that_has_just_come_back_may_not_know_its_roles_and_custom_kinds_yet(
    answer: Reply, clock: Clock
) -> None:
    asking = retrying(GONE, answer, answer, ok({}))
    assert asking.request("GET", "/x").status == 200
    asking, began = retrying(GONE, answer), clock.now
    with pytest.raises(Refused):
        asking.request("GET", "/x")
    assert 15 < clock.now - began < 40


def test_a_mistake_that_is_answered_like_an_outage_is_not_waited_for(
    clock: Clock,
) -> None:
    mistake = 'failed to create typed patch object: .spec.ports: element 0: "protocol"'
    asking = retrying(status(500, "", mistake))
    with pytest.raises(Refused) as error:
        asking.request("PATCH", "/x")
    assert (error.value.status, error.value.facts["said"], clock.slept) == (
        500,
        mistake,
        [],
    )


def test_a_missing_object_is_missing_also_after_an_outage(clock: Clock) -> None:
    asking = retrying(GONE, status(404, "NotFound"))
    with pytest.raises(Refused):
        asking.request("GET", "/x")
    assert len(clock.slept) == 1


def test_one_outage_is_told_once_though_several_threads_wait_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, seconds in (
        ("_REMIND_S", 0.5),
        ("_FIRST_PAUSE_S", 0.02),
        ("_LONGEST_PAUSE_S", 0.02),
    ):
        monkeypatch.setattr(api_module, name, seconds)
    said: list[str] = []
    asking = retrying(GONE, outage_s=0.9, said=said)

    def ask() -> None:
        with pytest.raises(ClusterError):
            asking.request("GET", "/x")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 1
    assert "has not answered for" in said[0]


@given(
    st.lists(st.sampled_from([GONE, status(503, "x"), status(429, "x")]), max_size=30),
    st.floats(0, 60),
)
def test_the_patience_is_never_exceeded(
    failures: list[Answer], outage_s: float
) -> None:
    asking, clock = retrying(*failures, ok({}), outage_s=outage_s), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_module, "time", clock)
        try:
            asking.request("GET", "/x")
        except ClusterError:
            assert clock.now - 1000 >= outage_s - 1e-6
    assert clock.now - 1000 <= outage_s + 1e-6


def test_the_clusters_clock_is_learnt_from_its_answers() -> None:
    api = Api(
        FakeTransport(
            answering(Reply(200, {"Date": "Thu, 01 Jan 2099 00:00:00 GMT"}, b"{}"))
        )
    )
    api.get("/version")
    assert api.now().year in (2098, 2099)


# --- objects


def test_documents_are_applied_in_the_order_in_which_they_need_each_other() -> None:
    transport = FakeTransport(
        lambda call: (
            ok(call.body) if call.method == "PATCH" else status(404, "NotFound")
        )
    )
    documents = [
        made("Deployment", "b", version="apps/v1"),
        made("Deployment", "a", version="apps/v1"),
        made("ConfigMap", "c"),
        made("Namespace", "n"),
    ]
    Api(transport).apply(documents)
    applied = [call for call in transport.calls if call.method == "PATCH"]
    assert [call.path.rpartition("/")[2] for call in applied] == ["n", "c", "b", "a"]
    assert applied[2].path == "/apis/apps/v1/namespaces/bench/deployments/b"
    assert applied[0].path == "/api/v1/namespaces/n"
    assert {call.content for call in applied} == {"apply"}
    assert applied[0].query == {"fieldManager": "kveval", "force": True}


@pytest.mark.parametrize("exists", [True, False])
def test_a_namespace_that_is_there_is_left_as_it_is(exists: bool) -> None:
    there = ok(made("Namespace", "bench")) if exists else status(404, "NotFound")
    transport = FakeTransport(
        lambda call: there if call.method == "GET" else ok(call.body)
    )
    Api(transport).apply([made("Namespace", "bench")])
    assert any(call.method == "PATCH" for call in transport.calls) is not exists


def test_a_refused_document_is_named() -> None:
    transport = FakeTransport(
        lambda call: status(422, "Invalid", "spec.replicas: must be positive")
    )
    with pytest.raises(ClusterError) as error:
        Api(transport).apply([made("Deployment", "server", version="apps/v1")])
    assert (error.value.code, error.value.status, error.value.reason) == (
        "not_applied",
        422,
        "Invalid",
    )
    assert error.value.facts["object"] == "Deployment bench/server"
    assert error.value.facts["said"] == "spec.replicas: must be positive"


def test_two_writers_at_the_same_moment_are_no_quarrel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_module.time, "sleep", lambda seconds: None)
    transport = FakeTransport(
        answering(
            status(409, "Conflict"), status(409, "Conflict"), ok({"kind": "ConfigMap"})
        )
    )
    assert Api(transport).apply([made("ConfigMap", "c")]) == [{"kind": "ConfigMap"}]


def test_a_kind_that_the_cluster_does_not_know_is_named_with_the_remedy() -> None:
    pool = made("InferencePool", "pool", version="inference.networking.k8s.io/v1")
    with pytest.raises(ClusterError, match="CustomResourceDefinition") as error:
        Api(FakeTransport()).apply([pool])
    assert error.value.code == "unknown_kind"
    assert error.value.facts["kind"] == Kind(
        "inference.networking.k8s.io/v1", "InferencePool"
    )


def test_a_kind_installed_later_is_found() -> None:
    answers = answering(
        status(404, "NotFound"), resources({"inferencepools": "InferencePool"})
    )
    api = Api(FakeTransport(answers))
    assert not api.serves(POOL)
    assert api.serves(POOL)


def test_a_missing_object_is_none_and_a_forbidden_one_an_error() -> None:
    assert Api(FakeTransport()).read(POD, "p", "bench") is None
    with pytest.raises(Refused) as error:
        Api(FakeTransport(lambda call: status(403, "Forbidden"))).read(
            POD, "p", "bench"
        )
    assert (error.value.status, error.value.reason) == (403, "Forbidden")


def test_deleting_what_is_not_there_or_is_another_one_is_no_error() -> None:
    assert Api(FakeTransport()).delete(CONFIG_MAP, "c", "bench") is False
    transport = FakeTransport(lambda call: status(409, "Conflict"))
    assert (
        Api(transport).delete(CONFIG_MAP, "c", "bench", uid="of-the-old-one") is False
    )
    assert transport.calls[0].body["preconditions"] == {"uid": "of-the-old-one"}
    with pytest.raises(Refused):
        Api(transport).delete(CONFIG_MAP, "c", "bench")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (POOL, "/apis/inference.networking.k8s.io/v1/namespaces/n/inferencepools/x"),
        (CONFIG_MAP, "/api/v1/namespaces/n/configmaps/x"),
        (GATEWAY, "/apis/gateway.networking.k8s.io/v1/namespaces/n/gateways/x"),
        (GATEWAY_CLASS, "/apis/gateway.networking.k8s.io/v1/gatewayclasses/x"),
        (
            Kind("networking.gke.io/v1", "HealthCheckPolicy"),
            "/apis/networking.gke.io/v1/namespaces/n/healthcheckpolicies/x",
        ),
    ],
)
def test_a_kinds_path_is_the_one_that_the_cluster_serves(kind: Kind, path: str) -> None:
    assert kind.path("" if kind == GATEWAY_CLASS else "n", "x") == path


# --- commands


class ScriptedFrames:
    def __init__(self, *frames: bytes | Exception | None) -> None:
        self._frames = list(frames)

    def receive(self, timeout_s: float) -> bytes | None:
        frame = self._frames.pop(0)
        if isinstance(frame, Exception):
            raise frame
        return frame

    def close(self) -> None:
        pass


END = b'\3{"status": "Success"}'


def ended(*frames: bytes | Exception | None) -> tuple[bytes, bytes, int]:
    return Execution(ScriptedFrames(*frames), "`cat x`").result(60.0)


def test_a_commands_output_errors_and_exit_code_are_told_apart() -> None:
    failed = {
        "status": "Failure",
        "details": {"causes": [{"reason": "ExitCode", "message": "3"}]},
    }
    frames = [b"\1", b"\1one ", b"\2oh", b"\1two", b"\3" + json.dumps(failed).encode()]
    assert ended(*frames) == (b"one two", b"oh", 3)
    assert ended(b"\1\xff\x00\n", b"\xff\1", END) == (b"\xff\x00\n", b"", 0)


@pytest.mark.parametrize("end", [None, Unreachable("reset by peer"), TimeoutError()])
def test_output_whose_end_was_not_told_is_not_taken_for_whole(
    end: Exception | None,
) -> None:
    with pytest.raises(Interrupted, match="`cat x`"):
        ended(b"\1half", end)


def test_a_command_that_cannot_run_says_why() -> None:
    why = 'exec: "sh": executable file not found'
    failed = {"status": "Failure", "reason": "InternalError", "message": why}
    with pytest.raises(ClusterError, match="`cat x`") as error:
        ended(b"\3" + json.dumps(failed).encode())
    assert (error.value.code, error.value.reason) == ("not_run", "InternalError")
    assert error.value.facts == {"said": why}


def test_a_command_runs_in_a_container() -> None:
    done = Api(FakeTransport()).exec(
        "bench", "p", "main", ["sh", "-c", "echo out; echo err >&2; exit 4"]
    )
    assert (done.text, done.stderr, done.returncode) == ("out", b"err\n", 4)


def test_only_the_start_of_a_command_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transport = FakeTransport()
    run, failures = transport.command, [GONE, GONE]

    def command(*call: Any) -> Any:
        if failures:
            raise failures.pop()
        return run(*call)

    transport.command = command  # type: ignore[method-assign]
    api = Api(transport)
    monkeypatch.setattr(api_module.time, "sleep", lambda seconds: None)
    assert api.exec("bench", "p", "main", ["echo", "once"]).text == "once"
    transport.cuts = [2]
    with pytest.raises(Interrupted):
        api.exec("bench", "p", "main", ["echo", "once"])
    assert len(transport.commands) == 2


# --- the way


def kubeconfig(tmp_path: Path, server: str = "http://127.0.0.1:9") -> Path:
    path = tmp_path / "kubeconfig"
    part: dict[str, Sequence[Any]] = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(
        json.dumps(
            {"apiVersion": "v1", "kind": "Config", "current-context": "c", **part}
        )
    )
    return path


def test_a_kubeconfig_that_does_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="get-contexts") as error:
        Api.connect(kubeconfig(tmp_path), "gpu")
    assert error.value.code == "kubeconfig_unusable"
    assert error.value.facts == {
        "kubeconfig": str(tmp_path / "kubeconfig"),
        "context": "gpu",
    }
    with pytest.raises(ClusterError) as error:
        Api.connect("/nowhere")
    assert error.value.code == "kubeconfig_unusable"
    assert error.value.facts == {"kubeconfig": "/nowhere", "context": None}


def test_a_job_uses_the_context_that_its_snakemake_has_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTEXT_VARIABLE, "pinned")
    for context, meant in ((None, "pinned"), ("gpu", "gpu")):
        with pytest.raises(ClusterError) as error:
            Api.connect(kubeconfig(tmp_path), context)
        assert error.value.facts["context"] == meant


def test_an_unreachable_cluster_is_named_and_its_token_is_not(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9: .*refused") as error:
        Api.connect(kubeconfig(tmp_path), outage_s=0.0).get("/version")
    assert (error.value.code, error.value.facts["server"]) == (
        "no_usable_answer",
        "http://127.0.0.1:9",
    )
    assert "secret-token" not in str(error.value)


def test_a_query_is_written_as_the_api_server_reads_it(tmp_path: Path) -> None:
    transport = KubernetesTransport.configured(kubeconfig(tmp_path))
    headers: dict[str, str] = {}
    url = transport._url(
        "/x", {"command": ["sh", "-c", "a b&c"], "stdout": True, "limit": 3}, headers
    )
    assert (
        url
        == "http://127.0.0.1:9/x?command=sh&command=-c&command=a+b%26c&stdout=true&limit=3"
    )
    assert headers == {"authorization": "Bearer secret-token"}
