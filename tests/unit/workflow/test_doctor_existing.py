"""What the doctor says of servers that answer already."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.support.config_files import changed, load

from kveval.engines.attached import endpoints_of
from kveval.host.findings import FindingRow
from kveval.workflow.doctor.doctor import diagnose
from kveval.workflow.planning.changed_stacks import changed_stacks
from kveval.workflow.planning.stored import StoredRuns, StoreIndex


class Server(http.server.BaseHTTPRequestHandler):
    """A vLLM with a key, and with metrics unless they are closed."""

    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        allowed = (
            not self.path.startswith("/v1/")
            or self.headers.get("Authorization") == "Bearer sesame"
        )
        status = 200 if self.path in self.answers else 404
        body = json.dumps(self.answers.get(self.path)).encode()
        if self.path == "/metrics":
            body = b"# TYPE vllm:x_total counter\nvllm:x_total 1.0\n"
        self.send_response(status if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(**answers: Any) -> Iterator[str]:
    served = {"data": [{"id": "prod/qwen"}]}
    handler = type("Own", (Server,), {})
    handler.answers = {
        "/health": None,
        "/version": {"version": "0.32.0"},
        "/v1/models": served,
        **answers,
    }
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def findings(folder: Path, first: dict[str, Any]) -> dict[str, FindingRow]:
    other = {"url": "http://127.0.0.1:1", "switch": "exit 1"}
    files = changed(("config", "engine"), "existing")
    files["config"]["existing"] = {"no-offload": first, "native-offload": other}
    return diagnosis(folder, files)


def diagnosis(folder: Path, files: dict[str, Any]) -> dict[str, FindingRow]:
    return {finding.check: finding for finding in all_findings(folder, files)}


def all_findings(folder: Path, files: dict[str, Any]) -> list[FindingRow]:
    return diagnose(
        load(folder, files),
        "campaign.yaml",
        store=folder / "store",
        server_environment=folder / "none",
        at_once=None,
        say=print,
    )


def test_a_server_that_is_as_declared_is_told_and_nothing_is_switched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "sesame")
    with serving(**{"/metrics": ""}) as url:
        named = {"url": url, "key": "OUR_KEY", "served_model": "prod/qwen"}
        found = findings(tmp_path, named)
    assert found["no-offload"].level == "ok"
    assert "vLLM 0.32.0 serves prod/qwen" in found["no-offload"].what
    assert found["native-offload"].level == "ok"
    assert "not run now" in found["native-offload"].what
    assert found["guidellm"].level == "error"


@pytest.mark.parametrize(
    ("key", "served_model", "answers", "code"),
    [
        ("", "prod/qwen", {"/metrics": ""}, "no_key"),
        ("wrong", "prod/qwen", {"/metrics": ""}, "no_answer"),
        ("sesame", "another", {"/metrics": ""}, "other_model"),
        (
            "sesame",
            "prod/qwen",
            {"/metrics": "", "/version": {"version": "0.9.1"}},
            "other_version",
        ),
        ("sesame", "prod/qwen", {}, "no_metrics"),
    ],
)
def test_what_is_wrong_with_a_server_is_one_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    served_model: str,
    answers: dict[str, Any],
    code: str,
) -> None:
    monkeypatch.setenv("OUR_KEY", key)
    with serving(**answers) as url:
        named = {"url": url, "key": "OUR_KEY", "served_model": served_model}
        finding = findings(tmp_path, named)["no-offload"]
    assert (finding.level, finding.code) == ("error", code)
    assert "sesame" not in finding.what


@pytest.mark.parametrize(
    ("connector", "level"),
    [("OffloadingConnector", "ok"), (None, "error"), ("LMCacheMPConnector", "error")],
)
def test_requests_that_load_nothing_need_vllms_own_connector(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connector: str | None,
    level: str,
) -> None:
    monkeypatch.setenv("OUR_KEY", "sesame")
    transfer = {"kv_connector": connector} if connector else None
    info = {"vllm_config": {"kv_transfer_config": transfer}}
    answers = {"/metrics": "", "/server_info?config_format=json": info}
    with serving(**answers) as url:
        named = {"url": url, "key": "OUR_KEY", "served_model": "prod/qwen"}
        named["load_from_tier"] = False
        finding = findings(tmp_path, named)["no-offload"]
    assert finding.level == level
    expected = "switch loading" if level == "ok" else "cannot switch loading off"
    assert expected in finding.what
    assert finding.code == ("" if level == "ok" else "loading_not_switched")


def test_each_replica_and_what_is_before_them_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "sesame")
    files = changed(("config", "engine"), "existing")
    with serving(**{"/metrics": ""}) as one, serving(**{"/metrics": ""}) as two:
        arm = {"url": one, "metrics": [one, two], "key": "OUR_KEY"}
        arm["served_model"] = "prod/qwen"
        other = {"url": one, "switch": "true"}
        files["config"]["existing"] = {"no-offload": arm, "native-offload": other}
        found = all_findings(tmp_path, files)
    texts = [finding.what for finding in found if finding.check == "no-offload"]
    assert [text.split(": ")[0] for text in texts] == [one, two, one]
    assert texts[-1].endswith("in front of 2 servers")


def test_a_stored_run_of_a_stack_that_has_changed_since_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another release; what only one of them tells is no change, and a run that recorded nothing is not judged."""
    monkeypatch.setenv("OUR_KEY", "sesame")
    files = changed(("config", "engine"), "existing")
    with serving(**{"/metrics": ""}) as url:
        named = {"url": url, "key": "OUR_KEY", "served_model": "prod/qwen"}
        switched = {"url": url, "switch": "true"}
        files["config"]["existing"] = {"no-offload": named, "native-offload": switched}
        config = load(tmp_path, files)
        [cell] = [one for one in config.cells if one.scenario == "no-offload"][:1]
        [endpoint] = endpoints_of(
            config.specification(cell), config.campaign.existing["no-offload"]
        ).values()
        stack = endpoint.stack()
        other = {**stack, "version": "0.31.0", "device_blocks": 100}
        runs = {1: [stack], 2: [other], 3: None}
        places = {}
        for number, told in runs.items():
            places[number] = (tmp_path / f"run-{number}",)
            places[number][0].mkdir()
            attached = {} if told is None else {"attached": {"stack": told}}
            (places[number][0] / "run.json").write_text(json.dumps(attached))
        index = StoreIndex({config.measurement_id(cell): StoredRuns(places)})
        lines = list(changed_stacks(config, index))
    changes = [line for line in lines if "has changed" in line]
    assert changes == [
        f"  {cell.path} run 2, stored: the stack has changed since: version {other['version']} -> {stack['version']}"
    ]
    assert any(line.startswith("native-offload: not asked") for line in lines)


