"""The run in progress: deploy, record, load level after level, collect, describe; on any engine."""

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kveval import __version__
from kveval.conditions.facts import terms_of
from kveval.engines.job import Job
from kveval.engines.protocol import Engine, RunningRecording, RunSession
from kveval.engines.servers.one_request import request_tokens
from kveval.engines.servers.server import Server
from kveval.engines.watchdog import ClockWatch
from kveval.host.errors import Failure
from kveval.host.files import write_json
from kveval.host.redaction import Redactor
from kveval.load import guidellm as load
from kveval.measure.level_run import Levels, import_first_look, pack
from kveval.measure.progress import Progress
from kveval.pcp.archive_tools import pack_archives
from kveval.pcp.verification import verify_recording
from kveval.stacks.registry import held_bytes, server_of
from kveval.store.conditions import Change
from kveval.store.run_file import Answers, OneRequest, Repeat, time_text
from kveval.tables.levels.activity import (
    activity_record,
    level_activity,
    required_counters,
)

SCHEMA = 1
_RECORD_ON_S = 2.0
# Without these a level has no system metrics; which others there are depends on the host.
_REQUIRED_OF_HOST = ("kernel.all.cpu.user", "mem.util.available")
_REQUIRED_OF_SERVER = ("requests_running", "kv_cache_usage", "generation_tokens")


