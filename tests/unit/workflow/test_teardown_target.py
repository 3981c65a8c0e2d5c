"""Removing what killed measurements have left, on this host and on a cluster."""

import fcntl
import subprocess
import sys
import time

import psutil
import pytest
from tests.support.config_files import CONFIG
from tests.support.fake_cluster import FakeTransport, Objects, ok, status

from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.client import Api
from kveval.host.registry import Registry
from kveval.host.sessions import Session
from kveval.workflow import teardown
from kveval.workflow.teardown import NotChecked, StillMeasuring, tear_down

LOCAL = load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture
def said(monkeypatch, tmp_path):
    """A registry and a lock of the test's own; what is said goes into the list."""
    monkeypatch.setattr(teardown, "registry_path", lambda: tmp_path / "processes.json")
    monkeypatch.setattr(teardown, "LOCK", tmp_path / "lock")
    return []


def test_what_a_killed_measurement_noted_is_ended(said, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    Registry(tmp_path / "processes.json").add(Session.led_by(process.pid, "server"))
    tear_down(LOCAL, said.append)
    assert said == [f"removed server (session {process.pid})"]
    process.wait(10)
    assert not psutil.pid_exists(process.pid)
    said.clear()
    tear_down(LOCAL, said.append)
    assert said == ["no killed measurement has left anything on this host"]


@pytest.mark.parametrize(
    ("kind", "namespace", "refused"),
    [
        ("pods", "kveval", True),
        ("persistentvolumeclaims", "kveval", True),
        ("daemonsets", "kveval-pcp", True),
        # A campaign makes neither there.
        ("persistentvolumeclaims", "kveval-pcp", False),
        ("healthcheckpolicies", "kveval", False),
    ],
)
def test_what_this_account_may_not_list_is_not_said_to_be_gone(
    monkeypatch, kind, namespace, refused
):
    objects, said = Objects(), []

    def answer(call):
        if call.path.endswith(f"/namespaces/{namespace}/{kind}"):
            return status(403, "Forbidden", f"{kind} is forbidden")
        if call.path.endswith("/leases"):
            return ok({"items": []})
        return objects(call)

    monkeypatch.setattr(
        teardown.Api, "connect", lambda *_, **__: Api(FakeTransport(answer))
    )
    config = load_config(CONFIG / "campaigns" / "cluster-first.yaml", CONFIG)
    if not refused:
        tear_down(config, said.append)
        assert said[-1].startswith("nothing of campaign cluster-first is on")
        return
    with pytest.raises(NotChecked, match=f"may not list {kind} in {namespace}") as no:
        tear_down(config, said.append)
    group = {"daemonsets": ".apps"}.get(kind, "")
    labels = "app.kubernetes.io/managed-by=kveval,kveval.dev/campaign="
    command = f"kubectl -n {namespace} delete {kind}{group} -l {labels}"
    assert command in str(no.value) and str(no.value).count("kubectl") == 1


def test_a_measurement_that_runs_is_left_alone(said, tmp_path):
    lock = tmp_path / "lock"
    lock.write_text("process 7: somebody's run 2\n")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    try:
        Registry(tmp_path / "processes.json").add(Session.led_by(process.pid, "server"))
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StillMeasuring) as error:
                tear_down(LOCAL, said.append)
            assert error.value.facts == {"holders": [lock.read_text().strip()]}
        time.sleep(0.1)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
