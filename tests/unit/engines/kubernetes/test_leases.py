"""Leases: held, renewed, lost and taken over, on a stand-in for the API server."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster_cells import FULL_SITE
from tests.support.cluster_run import run_context
from tests.support.fake_cluster import Call, FakeTransport, Objects, made, ok, status

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import leases
from kveval.engines.kubernetes.api.errors import Refused
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.deployment import ClusterDeployer
from kveval.host.processes import Terminated, stop_signals_raise
from kveval.store.lock import owner

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
            return ok(
                {
                    "resources": [
                        {
                            "name": "leases",
                            "kind": "Lease",
                            "namespaced": True,
                            "verbs": verbs,
                        }
                    ]
                }
            )
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
        if (
            change["metadata"]["resourceVersion"]
            != self.lease["metadata"]["resourceVersion"]
        ):
            return status(409, "Conflict")
        self.lease["spec"] |= change["spec"]
        self._count()
        return ok(self.lease)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("code", "lines"), [(401, 0), (403, 1)], ids=["credential", "right"]
)
def test_a_lease_that_cannot_be_given_back_is_told_unless_the_run_tells_why(
    code: int, lines: int
) -> None:
    server = LeaseServer()

    def answer(call: Call) -> Reply:
        return status(code, "No") if call.method == "DELETE" else server(call)

    said: list[str] = []
    with leases.hold_for_run(run_context(FakeTransport(answer)), said.append, MARK):
        pass
    assert len(said) == lines
    assert all("could not be deleted" in text for text in said)


def left_by_a_dead_process() -> LeaseServer:
    dead = subprocess.Popen(["true"])
    dead.wait()
    return LeaseServer(
        holder=owner().replace(f"-{owner().split('-')[-2]}-", f"-{dead.pid}-")
    )


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_POLL_S", 0.02)
    monkeypatch.setattr(leases, "_RENEW_S", 0.05)


@pytest.fixture
def short(fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "DURATION_S", 0.3)


@pytest.mark.usefixtures("fast")
def test_a_lease_is_held_renewed_and_given_back() -> None:
    server = LeaseServer()
    with leases.hold_for_run(run_context(FakeTransport(server)), pytest.fail, MARK):
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == owner()
        before = server.lease["spec"]["renewTime"]
        time.sleep(0.2)
        assert server.lease["spec"]["renewTime"] > before
        assert leases.mark_of(server.lease) == "r1"
    assert server.lease is None


@pytest.mark.usefixtures("fast")
def test_a_second_stop_signal_leaves_no_lease() -> None:
    """A job gets one from the terminal, and another from snakemake while it tears down."""
    server = LeaseServer()

    def answer(call: Call) -> Reply:
        if call.method == "DELETE":
            os.kill(os.getpid(), signal.SIGINT)
        return server(call)

    context = run_context(FakeTransport(answer))
    with (
        stop_signals_raise(),
        pytest.raises(Terminated),
        leases.hold_for_run(context, pytest.fail, MARK),
    ):
        os.kill(os.getpid(), signal.SIGINT)
    assert server.lease is None


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("away", [False, True])
def test_a_stop_signal_while_a_lease_is_made_leaves_none(away: bool) -> None:
    server = LeaseServer()

    def answer(call: Call) -> Reply:
        reply = server(call)
        if call.method == "POST":
            os.kill(os.getpid(), signal.SIGINT)
        return status(403, "Forbidden") if away and call.method == "GET" else reply

    context = run_context(FakeTransport(answer))
    with (
        stop_signals_raise(),
        pytest.raises(Terminated),
        leases.hold_for_run(context, pytest.fail, MARK),
    ):
        pytest.fail("the Lease is not held")
    # Where it cannot be read, it expires.
    assert (server.lease is not None) == away


@pytest.mark.usefixtures("short")
def test_a_lease_that_is_not_renewed_is_taken_over_and_its_holder_notices() -> None:
    server = LeaseServer(holder="elsewhere-1-1")
    said: list[str] = []
    begin = time.monotonic()
    with leases.hold_for_run(
        run_context(FakeTransport(server)), said.append, MARK
    ) as lease:
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


@pytest.mark.usefixtures("short")
def test_a_lease_that_may_no_longer_be_renewed_is_lost_once_it_has_expired() -> None:
    server = LeaseServer()

    def answer(call: Call) -> Reply:
        return status(403, "Forbidden") if call.method == "PATCH" else server(call)

    with leases.hold_for_run(
        run_context(FakeTransport(answer)), pytest.fail, MARK
    ) as lease:
        begin = time.monotonic()
        with pytest.raises(leases.LeaseLost) as error:
            while time.monotonic() < begin + 10:
                lease.check()
                time.sleep(0.02)
        assert time.monotonic() - begin >= leases.DURATION_S
    assert error.value.code == "lease_not_renewed"


@pytest.mark.usefixtures("short")
def test_a_lease_that_nobody_took_during_an_outage_is_still_held() -> None:
    server, away = LeaseServer(), False

    def answer(call: Call) -> Reply:
        return status(503, "ServiceUnavailable") if away else server(call)

    with leases.hold_for_run(
        run_context(FakeTransport(answer)), pytest.fail, MARK
    ) as lease:
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
    with leases.hold_for_run(
        run_context(FakeTransport(left_by_a_dead_process())),
        pytest.fail,
        MARK,
    ):
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
        leases.hold_for_run(run_context(FakeTransport(answer)), pytest.fail, MARK),
    ):
        pytest.fail("the Lease is not held")
    assert error.value.status == code


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize(
    ("method", "code"), [("PATCH", 409), ("PATCH", 404), ("GET", 404)]
)
def test_a_lease_that_changes_meanwhile_is_looked_at_again_after_a_pause(
    method: str, code: int
) -> None:
    server, left = left_by_a_dead_process(), [status(code, "Changed")] * 3

    def answer(call: Call) -> Reply:
        asked = call.method == method and "/leases/" in call.path
        return left.pop() if asked and left else server(call)

    begin = time.monotonic()
    with leases.hold_for_run(run_context(FakeTransport(answer)), pytest.fail, MARK):
        assert time.monotonic() - begin >= 3 * leases._POLL_S
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == owner()


@pytest.mark.usefixtures("short")
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
    with leases.hold_for_run(run_context(transport), lambda text: None, MARK):
        assert looks == 6
        # Whoever waited for long counts as living at once.
        assert server.lease is not None
        assert server.lease["spec"]["renewTime"] >= begin
        assert "PATCH" not in {call.method for call in transport.calls}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("taken", [True, False])
def test_a_job_whose_run_was_taken_over_leaves_the_objects_to_the_other(
    taken: bool, tmp_path: Path
) -> None:
    server = LeaseServer()
    said: list[str] = []
    objects = Objects(
        made("Pod", "server", run_context(FakeTransport()).labels("model-server"))
    )

    def answer(call: Call) -> Reply:
        return (server if "coordination.k8s.io" in call.path else objects)(call)

    context = run_context(
        FakeTransport(answer),
        Cluster.model_validate({"namespace": "bench", **FULL_SITE}),
    )
    with leases.hold_for_run(context, pytest.fail, MARK) as lease:
        if taken:
            assert server.lease is not None
            server.lease["spec"]["holderIdentity"] = "another-2-2"
        deployer = ClusterDeployer(context, lease, tmp_path, said.append)
        deployer.close()
    assert objects.deleted == ([] if taken else ["Pod server"])
    assert ("another-2-2" in deployer.left) == taken
    assert said == []


def test_only_leases_that_were_renewed_lately_live() -> None:
    server = LeaseServer(holder="elsewhere-1-1")
    assert server.lease is not None
    api = run_context(FakeTransport(server)).api
    server.lease["spec"] |= leases.renewed()
    assert len(leases.living_leases(api, "bench", "spring")) == 1
    # An API server that was away for two minutes could not be told that it lives.
    stamp = (datetime.now(UTC) - timedelta(seconds=120)).strftime(
        "%Y-%m-%dT%H:%M:%S.%fZ"
    )
    server.lease["spec"]["renewTime"] = stamp
    assert len(leases.living_leases(api, "bench", "spring")) == 1
    server.lease["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z"
    assert leases.living_leases(api, "bench", "spring") == []


# Hardware
