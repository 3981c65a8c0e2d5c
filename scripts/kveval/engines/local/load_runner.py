"""The load runner of this host: GuideLLM as a process here, level by level."""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from kveval.stacks.registry import server_of

# Each takes memory, several processes with all of GuideLLM's libraries, until its level is over.
_AHEAD = 2


@dataclass(frozen=True)
class _LevelGenerator:
    """A generator that was started for a level, the address that it sends to, and what ends it."""

    process: load.Generator
    argv: list[str]
    url: str
    ending: contextlib.ExitStack


class HostLoadRunner(LoadRunner):
    """Sends the load to the address of what `deployer` has started or found.

    The generators of the first levels are started while the server starts, and stand still from then on until their
    levels. `cpus`: CPUs of this host; `scratch`: folder of the run.
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
        self._waits = load.can_wait(job.specification.versions["guidellm"])
        self._generators: dict[load.Level, _LevelGenerator] = {}

    @property
    def placeholders(self) -> Mapping[str, str]:
        """The path of the environment that has GuideLLM."""
        return {str(self._job.server_environment): "{server_environment}"}

    @contextlib.contextmanager
    def preparing(self, levels: Sequence[load.Level]) -> Iterator[None]:
        """Start the generators of the first levels, one after the other; they stand still after the body."""
        url = self._deployer.expected_url()
        if url is not None and self._waits:
            # One that primes the caches is ready only then, and the next one would wait for it.
            count = 1 if self._job.specification.workload.prime else _AHEAD
            after: Path | None = None
            for level in levels[:count]:
                generator = self._start(level, url, load.environment_ahead(after))
                self._generators[level] = generator
                assert generator.process.go is not None
                after = sitecustomize.ready_file(generator.process.go)
        try:
            yield
        finally:
            for generator in self._generators.values():
                generator.process.suspend()

    def expect(self, levels: Sequence[load.Level]) -> None:
        """Do nothing: preparing a level would disturb the level in progress."""

    def generate(
        self, level: load.Level, report: Path, watch: Watch, sending: Event
    ) -> LoadResult:
        """Run GuideLLM until its report is written."""
        workload = load.lasting(self._job.specification.workload, level)
        began, begin = time.time(), time.monotonic()
        generator = self._pop_prepared(level)
        if generator is None:
            if not (self._waits or workload.prime):
                sending()
            generator = self._start(level, self._deployer.server.url, {})
        with generator.ending:
            wall_s, primed = load.await_report(
                generator.process,
                limit_s=load.time_limit_s(workload, level.streams),
                sending_limit_s=load.sending_limit_s(workload),
                watch=watch,
                sending=sending,
                idle_before_s=load.unanswered_s(workload, level.streams),
            )
        return LoadResult(generator.argv, began, begin, begin + wall_s, primed)

    def close(self) -> None:
        """End the generators whose levels did not come; may be called again."""
        for level in list(self._generators):
            self._generators.pop(level).ending.close()

    def _pop_prepared(self, level: load.Level) -> _LevelGenerator | None:
        """Return the generator that was started for a level ahead, if it still runs and has the server's address."""
        generator = self._generators.pop(level, None)
        if generator is None:
            return None
        url = self._deployer.server.url
        if generator.process.is_running and generator.url == url:
            return generator
        generator.ending.close()
        return None

    def _start(
        self, level: load.Level, url: str, variables: Mapping[str, str]
    ) -> _LevelGenerator:
        """Start the generator of a level; `variables`: further ones for code of ours inside it."""
        declared = self._job.specification.workload
        workload = load.lasting(declared, level)
        report = self._scratch / "raw" / level.report_name
        load.write_data(workload, level, report)
        target = self._target(url)
        program = self._job.server_environment / "bin" / "guidellm"
        argv = load.command(str(program), declared, level, target, report)
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self._processes.temporary_folder())
            waits = self._waits or workload.prime
            go = folder / "go" if waits else None
            changes = dict(variables) | load.users_environment(workload, level)
            changes |= load.priming_environment(workload, level, target) | self._key()
            if go is not None:
                changes |= load.waiting_environment(go)
            if changes:
                changes["PYTHONPATH"] = str(Path(sitecustomize.__file__).parent)
            process = stack.enter_context(
                load.running_generator(
                    self._processes,
                    argv,
                    report,
                    report.with_suffix(".log"),
                    env=load.environment(self._cpus, workload) | changes,
                    go=go,
                )
            )
            return _LevelGenerator(process, argv, url, stack.pop_all())

    def _key(self) -> dict[str, str]:
        """Return the environment with the key of a server that answers already, {} where it asks for none."""
        existing = self._job.existing
        if existing is None or existing.key is None:
            return {}
        return {sitecustomize.KEY_VARIABLE: os.environ[existing.key]}

    def _target(self, url: str) -> load.LoadTarget:
        model = self._job.specification.model
        folder = ensure_model(self._job.specification, self._scratch)
        tokenizer = model.hf_id if folder is None else folder
        return load.LoadTarget(url, model.served_name, tokenizer, self._body())

    def _body(self) -> Mapping[str, Any]:
        """Return what each request has in addition."""
        specification = self._job.specification
        if specification.load_from_tier:
            return {}
        program = server_of(specification.versions)
        body = program.without_loading(specification.versions[program.name])
        assert body is not None  # Refused when the campaign was read.
        return body


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
