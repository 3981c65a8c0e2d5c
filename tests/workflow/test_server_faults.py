"""Faults really done to a run: how soon they are found, what is said, what is left, and that a rerun completes.

One table: what is done, what the job must say, and within how many seconds of it. The servers and generators are
stand-ins (real processes and sockets), the recording, the job and the store are the real ones; vLLM's own deaths are in
tests/e2e/test_vllm_faults.py, what the host does is in test_host_faults.py.
"""

import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.support.fault_chain import (
    NOTICED,
    PATIENCE_S,
    REPOSITORY,
    Chain,
    Job,
    in_level,
    needs_pcp,
)

from kveval.engines.local.sidecars import find_program
from kveval.engines.servers.answers import PROMPTS, QUESTIONS
from kveval.measure.status import read_status, status_path
from kveval.stacks.sidecar import SidecarError
from kveval.store.run_file import pointed_run

pytestmark = pytest.mark.workflow


def signalled(pattern: str, number: signal.Signals) -> Callable[[Job], None]:
    """Send a signal to the first process below the job whose command line matches, in the middle of the level."""

    def act(job: Job) -> None:
        in_level(job)
        job.child(pattern).send_signal(number)

    return act


def has(program: str) -> bool:
    try:
        find_program(program, REPOSITORY / ".server-venv")
    except SidecarError:
        return False
    return True


def arm(cell: str) -> Callable[[Chain], None]:
    """Have the arm's sidecars, real ones, run beside the stand-in."""

    def configure(chain: Chain) -> None:
        if not (has("redis-server") and has("lmcache")):
            pytest.skip(
                "no redis-server or no lmcache: bash scripts/setup.sh redis server"
            )
        long_level(chain)
        chain.cell = cell
        chain.configure(server={"lmcache": "0.5.6"})

    return configure


@dataclass(frozen=True)
class Fault:
    """A row: what is configured, what is done to the running job, the cause expected, seconds until it is said.

    `heal`: what ends the cause; after it a rerun must measure.
    """

    name: str
    cause: str
    limit_s: float
    configure: Callable[[Chain], None] = lambda chain: None
    act: Callable[[Job], None] = lambda job: None
    heal: Callable[[Chain], None] | None = None


def server_fault(name: str) -> Callable[[Chain], None]:
    return lambda chain: chain.configure(server={"env": {"FAULT": name}})


def stall_limit(chain: Chain) -> None:
    chain.configure(stall_limit_s=3, workloads={"short": {"seconds": 30}})


def long_level(chain: Chain) -> None:
    chain.configure(workloads={"short": {"seconds": 30}})


FAULTS = [
    Fault(
        "API process killed in a level",
        r"the server died \(killed by SIGKILL.*server\.log",
        5,
        long_level,
        signalled(r"server\.py", signal.SIGKILL),
    ),
    Fault(
        "engine killed in a level",
        r"the server's process \d+ \(VLLM::EngineCore\) died without a message \(killed\?\); see .*server\.log",
        5,
        long_level,
        signalled("VLLM::EngineCore", signal.SIGKILL),
    ),
    Fault(
        "engine stopped in a level",
        r"the server hangs: 2 requests in work, no token for \d+ s \(limit: stall_limit_s 3\); see .*server\.log",
        3 + 5,
        stall_limit,
        signalled("VLLM::EngineCore", signal.SIGSTOP),
    ),
    Fault(
        "API process stopped in a level",
        r"the server hangs: its /metrics does not answer for \d+ s \(limit: stall_limit_s 3\); see .*server\.log",
        3 + 5,
        stall_limit,
        signalled(r"server\.py", signal.SIGSTOP),
    ),
    Fault(
        "generator fails",
        r"GuideLLM failed \(exit code 1\): ValueError: the data configuration is wrong; see .*guidellm-0002\.log",
        15,
        lambda chain: chain.generator_fault("fails"),
        heal=lambda chain: chain.generator_fault(None),
    ),
    Fault(
        "generator killed",
        r"GuideLLM failed \(killed by SIGKILL.*; see .*guidellm-0002\.log",
        15,
        lambda chain: chain.generator_fault("is killed"),
    ),
    Fault(
        "every request fails",
        r"no request completed \(\d+ failed\); see guidellm-0002\.log and server\.log in ",
        25,
        server_fault("fails every request"),
    ),
    Fault(
        "Redis killed in a level",
        r"redis died \(killed by SIGKILL.*redis\.log",
        5,
        arm("Qwen3-0.6B/lmcache-redis/10000"),
        signalled("redis-server", signal.SIGKILL),
    ),
    Fault(
        "LMCache's server killed in a level",
        r"lmcache died \(killed by SIGKILL.*lmcache\.log",
        5,
        arm("Qwen3-0.6B/lmcache-local/10000"),
        signalled("lmcache server", signal.SIGKILL),
    ),
    Fault(
        "pmcd killed in a level",
        r"pmcd ended \(status -9\); see .*pmcd\.log",
        5,
        long_level,
        signalled(r"/pmcd ", signal.SIGKILL),
    ),
    Fault(
        "pmlogger killed in a level",
        r"pmlogger ended \(status -9\); see .*pmlogger\.log",
        5,
        long_level,
        signalled(r"/pmlogger ", signal.SIGKILL),
    ),
    Fault(
        "openmetrics agent stopped in a level",
        r"pmcd does not answer .*or an agent that it waits for, is silent; see .*pmcd\.log",
        25,
        lambda chain: chain.configure(workloads={"short": {"seconds": 60}}),
        signalled(r"pmdaopenmetrics\.python", signal.SIGSTOP),
    ),
]


