"""The servers beside vLLM, for real: Redis, Valkey, LMCache's own."""

import json
import signal
import socket
import subprocess

import psutil
import pytest
from tests.support.paths import REPOSITORY

from kveval.campaign.specification import SidecarSpec
from kveval.engines.local.sidecars import fill, find_program, sidecars
from kveval.host.processes import supervisor
from kveval.stacks import keyvalue, lmcache
from kveval.stacks.lmcache import (
    LMCacheServer,
    _moving,
    _objects,
    _read_locked,
)
from kveval.stacks.sidecar import SidecarError, SidecarPortTaken
from kveval.stacks.versions import same_release

ENVIRONMENT = REPOSITORY / ".server-venv"
VERSIONS = {"vllm": "0.32.0", "lmcache": "0.5.6"}
LMCACHE = SidecarSpec(
    "lmcache",
    (
        *("lmcache", "server", "--host", "{lmcache_host}", "--port", "{lmcache_port}"),
        *("--http-host", "{lmcache_host}", "--http-port", "{lmcache_http_port}"),
        *("--l1-size-gb", "0.03125", "--eviction-policy", "LRU", "--chunk-size", "256"),
    ),
    {"PYTHONHASHSEED": "0", "LMCACHE_TRACK_USAGE": "false"},
)


def store(name):
    argv = (
        f"{name}-server",
        "--bind",
        f"{{{name}_host}}",
        "--port",
        f"{{{name}_port}}",
        "--save",
        "",
    )
    return SidecarSpec(name, (*argv, "--appendonly", "no"))


def has(program):
    try:
        find_program(program, ENVIRONMENT)
    except SidecarError:
        return False
    return True


@pytest.fixture
def start(tmp_path):
    def start(*wanted, ports=None, versions=VERSIONS, timeout_s=60.0):
        return sidecars(
            processes,
            wanted,
            environments=[ENVIRONMENT],
            base_env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "TMPDIR": str(tmp_path),
            },
            versions=versions,
            logs=tmp_path,
            ports={} if ports is None else ports,
            timeout_s=timeout_s,
        )

    with supervisor(tmp_path / "registry.json") as processes:
        yield start


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_store_starts_empty_counts_is_emptied_and_is_gone_afterwards(start, name):
    if not has(f"{name}-server"):
        pytest.skip(f"no {name}-server: bash scripts/setup.sh redis server")
    ports = {}
    with start(store(name), ports=ports) as ((program, server),):
        assert server.version[0].isdigit()
        before = server.counters()
        assert before[f"{name}_keys"] == 0
        for key in range(5):
            assert server.ask(f"SET key{key} value") == "OK"
        assert server.ask("GET key3") == "value"
        after = server.counters()
        assert after[f"{name}_keys"] == 5
        assert (
            after[f"{name}_keyspace_hits_total"] - before[f"{name}_keyspace_hits_total"]
            == 1
        )
        assert (
            after[f"{name}_received_bytes_total"]
            > before[f"{name}_received_bytes_total"]
        )
        assert server.reported_bytes() is None
        server.reset(5.0)
        assert server.counters()[f"{name}_keys"] == 0
        assert listens(ports[f"{name}_port"])
        pid = program.process.pid
    assert not psutil.pid_exists(pid)
    assert not listens(ports[f"{name}_port"])


def test_redis_is_not_taken_for_valkey(start, tmp_path):
    if not has("redis-server"):
        pytest.skip("no redis-server: bash scripts/setup.sh redis")
    disguised = SidecarSpec("valkey", ("redis-server", *store("valkey").argv[1:]))
    with pytest.raises(SidecarError) as error, start(disguised):
        pytest.fail("taken for valkey")
    assert error.value.code == "other_program"
    assert error.value.facts == {"found": "redis", "declared": "valkey"}