@dataclass
class Attempt:
    """The run in progress; `perform` leaves a complete folder to be sealed."""

    job: Job
    scratch: Path
    engine: Engine
    host: Mapping[str, Any]
    progress: Progress
    redactor: Redactor
    repeats: Sequence[Repeat] = ()
    """Attempts before this one that a known defect ended."""
    phases: dict[str, float] = field(default_factory=dict)
    reported_failure: BaseException | None = None

    @property
    def raw(self) -> Path:
        """The folder of the files that other programs write: reports, archive, logs."""
        return self.scratch / "raw"

    def perform(self) -> None:
        """Run the whole transaction."""
        started, begin = utc_now(), time.monotonic()
        with self.engine.session(self.scratch, self.progress.say) as session:
            with contextlib.closing(session.deployer), self._report_once():
                self.progress.say(session.deployer.beginning)
                levels_ahead = load.levels_known_ahead(
                    self.job.specification.workload, self.job.run
                )
                with self._phase("server_start_s"):
                    imports = threading.Thread(target=import_first_look, daemon=True)
                    imports.start()
                    with session.load.preparing(levels_ahead):
                        server = session.deployer.start()
                    imports.join()
                with self._phase("answers_s"):
                    answers = self._answers(session)
                with self._phase("one_request_s"):
                    one_request = self._one_request(session)
                self.progress.say(
                    f"server up after {server.startup_s:.0f} s; starting the recording"
                )
                with (
                    self._phase("recording_start_s"),
                    contextlib.ExitStack() as starting,
                ):
                    recorder = starting.enter_context(session.recorder.recording())
                    recording_stack = starting.pop_all()
                with recording_stack, self._report_once():
                    with self._phase("levels_s"):
                        # Elsewhere, windows and recording use clocks that a step of this host's clock does not affect.
                        clock = (
                            ClockWatch()
                            if session.own_clock
                            else ClockWatch(limit_s=math.inf)
                        )
                        measuring = self._levels(session, recorder, clock)
                        levels = measuring.measure()
                    with self._phase("collect_s"):
                        # The last level's end must lie inside the archive even when a sample came late.
                        time.sleep(
                            max(0.0, _RECORD_ON_S - measuring.seconds_since_window)
                        )
                        clock.check()
                        recorder.stop()
                        archive = self._collect_recording(recorder, levels)
                with self._phase("server_stop_s"):
                    session.deployer.close()
            for path in sorted(self.raw.glob("*.log")):
                pack(path, self.redactor)
            described = self._description(session, server, levels)
        write_json(
            self.scratch / "run.json",
            {
                **described,
                "started": started,
                "finished": utc_now(),
                "phases": {
                    name: round(seconds, 2) for name, seconds in self.phases.items()
                },
                "times": {
                    **spent(levels),
                    "total_s": round(time.monotonic() - begin, 2),
                },
                "recording": archive,
                "answers": msgspec.to_builtins(answers),
                "one_request": msgspec.to_builtins(one_request),
            },
        )
        for leftover in ("model", "pcp"):
            shutil.rmtree(self.scratch / leftover, ignore_errors=True)

    def _answers(self, session: RunSession) -> Answers:
        """Compare the server's answers cold and from its caches; leaves caches filled."""
        server = session.deployer.server
        answers = server.check_answers(
            tier=self._has_tier, longest=self.job.specification.model.max_model_len
        )
        server.require_alive()
        answers = _anonymous(answers, session)
        for source, comparison in answers.by_source.items():
            if comparison.wrong:
                message = f"{comparison.changed} of {comparison.prompts} greedy answers changed"
                self.progress.say(f"{message} when the {source} served their prompts")
            elif comparison.unchecked:
                self.progress.say(
                    f"answers from the {source} are not checked: {comparison.unchecked}"
                )
        return answers

    def _one_request(self, session: RunSession) -> OneRequest:
        """Time one request, computed and from each cache, and empty the caches again."""
        server = session.deployer.server
        times = server.time_one_request(
            tier=self._has_tier, prompt_tokens=request_tokens(self.job.specification)
        )
        server.require_alive()
        # Never by a new server: in a tier that cannot be emptied these few prompts stay, as those of the warm-up do.
        session.deployer.refresh(restart=False)
        anonymous = {
            source: msgspec.structs.replace(
                of_source, reason=session.anonymous(of_source.reason)
            )
            for source, of_source in times.by_source.items()
        }
        for source, of_source in anonymous.items():
            if of_source.reason:
                self.progress.say(
                    f"one request was not timed, {source}: {of_source.reason}"
                )
        return msgspec.structs.replace(times, **anonymous)

    @property
    def _has_tier(self) -> bool:
        """Whether the arm has a tier behind the device's cache."""
        specification = self.job.specification
        return specification.file_tier or specification.budget.host_bytes > 0

    def _description(
        self, session: RunSession, server: Server, levels: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what run.json says beside times and the recording."""
        specification = self.job.specification
        content, tier_bytes = specification.to_json(), server.facts.get("tier_bytes")
        return {
            "schema": SCHEMA,
            "measurement": self.job.measurement,
            "run": self.job.run,
            "cell": content["cell"],
            "specification": content,
            "engine": specification.engine,
            "weights": specification.weights,
            "protocol": specification.protocol,
            "hardware": dict(self.host),
            "versions": {
                server_of(specification.versions).name: server.version,
                "guidellm": specification.versions["guidellm"],
                "pcp": session.recorder.pcp_version,
                "kveval": __version__,
            },
            "server": {
                "argv": [session.anonymous(argument) for argument in server.argv],
                "env": {
                    name: session.anonymous(value) for name, value in server.env.items()
                },
                "startup_s": round(server.startup_s, 2),
                "facts": server.facts,
            },
            "budget": {
                **content["budget"],
                "device_tokens": server.facts.get("kv_cache_tokens"),
                "held_bytes": held_bytes(specification),
                # Older servers do not report it.
                "reported_bytes": tier_bytes,
                "reported_tokens": None
                if tier_bytes is None
                else tier_bytes // specification.model.kv_bytes_per_token,
            },
            "companions": [
                msgspec.structs.asdict(sidecar)
                | {"argv": list(map(session.anonymous, sidecar.argv))}
                for sidecar in server.sidecar_facts
            ],
            "levels": levels,
            "exercised": self._activity(levels),
            **session.facts(),
            **self.repeated(),
        }

    def _activity(self, levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return what run.json says of whether the arm was active."""
        required = required_counters(self.job.required)
        activities = {
            int(level["level"]): level_activity(
                required,
                counters := msgspec.convert(level["counters"], dict[str, Change]),
                terms_of(counters),
                self.job.specification.model.kv_bytes_per_token,
            )
            for level in levels
        }
        return activity_record(self.job.required, activities)

    def repeated(self) -> dict[str, Any]:
        """Return what run.json says of the attempts before this one; nothing where there was none."""
        return {"repeats": msgspec.to_builtins(self.repeats)} if self.repeats else {}

    def _levels(
        self, session: RunSession, recorder: RunningRecording, clock: ClockWatch
    ) -> Levels:
        common = (self.job, self.scratch, self.progress, self.redactor)
        return Levels(
            *common, session=session, recorder=recorder, tell=self._tell, clock=clock
        )

    @contextlib.contextmanager
    def _report_once(self) -> Iterator[None]:
        """Report a failure once, when it is found, before everything is torn down."""
        try:
            yield
        except (Failure, OSError) as failure:
            self._tell(failure)
            raise

    def _tell(self, failure: BaseException) -> None:
        # The same cause may be found again during the teardown.
        if self.reported_failure is None or str(failure) != str(self.reported_failure):
            self.progress.say(f"failed, tearing down: {failure}")
        self.reported_failure = failure

    def _collect_recording(
        self, recorder: RunningRecording, levels: list[dict[str, Any]]
    ) -> dict[str, Any]:
        direct = recorder.archives[0].suffix == ".parquet"
        windows = [(level["start"], level["end"]) for level in levels]
        # The first archive has the server's metrics, further ones are of other nodes.
        required = [*self._required_of_server(), *_REQUIRED_OF_HOST]
        facts = []
        for archive in recorder.archives:
            begin, end = windows[0][0], windows[-1][1]
            facts.append(
                verify_recording(
                    archive, start=begin, end=end, required=required, windows=windows
                )
            )
            required = list(_REQUIRED_OF_HOST)
        target = self.raw / ("recording.parquet" if direct else "pcp.tar.zst")
        if direct:
            recorder.archives[0].replace(target)
        else:
            pack_archives(recorder.archives, target)
        return {
            "archive": target.relative_to(self.scratch).as_posix(),
            "interval_s": 1.0,
            "metrics": facts[0].metrics,
            "start": max(recording.start for recording in facts),
            "end": min(recording.end for recording in facts),
        }

    def _required_of_server(self) -> list[str]:
        versions = self.job.specification.versions
        server = server_of(versions)
        names = (
            server.recorded(metric, versions[server.name])
            for metric in _REQUIRED_OF_SERVER
        )
        return [name for name in names if name is not None]

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        self.progress.note(phase=name.removesuffix("_s"))
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin


def _anonymous(answers: Answers, session: RunSession) -> Answers:
    """Return what was found of the answers, without this host's paths."""
    device = None if answers.device is None else _anonymous(answers.device, session)
    return msgspec.structs.replace(
        answers, unchecked=session.anonymous(answers.unchecked), device=device
    )


def spent(levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up where the levels' time went, seconds.

    `measured_s`: inside the measured windows; `load_start_s`: from the load generator's start to its window;
    `between_levels_s`: from one level's end to the next one's start, for emptying caches, counters and checks.
    """
    return {
        "measured_s": round(sum(level["end"] - level["start"] for level in levels), 2),
        "load_start_s": round(sum(level["load_start_s"] for level in levels), 2),
        "between_levels_s": [level["ready_s"] for level in levels[1:]],
    }


def utc_now() -> str:
    """Return the time now as run.json has it."""
    return time_text(time.time())
