"""The deployer of this host: starts the cell's server and its sidecars as processes here."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.campaign.random_model import write_served
from kveval.campaign.specification import Specification
from kveval.engines.job import Job
from kveval.engines.local.builds import build_facts
from kveval.engines.local.server import Deployment, PortTaken, deployed, server_url
from kveval.engines.protocol import Deployer, Log
from kveval.engines.servers.errors import DeploymentError
from kveval.engines.watchdog import Check
from kveval.host import copy_bandwidth
from kveval.host.cores import Cores, on_cores
from kveval.host.processes import Supervisor
from kveval.host.setup import ready
from kveval.stacks.sidecar import SidecarPortTaken

_PORT_ATTEMPTS = 3
_SHARED_MEMORY_CHECK_S = 10.0


class HostDeployer(Deployer[Deployment]):
    """The run's server on this host.

    One deployment at a time, always on the same ports, so that the recording keeps its endpoints over a restart.
    `environment`: the server's Python environment; `scratch`: folder of the run; `say` gets a message if another
    process has taken a chosen port.
    """

    def __init__(
        self,
        job: Job,
        environment: Path,
        cores: Cores,
        scratch: Path,
        processes: Supervisor,
        say: Log,
    ) -> None:
        self._job = job
        self._environment = environment
        self._cores = cores
        self._scratch = scratch
        self._processes = processes
        self._say = say
        self._ports: dict[str, int] = {}
        self._stack = contextlib.ExitStack()
        self._server: Deployment | None = None

    @property
    def server(self) -> Deployment:
        """The deployment in service. Raises DeploymentError if there is none."""
        if self._server is None:
            raise DeploymentError("the server was not started")
        return self._server

    def expected_url(self) -> str:
        """Choose the server's port, unless it has one, and return its address."""
        return server_url(self._ports)

    def start(self) -> Deployment:
        """Deploy; the first deployment tries other ports if a chosen one was taken. Raises DeploymentError."""
        attempts = _PORT_ATTEMPTS if self._server is None else 1
        for left in reversed(range(attempts)):
            try:
                self._server = self._stack.enter_context(self._deployment())
                break
            except (PortTaken, SidecarPortTaken) as error:
                if not left:
                    raise
                self._say(f"{error}; trying other ports")
                self._ports.clear()
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

    @property
    def checks(self) -> Sequence[Check]:
        """Note the shared memory that the server has mapped, in case it is killed."""
        return [(self._processes.note_shared_memory, _SHARED_MEMORY_CHECK_S)]

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The paths of the server's environment and of the model."""
        folder = self._job.specification.model.folder
        model = {} if folder is None else {folder: "{model_dir}"}
        return {str(self._environment): "{server_environment}", **model}

    def facts(self) -> dict[str, Any]:
        """Return the cores of server and load, the arm's build, what the environment lacks, the copy bandwidth.

        The copy bandwidth is a property of the host, and takes seconds of its GPU: a cell's first run measures it.
        """
        facts: dict[str, Any] = {
            "cores": {
                "server": sorted(self._cores.server),
                "beside": sorted(self._cores.beside),
            }
        }
        if self._job.build is not None:
            facts["build"] = build_facts(self._job.build, self._environment)
        if reduction := ready.reduction_of(self._job.server_environment):
            facts["reduced_environment"] = reduction
        if self._job.run == 1 and (copying := self._copy_bandwidth()):
            facts["copy_bandwidth"] = copying
        return facts

    def _copy_bandwidth(self) -> dict[str, float]:
        # The server has ended by now, so nothing is disturbed and the GPU's memory is free.
        with on_cores(self._cores.server):
            return copy_bandwidth.probe(self._job.server_environment / "bin" / "python")

    @contextlib.contextmanager
    def _deployment(self) -> Iterator[Deployment]:
        """Deploy the cell's server, warmed up and with empty caches."""
        specification = self._job.specification
        starting = deployed(
            self._processes,
            specification,
            environments=[self._environment, self._job.server_environment],
            model_dir=ensure_model(specification, self._scratch),
            files_in=Path(specification.fs_dir or self._scratch).absolute(),
            log=self._scratch / "raw" / "server.log",
            ports=self._ports,
            secrets=self._job.secrets,
            required=self._job.required_names,
        )
        with contextlib.ExitStack() as stack:
            with on_cores(self._cores.server):
                server = stack.enter_context(starting)
            server.warm_up(specification.workload.first_prompt_tokens)
            server.reset_caches()
            self._processes.note_shared_memory()
            yield server


def ensure_model(specification: Specification, scratch: Path) -> Path | None:
    """Return the folder of the model's files on this host; None if they come from the Hugging Face hub.

    A model with random weights is written below `scratch`, unless it is there.
    """
    model = specification.model
    if not specification.random_weights:
        return None if model.folder is None else Path(model.folder)
    folder = scratch / "model"
    if not folder.exists():
        write_served(
            model.geometry, folder, dtype=model.dtype, quantization=model.quantization
        )
    return folder
