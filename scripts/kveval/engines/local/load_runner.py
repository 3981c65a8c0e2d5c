"""The load runner of this host: GuideLLM as a process here, level by level."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kveval.engines.job import Job, MeasurementError
from kveval.engines.local.deployer import ensure_model
from kveval.engines.protocol import (
    AddressedServer,
    Deployer,
    Event,
    LoadResult,
    LoadRunner,
    Watch,
)
from kveval.host.processes import Supervisor
from kveval.load import guidellm as load
from kveval.load.loadside import sitecustomize


class HostLoadRunner(LoadRunner):
    """Sends the load to the address of what `deployer` has started or found.

    `cpus`: CPUs of this host; `scratch`: folder of the run.
    """

    def __init__(
        self,
        job: Job,
        deployer: Deployer[AddressedServer],
        cpus: int,
        scratch: Path,
        processes: Supervisor,
    ) -> None:
        self._job = job
        self._deployer = deployer
        self._cpus = cpus
        self._scratch = scratch
        self._processes = processes

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The path of the environment that has GuideLLM."""
        return {str(self._job.server_environment): "{server_environment}"}

    def expect(self, levels: Sequence[load.Level]) -> None:
        """Do nothing: preparing a level would disturb the level in progress."""

    def generate(
        self, level: load.Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Run GuideLLM until its report is written."""
        declared, target = self._job.specification.workload, self._target()
        workload = load.lasting(declared, level)
        load.write_data(workload, level, report)
        guidellm = self._job.server_environment / "bin" / "guidellm"
        argv = load.command(str(guidellm), declared, level, target, report)
        env = load.environment(self._cpus, workload)
        with self._processes.temporary_folder() as folder:
            go = folder / "go" if workload.prime else None
            changed = load.users_environment(workload, level) | self._key()
            if go is not None:
                changed |= load.priming_environment(workload, level, target)
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

    def _key(self) -> dict[str, str]:
        """Return the environment with the key of a server that answers already, {} where it asks for none."""
        existing = self._job.existing
        if existing is None or existing.key is None:
            return {}
        return {sitecustomize.KEY_VARIABLE: os.environ[existing.key]}

    def _target(self) -> load.LoadTarget:
        model = self._job.specification.model
        folder = ensure_model(self._job.specification, self._scratch)
        tokenizer = model.hf_id if folder is None else folder
        return load.LoadTarget(self._deployer.server.url, model.served_name, tokenizer)


def require_load_possible(job: Job) -> None:
    """Raise a Failure, before anything starts, if this host cannot send the run's load."""
    if job.specification.workload.profile == "sweep":
        raise MeasurementError(
            "a sweep sends every server a different load: declare levels, or import its results"
        )
    if not (job.server_environment / "bin" / "python").exists():
        raise MeasurementError(
            f"no server environment at {job.server_environment}: run scripts/setup.sh"
        )
