"""The local engine's own decisions, against a stand-in for the server's HTTP side; the end-to-end test uses vLLM."""

import os
import sys
import textwrap
from types import SimpleNamespace

import psutil
import pytest

from kveval.engines.local.server import deployed, server_environment
from kveval.engines.servers.declared import check_tiers, require_tier
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.host.logs import last_words
from kveval.host.processes import supervisor
from kveval.stacks.vllm import VLLM

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
STAND_IN = """
import http.server, json, os, sys, time
port = int(sys.argv[sys.argv.index("--port") + 1])
behaviour = os.environ.get("BEHAVIOUR", "")
print("INFO CPU KV cache size: 17,920 tokens, Maximum concurrency for 8,192 tokens per request: 2.19x", flush=True)
if behaviour == "dies":
    print("ValueError: No available memory for the cache blocks", flush=True)
    sys.exit(3)
if behaviour == "never healthy":
    time.sleep(100)
resets = 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        answers = {"/version": {"version": "0.32.0+cpu"}, "/v1/models": {"data": [{"id": "tiny"}]}, "/health": None}
        self.answer(answers[self.path])
    def do_POST(self):
        global resets
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache?reset_external=true":
            resets += 1
            self.answer({"success": resets > 1})
        elif self.path == "/v1/completions":
            self.answer({"usage": {"completion_tokens": 0 if behaviour == "generates nothing" else 4}})
    def answer(self, content):
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def start(tmp_path):
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (tmp_path / "stand_in.py").write_text(textwrap.dedent(STAND_IN))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/stand_in.py "$@"\n')
    python.chmod(0o755)

    def start(
        behaviour="",
        served_model="tiny",
        device_tokens=17920,
        start_timeout_s=20.0,
        **changed,
    ):
        specification = {
            "argv": [
                "--model",
                "{model_dir}",
                "--port",
                "{port}",
                "--kv-transfer-config",
                '{"kv_role":"kv_both"}',
            ],
            "env": {"BEHAVIOUR": behaviour, "WHERE": "127.0.0.1:{port}"},
            "versions": {"vllm": "0.32.0"},
            "sidecars": (),
            "file_tier": False,
            "model": SimpleNamespace(served_name=served_model),
            "budget": SimpleNamespace(
                device_tokens=device_tokens, host_bytes=0, split={}
            ),
        } | changed
        return deployed(
            processes,
            SimpleNamespace(**specification),
            start_timeout_s=start_timeout_s,
            environments=[tmp_path / "environment"],
            model_dir=tmp_path / "model",
            files_in=tmp_path,
            log=tmp_path / "server.log",
        )

    with supervisor(tmp_path / "registry.json") as processes:
        yield start


def test_a_server_that_answers_as_declared_is_deployed_and_gone_afterwards(
    start, tmp_path
):
    with start() as server:
        assert server.argv[server.argv.index("--model") + 1] == str(tmp_path / "model")
        assert server.argv[-1] == '{"kv_role":"kv_both"}'
        assert server.env["WHERE"] == server.url.removeprefix("http://")
        assert server.facts == {"kv_cache_tokens": 17920, "max_concurrency": 2.19}
        assert server.version == "0.32.0+cpu"
        server.warm_up(100)
        server.reset_caches()
        pid = server.process.pid
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("behaviour", "changed", "code", "facts"),
    [
        ("never healthy", {"start_timeout_s": 0.5}, "not_healthy", {}),
        (
            "",
            {"versions": {"vllm": "0.31.0"}},
            "other_version",
            {"found": "0.32.0+cpu", "declared": "0.31.0"},
        ),
        (
            "",
            {"served_model": "other"},
            "other_model",
            {"found": ["tiny"], "declared": "other"},
        ),
        (
            "",
            {"device_tokens": 20000},
            "other_device_cache",
            {"found": 17920, "declared": 20000},
        ),
    ],
)
def test_a_server_that_is_not_what_was_declared_is_refused(
    start, behaviour, changed, code, facts
):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(DeploymentError) as error, start(behaviour, **changed):
        pytest.fail("deployed all the same")
    assert (error.value.code, error.value.facts) == (code, facts)
    assert {
        process.pid for process in psutil.Process().children(recursive=True)
    } <= before


def test_a_server_that_dies_at_its_start_says_so_in_its_own_words(start, tmp_path):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with (
        pytest.raises(ServerDied, match="ValueError: No available memory") as error,
        start("dies"),
    ):
        pytest.fail("deployed all the same")
    assert error.value.facts == {
        "exit_code": 3,
        "log": tmp_path / "server.log",
        "offset": 0,
    }
    assert {
        process.pid for process in psutil.Process().children(recursive=True)
    } <= before


def test_a_healthy_server_that_generates_nothing_is_found_out(start):
    with start("generates nothing") as server:
        with pytest.raises(DeploymentError) as error:
            server.warm_up(10)
        assert error.value.code == "generates_nothing"


def test_a_server_that_dies_in_service_is_noticed_with_its_last_words(start, tmp_path):
    with start() as server:
        server.require_alive()
        with (tmp_path / "server.log").open("a") as log:
            log.write(f"{OUT_OF_MEMORY}\n")
        server.process.kill()
        server.process.wait()
        with pytest.raises(ServerDied, match=OUT_OF_MEMORY):
            server.require_alive()


def test_the_servers_environment_is_made_anew_and_holds_the_token_only_for_full_weights(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "left over in the shell")
    env = server_environment({"A": "1"}, tmp_path)
    assert "hf_secret" not in env.values()
    assert "VLLM_ATTENTION_BACKEND" not in env
    assert env["A"] == "1"
    assert env["PATH"] == os.environ["PATH"]
    assert (
        server_environment({}, tmp_path, secrets=["HF_TOKEN"])["HF_TOKEN"]
        == "hf_secret"
    )


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("INFO 02-01 kv_cache_utils.py:864] GPU KV cache size: 635,200 tokens", 635200),
        (
            "INFO CPU KV cache size: 17,920 tokens, Maximum concurrency for 8,192 tokens per request: 2.19x",
            17920,
        ),
    ],
)
def test_the_device_capacity_is_read_from_gpu_and_cpu_logs(line, tokens):
    assert VLLM.startup_facts(line)["kv_cache_tokens"] == tokens


@pytest.mark.parametrize(
    ("line", "size"),
    [
        (
            "INFO [kveval_host_offload.py:121] host offloading: CPU tier of 16777216 bytes",
            16777216,
        ),
        (
            "INFO Created mmap file /dev/shm/vllm_offload_2cfb.mmap (41.94 GB)",
            41_940_000_000,
        ),
        ("INFO Created mmap file /dev/shm/vllm_offload_2cfb.mmap (0.02 GB)", None),
    ],
)
def test_the_tiers_size_is_read_where_the_server_says_it_well_enough(line, size):
    assert VLLM.startup_facts(line).get("tier_bytes") == size


def test_random_weights_with_which_answers_can_be_checked_are_told_from_dummy_ones():
    told = "INFO [kveval_weights.py:70] kveval: random weights, version 1: answers depend on the prompt"
    assert VLLM.startup_facts(told)["random_weights"] == 1
    assert "random_weights" not in VLLM.startup_facts(
        "INFO Loading weights took 0.02 seconds"
    )


def test_a_tier_more_than_2_percent_off_its_budget_is_refused(tmp_path):
    require_tier(None, 1_000_000, tmp_path)
    require_tier(1_019_000, 1_000_000, tmp_path)
    for reported in (979_000, 1_021_000, 0):
        with pytest.raises(DeploymentError) as error:
            require_tier(reported, 1_000_000, tmp_path)
        assert error.value.code == "other_tier"
        assert error.value.facts == {"found_bytes": reported, "budget_bytes": 1_000_000}


SPLIT = {"native_bytes": 400, "lmcache_bytes": 600}


@pytest.mark.parametrize(
    ("own", "beside", "split", "noted"),
    [
        (1000, [], {}, 1000),
        (None, [], {}, None),
        (None, [1000], {}, 1000),
        # Of LMCache's servers beside replicas each has the whole budget.
        (None, [1000, 1000], {}, 1000),
        (400, [600], SPLIT, 1000),
        # LMCache inside the server does not say: half a size is none.
        (400, [], SPLIT, None),
        (None, [600], SPLIT, None),
    ],
)
def test_tiers_are_held_to_their_parts_of_the_budget(
    own, beside, split, noted, tmp_path
):
    facts = {} if own is None else {"tier_bytes": own}
    check_tiers(facts, beside, 1000, split, tmp_path)
    assert facts.get("tier_bytes") == noted


@pytest.mark.parametrize(
    ("own", "beside", "split", "found", "budget"),
    [
        (500, [], {}, 500, 1000),
        (None, [500], {}, 500, 1000),
        (None, [1000, 500], {}, 500, 1000),
        (600, [600], SPLIT, 600, 400),
        (400, [400], SPLIT, 400, 600),
        (1000, [], SPLIT, 1000, 400),
    ],
)
def test_a_tier_of_another_size_ends_the_run(
    own, beside, split, found, budget, tmp_path
):
    facts = {} if own is None else {"tier_bytes": own}
    with pytest.raises(DeploymentError) as error:
        check_tiers(facts, beside, 1000, split, tmp_path)
    assert error.value.code == "other_tier"
    assert (error.value.facts["found_bytes"], error.value.facts["budget_bytes"]) == (
        found,
        budget,
    )


def test_a_file_tier_has_a_folder_of_its_own_that_is_counted_emptied_and_removed(start):
    files = '{"root_dir":"{fs_dir}"}'
    with start(
        argv=["--model", "{model_dir}", "--port", "{port}", "--kv", files],
        file_tier=True,
    ) as server:
        folder = server.files
        assert server.argv[-1] == f'{{"root_dir":"{folder}"}}'
        block = folder / "r0" / "abc" / "1.bin"
        block.parent.mkdir(parents=True)
        block.write_bytes(bytes(4096))
        assert server.file_counters() == {
            "file_tier_files": 1.0,
            "file_tier_bytes": 4096.0,
        }
        server.reset_caches()
        assert list(folder.iterdir()) == []
    assert not folder.exists()


def test_last_words_prefer_the_line_that_names_an_error(tmp_path):
    log = tmp_path / "log"
    line = "RuntimeError: the cause"
    log.write_text(f"INFO fine\n{line}\nINFO shutting down\n")
    assert last_words(log) == f": {line}"
    assert last_words(tmp_path / "missing") == ""
