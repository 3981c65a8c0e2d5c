"""One measurement as one transaction: adopt it if the store has it, else deploy, record, load, collect, seal,
tear down.

Everything a run starts is gone afterwards, however it ends; what it measured is in the store whole or not at all.
"""

import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kveval import __version__, hardware
from kveval.config import measurement_id
from kveval.counters import exercised
from kveval.engines import local
from kveval.engines.companions import find_program
from kveval.errors import Failure
from kveval.hostlock import host_lock
from kveval.levelrun import Levels, pack
from kveval.miniature import write_served
from kveval.preflight import require_no_secret, require_room
from kveval.processes import (
    Session,
    Supervisor,
    Terminated,
    registry_path,
    remove_leftovers,
    stop_signals_raise,
    stop_when_orphaned,
    supervisor,
)
from kveval.progress import Progress
from kveval.recording import (
    Recording,
    RecordingSettings,
    pack_archive,
    recording,
    require_pcp,
    verify_archive,
)
from kveval.redaction import Redactor
from kveval.store import Key, Store, pointer, write_json

SCHEMA = 1
_RECORD_ON_S = 2.0
_PCP_VLLM = "openmetrics.vllm.vllm."
# Without these a level's figures have no system side; everything else depends on the host.
_REQUIRED_METRICS = (
    f"{_PCP_VLLM}num_requests_running",
    f"{_PCP_VLLM}kv_cache_usage_perc",
    f"{_PCP_VLLM}generation_tokens_total",
    "kernel.all.cpu.user",
    "mem.util.available",
)


class MeasurementError(Failure):
    """The run failed; the message says why in one line and names the log."""


@dataclass(frozen=True)
class Job:
    """One run of one cell, and where things are on this host.

    `required`: the counters that prove the arm active; `stall_limit_s`: seconds without a token, requests in work,
    after which the server counts as hung; `secrets`: environment variables the server gets and nothing else may show.
    """

    specification: Mapping[str, Any]
    measurement: str
    run: int
    store: Path
    server_environment: Path
    required: Sequence[Mapping[str, Any]] = ()
    stall_limit_s: float = 60.0
    secrets: Sequence[str] = ("HF_TOKEN",)

    @property
    def cell(self) -> Mapping[str, Any]:
        """The cell's model, scenario and cpu_blocks."""
        cell: Mapping[str, Any] = self.specification["cell"]
        return cell

    @property
    def label(self) -> str:
        """The run as people say it."""
        return f"{self.cell['model']}/{self.cell['scenario']}/{self.cell['cpu_blocks']} run {self.run}"


def measure(job: Job, output: Path, progress: Progress) -> None:
    """Write the pointer `output` to the job's measurement, adopted from the store or measured now.

    Raises MeasurementError when the specification is not the one the id was made from, and the engine's, generator's or
    recorder's own error when the run fails; the attempt's files are kept under `failed/` then.
    """
    actual = measurement_id(job.specification)
    if actual != job.measurement:
        raise MeasurementError(
            f"the specification hashes to {actual}, the workflow asked for {job.measurement}: replan"
        )
    host = hardware.probe()
    key = Key(job.measurement, job.run, host["fingerprint"])
    store = Store(job.store)
    place = store.find(key)
    if place is not None:
        progress.say(f"adopted the stored measurement {place}")
    else:
        with stop_signals_raise(), stop_when_orphaned(), host_lock(job.label, waiting=progress.say):
            # Another job may have measured it while this one waited.
            place = store.find(key) or _measure_now(job, key, store, host, progress)
    write_json(output, pointer(place, key))


def _measure_now(job: Job, key: Key, store: Store, host: Mapping[str, Any], progress: Progress) -> Path:
    registry = registry_path()
    for name in remove_leftovers(registry):
        progress.say(f"ended what a killed run left running: {name}")
    for directory in store.partial():
        shutil.rmtree(directory, ignore_errors=True)
        progress.say(f"removed what a killed run left unfinished: {directory.name}")
    redactor = Redactor.of(job.secrets)
    require_no_secret(job.specification, redactor)
    _require_supported(job.specification, job.server_environment)
    require_room(job.specification, store.root, host["cpus"])
    # Absolute, because the server and PCP do not run in the workflow's folder.
    scratch = store.scratch(key).absolute()
    try:
        with supervisor(registry) as processes:
            _Run(job, scratch, processes, host, progress, redactor).perform()
        place = store.commit(scratch, key)
    except BaseException as error:
        if not isinstance(error, Failure | Terminated):
            with contextlib.suppress(OSError):
                (scratch / "error.log").write_text(traceback.format_exc())
        redactor.folder(scratch)
        kept = store.keep_failed(scratch, key)
        progress.say(f"this attempt's files are kept in {kept}")
        if isinstance(error, Failure):
            raise MeasurementError(str(error).replace(str(scratch), str(kept))) from error
        if isinstance(error, OSError):
            raise MeasurementError(f"{error}; see {kept}/error.log") from error
        raise
    progress.say(f"measured: {place}")
    return place


