"""A recorder that an administrator has installed: what it answers, to whom, and what it never does."""

import base64
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_cells import variants
from tests.support.cluster_run import run_context
from tests.support.config_files import RELEASES
from tests.support.fake_cluster import Call, FakeTransport, made, ok, status
from tests.support.manifest_checks import pod_problems

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import (
    installed_recorder,
    recorder_agent,
    recorder_scripts,
    recordings,
)
from kveval.engines.kubernetes.api import download
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import NAMESPACE, NODE
from kveval.engines.kubernetes.api.transport import Reply
from kveval.engines.kubernetes.installed_recorder import (
    InstalledRecorder,
    installed_pods,
    key_of,
    require_installed,
)
from kveval.engines.kubernetes.manifests.recorder import (
    CONFIGURED,
    INSTALLED,
    configuration_of,
    installed_documents,
    recording_documents,
)
from kveval.engines.kubernetes.preview import preview_text
from kveval.engines.kubernetes.recorder_agent import (
    Agent,
    RefusedRequest,
    matches,
    opened,
    signed,
)
from kveval.pcp.installation import process_block

KEY = b"0123456789abcdef" * 4
MARK = "r0123abcd"
NOW = 1_800_000_000.0
SITE = Cluster.model_validate(
    {
        "namespace": "bench",
        "address": "http://127.0.0.1:{port}",
        "shared_network": True,
        "recorder": {"installed": True},
    }
)
POD = made("Pod", "recorder-0", spec={"nodeName": "n"}, namespace="kveval-pcp")


def asked(script: str = "alive", *words: str, **changes: Any) -> dict[str, Any]:
    return {"script": script, "mark": MARK, "arguments": words, "time": NOW} | changes


def body(request: dict[str, Any], key: bytes = KEY) -> bytes:
    return json.dumps(signed(key, request)).encode()


def test_a_request_is_taken_from_who_has_the_key_and_lately() -> None:
    assert opened(KEY, body(asked()), NOW + 200)["script"] == "alive"
    wrong = [
        body(asked(), key=b"another"),
        body(asked(time=NOW - 900)),
        body(asked(mark="../pcp")),
        body(asked("sh", "-c", "id")),
        # What the site, or another run, has there stays as it is.
        body(asked("sources", "dcgm", "http://10.0.0.1/m")),
        body(asked("sources", "vllm_r99999999", "http://10.0.0.1/m")),
        body({"script": "alive"}),
        b"{}",
        b"\xff",
    ]
    for content in wrong:
        with pytest.raises(RefusedRequest):
            opened(KEY, content, NOW)
    changed = json.loads(body(asked()))
    changed["request"] = changed["request"].replace("alive", "remove")
    with pytest.raises(RefusedRequest):
        opened(KEY, json.dumps(changed).encode(), NOW)


def test_what_the_workflow_asks_matches() -> None:
    url = "http://10.0.0.1:8000/metrics"
    for script, words in (
        ("sources", ["vllm_r0123abcd", f"{url} http://[fd00::1]:8000/metrics"]),
        ("start", [process_block([12, 345]), "1000", "vllm_r0123abcd", "vllm"]),
        ("start", ["", "500"]),
        ("missing", ["vllm_r0123abcd", "epp_r0123abcd"]),
        ("begun", ["hinv.ncpu"]),
        ("processes", ["0f5e2c1a-1111-2222-3333-444455556666"]),
        ("reach", [url]),
        ("list", ["archive"]),
        ("read", ["archive/pcp.0", "8388609", "8388608"]),
    ):
        assert matches(script, words), script
    assert set(recorder_agent.ARGUMENTS) == set(recorder_scripts.NAMES.values())


