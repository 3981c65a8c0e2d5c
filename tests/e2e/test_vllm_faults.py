"""How vLLM itself dies and hangs: one campaign in which every cell is broken.

That a rerun measures what is missing is shown with stand-ins, in tests/workflow/test_workflow_faults.py.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from tests.support.fault_chain import (
    CAMPAIGN,
    REPOSITORY,
    Chain,
    needs_pcp,
    workflow_copy,
)
from tests.support.leftovers import Trace, runs

from kveval.engines.watchdog import read_work
from kveval.stacks.vllm import VLLM

pytestmark = pytest.mark.e2e
needs_server = pytest.mark.skipif(
    not (REPOSITORY / ".server-venv" / "bin" / "guidellm").exists(),
    reason="no server environment: bash scripts/setup.sh server",
)
STALL_LIMIT_S = 5
# From the end of a server that dies by itself: how long it took to get there is the processor's matter.
DEATH_LIMIT_S = 15
HANG_LIMIT_S = 900
SERVER = r"vllm\.entrypoints"
MODEL = "Qwen3-0.6B"
WORKLOAD = {
    "levels": [2],
    "seconds": 20,
    "prefix_tokens": 500,
    "prefix_count": 4,
    "prompt_tokens": 64,
    "output_tokens": 32,
    "seed": 1,
}


@dataclass(frozen=True)
class Death:
    """A row: how the arm's server is made to fail, the cause expected, and seconds from its death until that is said.

    `pattern` and `number`: the process of the server that gets a signal in the level; without them it dies by itself
    with these `args`.
    """

    scenario: str
    cause: str
    limit_s: float
    args: tuple[str, ...] = ()
    pattern: str = ""
    number: signal.Signals = signal.SIGKILL


DEATHS = [
    Death(
        "bad-argument",
        r"the server died \(exit code 2\): api_server\.py: error: unrecognized arguments: --no-such-option; see \S+log",
        DEATH_LIMIT_S,
        ("--no-such-option",),
    ),
    Death(
        "import-error",
        r"the server died \(exit code 1\): ModuleNotFoundError: No module named 'no_such_module'; see \S+server\.log",
        DEATH_LIMIT_S,
        ("--worker-cls", "no_such_module.Worker"),
    ),
    Death(
        "api-killed",
        r"the server died \(killed by SIGKILL[^)]*\).*server\.log",
        5,
        (),
        SERVER,
    ),
    Death(
        "engine-killed",
        r"(?:\(VLLM::EngineCore\) died|an engine process ended) without a message.*; see \S+server\.log",
        5,
        (),
        "VLLM::EngineCore",
    ),
    Death(
        "engine-stopped",
        # A server stopped between two requests knows of none.
        r"the server hangs(?:: [12] requests in work,|, or gets no requests:) no token for \d+ s"
        rf" \(limit: stall_limit_s {STALL_LIMIT_S}\)",
        STALL_LIMIT_S + 5,
        (),
        "VLLM::EngineCore",
        signal.SIGSTOP,
    ),
]


@dataclass
class Outcome:
    """What came of the campaign: the workflow's exit and output, and seconds until each fault was said."""

    folder: Path
    code: int
    output: str
    seconds: dict[str, float]
    left: list[str]

    def log(self, scenario: str) -> Path:
        return (
            self.folder
            / "logs"
            / "faults"
            / "benchmark"
            / MODEL
            / scenario
            / "0"
            / "run-1.log"
        )


