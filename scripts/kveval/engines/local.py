"""The local engine: vLLM on this host, started with exactly the arm's arguments and gone afterwards."""

import contextlib
import http.client
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from packaging.version import InvalidVersion, Version

from kveval.errors import Failure
from kveval.logwords import exit_words, last_words
from kveval.ports import free_port, strangers
from kveval.processes import Session, Supervisor

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_MAX_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")
_PORT_ATTEMPTS = 3
SERVERSIDE = Path(__file__).resolve().parent.parent / "serverside"


class DeploymentError(Failure):
    """The server did not come up as declared, or stopped serving."""


class ServerDied(DeploymentError):
    """A process of the server is gone; the message has the telling line of its log."""


class PortTaken(DeploymentError):
    """Another process has the server's port."""


@dataclass(frozen=True)
class ServerPlan:
    """What to start: arguments and environment with `{model_dir}` and `{port}` open, and what must answer."""

    argv: Sequence[str]
    env: Mapping[str, str]
    served_model: str
    version: str
    device_tokens: int | None
    start_timeout_s: float = 600.0


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

    @property
    def metrics_url(self) -> str:
        """The server's Prometheus endpoint."""
        return f"{self.url}/metrics"

    def require_alive(self) -> None:
        """Raise ServerDied, with the telling line of its log, when a process of the server is gone."""
        if self.process.poll() is not None:
            words = last_words(self.log, self.offset)
            error = PortTaken if "Address already in use" in words else ServerDied
            raise error(f"the server died ({exit_words(self.process.returncode)}){words}; see {self.log}")
        for title, part in self.parts:
            if not _lives(part):
                raise ServerDied(
                    f"the server's process {part.pid} ({title}) died{last_words(self.log, self.offset)}; see {self.log}"
                )

    def reset_caches(self, timeout_s: float = 20.0) -> None:
        """Empty the device's prefix cache and the arm's tier; the server refuses while transfers are in flight.

        Uses vLLM's development endpoint (VLLM_SERVER_DEV_MODE=1).
        """
        deadline = time.monotonic() + timeout_s
        while True:
            answer = _request(f"{self.url}/reset_prefix_cache?reset_external=true", method="POST")
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
            answer = _request(f"{self.url}/v1/completions", method="POST", body=body, timeout_s=timeout_s)
            produced = answer.get("usage", {}).get("completion_tokens", 0) if isinstance(answer, dict) else 0
            if produced < 1:
                raise DeploymentError(f"the server is healthy but generates nothing; see {self.log}")


def server_environment(extra: Mapping[str, str], temporary: Path, *, secrets: Sequence[str] = ()) -> dict[str, str]:
    """Build the server's environment from nothing but what it needs, so that the caller's shell cannot leak into a run.

    Its sockets and other temporary files go into the folder `temporary`: vLLM leaves some behind. `secrets` names the
    variables that are passed on and never written anywhere.
    """
    kept = (
        "PATH",
        "HOME",
        "USER",
        "LD_LIBRARY_PATH",
        "CUDA_VISIBLE_DEVICES",
        "HF_HOME",
        "XDG_CACHE_HOME",
    )
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {"LANG": "C.UTF-8", "PYTHONPATH": str(SERVERSIDE), "PYTHONUNBUFFERED": "1"}
    env |= {"TMPDIR": str(temporary), **extra}
    return env | {name: os.environ[name] for name in secrets if name in os.environ}


@contextlib.contextmanager
def deployed(
    supervisor: Supervisor,
    plan: ServerPlan,
    *,
    python: Path,
    model_dir: Path,
    log: Path,
    port: int | None = None,
    secrets: Sequence[str] = (),
) -> Iterator[Deployment]:
    """Start the server, wait until it answers with the declared version and model, and tear it down on leaving.

    `secrets`: environment variables passed on to it. Raises DeploymentError when it does not come up within the plan's
    time, is another version or model, or reports a device cache more than 2 % off the declared one; PortTaken when
    another process has its port.
    """
    port = port or free_port()
    argv = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        *(_filled(argument, model_dir, port) for argument in plan.argv),
    ]
    env = {name: _filled(value, model_dir, port) for name, value in plan.env.items()}
    begin = time.monotonic()
    offset = log.stat().st_size if log.exists() else 0
    with (
        supervisor.temporary_folder() as temporary,
        supervisor.supervised(
            "vllm",
            argv,
            env=server_environment(env, temporary, secrets=_needed(secrets, env)),
            log=log,
            cwd=log.parent,
        ) as process,
    ):
        url = f"http://127.0.0.1:{port}"
        deployment = Deployment(url, plan.served_model, argv, env, 0.0, {}, "", log, process, offset)
        _wait_until_healthy(deployment, begin + plan.start_timeout_s)
        members = Session.led_by(process.pid, "vllm").members()
        _require_own_port(port, members, log)
        deployment.parts = [(title, member) for member in members if (title := _title(member)).startswith("VLLM::")]
        deployment.startup_s = time.monotonic() - begin
        deployment.version = _require_declared(deployment, plan)
        deployment.facts = startup_facts(log.read_bytes()[offset:].decode(errors="replace"))
        _require_device_cache(deployment, plan)
        yield deployment


