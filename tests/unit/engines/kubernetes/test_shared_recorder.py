"""Jobs of one campaign from several folders or hosts: whoever ends last removes the recorder, and nobody another's."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster_run import SITE, SPECIFICATION
from tests.support.fake_cluster import Call, FakeTransport, made, ok, status

from kveval.campaign.site import Cluster
from kveval.engines.job import Job
from kveval.engines.kubernetes import leases
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    LEASE,
    NAMESPACE,
)
from kveval.engines.kubernetes.api.names import labels
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.engine import ClusterEngine
from kveval.engines.kubernetes.manifests.recorder import (
    recorder_name,
    recording_documents,
)
from kveval.engines.kubernetes.recordings import release_recorder, removal_metadata

CAMPAIGN = "spring"
LEASES = LEASE.path(SITE.namespace)
DAEMON_SETS = DAEMON_SET.path(SITE.pcp_namespace)
RECORDER = DAEMON_SET.path(SITE.pcp_namespace, recorder_name(CAMPAIGN, SITE))


class Objects:
    """The objects of an API server by path; `before` and `after` are called around the answer to each request."""

    def __init__(self) -> None:
        self.there = {
            NAMESPACE.path("", name): made("Namespace", name)
            for name in (SITE.namespace, SITE.pcp_namespace)
        }
        self.before: Callable[[str, Call], None] = lambda job, call: None
        self.after: Callable[[str, Call], None] = lambda job, call: None
        self._lock = threading.Lock()
        self._made = 0

    def __call__(self, call: Call) -> Reply:
        job = threading.current_thread().name
        self.before(job, call)
        with self._lock:
            reply = self._answer(call)
        self.after(job, call)
        return reply

    def _answer(self, call: Call) -> Reply:
        place = NAMESPACE.path("", SITE.pcp_namespace)
        if (
            place not in self.there
            and f"/namespaces/{SITE.pcp_namespace}/" in call.path
        ):
            # With a namespace go an account's rights in it.
            return status(403, "Forbidden")
        if call.method == "POST":
            path = f"{call.path}/{call.body['metadata']['name']}"
            return (
                status(409, "AlreadyExists")
                if path in self.there
                else self._write(path, call.body)
            )
        if call.content == "apply":
            return self._write(call.path, call.body)
        if call.path not in self.there:
            listed = call.path.rpartition("/")[2] in (
                "leases",
                "daemonsets",
                "pods",
                "jobs",
                "configmaps",
                "deployments",
            )
            return (
                ok({"items": self._list(call)}) if listed else status(404, "NotFound")
            )
        if call.method == "PATCH":
            changed = self.there[call.path]
            return self._write(
                call.path, {**changed, "spec": changed["spec"] | call.body["spec"]}
            )
        return ok(
            self.there.pop(call.path)
            if call.method == "DELETE"
            else self.there[call.path]
        )

    def _list(self, call: Call) -> list[dict[str, Any]]:
        wanted = dict(
            term.split("=") for term in str(call.query["labelSelector"]).split(",")
        )
        of_kind = [
            one
            for path, one in self.there.items()
            if path.rpartition("/")[0] == call.path
        ]
        return [
            one
            for one in of_kind
            if wanted.items() <= one["metadata"]["labels"].items()
        ]

    def _write(self, path: str, document: dict[str, Any]) -> Reply:
        self._made += 1
        written = json.loads(json.dumps(document))
        uid = self.there.get(path, {"metadata": {"uid": f"uid-{self._made}"}})[
            "metadata"
        ]["uid"]
        written["metadata"] |= {"uid": uid, "resourceVersion": str(self._made)}
        self.there[path] = written
        return ok(written)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Objects:
    """A stand-in for the API server, asked by jobs that are threads here and hosts of their own to each other."""
    found = Objects()
    monkeypatch.setattr(
        Api, "connect", lambda *_args, **_options: Api(FakeTransport(found), outage_s=0)
    )
    monkeypatch.setattr(
        leases, "owner", lambda: f"host-of-{threading.current_thread().name}-1-1"
    )
    monkeypatch.setattr(leases, "_POLL_S", 0.01)
    return found


def begin(name: str, body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    return thread


def measured(
    folder: Path,
    run: int,
    do: Callable[[Api], None] = lambda api: None,
    site: Cluster = SITE,
) -> None:
    """Measure a run as the last of its folder: its recorder is applied, `do` is done."""
    pointer = folder / "measurement.json"
    job = Job(
        SPECIFICATION,
        "0123456789abcdef",
        run,
        folder,
        folder,
        campaign=CAMPAIGN,
        site=site,
        pointers=[pointer],
    )
    with ClusterEngine(job).exclusive_host(lambda text: None):
        api = Api.connect()
        api.apply(recording_documents(CAMPAIGN, site)[1:])
        do(api)


def asks_for_living(call: Call) -> bool:
    return call.method == "GET" and call.path == LEASES


@pytest.mark.parametrize(
    "run", [1, 2], ids=["the same run, awaited", "another cell's run"]
)
def test_a_run_that_begins_while_the_last_one_removes_the_recorder_has_one(
    objects: Objects, tmp_path: Path, run: int
) -> None:
    asked, answered, waits = threading.Event(), threading.Event(), threading.Event()
    recorders: list[bool] = []

    def after(job: str, call: Call) -> None:
        if job == "first" and asks_for_living(call):
            # It has seen that nobody lives. The other job goes as far as it can before anything is removed.
            asked.set()
            assert answered.wait(10)
        refused = (
            job == "second"
            and call.method == "POST"
            and "recorder-removal" in str(call.body)
        )
        if refused and asked.is_set() and not answered.is_set():
            waits.set()
            answered.set()

    objects.after = after

    def second() -> None:
        def recorded(api: Api) -> None:
            answered.set()
            first_job.join(10)
            recorders.append(RECORDER in objects.there)

        assert asked.wait(10)
        measured(tmp_path, run, recorded)

    first_job = begin("first", lambda: measured(tmp_path, 1))
    second_job = begin("second", second)
    second_job.join(20)
    first_job.join(1)
    assert not first_job.is_alive() and not second_job.is_alive()
    assert recorders == [True]
    assert waits.is_set()
    # The last one has removed it, and nothing is left.
    assert not [
        path for path in objects.there if "/leases/" in path or path == RECORDER
    ]


def test_a_recorder_that_another_run_uses_is_left_to_it(
    objects: Objects, tmp_path: Path
) -> None:
    recorders: list[bool] = []

    def recorded(api: Api) -> None:
        other = begin("first", lambda: measured(tmp_path, 1))
        other.join(10)
        recorders.append(RECORDER in objects.there)

    begin("second", lambda: measured(tmp_path, 2, recorded)).join(20)
    assert recorders == [True]
    assert RECORDER not in objects.there


def test_a_campaign_of_the_same_name_in_another_namespace_keeps_its_recorder(
    objects: Objects, tmp_path: Path
) -> None:
    recorders: list[bool] = []

    def recorded(api: Api) -> None:
        other = begin(
            "first",
            lambda: measured(
                tmp_path, 1, site=SITE.model_copy(update={"namespace": "theirs"})
            ),
        )
        other.join(10)
        recorders.append(RECORDER in objects.there)

    begin("second", lambda: measured(tmp_path, 1, recorded)).join(20)
    assert recorders == [True]


def test_what_a_killed_job_left_goes_when_snakemake_ends_unless_another_measures(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = made(
        "Deployment",
        "server",
        labels(CAMPAIGN, "M/a/0", 1, "", "model-server"),
        version="apps/v1",
    )
    path = DEPLOYMENT.path(SITE.namespace, "server")
    said: list[str] = []

    def ended(_api: Api) -> None:
        release_recorder(SITE, CAMPAIGN, said.append)

    Api.connect().apply([server])
    begin("other", lambda: measured(tmp_path, 1, ended)).join(20)
    assert path in objects.there
    assert said[-1].startswith("what host-of-other-1-1 has on the cluster was left")
    assert "15 minutes" in said[-1] and "kveval teardown" in said[-1]
    # While it is removed another run begins, and a Lease of the killed job is there.
    monkeypatch.setattr(leases, "gone", lambda holder: "killed" in holder)

    def before(_job: str, call: Call) -> None:
        if call.method != "DELETE":
            return
        for name in ("killed", "begins"):
            about = {"name": name, "namespace": SITE.namespace, "uid": name}
            about |= {"labels": labels(CAMPAIGN, "", None, "", "lease")}
            spec = {"holderIdentity": name}
            lease = {"kind": "Lease", "metadata": about, "spec": spec}
            objects.there[f"{LEASES}/{name}"] = lease

    objects.before = before
    release_recorder(SITE, CAMPAIGN, said.append)
    assert path not in objects.there and f"{LEASES}/begins" in objects.there
    left = "Deployment bench/server, Lease bench/killed"
    assert said[-1].endswith(f"a killed job had left: {left}")


def test_a_removal_that_a_killed_job_has_begun_is_ended_before_a_recorder_is_applied(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases_made: list[dict[str, Any]] = []

    def noted(_job: str, call: Call) -> None:
        if call.method == "POST" and call.path.endswith("/leases"):
            leases_made.append(call.body)

    objects.before = noted
    begin("earlier", lambda: measured(tmp_path, 1)).join(20)
    removal = next(
        made for made in leases_made if "recorder-removal" in made["metadata"]["name"]
    )
    # A job is killed while it waits for the recorder's pods to go.
    api = Api.connect()
    api.create(removal)
    recorder = recording_documents(CAMPAIGN, SITE)[-1]
    recorder["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    api.apply([recorder])
    monkeypatch.setattr(leases, "gone", lambda holder: "earlier" in holder)
    looks, applied_to = 0, []

    def before(_job: str, call: Call) -> None:
        nonlocal looks
        looks += call.path == DAEMON_SETS
        if looks == 3:
            objects.there.pop(RECORDER, None)
        if call.content == "apply" and call.path == RECORDER:
            applied_to.append(RECORDER in objects.there)

    objects.before = before
    begin("second", lambda: measured(tmp_path, 1)).join(20)
    assert applied_to == [False]


def test_of_a_recorder_that_went_with_its_namespace_nothing_is_said_to_be_left(
    objects: Objects,
) -> None:
    place, said = NAMESPACE.path("", SITE.pcp_namespace), list[str]()
    removal = removal_metadata(CAMPAIGN, SITE)
    with leases.hold(Api.connect(), removal, "{holder}", said.append):
        del objects.there[place]
    release_recorder(SITE, CAMPAIGN, said.append)
    assert said == []
