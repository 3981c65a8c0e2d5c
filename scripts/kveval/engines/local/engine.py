"""The local engine: measures one run on this host, one at a time."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kveval.campaign.random_model import write_served
from kveval.engines.job import Job, MeasurementError
from kveval.engines.local import server as local
from kveval.engines.local.builds import build_facts, environment_of
from kveval.engines.local.gpu_exporter import gpu_exporter
from kveval.engines.local.sidecars import find_program
from kveval.engines.preflight import require_checkpoint, require_room
from kveval.engines.protocol import Event, LoadResult, Log, Watch
from kveval.engines.watchdog import DISK_RESERVE_BYTES, Check, require_free
from kveval.host import copy_bandwidth, hardware
from kveval.host.cores import Cores, divided, on_cores, usable
from kveval.host.gpu_conditions import INTERVAL_S, local_watch, visible_gpus
from kveval.host.lock import host_lock
from kveval.host.processes import Supervisor, supervisor
from kveval.host.registry import registry_path, remove_leftovers
from kveval.host.sessions import Session
from kveval.load import guidellm as load
from kveval.load.loadside import sitecustomize
from kveval.pcp.direct.recorder import (
    EXPORTERS_ALONE,
    DirectRecording,
    direct_recording,
)
from kveval.pcp.installation import installed_pcp
from kveval.pcp.recording import Recording, RecordingSettings, recording
from kveval.store.store import Store

_SHARED_MEMORY_CHECK_S = 10.0


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
        specification, server_environment = (
            self._job.specification,
            self._job.server_environment,
        )
        if specification.workload.profile == "sweep":
            raise MeasurementError(
                "a sweep sends every server a different load: declare levels, or import its results"
            )
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
        if not (server_environment / "bin" / "python").exists():
            raise MeasurementError(
                f"no server environment at {server_environment}: run scripts/setup.sh"
            )
        if self._job.build is not None:
            self._environment = environment_of(
                self._job.build, server_environment, specification.build, self._say
            )
        for sidecar in specification.sidecars:
            find_program(sidecar.argv[0], self._environment, server_environment)
        folder = specification.fs_dir
        if folder and not os.access(folder, os.W_OK | os.X_OK):
            raise MeasurementError(
                f"server.fs_dir {folder} is not a folder that this user can write to"
            )
        require_room(specification, store.root, self._host["cpus"])

    @contextlib.contextmanager
    def session(self, scratch: Path, say: Log) -> Iterator["HostSession"]:
        """Begin the run, with supervised processes."""
        cores = divided(usable())
        # For load generator, recording and this process; the server is started on its own cores.
        with on_cores(cores.beside), supervisor(registry_path()) as processes:
            yield HostSession(
                self._job,
                self._environment,
                scratch,
                processes,
                self._host["cpus"],
                cores,
                say,
            )


class HostSession:
    """One run in progress on this host."""

    own_clock = True

    def __init__(
        self,
        job: Job,
        environment: Path,
        scratch: Path,
        processes: Supervisor,
        cpus: int,
        cores: Cores,
        say: Log,
    ) -> None:
        self._job = job
        self._environment = environment
        self._cores = cores
        self._scratch = scratch
        self._processes = processes
        self._cpus = cpus
        self._gpus = local_watch()
        self._say = say
        version = installed_pcp()
        self.pcp_version = version or EXPORTERS_ALONE
        if version is None:
            say("Performance Co-Pilot is not installed: the exporters alone record")
        self.handle = local.LocalServerHandle(self._deployment, say)

    @property
    def checks(self) -> Sequence[Check]:
        """Note the shared memory that the server has mapped, in case it is killed, and sample the GPUs."""
        watches = [] if self._gpus is None else [(self._gpus.sample, INTERVAL_S)]
        return [(self._processes.note_shared_memory, _SHARED_MEMORY_CHECK_S), *watches]

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recording | DirectRecording]:
        """Record this host and the processes of the run."""
        with contextlib.ExitStack() as stack:
            endpoints = dict(self.handle.server.metrics_urls)
            if not self._job.specification.on_cpu:
                python, env = (
                    self._job.server_environment / "bin" / "python",
                    dict(os.environ),
                )
                exporter = gpu_exporter(
                    self._processes,
                    python,
                    self._scratch / "raw",
                    visible_gpus(),
                    env,
                    self._say,
                )
                endpoints |= stack.enter_context(exporter)
            place, settings = self._scratch / "pcp", self._recording_settings(endpoints)
            if self.pcp_version == EXPORTERS_ALONE:
                yield stack.enter_context(
                    direct_recording(place, settings, self._processes)
                )
            else:
                yield stack.enter_context(recording(place, settings, self._processes))

    def expect(self, levels: Sequence[load.Level]) -> None:
        """Do nothing: preparing a level would disturb the level in progress."""

    def _target(self) -> load.LoadTarget:
        model, url, folder = (
            self._job.specification.model,
            self.handle.server.url,
            self._model_dir,
        )
        return load.LoadTarget(
            url, model.served_name, model.hf_id if folder is None else folder
        )

    @property
    def _model_dir(self) -> Path | None:
        """The folder of the model's files on this host; None if they come from the Hugging Face hub."""
        specification = self._job.specification
        if specification.random_weights:
            return self._scratch / "model"
        folder = specification.model.folder
        return None if folder is None else Path(folder)

    def generate(
        self, level: load.Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Run GuideLLM as a process of this host."""
        workload = load.lasting(self._job.specification.workload, level)
        load.write_data(workload, level, report)
        guidellm = self._job.server_environment / "bin" / "guidellm"
        argv = load.command(
            str(guidellm),
            self._job.specification.workload,
            level,
            self._target(),
            report,
        )
        env = load.environment(self._cpus, workload)
        with self._processes.temporary_folder() as folder:
            go = folder / "go" if workload.prime else None
            changed = load.users_environment(workload, level)
            if go is not None:
                changed |= load.priming_environment(workload, level, self._target())
                changed |= {"KVEVAL_GO": str(go)}
            if changed:
                loadside = str(Path(sitecustomize.__file__).parent)
                env |= {**changed, "PYTHONPATH": loadside}
            began, started = time.time(), time.monotonic()
            wall_s, primed = load.run_level(
                self._processes,
                argv,
                report,
                report.with_suffix(".log"),
                limit_s=load.time_limit_s(workload, level.streams),
                sending_limit_s=load.sending_limit_s(workload),
                env=env,
                watch=watch,
                sending=sending,
                go=go,
                idle_before_s=load.unanswered_s(workload, level.streams),
            )
        return LoadResult(argv, began, started, started + wall_s, primed)

    def require_room(self) -> None:
        """Raise DiskFullError if a disk that the run writes to is full."""
        for place in (self._scratch, self.handle.server.files):
            if place is not None:
                require_free(place, DISK_RESERVE_BYTES, "stopping in order")

    def anonymous(self, text: str) -> str:
        """Return `text` for publication: without this host's paths."""
        folder = self._job.specification.model.folder
        places = {self._scratch: "{scratch}", self._environment: "{server_environment}"}
        places[self._job.server_environment] = "{server_environment}"
        if folder is not None:
            places[Path(folder)] = "{model_dir}"
        for place, name in places.items():
            text = text.replace(str(place), name)
        return text

    def facts(self) -> dict[str, Any]:
        """Return the local engine's entries of run.json: the server's cores and those of load and recording, the arm's
        build, the GPUs' conditions, the copy bandwidth.
        """
        cores = {
            "server": sorted(self._cores.server),
            "beside": sorted(self._cores.beside),
        }
        conditions = [] if self._gpus is None else self._gpus.conditions()
        # The server has ended by now, so nothing is disturbed and the GPU's memory is free.
        with on_cores(self._cores.server):
            copying = copy_bandwidth.probe(
                self._job.server_environment / "bin" / "python"
            )
        build = self._job.build
        return {
            "cores": cores,
            **(
                {}
                if build is None
                else {"build": build_facts(build, self._environment)}
            ),
            **({"gpu_conditions": conditions} if conditions else {}),
            **({"copy_bandwidth": copying} if copying else {}),
        }

    @contextlib.contextmanager
    def _deployment(self, ports: dict[str, int]) -> Iterator[local.Deployment]:
        """Deploy the cell's server, warmed up and with empty caches."""
        specification = self._job.specification
        model, model_dir = specification.model, self._model_dir
        if (
            specification.random_weights
            and model_dir is not None
            and not model_dir.exists()
        ):
            write_served(
                model.geometry,
                model_dir,
                dtype=model.dtype,
                quantization=model.quantization,
            )
        starting = local.deployed(
            self._processes,
            specification,
            environments=[self._environment, self._job.server_environment],
            model_dir=model_dir,
            files_in=Path(specification.fs_dir or self._scratch).absolute(),
            log=self._scratch / "raw" / "server.log",
            ports=ports,
            secrets=self._job.secrets,
        )
        with contextlib.ExitStack() as stack:
            with on_cores(self._cores.server):
                server = stack.enter_context(starting)
            server.warm_up(specification.workload.first_prompt_tokens)
            server.reset_caches()
            self._processes.note_shared_memory()
            yield server

    def _recording_settings(self, endpoints: Mapping[str, str]) -> RecordingSettings:
        server = self.handle.server
        leaders = {server.program.name: server.process.pid}
        leaders |= {program.name: program.process.pid for program in server.programs}
        members = [
            member
            for name, pid in leaders.items()
            for member in Session.led_by(pid, name).members()
        ]
        return RecordingSettings(
            openmetrics=endpoints, processes=[member.pid for member in members]
        )