def _filled(text: str, model_dir: Path, port: int) -> str:
    """Fill the two places that differ from host to host.

    Arguments hold JSON, so str.format would trip over its braces.
    """
    return text.replace("{model_dir}", str(model_dir)).replace("{port}", str(port))


class ServerSlot:
    """The run's server.

    One deployment at a time, on one port, so that the recording keeps its endpoint over a restart. `say` is told when
    another process took the port before the server could.
    """

    def __init__(
        self,
        deploy: Callable[[int], AbstractContextManager[Deployment]],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._deploy = deploy
        self._say = say
        self._port = free_port()
        self._stack = contextlib.ExitStack()
        self._server: Deployment | None = None

    @property
    def server(self) -> Deployment:
        """The deployment in service."""
        if self._server is None:
            raise DeploymentError("the server was not started")
        return self._server

    def start(self) -> Deployment:
        """Deploy; the first time on another port when the chosen one was taken meanwhile. Raises DeploymentError."""
        attempts = _PORT_ATTEMPTS if self._server is None else 1
        for left in reversed(range(attempts)):
            try:
                self._server = self._stack.enter_context(self._deploy(self._port))
                break
            except PortTaken as error:
                if not left:
                    raise
                self._say(f"{error}; trying another port")
                self._port = free_port()
        return self.server

    def refresh(self, *, restart: bool) -> None:
        """Give the next level empty caches, by the server's own endpoint or by a new server."""
        if restart:
            self.close()
            self.start()
        else:
            self.server.reset_caches()

    def close(self) -> None:
        """Tear down; may be called again."""
        self._stack.close()


def startup_facts(log_text: str) -> dict[str, Any]:
    """Read what vLLM says of itself at start-up: device KV capacity in tokens, maximum concurrency at full length."""
    facts: dict[str, Any] = {}
    if match := _KV_TOKENS.search(log_text):
        facts["kv_cache_tokens"] = int(match[1].replace(",", ""))
    if match := _MAX_CONCURRENCY.search(log_text):
        facts["max_concurrency"] = float(match[1])
    return facts


def _needed(secrets: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Leave out the model hub's token for a server that is told not to talk to the hub."""
    return [name for name in secrets if name != "HF_TOKEN" or env.get("HF_HUB_OFFLINE") != "1"]


def _title(process: psutil.Process) -> str:
    """Return what a process calls itself; vLLM's name themselves VLLM::EngineCore, VLLM::Worker_TP0 and so on."""
    try:
        return (process.cmdline() or [process.name()])[0]
    except psutil.Error:
        return "gone"


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _require_own_port(port: int, members: Sequence[psutil.Process], log: Path) -> None:
    """Raise PortTaken when what answers on the port is not, or not only, the server that was started."""
    others = strangers(port, [member.pid for member in members])
    if others:
        raise PortTaken(f"port {port} was taken meanwhile by {', '.join(others)}; see {log}")


def _wait_until_healthy(deployment: Deployment, deadline: float) -> None:
    while True:
        deployment.require_alive()
        try:
            _request(f"{deployment.url}/health", timeout_s=2.0)
            return
        except DeploymentError:
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"the server was not healthy in time{last_words(deployment.log, deployment.offset)};"
                    f" see {deployment.log}"
                ) from None
            time.sleep(0.2)


def _require_declared(deployment: Deployment, plan: ServerPlan) -> str:
    """Check version and model; another server on a port that was free a moment ago would be noticed here, too."""
    answer = _request(f"{deployment.url}/version")
    version = str(answer.get("version", "")) if isinstance(answer, dict) else ""
    try:
        same = Version(version).public == Version(plan.version).public
    except InvalidVersion:
        same = version == plan.version
    if not same:
        raise DeploymentError(
            f"the server is vLLM {version or 'of unknown version'}, the campaign declares {plan.version}"
        )
    models = _request(f"{deployment.url}/v1/models")
    names = [entry.get("id") for entry in models.get("data", [])] if isinstance(models, dict) else []
    if plan.served_model not in names:
        raise DeploymentError(f"the server serves {names}, the campaign declares {plan.served_model}")
    return version


def _require_device_cache(deployment: Deployment, plan: ServerPlan) -> None:
    found = deployment.facts.get("kv_cache_tokens")
    if plan.device_tokens is None or found is None:
        return
    if abs(found - plan.device_tokens) > 0.02 * plan.device_tokens:
        raise DeploymentError(
            f"the server reports a device KV cache of {found} tokens,"
            f" the campaign declares {plan.device_tokens}; see {deployment.log}"
        )


def _request(url: str, *, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> Any:
    """Send one HTTP request and return the decoded JSON answer, or None when the answer is not JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise DeploymentError(f"{method} {url} failed: {error}") from error
    try:
        return json.loads(content)
    except ValueError:
        return None
