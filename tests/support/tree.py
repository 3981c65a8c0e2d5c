"""A copy of the workflow in which snakemakes and commands run as a user starts them, and what they leave on the host."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml
from tests.support.command import start_kveval
from tests.support.fault_chain import PATIENCE_S, stand_in_environment, workflow_copy
from tests.support.leftovers import Trace
from tests.support.loaded import snakemake_command


class Tree:
    """A copy of the workflow with `campaign`, and the snakemakes started in it.

    `lock`: what orders measurements instead of the host's own lock; `environment`: that of the server, by default one
    of stand-ins.
    """

    def __init__(
        self,
        folder: Path,
        campaign: dict[str, Any],
        *,
        lock: Path | None = None,
        environment: Path | None = None,
    ) -> None:
        self.folder = workflow_copy(folder)
        self.results = self.folder / campaign["results"]
        # A home of its own: what is noted there is this tree's. What vLLM knows of its models serves any home.
        home = folder / "home"
        self.env = {**os.environ, "PYTHONPATH": "", "HOME": str(home)}
        if lock is not None:
            self.env["KVEVAL_HOST_LOCK"] = str(lock)
        (home / ".cache").mkdir(parents=True)
        known = Path.home() / ".cache" / "vllm"
        known.mkdir(parents=True, exist_ok=True)
        (home / ".cache" / "vllm").symlink_to(known)
        if environment is None:
            stand_in_environment(folder / ".server-venv")
        else:
            (folder / ".server-venv").symlink_to(environment)
        self.configure(campaign)
        self.traces: list[Trace] = []

    def configure(self, campaign: dict[str, Any]) -> None:
        """Put another campaign in place of the one that is there."""
        self.campaign = campaign
        (self.folder / "campaign.yaml").write_text(yaml.safe_dump(campaign))

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        running = subprocess.Popen(
            [
                *snakemake_command(),
                *("--cores", "2", *arguments, "--configfile", "campaign.yaml"),
            ],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.traces.append(Trace(running.pid, self.folder / "home"))
        return running

    def start_kveval(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command of kveval."""
        running = start_kveval(self.folder, *words, env=self.env)
        self.traces.append(Trace(running.pid, self.folder / "home"))
        return running

    def run(self, *arguments: str, limit_s: float = 3 * PATIENCE_S) -> tuple[int, str]:
        return _ended(self.start(*arguments), limit_s)

    def kveval(self, *words: str, limit_s: float = 3 * PATIENCE_S) -> tuple[int, str]:
        """Run a command of kveval to its end."""
        return _ended(self.start_kveval(*words), limit_s)

    def measured(self) -> set[str]:
        return {
            path.parent.parent.parent.name
            for path in self.results.glob("*/*/*/run-1/measurement.json")
        }

    def run_json(self, cell: str) -> dict[str, Any]:
        """What is stored of the first run of MODEL/SCENARIO/CPU_BLOCKS."""
        pointer = json.loads(
            (self.results / cell / "run-1" / "measurement.json").read_text()
        )
        run: dict[str, Any] = json.loads(
            (self.folder / pointer["path"] / "run.json").read_text()
        )
        return run

    def log(self, scenario: str) -> Path:
        return (
            self.folder
            / "logs"
            / "faults"
            / "benchmark"
            / "Qwen3-0.6B"
            / scenario
            / "0"
            / "run-1.log"
        )

    def wait_for(
        self, scenario: str, pattern: str, limit_s: float = PATIENCE_S
    ) -> None:
        deadline = time.monotonic() + limit_s
        while not (
            self.log(scenario).exists()
            and re.search(pattern, self.log(scenario).read_text())
        ):
            assert time.monotonic() < deadline, f"{pattern} was not said"
            time.sleep(0.05)

    def left(self, limit_s: float = 15) -> list[str]:
        """Name what the snakemakes so far have left on the host, once nothing is, or after `limit_s`."""
        deadline = time.monotonic() + limit_s
        for trace in self.traces:
            trace.end()
        while (
            left := [thing for trace in self.traces for thing in trace.left()]
        ) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left


def _ended(running: "subprocess.Popen[str]", limit_s: float) -> tuple[int, str]:
    try:
        output, _ = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        running.terminate()
        raise
    return running.returncode, output


def served(run: dict[str, Any]) -> float:
    """Requests that the server has answered in the level with most of them, as it counts them itself."""
    return max(
        level["counters"].get("vllm:request_success_total", {}).get("delta", 0.0)
        for level in run["levels"]
    )
