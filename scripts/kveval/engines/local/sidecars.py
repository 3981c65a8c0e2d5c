"""Starting the servers that an arm needs beside vLLM on this host: Redis or Valkey, and LMCache's server.

Each is started empty, on its own port, by the run's supervisor, and ends with the run.
"""

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kveval.campaign.specification import SidecarSpec
from kveval.host.http import free_port
from kveval.host.logs import exit_words, last_words
from kveval.host.ports import require_own_port
from kveval.host.processes import Supervisor
from kveval.host.sessions import Session
from kveval.stacks.registry import SIDECARS
from kveval.stacks.sidecar import (
    HOST,
    POLL_S,
    Sidecar,
    SidecarError,
    SidecarPortTaken,
)


@dataclass
class SidecarProcess:
    """The process of a sidecar on this host; `metrics_url`: Prometheus endpoint to record, if it has one."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path
    metrics_url: str | None = None

    def require_alive(self) -> None:
        """Raise SidecarError, with the decisive line of its log, if the process has ended."""
        if self.process.poll() is not None:
            words = last_words(self.log)
            error = (
                SidecarPortTaken if "ddress already in use" in words else SidecarError
            )
            code = self.process.returncode
            message = f"{self.name} died ({exit_words(code)}){words}; see {self.log}"
            raise error(
                message, code="died", program=self.name, exit_code=code, log=self.log
            )


@contextlib.contextmanager
def sidecars(
    supervisor: Supervisor,
    specifications: Sequence[SidecarSpec],
    *,
    environments: Sequence[Path],
    base_env: Mapping[str, str],
    versions: Mapping[str, str],
    logs: Path,
    ports: dict[str, int],
    timeout_s: float = 60.0,
) -> Iterator[list[tuple[SidecarProcess, Sidecar]]]:
    """Start the sidecars of `specifications` in order, each when the previous one is ready, and end them on leaving.

    `specifications`: with placeholders for ports; `environments`: virtual environments, searched for
    programs in this order, then PATH; `base_env`: environment variables of all; `ports`: by placeholder,
    those to be used again; new ones are added.

    Raises SidecarError if a program is missing, has another version, or is not ready within `timeout_s`.
    """
    running: list[tuple[SidecarProcess, Sidecar]] = []
    with contextlib.ExitStack() as stack:
        for entry in specifications:
            name = entry.name
            own = {
                place: ports.setdefault(place, free_port())
                for place in _places(SIDECARS[name], entry.argv)
            }
            argv = [fill(argument, ports) for argument in entry.argv]
            argv = [*find_program(argv[0], *environments), *argv[1:]]
            log = logs / f"{name}.log"
            process = stack.enter_context(
                supervisor.supervised(
                    name, argv, env={**base_env, **entry.env}, log=log, cwd=logs
                )
            )
            sidecar = SIDECARS[name].on_host(argv, log, own)
            program = SidecarProcess(name, process, log)
            if sidecar.metrics_port:
                port = own[sidecar.metrics_port]
                program.metrics_url = f"http://{HOST}:{port}/metrics"
            _wait_until_ready(program, sidecar, timeout_s)
            own_pids = [
                member.pid for member in Session.led_by(process.pid, name).members()
            ]
            for port in own.values():
                require_own_port(port, own_pids, SidecarPortTaken, name, log)
            sidecar.identify(versions)
            running.append((program, sidecar))
        yield running


def fill(text: str, places: Mapping[str, object]) -> str:
    """Replace the placeholders of hosts, ports and folders; not by str.format, because arguments may contain JSON."""
    for place, value in places.items():
        text = text.replace(f"{{{place}}}", str(value))
    return re.sub(rf"\{{({'|'.join(SIDECARS)})_host\}}", HOST, text)


def find_program(name: str, *environments: Path) -> list[str]:
    """Return the command that starts a sidecar's program, from the first environment that has it, or from PATH.

    Raises SidecarError, which says how to install it.
    """
    for environment in environments:
        own = environment / "bin" / name
        if own.exists():
            # Run by the environment's Python, because the first line of a script fails if the path is long or has
            # spaces.
            return [str(environment / "bin" / "python"), str(own)]
    path = shutil.which(name)
    if path:
        return [path]
    for environment in environments:
        bundled = sorted(
            environment.glob(f"lib/python3*/site-packages/*/_binaries/*/{name}")
        )
        if bundled:
            return [str(bundled[0])]
    known = (side for side in SIDECARS.values() if side.executable == name)
    install = next(known, Sidecar).install
    message = f"this host has no {name}: {install}"
    raise SidecarError(message, code="not_installed", program=name)


def _places(program: type[Sidecar], argv: Sequence[str]) -> list[str]:
    """Return the placeholders of a sidecar's own ports; those of earlier sidecars are in `ports` already."""
    line = " ".join(argv)
    return [place for place in sorted(program.ports) if f"{{{place}}}" in line]


def _wait_until_ready(
    program: SidecarProcess, sidecar: Sidecar, limit_s: float
) -> None:
    deadline = time.monotonic() + limit_s
    while not sidecar.ready():
        program.require_alive()
        if time.monotonic() > deadline:
            log = program.log
            raise SidecarError(
                f"{program.name} was not ready within {limit_s:.0f} s{last_words(log)}; see {log}"
            )
        time.sleep(POLL_S)
