"""A server that somebody else has started is measured at its address, and left as it is."""

import contextlib
import functools
import http.server
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace as replace_struct
from tests.support.fault_chain import CAMPAIGN, CELL, merged, stand_in_environment
from tests.support.paths import REPOSITORY, STAND_INS

from kveval.campaign.campaign_file import ExistingServer
from kveval.configuration.loading import load_config
from kveval.engines.attached import AttachedDeployer, AttachedEngine, stack_now
from kveval.engines.job import Job, MeasurementError
from kveval.engines.local import recorder
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.host import hardware
from kveval.host.http import HttpError, fetch, free_port, request
from kveval.host.lock import host_lock
from kveval.measure import transaction
from kveval.measure.progress import Progress
from kveval.store.run_file import pointed_run
from kveval.store.store import Store


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    campaign = tmp_path / "campaign.yaml"
    campaign.write_text(yaml.safe_dump(CAMPAIGN))
    config = load_config(campaign, REPOSITORY / "config")
    specification = config.specification(config.cell(CELL))
    return Job(
        specification,
        specification.measurement_id,
        1,
        tmp_path / "store",
        stand_in_environment(tmp_path / "environment"),
    )


def engine_at(job: Job, url: str, **more: object) -> AttachedEngine:
    existing = ExistingServer.model_validate({"url": url, **more})
    return AttachedEngine(replace(job, existing=existing))


def deployer_at(
    job: Job, url: str, say: Callable[[str], None] = print, **more: object
) -> AttachedDeployer:
    existing = ExistingServer.model_validate({"url": url, **more})
    return AttachedDeployer(job, existing, job.store.with_name("switch.log"), say)


