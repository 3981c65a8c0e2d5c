"""The one line of a log that tells: excerpts of what vLLM 0.32 and GuideLLM 0.8 really wrote."""

import signal
from pathlib import Path

import pytest
from tests.support.known_crash import LOG

from kveval.host.logs import Raised, exit_words, last_words, raised
from kveval.stacks.vllm import Vllm

A = "(APIServer pid=49) {} 11-21 11:58:17 [system_utils.py:255] "
E = "(EngineCore pid=56) ERROR 11-21 11:58:46 [core.py:1510] "
W = "(VllmWorker-0 pid=57) ERROR 11-21 11:58:44 [multiproc_executor.py:953] "
BENIGN = f"""\
{A.format("WARNING")}This can cause fd limit errors like `OSError: [Errno 24] Too many open files`
{A.format("INFO")}Resolved architecture: Qwen3ForCausalLM
"""
WRAPPED = """\
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
IMPORT = f"""{BENIGN}\
{W}WorkerProc failed to start.
{W}Traceback (most recent call last):
{W}    module = importlib.import_module(module_name)
{W}ModuleNotFoundError: No module named 'no_such_module'
{E}EngineCore failed to start.
{E}Exception: WorkerProc initialization failed due to an exception in a background process.
{WRAPPED}"""
MEMORY = f"""{BENIGN}\
{W}RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried
{E}RuntimeError: Worker failed with error '[enforce fail]', please check the stack trace above for the root cause
{WRAPPED}"""
ARGUMENT = f"""{BENIGN}\
usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]
api_server.py: error: unrecognized arguments: --no-such-option
"""
ENGINE_DIED = f"""{BENIGN}\
{A.format("ERROR")}AsyncLLM output_handler failed.
{A.format("ERROR")}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)
"""
WORKER_KILLED = f"""{BENIGN}\
{E}Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.
{A.format("ERROR")}vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)
"""
GUIDELLM = """\
26-11-21 11:24:16|INFO     |guidellm.benchmark.benchmarker:run:116 - Starting benchmark, ConnectionError: is no error
26-11-21 11:24:17|ERROR    |guidellm.backends:validate:80 - RuntimeError: Backend validation request failed
"""
REDIS = "12:C 21 Nov 2026 # Warning: Could not create listening socket 127.0.0.1:7: bind: Address already in use"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (IMPORT, ": ModuleNotFoundError: No module named 'no_such_module'"),
        (
            MEMORY,
            ": RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate",
        ),
        (ARGUMENT, ": api_server.py: error: unrecognized arguments: --no-such-option"),
        # Nothing better than the report of another process's death.
        (
            ENGINE_DIED,
            ": vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        ),
        (
            WORKER_KILLED,
            ": Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
        ),
        (BENIGN, ""),
        (GUIDELLM, ": RuntimeError: Backend validation request failed"),
        (
            "OSError: [Errno 98] Address already in use\n",
            ": OSError: [Errno 98] Address already in use",
        ),
        (REDIS, f": {REDIS}"),
    ],
    ids=[
        "import",
        "memory",
        "argument",
        "engine",
        "worker killed",
        "killed",
        "guidellm",
        "port",
        "redis",
    ],
)
def test_the_telling_line_is_told(tmp_path: Path, text: str, words: str) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    found = last_words(log, form=Vllm.log_form)
    assert found.startswith(words)
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "exec /usr/bin/vllm: exec format error\n\n",
            ": exec /usr/bin/vllm: exec format error",
        ),
        ("one line\nand another\n", ""),
        (A.format("INFO") + "starting\n", ""),
        ("INFO CPU KV cache size: 17920 tokens\n", ""),
        ("", ""),
    ],
    ids=["one", "several", "of no error", "of no error, in short", "none"],
)
def test_the_only_line_of_a_program_that_ended_is_told(
    tmp_path: Path, text: str, words: str
) -> None:
    log = tmp_path / "log"
    log.write_text(text)
    assert last_words(log, form=Vllm.log_form, only_line=True) == words
    assert last_words(log, form=Vllm.log_form) == ""


def test_hearsay_is_left_out_where_a_death_is_known_already(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(ENGINE_DIED)
    assert last_words(log, secondary=False, form=Vllm.log_form) == ""
    log.write_text(MEMORY)
    assert "alloc_cpu" in last_words(log, secondary=False, form=Vllm.log_form)


def test_an_earlier_servers_words_in_the_same_log_are_not_this_ones(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    log.write_text(MEMORY)
    assert last_words(log, offset=log.stat().st_size, form=Vllm.log_form) == ""
    assert last_words(tmp_path / "missing") == ""


def test_a_death_is_told_from_an_exit() -> None:
    assert exit_words(3) == "exit code 3"
    assert exit_words(-signal.SIGTERM) == "killed by SIGTERM"
    assert "memory" in exit_words(-signal.SIGKILL)


def test_where_exceptions_were_raised_is_told_by_process(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    packages = "/srv/.server-venv/lib/python3.11/site-packages/vllm/v1"
    place = (
        f"{packages}/core/sched/scheduler.py",
        "_update_from_kv_xfer_finished",
        "assert req_id in self.requests",
    )
    client = (
        f"{packages}/engine/async_llm.py",
        "f",
        "outputs = await engine_core.get_output_async()",
    )
    assert raised(log, form=Vllm.log_form) == [
        Raised("vllm.v1.engine.exceptions.EngineDeadError", *client),
        Raised("AssertionError", *place),
    ]
    assert raised(log, offset=len(LOG.encode()), form=Vllm.log_form) == []
    assert raised(tmp_path / "none.log") == []