def workflow(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    home = folder / "home"
    home.mkdir(exist_ok=True)
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            ["snakemake", "--cores", "2", *arguments, "--configfile", "campaign.yaml"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": "", "HOME": str(home)},
            stdout=output,
            stderr=output,
        )


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    """The workflow has run with every cell's server broken in its way."""
    folder = workflow_copy(tmp_path_factory.mktemp("faults") / "repository")
    (folder / ".server-venv").symlink_to(REPOSITORY / ".server-venv")
    server = {
        name: value for name, value in CAMPAIGN["server"].items() if name != "env"
    }
    scenarios = {
        death.scenario: {
            "extends": "no-offload",
            "title": death.scenario,
            "args": list(death.args),
        }
        for death in DEATHS
    }
    campaign = {
        **CAMPAIGN,
        "server": server,
        "workloads": {"short": WORKLOAD},
        "stall_limit_s": STALL_LIMIT_S,
        "scenarios": scenarios,
        "matrix": [
            {"models": [MODEL], "scenarios": list(scenarios), "cpu_blocks": [0]}
        ],
    }
    (folder / "campaign.yaml").write_text(yaml.safe_dump(campaign))
    outcome = Outcome(folder, -1, "", {}, [])
    running = workflow(folder, "report")
    trace = Trace(running.pid, folder / "home")
    try:
        break_servers(running, outcome)
        outcome.code = running.wait(timeout=600)
    finally:
        running.terminate()
        running.wait()
        trace.end()
    outcome.output = (folder / "output").read_text()
    outcome.left = trace.left()
    yield outcome


def break_servers(running: "subprocess.Popen[bytes]", outcome: Outcome) -> None:
    """Do what the table says to each server as its turn comes, and note how long the job took to say it."""
    servers: dict[str, psutil.Process] = {}
    dead: dict[str, float] = {}
    waiting = {death.scenario: death for death in DEATHS}
    while waiting and running.poll() is None:
        for scenario, death in list(waiting.items()):
            said = (
                outcome.log(scenario).read_text()
                if outcome.log(scenario).exists()
                else ""
            )
            if "starting the server" not in said:
                continue
            if death.pattern and scenario not in dead and working(running, said):
                child(running, death.pattern).send_signal(death.number)
                dead[scenario] = time.monotonic()
            elif not death.pattern and scenario not in servers:
                for server in children(running, SERVER):
                    servers[scenario] = server
            elif scenario in servers and not runs(servers[scenario]):
                dead.setdefault(scenario, time.monotonic())
            if "tearing down" in said:
                outcome.seconds[scenario] = time.monotonic() - dead[scenario]
                del waiting[scenario]
        time.sleep(0.05)


def working(running: "subprocess.Popen[bytes]", said: str) -> bool:
    """Tell whether the server of the job that has said this generates for the load generator."""
    if (
        "2 streams (level 1 of 1)" not in said
        or "tearing down" in said
        or "measured: " in said
    ):
        return False
    argv = child(running, SERVER).cmdline()
    url = f"http://127.0.0.1:{argv[argv.index('--port') + 1]}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            work = read_work(answer.read().decode(), VLLM)
    except OSError:
        # The level is over, and the server with it.
        return False
    return work.requests >= 1


def children(running: "subprocess.Popen[bytes]", pattern: str) -> list[psutil.Process]:
    """The processes below the workflow whose command line matches."""
    matching = []
    for process in psutil.Process(running.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if re.search(pattern, " ".join(process.cmdline())):
                matching.append(process)
    return matching


def child(running: "subprocess.Popen[bytes]", pattern: str) -> psutil.Process:
    matching = children(running, pattern)
    assert matching, f"no {pattern} below the workflow"
    return matching[0]


@needs_pcp
@needs_server
@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.scenario)
def test_the_death_of_a_real_server_is_found_and_named(
    broken: Outcome, death: Death, record_fault: Callable[..., None]
) -> None:
    said = broken.log(death.scenario).read_text()
    assert re.search(r"failed, tearing down: .*" + death.cause, said), said
    assert re.search(r"FAILED: .*" + death.cause, said)
    record_fault(
        f"vLLM: {death.scenario}", broken.seconds[death.scenario], death.limit_s
    )
    assert broken.seconds[death.scenario] <= death.limit_s


@needs_pcp
@needs_server
def test_the_workflow_goes_on_fails_and_leaves_nothing(broken: Outcome) -> None:
    assert broken.code == 1
    assert broken.left == []
    # One line a failed run, with its cause and its log, and the way to a report, at the end of what snakemake prints.
    end = broken.output[broken.output.index("Some measurements failed") :]
    for death in DEATHS:
        assert re.search(
            rf"{MODEL}/{death.scenario}/0/run-1: .*{death.cause}.*run-1\.log", end
        )
    assert "snakemake --cores 4 report_so_far --configfile campaign.yaml" in end


@needs_pcp
@needs_server
def test_a_server_that_gets_no_memory_says_so(
    tmp_path: Path, record_fault: Callable[..., None]
) -> None:
    chain = Chain(tmp_path, REPOSITORY / ".server-venv")
    chain.campaign = {
        **CAMPAIGN,
        "server": {k: v for k, v in CAMPAIGN["server"].items() if k != "env"},
    }
    chain.configure(server={"device_blocks": 352_000})
    job = chain.start(["sh", "-c", 'ulimit -v 6291456 && exec "$@"', "sh"])
    job.wait_until(lambda: job.has_child(SERVER), HANG_LIMIT_S)
    server = job.child(SERVER)
    job.wait_until(lambda: not runs(server), HANG_LIMIT_S)
    cause = r"the server died \(exit code 1\): RuntimeError: .*can't allocate memory.*; see \S+server\.log"
    seconds = job.wait_for("tearing down: " + cause, DEATH_LIMIT_S)
    record_fault("vLLM: out of memory", seconds, DEATH_LIMIT_S)
    assert job.end() == 1
    assert chain.left(10) == []