@dataclass
class _Run:
    """The run in progress; `perform` leaves a complete folder to be sealed."""

    job: Job
    scratch: Path
    processes: Supervisor
    host: Mapping[str, Any]
    progress: Progress
    redactor: Redactor
    phases: dict[str, float] = field(default_factory=dict)
    told: BaseException | None = None

    @property
    def raw(self) -> Path:
        return self.scratch / "raw"

    @property
    def workload(self) -> Mapping[str, Any]:
        workload: Mapping[str, Any] = self.job.specification["workload"]
        return workload

    def perform(self) -> None:
        """Run the whole transaction."""
        started = _now()
        pcp_version = require_pcp()
        slot = local.ServerSlot(self._deployment, self.progress.say)
        with contextlib.closing(slot), self._told_at_once():
            self.progress.say("starting the server")
            with self._phase("server_start_s"):
                server = slot.start()
            self.progress.say(f"server up after {server.startup_s:.0f} s; starting the recording")
            with self._phase("recording_start_s"), contextlib.ExitStack() as starting:
                recorder = starting.enter_context(
                    recording(self.scratch / "pcp", self._recording_settings(server), self.processes)
                )
                recording_stack = starting.pop_all()
            with recording_stack, self._told_at_once():
                with self._phase("levels_s"):
                    runner = self._runner(slot, recorder)
                    levels = runner.measure()
                with self._phase("collect_s"):
                    # The last level's end must lie inside the archive even when a sample came late.
                    time.sleep(_RECORD_ON_S)
                    runner.clock.check()
                    recorder.stop()
                    archive = self._collect_recording(recorder, levels)
            with self._phase("server_stop_s"):
                slot.close()
        self._pack_logs()
        description = {
            "schema": SCHEMA,
            "measurement": self.job.measurement,
            "run": self.job.run,
            "cell": dict(self.job.cell),
            "specification": dict(self.job.specification),
            "engine": self.job.specification["engine"],
            "weights": self.job.specification["weights"],
            "protocol": self.job.specification["protocol"],
            "started": started,
            "finished": _now(),
            "hardware": dict(self.host),
            "versions": {
                "vllm": server.version,
                "guidellm": self.job.specification["versions"]["guidellm"],
                "pcp": pcp_version,
                "kveval": __version__,
            },
            "server": {
                "argv": [self._anonymous(argument) for argument in server.argv],
                "env": {name: self._anonymous(value) for name, value in server.env.items()},
                "startup_s": round(server.startup_s, 2),
                "facts": server.facts,
            },
            "budget": {
                **self.job.specification["budget"],
                "device_tokens": server.facts.get("kv_cache_tokens"),
                **_reported(self.job.specification, server.facts.get("tier_bytes")),
            },
            "companions": [
                {
                    "name": companion.program.name,
                    "version": companion.version,
                    "argv": [self._anonymous(argument) for argument in companion.program.argv],
                }
                for companion in server.companions
            ],
            "clock_offset_s": 0.0,
            "phases": {name: round(seconds, 2) for name, seconds in self.phases.items()},
            "levels": levels,
            "exercised": exercised(self.job.required, levels),
            "recording": archive,
        }
        write_json(self.scratch / "run.json", description)
        for leftover in ("model", "pcp"):
            shutil.rmtree(self.scratch / leftover, ignore_errors=True)

    @contextlib.contextmanager
    def _deployment(self, ports: dict[str, int]) -> Iterator[local.Deployment]:
        """Deploy the cell's server, warm and with empty caches."""
        model_dir = self.scratch / "model"
        if self.job.specification["weights"] == "miniature" and not model_dir.exists():
            write_served(self.job.specification["model"]["geometry"], model_dir)
        with local.deployed(
            self.processes,
            _server_plan(self.job.specification),
            environment=self.job.server_environment,
            model_dir=model_dir,
            files_in=Path(self.job.specification.get("fs_dir") or self.scratch).absolute(),
            log=self.raw / "server.log",
            ports=ports,
            secrets=self.job.secrets,
        ) as server:
            server.warm_up(self.workload["prefix_tokens"] + self.workload["prompt_tokens"])
            server.reset_caches()
            self.processes.note_shared_memory()
            yield server

    def _recording_settings(self, server: local.Deployment) -> RecordingSettings:
        leaders = {"vllm": server.process.pid} | {
            companion.program.name: companion.program.process.pid for companion in server.companions
        }
        members = [member for name, pid in leaders.items() for member in Session.led_by(pid, name).members()]
        return RecordingSettings(openmetrics=server.endpoints, processes=[member.pid for member in members])

    def _runner(self, slot: local.ServerSlot, recorder: Recording) -> Levels:
        return Levels(
            specification=self.job.specification,
            run=self.job.run,
            scratch=self.scratch,
            guidellm=self.job.server_environment / "bin" / "guidellm",
            cpus=self.host["cpus"],
            stall_limit_s=self.job.stall_limit_s,
            processes=self.processes,
            progress=self.progress,
            redactor=self.redactor,
            slot=slot,
            recorder=recorder,
            anonymous=self._anonymous,
            tell=self._tell,
        )

    @contextlib.contextmanager
    def _told_at_once(self) -> Iterator[None]:
        """Say a failure once, when it is found, before everything is torn down."""
        try:
            yield
        except (Failure, OSError) as failure:
            self._tell(failure)
            raise

    def _tell(self, failure: BaseException) -> None:
        if failure is not self.told:
            self.progress.say(f"failed, tearing down: {failure}")
        self.told = failure

    def _collect_recording(self, recorder: Recording, levels: list[dict[str, Any]]) -> dict[str, Any]:
        facts = verify_archive(
            recorder.archive,
            start=levels[0]["start"],
            end=levels[-1]["end"],
            required=_REQUIRED_METRICS,
            windows=[(level["start"], level["end"]) for level in levels],
        )
        target = self.raw / "pcp.tar.zst"
        pack_archive(recorder.archive, target)
        return {
            "archive": target.relative_to(self.scratch).as_posix(),
            "interval_s": 1.0,
            "metrics": facts.metrics,
            "start": facts.start,
            "end": facts.end,
        }

    def _pack_logs(self) -> None:
        for path in sorted(self.raw.glob("*.log")):
            pack(path, self.redactor)

    def _anonymous(self, text: str) -> str:
        """Take this host's paths out of what is published."""
        return text.replace(str(self.scratch), "{scratch}").replace(
            str(self.job.server_environment), "{server_environment}"
        )

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin


