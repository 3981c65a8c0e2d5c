"""The server on this host: started with exactly the arm's arguments, and removed afterwards."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from kveval.campaign.specification import Specification
from kveval.engines.local.sidecars import SidecarProcess, fill, sidecars
from kveval.engines.protocol import AddressedServer
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.host.http import DIRECT_LOOPBACK, HttpError, fetch_from, free_port, request
from kveval.host.logs import exit_words, last_words
from kveval.host.ports import require_own_port
from kveval.host.processes import Supervisor
from kveval.host.sessions import Session, lives, title_of
from kveval.stacks.registry import server_of
from kveval.stacks.sidecar import Sidecar

_HEALTH_ANSWER_S = 2.0


class PortTaken(DeploymentError):
    """Another process uses the server's port."""


class Deployment(AddressedServer):
    """A server on this host that answers and was checked to have the declared version and model.

    `beside`: its sidecars and their processes; `files`: folder of the arm's file tier; `offset`: the byte at which this
    deployment's output begins in the log.
    """

    parts: Sequence[tuple[str, psutil.Process]] = ()
    """The server's other processes, without any of which it cannot serve, by title."""

    def __init__(
        self,
        endpoint: Endpoint,
        url: str,
        argv: list[str],
        env: dict[str, str],
        process: "subprocess.Popen[bytes]",
        beside: Sequence[tuple[SidecarProcess, Sidecar]],
        files: Path | None,
        offset: int,
    ) -> None:
        super().__init__([endpoint], [sidecar for _, sidecar in beside], argv, env)
        self.url, self.process, self.files = url, process, files
        self.log, self.offset = endpoint.log, offset
        self.programs = [program for program, _ in beside]

    def require_alive(self) -> None:
        """Raise ServerDied or SidecarError, with the decisive line of the log, if a process of them has ended."""
        for program in self.programs:
            program.require_alive()
        if self.process.poll() is not None:
            words, ending = self.last_words(), exit_words(self.process.returncode)
            if words and not self.last_words(secondary=False):
                ending += ", after an engine process ended without a message: killed?"
            error = PortTaken if "Address already in use" in words else ServerDied
            code = self.process.returncode
            message = f"the server died ({ending}){words}; see {self.log}"
            raise error(message, exit_code=code, log=self.log, offset=self.offset)
        for title, part in self.parts:
            if not lives(part):
                words = (
                    self.last_words(secondary=False) or " without a message (killed?)"
                )
                message = f"the server's process {part.pid} ({title}) died{words}; see {self.log}"
                facts = {"pid": part.pid, "log": self.log, "offset": self.offset}
                raise ServerDied(message, code="server_process_died", **facts)

    def last_words(self, *, secondary: bool = True) -> str:
        """Return the line of its log that says why it failed, see kveval.host.logs."""
        return last_words(
            self.log, self.offset, secondary=secondary, form=self.program.log_form
        )

    @property
    def metrics_urls(self) -> dict[str, str]:
        """Every Prometheus endpoint of the deployment, by program."""
        others = {
            program.name: program.metrics_url
            for program in self.programs
            if program.metrics_url is not None
        }
        return {self.program.name: f"{self.url}{self.program.metrics_path}"} | others

    @property
    def process_ids(self) -> list[int]:
        """All processes of the server and of its sidecars."""
        leaders = {self.program.name: self.process.pid}
        leaders |= {program.name: program.process.pid for program in self.programs}
        return [
            member.pid
            for name, pid in leaders.items()
            for member in Session.led_by(pid, name).members()
        ]

    def startup_log(self, endpoint: Endpoint) -> str:
        """Return this deployment's part of the log."""
        return self.log.read_bytes()[self.offset :].decode(errors="replace")

    def file_counters(self) -> dict[str, float]:
        """Return the number and the bytes of the files in the arm's file tier; empty without one."""
        if self.files is None:
            return {}
        sizes = [path.stat().st_size for path in self.files.rglob("*.bin")]
        return {
            "file_tier_files": float(len(sizes)),
            "file_tier_bytes": float(sum(sizes)),
        }

    def empty_files(self) -> None:
        """Empty the arm's file tier, if it has one."""
        for entry in self.files.iterdir() if self.files is not None else ():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def server_environment(
    extra: Mapping[str, str],
    temporary: Path,
    *,
    plugins: Path | None = None,
    secrets: Sequence[str] = (),
) -> dict[str, str]:
    """Return the server's environment with only what it needs, so that the caller's shell cannot affect a run.

    `temporary`: folder for its sockets and temporary files, which it may leave behind; `plugins`: folder of modules for
    its Python; `secrets`: names of variables that are passed on but never written to a file.
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
    env |= {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", **DIRECT_LOOPBACK}
    env |= {} if plugins is None else {"PYTHONPATH": str(plugins)}
    env |= {"TMPDIR": str(temporary), **extra}
    return env | {name: os.environ[name] for name in secrets if name in os.environ}


def server_url(ports: dict[str, int]) -> str:
    """Return the address of the server with these ports; a free port is chosen and entered unless it has one."""
    if "port" not in ports:
        ports["port"] = free_port()
    return f"http://127.0.0.1:{ports['port']}"


@contextlib.contextmanager
def deployed(
    supervisor: Supervisor,
    specification: Specification,
    *,
    environments: Sequence[Path],
    model_dir: Path | None,
    files_in: Path,
    log: Path,
    ports: dict[str, int] | None = None,
    secrets: Sequence[str] = (),
    required: Sequence[str] = (),
    start_timeout_s: float = 600.0,
) -> Iterator[Deployment]:
    """Start the server and its sidecars, wait until all answer as declared, and tear them down on leaving.

    `environments`: the server's virtual environment, then others for sidecars' programs that it lacks; `model_dir`:
    folder of the model's files, None if they come from the Hugging Face hub; `files_in`: folder in which a file tier
    gets its own; `ports`: those of an earlier deployment, to be used again; new ones are added; `secrets`: names of
    environment variables to pass on to the server; `required`: names of the counters that prove the arm active.

    Raises DeploymentError if the server is not ready in time, has another version or model, or reports a device cache
    or a tier that differs by more than 2 % from the declared size; SidecarError for a sidecar; PortTaken if another
    process uses the server's port.
    """
    program = server_of(specification.versions)
    ports = {} if ports is None else ports
    url = server_url(ports)
    begin = time.monotonic()
    offset = log.stat().st_size if log.exists() else 0
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(supervisor.temporary_folder())
        beside = stack.enter_context(
            sidecars(
                supervisor,
                specification.sidecars,
                environments=environments,
                base_env=server_environment({}, temporary),
                versions=specification.versions,
                logs=log.parent,
                ports=ports,
            )
        )
        files = (
            stack.enter_context(supervisor.temporary_folder(files_in))
            if specification.file_tier
            else None
        )
        folders = {"model_dir": model_dir, "fs_dir": files}
        argv = program.command(environments[0])
        argv += [
            fill(argument, {**ports, **folders}) for argument in specification.argv
        ]
        env = {
            name: fill(value, {**ports, **folders})
            for name, value in specification.env.items()
        }
        process = stack.enter_context(
            supervisor.supervised(
                program.name,
                argv,
                env=server_environment(
                    env,
                    temporary,
                    plugins=program.plugins,
                    secrets=_needed(secrets, env),
                ),
                log=log,
                cwd=log.parent,
            )
        )
        endpoint = Endpoint(
            program,
            specification.model.served_name,
            fetch_from(url),
            log,
            required=required,
        )
        deployment = Deployment(
            endpoint, url, argv, env, process, beside, files, offset
        )
        _wait_until_healthy(deployment, begin + start_timeout_s)
        members = Session.led_by(process.pid, program.name).members()
        require_own_port(
            ports["port"],
            [member.pid for member in members],
            PortTaken,
            "the server",
            log,
        )
        deployment.parts = [
            (title, member)
            for member in members
            if program.is_part(title := title_of(member))
        ]
        deployment.startup_s = time.monotonic() - begin
        deployment.require_declared(specification)
        yield deployment


def _needed(secrets: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return `secrets`, without the Hugging Face token if the server must not use the hub."""
    return [
        name
        for name in secrets
        if name != "HF_TOKEN" or env.get("HF_HUB_OFFLINE") != "1"
    ]


def _wait_until_healthy(deployment: Deployment, deadline: float) -> None:
    while True:
        deployment.require_alive()
        try:
            request(
                f"{deployment.url}{deployment.program.health_path}",
                timeout_s=_HEALTH_ANSWER_S,
            )
            return
        except HttpError:
            if time.monotonic() > deadline:
                raise DeploymentError(
                    f"the server was not healthy in time{deployment.last_words()}; see {deployment.log}",
                    code="not_healthy",
                ) from None
            time.sleep(0.2)