@needs_pcp
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_found_named_and_survived(
    chain: Chain, fault: Fault, record_fault: Callable[..., None]
) -> None:
    fault.configure(chain)
    job = chain.start()
    fault.act(job)
    begin = time.monotonic()
    if fault.act is Fault.act:
        job.wait_for(r"2 streams \(level 1 of 1\)", PATIENCE_S)
        begin = time.monotonic()
    job.wait_for(NOTICED + fault.cause, fault.limit_s)
    record_fault(fault.name, time.monotonic() - begin, fault.limit_s)
    assert job.end(PATIENCE_S) == 1
    failed = [line for line in job.log_text().splitlines() if "FAILED: " in line]
    assert len(failed) == 1
    assert re.search(fault.cause, failed[0])
    # The log that the cause names is there, under the name it has now.
    for path in re.findall(r"see (/\S+\.log)", failed[0]):
        assert Path(path).exists()
    status, _ = read_status(status_path(chain.log))
    assert (status.state, status.message) == (
        "failed",
        failed[0].partition("FAILED: ")[2],
    )
    assert status.code not in ("", "measurement_error")
    assert Path(status.files).parent == chain.store / "failed"
    assert "snakemake --cores 4 report_so_far" in job.log_text()
    assert not chain.pointer.exists()
    assert list(chain.store.glob("partial/*")) == []
    if fault.heal is not None:
        fault.heal(chain)
        assert chain.start().end(PATIENCE_S) == 0
        assert chain.pointer.exists()


@needs_pcp
@pytest.mark.parametrize("crashes", [1, 3])
def test_a_known_defect_is_survived_twice(chain: Chain, crashes: int) -> None:
    chain.catalogues = shutil.copytree(REPOSITORY / "config", chain.folder / "config")
    known = chain.catalogues / "known_defects.yaml"
    entries = yaml.safe_load(known.read_text())
    # The stand-in has no connector.
    entries["vllm-43226"].pop("arguments")
    known.write_text(yaml.safe_dump(entries))
    waiting = chain.folder / "crashes"
    waiting.write_text(str(crashes))
    long_level(chain)
    server_fault(f"known defect while {waiting}")(chain)
    job = chain.start()
    assert job.end((crashes + 1) * PATIENCE_S) == (0 if crashes < 3 else 1), job.words()
    assert len(list(chain.store.glob("failed/*"))) == crashes
    assert chain.pointer.exists() == (crashes < 3)
    if crashes < 3:
        repeats = pointed_run(chain.pointer).repeats
        assert [repeat.defect for repeat in repeats] == ["vllm-43226"] * crashes


@needs_pcp
@pytest.mark.parametrize(
    ("name", "server", "generator", "word"),
    [
        (
            "some requests fail",
            "fails some requests",
            None,
            r"errors: \d+ of \d+ requests failed",
        ),
        (
            "generator too slow",
            "",
            "is too slow",
            r"closed_loop: [01]\.\d+ requests in flight on average, 2 asked for",
        ),
    ],
    ids=["some requests fail", "generator too slow"],
)
def test_what_disqualifies_a_level_is_said_at_once(
    chain: Chain,
    record_fault: Callable[..., None],
    name: str,
    server: str,
    generator: str | None,
    word: str,
) -> None:
    chain.configure(server={"env": {"FAULT": server}})
    chain.generator_fault(generator)
    job = chain.start()
    in_level(job)
    job.wait_until(
        lambda: not any("/server/bin/guidellm.py" in line for line in job.lines()),
        PATIENCE_S,
    )
    record_fault(name, job.wait_for(f"2 streams: a check warns · {word}", 10), 10)
    assert job.end(PATIENCE_S) == 0
    assert chain.pointer.exists()


@needs_pcp
@pytest.mark.parametrize("cell", ["no-offload/0", "native-offload/10000"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_server_whose_cache_changes_answers_is_found_out(
    chain: Chain, cell: str, wrong: bool
) -> None:
    chain.cell = f"Qwen3-0.6B/{cell}"
    arm, blocks = cell.split("/")
    matrix = [
        {"models": ["Qwen3-0.6B"], "scenarios": [arm], "cpu_blocks": [int(blocks)]}
    ]
    chain.configure(
        matrix=matrix,
        server={"env": {"FAULT": "changes its answers" if wrong else ""}},
    )
    job = chain.start()
    assert job.end(PATIENCE_S) == 0, job.words()
    source = "device" if arm == "no-offload" else "tier"
    asked = PROMPTS * (1 if source == "device" else QUESTIONS)
    said = f"{asked} of {asked} greedy answers changed when the {source} served"
    run = pointed_run(chain.pointer)
    found = run.answers
    assert found is not None
    assert (found.served_from, found.unchecked) == (source, "")
    assert (found.changed, found.same) == ((asked, 0) if wrong else (0, asked))
    assert (said in job.log_text()) == wrong
    # However its answers are, where they came from is timed.
    assert run.one_request is not None
    assert run.one_request.by_source.keys() == {"cold", "device", source}
    for of_source in run.one_request.by_source.values():
        assert len(of_source.requests) == 3, of_source.reason


def test_without_pcp_the_exporters_record(chain: Chain) -> None:
    chain.env |= {"PCP_CONF": str(chain.folder / "none.conf")}
    job = chain.start()
    assert job.end(PATIENCE_S) == 0
    assert (
        "Performance Co-Pilot is not installed: the exporters alone record"
        in job.log_text()
    )
    assert pointed_run(chain.pointer).recorded_by_exporters
