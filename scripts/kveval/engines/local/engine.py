"""The local engine: measures one run on this host, one at a time."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kveval.engines.job import Job, MeasurementError
from kveval.engines.local.builds import environment_of, missing_modules
from kveval.engines.local.deployer import HostDeployer
from kveval.engines.local.load_runner import HostLoadRunner, require_load_possible
from kveval.engines.local.recorder import HostRecorder
from kveval.engines.local.sidecars import find_program
from kveval.engines.preflight import require_checkpoint, require_room
from kveval.engines.protocol import AddressedServer, Deployer, Log, RunSession
from kveval.host import hardware
from kveval.host.cores import Cores, divided, on_cores, usable
from kveval.host.lock import host_lock
from kveval.host.processes import Supervisor, supervisor
from kveval.host.quiet import WaitBudget, wait_until_quiet
from kveval.host.registry import registry_path, remove_leftovers
from kveval.stacks.registry import server_of
from kveval.store.store import Store


class HostEngine:
    """One run on this host, before anything has started."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._host = hardware.probe()
        # `require_possible` replaces it if the arm names a build.
        self._environment = job.server_environment
        self._say: Log = lambda text: None

    def hardware(self) -> Mapping[str, Any]:
        """Describe this host."""
        return self._host

    def may_adopt(self, stored: Path, say: Log) -> bool:
        """Return True: what defines a run is what the workflow starts."""
        return True

    @contextlib.contextmanager
    def exclusive_host(self, say: Log) -> Iterator[None]:
        """Hold the host's lock."""
        with host_lock(self._job.label, waiting=say):
            self._say = say
            yield

    def remove_leftovers(self, say: Log) -> None:
        """End processes that a killed run left."""
        for name in remove_leftovers(registry_path()):
            say(f"ended what a killed run left running: {name}")

    def require_possible(self, store: Store) -> None:
        """Raise a Failure, before anything starts, if this engine or host cannot measure the run; make its build."""
        specification = self._job.specification
        server_environment = self._job.server_environment
        require_load_possible(self._job)
        if (
            not specification.miniature
            and not specification.on_cpu
            and not hardware.gpus()
        ):
            raise MeasurementError(
                f"build {specification.build} needs a GPU, and this host has none that answers; use build"
                f" {specification.build}-cpu, with weights: miniature where it is too slow for the whole model"
            )
        require_checkpoint(specification.model)
        if self._job.build is not None:
            self._environment = environment_of(
                self._job.build, server_environment, specification.build, self._say
            )
        self._require_modules()
        for sidecar in specification.sidecars:
            find_program(sidecar.argv[0], self._environment, server_environment)
        folder = specification.fs_dir
        if folder and not os.access(folder, os.W_OK | os.X_OK):
            raise MeasurementError(
                f"server.fs_dir {folder} is not a folder that this user can write to"
            )
        require_room(specification, store.root, self._host["cpus"])

    def _require_modules(self) -> None:
        """Raise MeasurementError if the server could not load a module that the arm's connector names."""
        specification = self._job.specification
        program = server_of(specification.versions)
        names = program.modules(specification.argv)
        missing = missing_modules(self._environment, names, program.plugins)
        for name, reason in missing.items():
            message = f"{self._environment} has no module {name}, which {specification.cell.scenario} loads ({reason})"
            remedy = "add its package by server: {packages: [NAME==VERSION]}"
            raise MeasurementError(f"{message}: {remedy}", code="no_module")

    def wait_until_quiet(self, say: Log) -> None:
        """Wait until other programs leave this host's processors to the run, in the time that all runs have for that."""
        spent = Path("logs", self._job.campaign, "quiet-wait.json")
        wait_until_quiet(say, WaitBudget.from_environment(spent))

    @contextlib.contextmanager
    def session(self, scratch: Path, say: Log) -> Iterator[RunSession]:
        """Begin the run, with supervised processes."""
        job, cores = self._job, divided(usable())
        # For load generator, recording and this process; the server is started on its own cores.
        with on_cores(cores.beside), supervisor(registry_path()) as processes:
            deployer = self._deployer(scratch, say, processes, cores)
            cpus = self._host["cpus"]
            load = HostLoadRunner(job, deployer, cpus, scratch, processes)
            recorder = HostRecorder(job, deployer, scratch, processes, say)
            own_disk = job.specification.fs_dir
            folders = [Path(own_disk)] if own_disk else []
            with contextlib.closing(load):
                yield RunSession(deployer, load, recorder, scratch, folders)

    def _deployer(
        self, scratch: Path, say: Log, processes: Supervisor, cores: Cores
    ) -> Deployer[AddressedServer]:
        return HostDeployer(
            self._job, self._environment, cores, scratch, processes, say
        )
