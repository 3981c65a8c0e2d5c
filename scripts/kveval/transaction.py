"""One measurement as one transaction: adopt it if the store has it, else deploy, record, load, collect, seal,
tear down.

Everything a run starts is gone afterwards, however it ends; what it measured is in the store whole or not at all.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import zstandard

from kveval import __version__, hardware, load
from kveval.config import measurement_id
from kveval.counters import changes, exercised
from kveval.engines import local
from kveval.engines.companions import find_program
from kveval.errors import Failure
from kveval.hostlock import host_lock
from kveval.miniature import write_served
from kveval.processes import (
    Session,
    Supervisor,
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
from kveval.store import Key, Store, pointer, write_json

SCHEMA = 1
_LEVEL_ATTEMPTS = 2
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
    """One run of one cell, and where things are on this host; `required`: the counters that prove the arm active."""

    specification: Mapping[str, Any]
    measurement: str
    run: int
    store: Path
    server_environment: Path
    required: Sequence[Mapping[str, Any]] = ()

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
    # Absolute, because the server and PCP do not run in the workflow's folder.
    scratch = store.scratch(key).absolute()
    try:
        with supervisor(registry) as processes:
            _Run(job, scratch, processes, host, progress).perform()
        place = store.commit(scratch, key)
    except BaseException as error:
        kept = store.keep_failed(scratch, key)
        progress.say(f"this attempt's files are kept in {kept}")
        if isinstance(error, Failure):
            raise MeasurementError(str(error).replace(str(scratch), str(kept))) from error
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
    phases: dict[str, float] = field(default_factory=dict)

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
        _require_supported(self.job.specification, self.job.server_environment)
        pcp_version = require_pcp()
        slot = local.ServerSlot(self._deployment)
        with contextlib.closing(slot):
            self.progress.say("starting the server")
            with self._phase("server_start_s"):
                server = slot.start()
            self.progress.say(f"server up after {server.startup_s:.0f} s; starting the recording")
            with self._phase("recording_start_s"), contextlib.ExitStack() as starting:
                recorder = starting.enter_context(
                    recording(self.scratch / "pcp", self._recording_settings(server), self.processes)
                )
                recording_stack = starting.pop_all()
            with recording_stack:
                with self._phase("levels_s"):
                    levels = self._levels(slot, recorder)
                with self._phase("collect_s"):
                    # The last level's end must lie inside the archive even when a sample came late.
                    time.sleep(_RECORD_ON_S)
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
        ) as server:
            server.warm_up(self.workload["prefix_tokens"] + self.workload["prompt_tokens"])
            server.reset_caches()
            yield server

    def _recording_settings(self, server: local.Deployment) -> RecordingSettings:
        leaders = {"vllm": server.process.pid} | {
            companion.program.name: companion.program.process.pid for companion in server.companions
        }
        members = [member for name, pid in leaders.items() for member in Session.led_by(pid, name).members()]
        return RecordingSettings(openmetrics=server.endpoints, processes=[member.pid for member in members])

    def _levels(self, slot: local.ServerSlot, recorder: Recording) -> list[dict[str, Any]]:
        measured: list[dict[str, Any]] = []
        levels = load.levels_of(self.workload, self.job.run)
        for number, level in enumerate(levels, start=1):
            if number > 1:
                slot.refresh(restart=self.job.specification["reset_caches"] == "restart")
            self.progress.say(f"level {level.streams} ({number} of {len(levels)}) · {self.progress.left()}")
            measured.append(self._level(level, number, len(levels), slot, recorder))
        return measured

    def _level(
        self, level: load.Level, number: int, count: int, slot: local.ServerSlot, recorder: Recording
    ) -> dict[str, Any]:
        """Measure one level; an attempt that fails while the server lives is repeated once, with empty caches."""
        for attempt in range(1, _LEVEL_ATTEMPTS + 1):
            try:
                return self._attempt(level, number, count, slot, recorder)
            except load.LoadError as error:
                slot.server.require_alive()
                if attempt == _LEVEL_ATTEMPTS:
                    raise
                self.progress.say(f"level {level.streams} failed ({error}); once more")
                slot.refresh(restart=False)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attempt(
        self, level: load.Level, number: int, count: int, slot: local.ServerSlot, recorder: Recording
    ) -> dict[str, Any]:
        server = slot.server
        report = self.raw / f"guidellm-{level.streams:04d}.json"
        environment = self.job.server_environment
        target = load.Target(server.url, server.served_model, self._tokenizer())
        argv = load.command(str(environment / "bin" / "guidellm"), self.workload, level, target, report)

        def watch(elapsed_s: float) -> None:
            server.require_alive()
            recorder.alive()
            self.progress.level(level.streams, number, count, elapsed_s, self.workload["seconds"])

        before = server.counters()
        wall_s = load.run_level(
            self.processes,
            argv,
            report,
            report.with_suffix(".log"),
            limit_s=load.time_limit_s(self.workload, level.streams),
            env=load.environment(self.host["cpus"]),
            watch=watch,
        )
        after = server.counters()
        facts = load.report_facts(report, self.job.specification["versions"]["guidellm"])
        packed = _pack(report)
        return {
            "level": level.streams,
            "index": level.index,
            "seed": level.seed,
            "start": facts.start,
            "end": facts.end,
            "report": packed.relative_to(self.scratch).as_posix(),
            "command": [self._anonymous(argument) for argument in argv],
            "wall_s": round(wall_s, 2),
            "counters": changes(before, after),
            "cache_reset": True,
            "status": "ok",
            "error": None,
        }

    def _tokenizer(self) -> Path | str:
        if self.job.specification["weights"] == "miniature":
            return self.scratch / "model"
        return str(self.job.specification["model"]["hf_id"])

    def _collect_recording(self, recorder: Recording, levels: list[dict[str, Any]]) -> dict[str, Any]:
        facts = verify_archive(
            recorder.archive, start=levels[0]["start"], end=levels[-1]["end"], required=_REQUIRED_METRICS
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
            _pack(path)

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


def _pack(path: Path) -> Path:
    """Compress a file in place; return the compressed one."""
    target = path.with_name(path.name + ".zst")
    with path.open("rb") as source, target.open("wb") as sink:
        zstandard.ZstdCompressor(level=9).copy_stream(source, sink)
    path.unlink()
    return target


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
