"""Starting the servers that an arm needs beside vLLM on this host: Redis or Valkey, and LMCache's server.

Each is started empty, on its own port, by the run's supervisor, and ends with the run.
"""

import contextlib
import functools
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kveval.campaign.specification import SidecarSpec
from kveval.engines.servers.keyvalue import KeyValueStore, sent
from kveval.engines.servers.lmcache import LMCacheServer
from kveval.engines.servers.program import (
    HOST,
    POLL_S,
    Program,
    Sidecar,
    SidecarError,
    SidecarPortTaken,
)
from kveval.host.http import fetch_from, free_port
from kveval.host.logs import last_words
from kveval.host.ports import require_own_port
from kveval.host.processes import Supervisor
from kveval.host.sessions import Session

_ADVICE = {
    "redis-server": "run scripts/setup.sh, or apt-get install redis-server",
    "valkey-server": "run scripts/setup.sh, or install the distribution's valkey-server (Debian 13, Ubuntu 24.04)",
    "lmcache": "run scripts/setup.sh",
}


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
) -> Iterator[list[tuple[Program, Sidecar]]]:
    """Start the sidecars of `specifications` in order, each when the previous one is ready, and end them on leaving.

    `specifications`: with placeholders for ports; `environments`: virtual environments, searched for
    programs in this order, then PATH; `base_env`: environment variables of all; `ports`: by placeholder,
    those to be used again; new ones are added.

    Raises SidecarError if a program is missing, has another version, or is not ready within `timeout_s`.
    """
    running: list[tuple[Program, Sidecar]] = []
    with contextlib.ExitStack() as stack:
        for entry in specifications:
            name = entry.name
            own = {
                place: ports.setdefault(place, free_port())
                for place in _places(name, entry.argv)
            }
            argv = [fill(argument, ports) for argument in entry.argv]
            argv = [*find_program(argv[0], *environments), *argv[1:]]
            log = logs / f"{name}.log"
            process = stack.enter_context(
                supervisor.supervised(
                    name, argv, env={**base_env, **entry.env}, log=log, cwd=logs
                )
            )
            program, sidecar = (
                Program(name, process, log),
                _sidecar(name, argv, log, own),
            )
            if isinstance(sidecar, LMCacheServer):
                program.metrics_url = (
                    f"http://{HOST}:{own['lmcache_http_port']}/metrics"
                )
            _wait_until_ready(program, sidecar, timeout_s)
            own_pids = [
                member.pid for member in Session.led_by(process.pid, name).members()
            ]
            for port in own.values():
                require_own_port(port, own_pids, SidecarPortTaken, name, log)
            sidecar.identify(versions)
            running.append((program, sidecar))
        yield running


def _sidecar(
    name: str, argv: list[str], log: Path, ports: Mapping[str, int]
) -> Sidecar:
    if name == "lmcache":
        return LMCacheServer(
            argv, log, fetch_from(f"http://{HOST}:{ports['lmcache_http_port']}")
        )
    return KeyValueStore(
        name, argv, log, functools.partial(sent, ports[f"{name}_port"])
    )


def fill(text: str, places: Mapping[str, object]) -> str:
    """Replace the placeholders of hosts, ports and folders; not by str.format, because arguments may contain JSON."""
    for place, value in places.items():
        text = text.replace(f"{{{place}}}", str(value))
    return re.sub(r"\{(redis|valkey|lmcache)_host\}", HOST, text)


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
    message = f"this host has no {name}: {_ADVICE.get(name, 'install it')}"
    raise SidecarError(message, code="not_installed", program=name)


def _places(name: str, argv: Sequence[str]) -> list[str]:
    """Return the placeholders of a sidecar's own ports; those of earlier sidecars are in `ports` already."""
    return sorted(set(re.findall(rf"\{{({name}(?:_http)?_port)\}}", " ".join(argv))))


def _wait_until_ready(program: Program, sidecar: Sidecar, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not sidecar.ready():
        program.require_alive()
        if time.monotonic() > deadline:
            log = program.log
            raise SidecarError(
                f"{program.name} was not ready within {limit_s:.0f} s{last_words(log)}; see {log}"
            )
        time.sleep(POLL_S)
