"""The load generator's Jobs: what their pods are given, when they count as over, and that a report arrives whole."""

import base64
import gzip
import json
import os
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.cluster_cells import cells
from tests.support.config_files import RELEASES
from tests.support.fake_cluster import Call, FakeTransport, made, ok

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import load_jobs
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.load_jobs import LoadJobs, exit_code
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import PORTS
from kveval.engines.kubernetes.wait.diagnosis import exit_of
from kveval.engines.kubernetes.wait.rollout import RolloutError
from kveval.load import guidellm as load
from kveval.load.guidellm import Level, LoadError
from kveval.load.workload import Bursts, Workload

SPECIFICATION = cells(RELEASES[1])[0]["Qwen3-0.6B/native-offload/10000"]
SITE = Cluster.model_validate(
    {"namespace": "bench", "address": "service", "schedule_timeout_s": 300}
)
LEVEL = Level(4, 0, 7)


def jobs(transport: FakeTransport, **workload: Any) -> LoadJobs:
    specification = SPECIFICATION.with_workload(**workload)
    specification = replace(specification, reset_caches="endpoint")
    context = RunContext(
        specification,
        SITE,
        1,
        "spring",
        PORTS,
        "0123456789abcdef",
        Api(transport, outage_s=0),
    )
    return LoadJobs(context, lambda: "http://server:8000", 8, lambda text: None)


def status(*containers: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    return made(
        "Pod", "x", status={"phase": phase, "containerStatuses": list(containers)}
    )


ENDED = {"name": "load", "state": {"terminated": {"exitCode": 137}}}
KEEPING = {"name": "report", "state": {"running": {}}}
SENDING = {"name": "load", "state": {"running": {}}}


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (status(ENDED, KEEPING), 137),
        (status(SENDING, KEEPING), None),
        # What keeps the report ends last, or with its node.
        (status(phase="Failed"), 1),
        (status(phase="Succeeded"), 0),
    ],
)
def test_a_generator_has_ended_though_its_pod_stays(
    pod: dict[str, Any], code: int | None
) -> None:
    assert exit_code(pod) == code


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "exit code 1"),
        (128, "exit code 128"),
        (143, "killed by SIGTERM"),
        (255, "exit code 255"),
    ],
)
def test_a_generator_killed_by_a_signal_is_told_from_one_that_failed(
    code: int, words: str
) -> None:
    assert (
        exit_of(
            exit_code(
                status({"name": "load", "state": {"terminated": {"exitCode": code}}})
            )
        )
        == words
    )


def unpacked(files: dict[str, str]) -> dict[str, bytes]:
    return {
        name: gzip.decompress(base64.b64decode(text)) for name, text in files.items()
    }


def test_a_trace_is_given_to_the_pod_before_it_starts(tmp_path: Path) -> None:
    bursts = {
        "profile": "bursts",
        "bursts": Bursts(factor=4.0, share=0.1, mean_s=5.0),
        "prime": False,
    }
    found = unpacked(jobs(FakeTransport(), **bursts)._files(LEVEL))
    workload: Workload = SPECIFICATION.with_workload(**bursts).workload
    trace = load.write_data(workload, LEVEL, tmp_path / "guidellm-0004.json")
    assert trace is not None
    assert found[f"{trace.name}.gz"] == trace.read_bytes()
    assert b"KVEVAL_GO" in found["sitecustomize.py.gz"]


def test_a_pod_whose_streams_are_users_gets_the_code_for_that() -> None:
    users = jobs(FakeTransport(), profile="users", turns=3, pause_s=5.0, prime=False)
    found = unpacked(users._files(LEVEL))
    assert b"KVEVAL_USERS" in found["sitecustomize.py.gz"]
    env = users._environment(LEVEL)
    assert env["PYTHONPATH"] == load_jobs.LOAD_FOLDER
    assert json.loads(env["KVEVAL_USERS"])["users"] == LEVEL.streams
    others = jobs(FakeTransport(), prime=False)
    assert "KVEVAL_USERS" not in others._environment(LEVEL)


@pytest.mark.parametrize("imports", [True, False])
def test_a_pod_that_does_not_import_it_sends_nothing(
    tmp_path: Path, imports: bool
) -> None:
    program = tmp_path / "guidellm"
    probe = "[ -z $KVEVAL_PROBE ] || touch $KVEVAL_PROBE" if imports else "true"
    program.write_text(f"#!/bin/sh\n{probe}\ntouch {tmp_path}/began\n")
    program.chmod(0o755)
    script = f'{load_jobs._USERS}\ntouch "{tmp_path}/sends"'
    argv = ["sh", "-c", script, str(tmp_path / "go"), str(program)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if imports else 1)
    assert (tmp_path / "sends").exists() == imports
    assert imports or "streams users" in done.stderr