@contextlib.contextmanager
def started_by_hand(log: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Start the stand-in for vLLM as a user would, in a shell of their own."""
    port = free_port()
    argv = [sys.executable, str(STAND_INS / "server.py"), "--port", str(port)]
    env = {**os.environ, **CAMPAIGN["server"]["env"]}
    with log.open("wb") as output:
        server = subprocess.Popen(argv, env=env, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 20
    try:
        while True:
            with contextlib.suppress(HttpError):
                request(f"{url}/health", timeout_s=1.0)
                break
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield url, server
    finally:
        server.terminate()
        server.wait(10)


def test_a_server_started_by_hand_is_measured_and_left_running(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "installed_pcp", lambda: None)
    own_lock = functools.partial(host_lock, path=tmp_path / "lock")
    monkeypatch.setattr("kveval.engines.local.engine.host_lock", own_lock)
    pointer, log = tmp_path / "measurement.json", tmp_path / "log"
    with started_by_hand(tmp_path / "server.log") as (url, server):
        # As users copy it from what they have.
        engine = engine_at(job, f"{url}/v1/")
        monkeypatch.setattr(transaction, "engine_of", lambda job: engine)
        transaction.measure(job, pointer, Progress("cell", 60.0, log))
        assert server.poll() is None
        assert server.pid in deployer_at(job, url).server.process_ids
        request(f"{url}/health")
    run = pointed_run(pointer)
    [level] = run.levels
    assert level.status == "ok"
    assert level.counters["vllm:generation_tokens_total"].delta > 0
    assert run.hardware["fingerprint"] == hardware.probe()["fingerprint"]
    assert "attaching to the server" in log.read_text()
    text = next((tmp_path / "store").rglob("run.json")).read_text()
    attached = json.loads(text)["attached"]
    assert attached["empties_caches"] is True
    assert [told["version"] for told in attached["stack"]] == ["0.32.0+cpu"]
    assert url not in text


@pytest.mark.parametrize(
    ("host", "waits"), [("127.0.0.1", True), ("localhost", True), ("gpu1", False)]
)
def test_this_machine_is_waited_for_where_the_server_is_on_it(
    job: Job, host: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(
        "kveval.engines.local.engine.wait_until_quiet",
        lambda say, budget: waited.append(budget.limit_s),
    )
    monkeypatch.setenv("KVEVAL_QUIET_WAIT_S", "7")
    engine_at(job, f"http://{host}:8000").wait_until_quiet(print)
    assert waited == ([7.0] if waits else [])


class OpenServer(http.server.BaseHTTPRequestHandler):
    """A server of the declared version whose caches nobody can empty."""

    key = ""
    page = b""
    emptied = False

    def do_GET(self) -> None:
        version, model = {"version": "0.32.0"}, {"id": "Qwen3-0.6B-miniature"}
        answers = {"/version": version, "/v1/models": {"data": [model]}}
        self.answer(answers | {"/metrics": None})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answers: dict[str, object] = {}
        answers["/v1/completions"] = {"usage": {"completion_tokens": 4}}
        if self.emptied and self.path.startswith("/reset_prefix_cache"):
            answers[self.path] = {"success": True}
        self.answer(answers)

    def answer(self, answers: dict[str, object]) -> None:
        empty = self.path == "/metrics"
        body = self.page if empty else json.dumps(answers.get(self.path)).encode()
        allowed = self.key in self.headers.get("Authorization", "")
        self.send_response((200 if self.path in answers else 404) if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def open_server(
    handler: type[http.server.BaseHTTPRequestHandler] = OpenServer,
) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


def test_caches_that_no_endpoint_empties_are_told_once_and_left(job: Job) -> None:
    messages: list[str] = []
    with open_server() as url:
        deployer = deployer_at(job, url, messages.append)
        deployer.start()
        deployer.refresh(restart=False)
        deployer.server.require_alive()
        attached = deployer.facts()["attached"]
    assert attached["empties_caches"] is False
    [told] = attached["stack"]
    assert (told["version"], told["connector"]) == ("0.32.0", None)
    assert ["no open endpoint" in message for message in messages] == [True]


PAGE = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",kv_offloading_size="{gib}"}} 1.0
"""


def page(blocks: int = 1120, gib: float = 2.0) -> bytes:
    return PAGE.format(blocks=blocks, gib=gib).encode()


@pytest.mark.parametrize(("tier_gib", "tier_bytes"), [(0, None), (2, 2 * 2**30)])
def test_the_sizes_that_it_tells_are_recorded_as_those_of_a_started_server(
    job: Job, monkeypatch: pytest.MonkeyPatch, tier_gib: int, tier_bytes: int | None
) -> None:
    """That of the tier only for an arm that has one: requests of another may leave it aside."""
    budget = replace_struct(job.specification.budget, tier_bytes=tier_gib * 2**30)
    specification = replace_struct(job.specification, budget=budget)
    monkeypatch.setattr(OpenServer, "page", page())
    with open_server() as url:
        server = deployer_at(replace(job, specification=specification), url).start()
    assert server.facts["kv_cache_tokens"] == 1120 * 16
    assert server.facts.get("tier_bytes") == tier_bytes


@pytest.mark.parametrize(
    ("told", "code"),
    [({"blocks": 900}, "other_device_cache"), ({"gib": 4.0}, "other_tier")],
)
def test_sizes_that_are_not_as_declared_are_told_before_anything_is_measured(
    job: Job, monkeypatch: pytest.MonkeyPatch, told: dict[str, float], code: str
) -> None:
    budget = replace_struct(job.specification.budget, tier_bytes=2 * 2**30)
    specification = replace_struct(job.specification, budget=budget)
    monkeypatch.setattr(OpenServer, "page", page(**told))
    with open_server() as url, pytest.raises(DeploymentError) as error:
        deployer_at(replace(job, specification=specification), url).start()
    assert error.value.code == code


@pytest.mark.parametrize(
    ("now", "adopted", "words"),
    [
        (page(), True, ""),
        (page(blocks=1110), True, ""),
        (page(blocks=500), False, "on another stack: device_blocks 1120 -> 500"),
        (page(gib=4.0), False, f"tier_bytes {2 * 2**30} -> {4 * 2**30}"),
        (b"", True, ""),
    ],
)
def test_a_stored_run_of_another_stack_is_not_adopted(
    job: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    now: bytes,
    adopted: bool,
    words: str,
) -> None:
    """What is not told now is no difference, nor a few blocks more or less."""
    stored, messages = tmp_path / "run-1", list[str]()
    stored.mkdir()
    monkeypatch.setattr(OpenServer, "page", page())
    with open_server() as url:
        engine = engine_at(job, url)
        stack = stack_now(job.specification, ExistingServer(url=url))
        run = {"attached": {"stack": stack}}
        (stored / "run.json").write_text(json.dumps(run))
        monkeypatch.setattr(OpenServer, "page", now)
        assert engine.may_adopt(stored, messages.append) is adopted
    assert words in "".join(messages)
    assert bool(messages) is not adopted


def test_what_cannot_be_asked_is_adopted_with_a_word(job: Job, tmp_path: Path) -> None:
    messages = list[str]()
    (tmp_path / "run.json").write_text(json.dumps({"attached": {"stack": [{}]}}))
    closed = engine_at(job, f"http://127.0.0.1:{free_port()}")
    switched = engine_at(job, "http://127.0.0.1:1", switch="exit 1")
    for engine in (closed, switched):
        assert engine.may_adopt(tmp_path, messages.append)
    assert ["without comparing the stack" in text for text in messages] == [True] * 2
    # Of a run that recorded no stack there is nothing to compare.
    assert closed.may_adopt(tmp_path / "older", pytest.fail)


class LMCacheOpen(http.server.BaseHTTPRequestHandler):
    """LMCache's server with a tier of `size` bytes, that tells how often it was emptied."""

    size, cleared = 0, 0

    def do_GET(self) -> None:
        tier = {
            "memory_configured_bytes": self.size,
            "memory_used_bytes": 0,
            "total_object_count": 0,
            "write_locked_count": 0,
            "read_locked_count": 0,
        }
        storage = {"l1_managers": {"_default": tier}, "store_controllers": {}}
        page = "# TYPE lmcache_mp_lookup_total counter\nlmcache_mp_lookup_total 3.0\n"
        answers = {
            "/version": json.dumps({"version": "0.5.6"}),
            "/status": json.dumps({"storage_manager": storage}),
            "/metrics": page,
        }
        self.answer(answers.get(self.path, "{}"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        type(self).cleared += self.path == "/cache/clear"
        self.answer("{}")

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def job_with_lmcache(job: Job, tmp_path: Path) -> Job:
    cell = {"models": ["Qwen3-0.6B"], "scenarios": ["lmcache-local"]}
    matrix = [{**cell, "cpu_blocks": [10_000]}]
    server = {"server": {"lmcache": "0.5.6"}}
    campaign = tmp_path / "lmcache.yaml"
    campaign.write_text(yaml.safe_dump(merged({**CAMPAIGN, "matrix": matrix}, server)))
    config = load_config(campaign, REPOSITORY / "config")
    return replace(job, specification=config.specification(config.cells[0]))


def test_lmcache_beside_a_server_is_read_checked_and_emptied_at_its_address(
    job_with_lmcache: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with_lmcache
    size = job.specification.budget.tier_bytes
    monkeypatch.setattr("kveval.engines.attached._LOOK_S", 0.5)
    monkeypatch.setattr(LMCacheOpen, "size", size)
    monkeypatch.setattr(LMCacheOpen, "cleared", 0)
    monkeypatch.setattr(OpenServer, "emptied", True)
    with open_server() as url:
        with open_server(LMCacheOpen) as beside:
            deployer = deployer_at(job, url, lmcache=beside)
            server = deployer.start()
            assert server.counters()["lmcache_mp_lookup_total"] == 3.0
            assert server.facts["tier_bytes"] == size
            assert LMCacheOpen.cleared > 0
            assert server.metrics_urls["lmcache"] == f"{beside}/metrics"
            assert deployer.placeholders[beside] == "{lmcache}"
            assert [fact.version for fact in server.sidecar_facts] == ["0.5.6"]
            monkeypatch.setattr(LMCacheOpen, "size", size // 2)
            with pytest.raises(DeploymentError) as error:
                deployer_at(job, url, lmcache=beside).start()
            assert error.value.code == "other_tier"
            server.require_alive()
        time.sleep(0.6)
        with pytest.raises(ServerDied, match=beside):
            server.require_alive()
        with pytest.raises(DeploymentError, match=r"LMCache's server at .* cannot"):
            deployer_at(job, url, lmcache=beside).start()


def test_two_arms_on_one_server_need_its_caches_emptied(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both send the same prompts; that the server cannot switch loading off is told before."""
    specification = replace_struct(job.specification, load_from_tier=False)
    job = replace(job, specification=specification)
    with open_server() as url:
        with pytest.raises(DeploymentError, match="no open endpoint") as error:
            deployer_at(job, url).refresh(restart=False)
        assert error.value.code == "caches_not_emptied"
        with pytest.raises(DeploymentError) as error:
            deployer_at(job, url).start()
        assert error.value.code == "loading_not_switched"


def test_counters_of_replicas_are_summed_recorded_apart_and_read_at_their_addresses(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kveval.engines.attached._LOOK_S", 0.5)
    page = b"# TYPE vllm:x_total counter\nvllm:x_total 2.0\n"
    monkeypatch.setattr(OpenServer, "page", page)
    with open_server() as gateway, open_server() as one, open_server() as two:
        deployer = deployer_at(job, gateway, metrics=[one, two])
        server = deployer.start()
        assert server.url == gateway
        assert server.counters() == {"vllm:x_total": 4.0}
        [(name, address)] = server.metrics_urls.items()
        assert name == "vllm"
        recorded = fetch(address).decode()
        assert 'vllm:x_total{replica="1"} 2.0' in recorded
        assert set(deployer.placeholders) == {gateway, one, two}
        server.require_alive()
    time.sleep(0.6)
    with pytest.raises(ServerDied):
        server.require_alive()
    with pytest.raises(HttpError, match="502"):
        fetch(address)
    deployer.close()


def test_an_address_where_nothing_answers_is_an_error_and_so_is_a_server_that_ends(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kveval.engines.attached._LOOK_S", 0.5)
    with open_server() as url:
        deployer = deployer_at(job, url)
        deployer.server.require_alive()
    with pytest.raises(DeploymentError) as error:
        deployer.start()
    assert error.value.code == "no_answer"
    time.sleep(0.6)
    with pytest.raises(ServerDied, match="no server answers at"):
        deployer.server.require_alive()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host", "http://", "http://me:pw@host"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no address of a server|has a password"):
        ExistingServer(url=url)


def test_a_key_that_is_not_set_is_named_before_anything_starts(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OUR_KEY", raising=False)
    with pytest.raises(MeasurementError, match="OUR_KEY, the key of http://h, is not"):
        engine_at(job, "http://h", key="OUR_KEY").require_possible(Store(tmp_path))


def test_the_key_is_sent_and_a_wrong_one_is_told(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenServer, "key", "right")
    with open_server() as url:
        monkeypatch.setenv("OUR_KEY", "right")
        deployer_at(job, url, key="OUR_KEY").start()
        monkeypatch.setenv("OUR_KEY", "wrong")
        with pytest.raises(DeploymentError, match="401"):
            deployer_at(job, url, key="OUR_KEY").start()


def test_a_switch_brings_the_arm_into_service(job: Job, tmp_path: Path) -> None:
    """The command starts a server that is not there before, and stays when the run has ended."""
    port, log = free_port(), tmp_path / "server.log"
    argv = [sys.executable, str(STAND_INS / "server.py"), "--port", str(port)]
    exports = [
        f"export {name}={shlex.quote(value)}"
        for name, value in CAMPAIGN["server"]["env"].items()
    ]
    begin = f"nohup {shlex.join(argv)} >{shlex.quote(str(log))} 2>&1 & echo $!"
    script = tmp_path / "start.sh"
    script.write_text("\n".join([*exports, begin]))
    deployer = deployer_at(job, f"http://127.0.0.1:{port}", switch=f"sh {script}")
    try:
        deployer.start()
        deployer.close()
        deployer.server.require_alive()
    finally:
        os.kill(int((tmp_path / "switch.log").read_text()), signal.SIGTERM)


@pytest.mark.parametrize(
    ("switch", "code"),
    [
        ("exit 3", "switch_failed"),
        ("sleep 60", "switch_stuck"),
        ("true", "not_switched"),
    ],
)
def test_a_switch_that_fails_hangs_or_brings_nothing_up_is_one_line(
    job: Job, switch: str, code: str
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    deployer = deployer_at(job, url, switch=switch, switch_limit_s=0.5)
    with pytest.raises(DeploymentError) as failure:
        deployer.start()
    assert failure.value.code == code
    assert "\n" not in str(failure.value)


def test_arms_behind_one_name_are_on_one_machine(job: Job) -> None:
    one, same, other = (
        engine_at(job, url).hardware()["fingerprint"]
        for url in ("http://gpu1:8000", "http://gpu1:8001", "http://gpu2:8000")
    )
    assert one == same != other


def test_nothing_of_a_stuck_switch_goes_on(job: Job, tmp_path: Path) -> None:
    switch = f"(sleep 1; touch {tmp_path}/late) & sleep 60"
    deployer = deployer_at(job, "http://127.0.0.1:1", switch=switch, switch_limit_s=0.3)
    with pytest.raises(DeploymentError):
        deployer.start()
    time.sleep(1.2)
    assert not (tmp_path / "late").exists()