def _require_supported(specification: Mapping[str, Any], server_environment: Path) -> None:
    """Refuse, before anything starts, what this engine or this host cannot measure."""
    if specification["engine"] != "local":
        raise MeasurementError(f"engine {specification['engine']} is not there yet; engine: local is")
    if specification["workload"]["profile"] != "concurrent":
        raise MeasurementError("the local engine drives workloads of profile concurrent; this one is a sweep")
    if specification["weights"] == "full" and specification["build"] == "vllm" and not hardware.gpus():
        raise MeasurementError("weights: full needs a GPU, and this host has none that answers; use weights: miniature")
    if not (server_environment / "bin" / "python").exists():
        raise MeasurementError(f"no server environment at {server_environment}: run scripts/setup.sh")
    for companion in specification["companions"]:
        find_program(companion["argv"][0], server_environment)
    folder = specification.get("fs_dir")
    if folder is not None and not os.access(folder, os.W_OK | os.X_OK):
        raise MeasurementError(f"server.fs_dir {folder} is no folder this user can write to")


def _server_plan(specification: Mapping[str, Any]) -> local.ServerPlan:
    budget = specification["budget"]
    return local.ServerPlan(
        argv=specification["argv"],
        env=specification["env"],
        served_model=specification["model"]["served_name"],
        versions=specification["versions"],
        device_tokens=budget["device_tokens"],
        companions=specification["companions"],
        tier_bytes=budget["tier_bytes"] or budget.get("staging_bytes", 0),
        file_tier="fs_dir" in specification,
    )


def _reported(specification: Mapping[str, Any], tier_bytes: int | None) -> dict[str, Any]:
    """Return the tier in host memory as the server reports it, beside what was asked for.

    Without a report both are None: older servers do not say.
    """
    tokens = None if tier_bytes is None else tier_bytes // specification["model"]["kv_bytes_per_token"]
    return {"reported_bytes": tier_bytes, "reported_tokens": tokens}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