@given(st.sampled_from(sorted(recorder_agent.ARGUMENTS)), st.text(min_size=1))
def test_a_word_with_anything_that_a_shell_or_a_path_could_read_is_refused(
    script: str, text: str
) -> None:
    for sign in " ;$`|&<>'\"\\\n":
        assert not matches(script, [f"a{sign}{text}", "b"])
        assert not matches(script, [f"a{sign}{text}"])
    assert not matches("sources", ["vllm", f"file:///{text}"])
    assert not matches("start", [f"%include {text}", "1000"])


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent that answers on this host, with scripts that print what they were given."""
    scripts = dict.fromkeys(
        recorder_agent.ARGUMENTS, 'printf "%s|" "$(basename "$0")" "$@"'
    )
    scripts["remove"] = 'rm -r "$0"'
    scripts |= {"list": download.LIST, "read": download.READ}
    scripts["stop"] = "echo gone >&2; exit 3"
    answering = Agent(scripts, tmp_path / "runs")
    with recorder_agent.serve(answering, KEY, ("127.0.0.1", 0)) as server:
        monkeypatch.setattr(recorder_agent, "PORT", server.server_address[1])
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        yield answering
        server.shutdown()


def api_server(
    key: bytes = KEY, *pods: dict[str, Any], nodes: Sequence[dict[str, Any]] = ()
) -> FakeTransport:
    def answer(call: Call) -> Reply:
        if call.path == NODE.path(""):
            return ok({"items": list(nodes), "metadata": {}})
        if call.path.endswith(f"/secrets/{INSTALLED}"):
            return ok({"data": {"key": base64.b64encode(key).decode()}})
        if call.path.endswith("/pods"):
            return ok({"items": list(pods), "metadata": {}})
        if call.path == NAMESPACE.path("", SITE.pcp_namespace):
            return ok({"metadata": {}})
        if pods and call.path.endswith(f"/pods/{pods[0]['metadata']['name']}"):
            return ok(pods[0])
        return status(404, "NotFound")

    return FakeTransport(answer)


def recorder(key: bytes = KEY) -> InstalledRecorder:
    return InstalledRecorder(run_context(api_server(key), SITE), POD, MARK)


@pytest.mark.usefixtures("agent")
def test_scripts_run_in_the_recordings_folder() -> None:
    ours = recorder()
    for script, words, said in (
        (recorder_scripts.CLOCK, [], f"{MARK}|"),
        (
            recorder_scripts.SOURCES,
            [f"vllm_{MARK}", "http://a:1/m"],
            f"{MARK}|vllm_{MARK}|http://a:1/m|",
        ),
        (recorder_scripts.START, ["", "1000"], f"{MARK}||1000|"),
    ):
        assert ours.run(script, words).text == said
    done = ours.run(recorder_scripts.STOP, [])
    assert (done.returncode, done.error_text) == (3, "gone")


@pytest.mark.usefixtures("agent")
def test_whoever_has_another_key_is_refused() -> None:
    with pytest.raises(ClusterError, match="403"):
        recorder(b"another key, of somebody else's").run(recorder_scripts.CLOCK, [])


@pytest.mark.usefixtures("agent")
def test_a_recording_is_brought_whole_and_nothing_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed_recorder, "_PIECE_BYTES", 1000)
    folder = tmp_path / "runs" / MARK / "archive"
    folder.mkdir(parents=True)
    content = bytes(range(256)) * 20
    (folder / "pcp.0").write_bytes(content)
    (folder / "pcp.index").write_bytes(b"")
    (tmp_path / "secret").write_text("x")
    (folder / "link").symlink_to(tmp_path / "secret")
    ours = recorder()
    ours.bring("archive", tmp_path / "here")
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == {
        "pcp.0": content,
        "pcp.index": b"",
    }
    for name in ("../../secret", "archive/../../secret", "/etc/hostname"):
        assert not matches("read", [name, "1", "9"])
    for name in ("archive/link", "archive/.."):
        assert ours.run(download.READ, [name, "1", "9"]).returncode != 0


def test_a_recording_that_runs_is_not_started_again(
    agent: Agent, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / MARK
    folder.mkdir(parents=True)
    (folder / "pid").write_text("1")
    assert recorder().run(recorder_scripts.START, ["", "1000"]).text == ""


def test_a_recording_that_nobody_asks_about_is_ended(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mark in (MARK, "r99999999"):
        (tmp_path / "runs" / mark).mkdir(parents=True)
    agent.end_forsaken()
    begin = time.monotonic()
    monkeypatch.setattr(
        recorder_agent.time, "monotonic", lambda: begin + recorder_agent.KEPT_S + 1
    )
    agent.answer({"script": "alive", "mark": MARK, "arguments": []})
    agent.end_forsaken()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [MARK]


def test_a_node_without_the_recorder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_recorder, "_POLL_S", 0.01)
    ready = {
        **POD,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    context = run_context(api_server(KEY, ready), SITE)
    said: list[str] = []
    assert installed_pods(context, ["n"], 0.0, said.append) == [ready]
    assert said == []
    with pytest.raises(ClusterError, match="no ready pod on other") as error:
        installed_pods(context, ["other", "n"], 0.05, said.append)
    assert error.value.code == "recorder_missing"
    assert said == [
        "the recorder that is installed in kveval-pcp has no ready pod on other yet (0 s)"
    ]


@pytest.mark.parametrize(
    ("taints", "pods", "refused"),
    [
        ([], [], True),
        # The autoscaler may put a node there that servers tolerate, and the recorder on it.
        ([{"key": "control-plane", "effect": "NoSchedule"}], [], False),
        # It is being updated.
        (
            [],
            [{**POD, "metadata": POD["metadata"] | {"deletionTimestamp": "x"}}],
            False,
        ),
    ],
    ids=["none", "no node for servers", "going"],
)
def test_a_recorder_that_has_no_pod_is_missed_before_servers_start(
    taints: list[Any], pods: list[Any], refused: bool
) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    capacity = {SITE.gpu_resource: "1"}
    status = {"capacity": capacity, "allocatable": capacity, "conditions": ready}
    node = made("Node", "n", spec={"taints": taints}, status=status)
    context = run_context(api_server(KEY, *pods, nodes=[node]), SITE)
    if not refused:
        require_installed(context)
        return
    with pytest.raises(ClusterError, match="in kveval-pcp has no pod") as error:
        require_installed(context)
    assert (error.value.code, error.value.facts["nodes"]) == ("recorder_missing", ["n"])


def a_pod(configuration: str | None, ready: str = "True") -> dict[str, Any]:
    annotations = {CONFIGURED: configuration} if configuration else {}
    there = made("Pod", "recorder-0", spec={"nodeName": "n"}, namespace="kveval-pcp")
    there["metadata"]["annotations"] = annotations
    return {**there, "status": {"conditions": [{"type": "Ready", "status": ready}]}}


def demanded(site: Cluster = SITE) -> str:
    return configuration_of(installed_documents(site)[-1]["spec"]["template"])


@pytest.mark.usefixtures("agent")
def test_what_keeps_it_from_recording_a_campaign_is_told() -> None:
    context = run_context(api_server(KEY), SITE)
    assert recordings.installed_fault(context, a_pod(demanded())) == ""
    for pod, said in (
        (a_pod(demanded(), "False"), "not ready"),
        (a_pod("0123456789ab"), f"0123456789ab, and this campaign's is {demanded()}"),
        (a_pod(None), "without a hash"),
    ):
        assert said in recordings.installed_fault(context, pod)
    pod = a_pod(demanded())
    stranger = run_context(api_server(b"another key, of somebody else's", pod), SITE)
    said = recordings.installed_fault(stranger, pod)
    assert "cannot be asked" in said and "403" in said


def test_a_recorder_of_another_configuration_is_refused_before_servers_start() -> None:
    sources = {"dcgm": "http://{host}:9400/metrics"}
    other = SITE.model_copy(
        update={"recorder": SITE.recorder.model_copy(update={"sources": sources})}
    )
    assert demanded(other) != demanded()
    going = a_pod(None)
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    require_installed(run_context(api_server(KEY, going, a_pod(demanded())), SITE))
    with pytest.raises(ClusterError, match="updates it by python") as error:
        require_installed(run_context(api_server(KEY, a_pod(demanded())), other))
    assert error.value.code == "recorder_outdated"


def test_runs_of_one_name_in_two_namespaces_are_told_apart() -> None:
    theirs = SITE.model_copy(update={"namespace": "theirs"})
    marks = {
        recordings.mark_of(run_context(api_server(), site)) for site in (SITE, theirs)
    }
    assert len(marks) == 2
    assert all(re.fullmatch(recorder_agent.MARK, mark) for mark in marks)


def test_a_run_makes_and_removes_nothing_of_it() -> None:
    said: list[str] = []
    assert recording_documents("spring", SITE) == ()
    specifications, _ = variants(RELEASES[1])[3]
    text = preview_text(
        specifications["Qwen3-0.6B/native-offload/2000"], SITE, "spring"
    )
    there = [
        one
        for one in yaml.safe_load_all(text)
        if one["metadata"]["namespace"] == SITE.pcp_namespace
    ]
    assert [one["kind"] for one in there] == ["Lease"]
    transport = FakeTransport(lambda call: status(500, "InternalError"))
    context = run_context(transport, SITE)
    recordings.release_recorder(SITE, "spring", said.append, context.api)
    recordings.await_removal(context, said.append)
    recordings.remove_stale(context, said.append)
    assert said == []


def test_what_an_administrator_installs_has_no_label_by_which_a_teardown_finds_it() -> (
    None
):
    found = installed_documents(SITE)
    assert [one["kind"] for one in found] == ["ConfigMap"] * 3 + ["DaemonSet"]
    assert not [one for one in found if "app.kubernetes.io/managed-by" in str(one)]
    assert [*pod_problems(found[-1]["spec"]["template"]["spec"], privileged=True)] == []
    _, agent = found[-1]["spec"]["template"]["spec"]["containers"]
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_secret_that_is_missing_is_named() -> None:
    context = run_context(FakeTransport(lambda call: status(404, "NotFound")), SITE)
    with pytest.raises(ClusterError, match=f"no Secret kveval-pcp/{INSTALLED}"):
        key_of(context)