def test_a_store_whose_port_is_taken_says_so_with_its_log(start, tmp_path, monkeypatch):
    if not has("redis-server"):
        pytest.skip("no redis-server: bash scripts/setup.sh redis")
    # Whoever has the port accepts and never answers.
    monkeypatch.setattr(keyvalue, "_ANSWER_S", 0.3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {"redis_port": taken.getsockname()[1]}
        with (
            pytest.raises(SidecarPortTaken, match="ddress already in use") as error,
            start(store("redis"), ports=ports),
        ):
            pytest.fail("started on a port that is taken")
    assert error.value.code == "died"
    assert error.value.facts == {
        "program": "redis",
        "exit_code": 1,
        "log": tmp_path / "redis.log",
    }


def test_a_store_that_dies_in_service_is_noticed(start, tmp_path):
    if not has("redis-server"):
        pytest.skip("no redis-server: bash scripts/setup.sh redis")
    with start(store("redis")) as ((program, server),):
        program.require_alive()
        program.process.kill()
        program.process.wait()
        with pytest.raises(SidecarError) as error:
            program.require_alive()
        assert error.value.code == "died"
        facts = {
            "program": "redis",
            "exit_code": -signal.SIGKILL,
            "log": tmp_path / "redis.log",
        }
        assert error.value.facts == facts
        with pytest.raises(SidecarError) as error:
            server.counters()
        assert (error.value.code, error.value.facts["program"]) == (
            "no_answer",
            "redis",
        )


@pytest.mark.e2e
def test_lmcache_reports_its_size_version_and_counters_and_can_be_emptied(start):
    if not has("lmcache"):
        pytest.skip("no lmcache: bash scripts/setup.sh server")
    ports = {}
    with start(LMCACHE, ports=ports) as ((_, server),):
        assert server.version.startswith("0.5.6")
        assert server.reported_bytes() == 32 * 2**20
        assert server.counters()["lmcache_l1_memory_bytes"] == 0
        server.reset(5.0)
        assert (
            server._ask("/cache/clear", "POST", {"tier": "l1", "force": True})["status"]
            == "ok"
        )
        assert set(ports) == {"lmcache_port", "lmcache_http_port"}
    assert not any(listens(port) for port in ports.values())
    with (
        pytest.raises(SidecarError) as error,
        start(LMCACHE, versions={**VERSIONS, "lmcache": "0.4.0"}),
    ):
        pytest.fail("another version was accepted")
    assert (error.value.code, error.value.facts["declared"]) == (
        "other_version",
        "0.4.0",
    )
    assert error.value.facts["found"].startswith("0.5.6")


def test_a_program_that_is_missing_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for program in ("redis-server", "valkey-server", "lmcache"):
        with pytest.raises(SidecarError, match=r"run scripts/setup\.sh") as error:
            find_program(program, tmp_path)
        assert (error.value.code, error.value.facts["program"]) == (
            "not_installed",
            program,
        )


def test_an_environments_own_program_goes_before_the_hosts(tmp_path):
    own = tmp_path / "bin" / "redis-server"
    own.parent.mkdir()
    own.touch()
    assert find_program("redis-server", tmp_path) == [
        str(tmp_path / "bin" / "python"),
        str(own),
    ]


def test_ports_hosts_and_folders_are_filled_and_other_braces_left():
    text = '{"host":"{redis_host}","port":{redis_port},"dir":"{fs_dir}"}'
    assert json.loads(fill(text, {"redis_port": 7, "fs_dir": "/data"})) == {
        "host": "127.0.0.1",
        "port": 7,
        "dir": "/data",
    }


def status(objects=0, **transfers):
    tier = {
        "total_object_count": objects,
        "write_locked_count": 0,
        "read_locked_count": 0,
    } | transfers
    return {
        "l1_managers": {"_default": tier},
        "store_controllers": {
            "_default": {"in_flight_task_count": 0, "pending_keys_count": 0} | transfers
        },
    }


@pytest.mark.parametrize(
    "transfer", ["write_locked_count", "in_flight_task_count", "pending_keys_count"]
)
def test_a_transfer_under_way_is_seen_in_lmcaches_status(transfer):
    quiet = status(objects=3)
    assert _objects(quiet) == 3
    assert not _moving(quiet)
    assert _moving(status(objects=3, **{transfer: 1}))
    assert not _moving(status(objects=3, read_locked_count=2))
    assert _read_locked(status(objects=3, read_locked_count=2)) == 2


class Tier(LMCacheServer):
    """An LMCache with five objects, two of them locked by a reader, and what happens to it at each look."""

    def __init__(self, *looks, status=status):
        super().__init__([], "lmcache.log", self.answer)
        self.status = status
        self.objects, self.locked = 5, 2
        self.looks, self.cleared = list(looks), []

    def answer(self, path, method="GET", body=None, timeout_s=10.0):
        if path == "/cache/clear":
            force = bool(body and body["force"])
            self.cleared.append(force)
            self.objects = 0 if force else self.locked
            self.locked = 0 if force else self.locked
            return b'{"status": "ok"}'
        moving = {}
        if self.looks:
            self.locked, moving = self.looks.pop(0)
        return json.dumps(
            {
                "storage_manager": self.status(
                    self.objects, read_locked_count=self.locked, **moving
                )
            }
        ).encode()


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        seconds = 100.0

        def monotonic(self):
            return self.seconds

        def sleep(self, seconds):
            self.seconds += seconds

    monkeypatch.setattr(lmcache, "time", clock := Clock())
    return clock


def status_of_one_tier(objects=0, **transfers):
    """The same as LMCache 0.5.3 answers: one tier, without a name."""
    by_name = status(objects, **transfers)
    return {
        "l1_manager": by_name["l1_managers"]["_default"],
        "store_controller": by_name["store_controllers"]["_default"],
    }


@pytest.mark.parametrize("form", [status, status_of_one_tier])
def test_lmcache_is_emptied_once_its_readers_are_done(clock, form):
    tier = Tier((2, {}), (2, {}), (0, {}), status=form)
    tier.reset(20.0)
    assert tier.objects == 0
    assert tier.cleared == [False]


def test_locks_that_a_request_left_behind_in_lmcache_are_overridden(clock):
    tier = Tier()
    tier.reset(20.0)
    assert tier.objects == 0
    assert tier.cleared == [True]
    assert clock.seconds == pytest.approx(100 + lmcache.ABANDONED_S, abs=0.5)


def test_locks_in_lmcache_are_never_overridden_while_anything_moves(clock):
    tier = Tier(*[(2, {"in_flight_task_count": 1})] * 1000)
    with pytest.raises(SidecarError) as error:
        tier.reset(20.0)
    assert error.value.code == "not_emptied"
    assert error.value.facts == {"objects": 5, "limit_s": 20}
    assert tier.cleared == []


def test_a_status_without_tiers_is_named_with_what_was_looked_for(clock):
    with pytest.raises(SidecarError, match="no l1_managers and store_controllers, nor"):
        Tier(status=lambda *_, **__: {}).reset(20.0)


@pytest.mark.parametrize(
    ("found", "declared", "same"),
    [
        ("0.5.6-g3e11e108", "0.5.6", True),
        ("0.5.6", "0.5.6", True),
        ("0.5.7", "0.5.6", False),
        ("", "0.5.6", False),
    ],
)
def test_lmcaches_release_is_told_from_its_commit(found, declared, same):
    assert same_release(found, declared) is same


def test_programs_of_the_environment_answer_with_their_version():
    if not has("valkey-server"):
        pytest.skip("no valkey-server: bash scripts/setup.sh server")
    command = [*find_program("valkey-server", ENVIRONMENT), "--version"]
    assert (
        "v="
        in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
