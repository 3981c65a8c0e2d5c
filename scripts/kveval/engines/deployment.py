"""A server in service on this host, with what stands beside it: is it alive, what did it count, empty its caches."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from kveval.counters import read_counters
from kveval.engines.http import request
from kveval.engines.program import Companion
from kveval.errors import Failure
from kveval.logwords import exit_words, last_words


class DeploymentError(Failure):
    """The server did not come up as declared, or stopped serving."""


class ServerDied(DeploymentError):
    """A process of the server is gone; the message has the telling line of its log."""


class PortTaken(DeploymentError):
    """Another process has the server's port."""


@dataclass
class Deployment:
    """A server that answers, and has the declared version and model."""

    url: str
    served_model: str
    argv: list[str]
    env: dict[str, str]
    startup_s: float
    facts: dict[str, Any]
    version: str
    log: Path
    process: "subprocess.Popen[bytes]"
    offset: int = 0
    """Where this deployment begins in the log, bytes."""
    parts: Sequence[tuple[str, psutil.Process]] = ()
    """The server's processes beside the one that answers: without any of them it serves nothing."""
    companions: Sequence[Companion] = ()
    files: Path | None = None
    """Folder of the arm's file tier."""

    @property
    def metrics_url(self) -> str:
        """The server's Prometheus endpoint."""
        return f"{self.url}/metrics"

    def require_alive(self) -> None:
        """Raise ServerDied or CompanionError, with the telling line of its log, when a process is gone."""
        for companion in self.companions:
            companion.program.require_alive()
        if self.process.poll() is not None:
            words = last_words(self.log, self.offset)
            error = PortTaken if "Address already in use" in words else ServerDied
            raise error(f"the server died ({exit_words(self.process.returncode)}){words}; see {self.log}")
        for title, part in self.parts:
            if not _lives(part):
                raise ServerDied(
                    f"the server's process {part.pid} ({title}) died{last_words(self.log, self.offset)}; see {self.log}"
                )

    @property
    def endpoints(self) -> dict[str, str]:
        """Every Prometheus endpoint of the deployment, by program."""
        others = {companion.program.name: companion.metrics_url for companion in self.companions}
        return {"vllm": self.metrics_url} | {name: url for name, url in others.items() if url is not None}

    def counters(self) -> dict[str, float]:
        """Read the counters of the server, of its companions, and of the file tier."""
        found = read_counters(self.metrics_url)
        for companion in self.companions:
            found |= companion.counters()
        if self.files is not None:
            found |= _folder_counters(self.files)
        return found

    def reset_caches(self, timeout_s: float = 20.0) -> None:
        """Empty the device's prefix cache and every tier behind it.

        The server is asked first, so that nothing of it still writes to a companion that has been emptied; from LMCache
        to its store, likewise.
        """
        self._reset_server(timeout_s)
        for companion in reversed(self.companions):
            companion.reset(timeout_s)
        if self.files is not None:
            for entry in self.files.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _reset_server(self, timeout_s: float) -> None:
        """Use vLLM's development endpoint (VLLM_SERVER_DEV_MODE=1); it refuses while transfers are in flight."""
        deadline = time.monotonic() + timeout_s
        while True:
            answer = request(f"{self.url}/reset_prefix_cache?reset_external=true", method="POST")
            # vLLM before 0.14 answers 200 with an empty body; later ones say whether it worked.
            if not isinstance(answer, dict) or answer.get("success", True):
                return
            if time.monotonic() > deadline:
                raise DeploymentError(f"the server refused to reset its caches for {timeout_s:.0f} s; see {self.log}")
            time.sleep(0.5)

    def warm_up(self, prompt_tokens: int, timeout_s: float = 120.0) -> None:
        """Have the server generate a few tokens from a long and a short prompt, before anything is measured.

        The first request pays for lazy initialisation; and a server that answers /health need not be able to generate.
        """
        for length in (prompt_tokens, 16):
            body = {"model": self.served_model, "prompt": [7] * length, "max_tokens": 4, "ignore_eos": True}
            answer = request(f"{self.url}/v1/completions", method="POST", body=body, timeout_s=timeout_s)
            produced = answer.get("usage", {}).get("completion_tokens", 0) if isinstance(answer, dict) else 0
            if produced < 1:
                raise DeploymentError(f"the server is healthy but generates nothing; see {self.log}")


def _folder_counters(folder: Path) -> dict[str, float]:
    sizes = [path.stat().st_size for path in folder.rglob("*.bin")]
    return {"file_tier_files": float(len(sizes)), "file_tier_bytes": float(sum(sizes))}


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