def test_a_trace_that_no_config_map_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_jobs, "_FILES_BYTES", 100)
    with pytest.raises(LoadError) as error:
        jobs(
            FakeTransport(),
            profile="bursts",
            bursts=Bursts(factor=4.0, share=0.1, mean_s=5.0),
            prime=False,
        )._files(LEVEL)
    assert error.value.code == "trace_too_large"
    assert error.value.facts["bytes"] > 100


@pytest.mark.parametrize("given", [True, False])
def test_a_pod_unpacks_what_it_was_given_and_begins_when_it_is_told_to(
    tmp_path: Path, given: bool
) -> None:
    folder, files = tmp_path / "load", tmp_path / "files"
    folder.mkdir()
    if given:
        files.mkdir()
        (files / "a trace.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    script = f"{load_jobs._BEGIN}{load_jobs._WAIT}"
    script = script.replace(load_jobs.LOAD_FILES, str(files)).replace(
        load_jobs.LOAD_FOLDER, str(folder)
    )
    argv = ["sh", "-c", script, f"{folder}/go", "touch", f"{folder}/began"]
    process = subprocess.Popen(
        argv, env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        assert (folder / "go.ready").exists()
        assert not (folder / "began").exists()
        (folder / "go").touch()
        assert process.wait(10) == 0
    finally:
        process.kill()
    assert (folder / "began").exists()
    assert [path.read_text() for path in folder.glob("*.jsonl")] == (
        ["{}\n"] if given else []
    )


def test_a_report_is_read_through_what_stays_of_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "guidellm-0004.json"
    there.mkdir()
    (there / here.name).write_text("{}")
    monkeypatch.setattr(load_jobs, "LOAD_FOLDER", str(there))
    transport = FakeTransport()
    jobs(transport)._fetch(status(ENDED, KEEPING), here)
    assert here.read_text() == "{}"
    assert {command["container"] for command in transport.commands} == {"report"}
    (there / here.name).unlink()
    here.unlink()
    with pytest.raises(LoadError):
        jobs(transport)._fetch(status(ENDED, KEEPING), here)


def test_the_next_pod_may_have_waited_for_the_room_of_the_one_before(
    tmp_path: Path,
) -> None:
    """A level lasts longer than a pod may be unschedulable; that of the next counts from when it is needed."""

    def answer(call: Call) -> Reply:
        if call.path.endswith("/pods"):
            since = "2026-01-01T00:00:00Z"
            waits = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "lastTransitionTime": since,
            }
            first = made(
                "Pod", "load-1", status={"phase": "Pending", "conditions": [waits]}
            )
            looks.append(1)
            return ok(
                {
                    "items": [first if len(looks) == 1 else status(SENDING, KEEPING)],
                    "metadata": {},
                }
            )
        if call.path.endswith("/events"):
            return ok({"items": [], "metadata": {}})
        return ok(made("Job", "load-1", version="batch/v1"))

    looks: list[int] = []
    prepared = load_jobs.Prepared("load-1", made=-1e12)
    assert (
        jobs(FakeTransport(answer))._running(prepared, tmp_path / "log")["metadata"][
            "name"
        ]
        == "x"
    )
    assert len(looks) == 2


def test_a_generators_pod_without_a_node_is_given_up_when_the_site_says(
    tmp_path: Path,
) -> None:
    def answer(call: Call) -> Reply:
        if call.path.endswith("/pods"):
            since = (datetime.now(UTC) - timedelta(seconds=lasted_s)).isoformat()
            waits = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "lastTransitionTime": since,
            }
            first = made(
                "Pod", "load-1", status={"phase": "Pending", "conditions": [waits]}
            )
            looks.append(1)
            return ok(
                {
                    "items": [first if len(looks) == 1 else status(SENDING, KEEPING)],
                    "metadata": {},
                }
            )
        return ok(
            {"items": [], "metadata": {}}
            if call.path.endswith("/events")
            else made("Job", "load-1")
        )

    prepared = load_jobs.Prepared("load-1", made=time.monotonic())
    for lasted_s in (250, 350):
        looks: list[int] = []
        if lasted_s < SITE.schedule_timeout_s:
            jobs(FakeTransport(answer))._running(prepared, tmp_path / "log")
            continue
        with pytest.raises(RolloutError) as error:
            jobs(FakeTransport(answer))._running(prepared, tmp_path / "log")
        assert error.value.cause == "Unschedulable"