@pytest.mark.parametrize(("version", "level"), [("0.5.6", "ok"), ("0.4.0", "error")])
def test_lmcache_beside_a_server_is_asked_for_its_version(
    tmp_path: Path, version: str, level: str
) -> None:
    files = changed(("config", "engine"), "existing")
    server = files["config"]["server"] | {"lmcache": "0.5.6"}
    cell = {"models": ["Qwen3-0.6B"], "scenarios": ["lmcache-local"]}
    files["config"] |= {"server": server, "matrix": [{**cell, "cpu_blocks": [10_000]}]}
    storage = {"l1_managers": {}, "store_controllers": {}}
    status, metrics = {"storage_manager": storage}, {"/metrics": ""}
    told = {"/version": {"version": version}, "/status": status}
    with serving(**metrics) as url, serving(**told, **metrics) as beside:
        arm = {"url": url, "lmcache": beside, "served_model": "prod/qwen"}
        files["config"]["existing"] = {"lmcache-local": arm}
        found = [
            finding
            for finding in all_findings(tmp_path, files)
            if "LMCache" in finding.what
        ]
    assert [finding.level for finding in found] == [level]
    assert version in found[0].what


def test_an_address_where_nothing_answers_is_an_error(tmp_path: Path) -> None:
    finding = findings(tmp_path, {"url": "http://127.0.0.1:9"})["no-offload"]
    assert (finding.level, finding.code) == ("error", "no_answer")


@pytest.mark.parametrize(
    ("counter", "level"), [("vllm:x_total", "ok"), ("vllm:y_total", "error")]
)
def test_a_counter_that_the_page_does_not_have_is_an_error_with_one_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counter: str, level: str
) -> None:
    monkeypatch.setenv("OUR_KEY", "sesame")
    files = changed(("config", "engine"), "existing")
    other = {"url": "http://127.0.0.1:1", "switch": "exit 1"}
    exercised = [{"name": counter, "unit": "tokens"}]
    files["scenarios"]["native-offload"]["exercised"] = exercised
    with serving(**{"/metrics": ""}) as url:
        named = {"url": url, "key": "OUR_KEY", "served_model": "prod/qwen"}
        files["config"]["existing"] = {"no-offload": other, "native-offload": named}
        found = diagnosis(tmp_path, files)["native-offload"]
    assert found.level == level
    assert (found.code == "no_such_counter") == (level == "error")
    assert level == "ok" or "similar counters are vllm:x_total" in found.what
