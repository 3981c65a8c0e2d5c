"""Measures the levels of a run: watches each, checks it as soon as it is over, and finds the cause of a failure."""

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zstandard

from kveval.engines.counters import changes
from kveval.engines.job import Job, MeasurementError
from kveval.engines.protocol import AddressedServer, RunningRecording, RunSession
from kveval.engines.servers.errors import ServerDied
from kveval.engines.watchdog import ClockWatch, WatchError, monitored
from kveval.host import work
from kveval.host.cpu_time import CpuTime
from kveval.host.errors import Failure
from kveval.host.redaction import Redactor
from kveval.load import guidellm as load
from kveval.load.levels import level_unit
from kveval.load.reports.reading import read_report
from kveval.load.workload import Workload
from kveval.measure.progress import Progress
from kveval.pcp.installation import RecordingError
from kveval.store.run_file import SCHEMA, Run
from kveval.tables.cells import THROUGHPUT

_ATTEMPTS = 2
# A level that was over before its first request was answered is repeated with so many times its seconds.
_LONGER = 4
# A server whose engine was killed takes a moment to end; its clients fail earlier.
_SETTLING_S = 3.0
_RECORDING_CHECK_S = 5.0


@dataclass
class Levels:
    """The levels of a job's run, on the server of `session`, recorded by `recorder`; reports go to `scratch`/raw.

    `tell` reports a failure at once, before the generator is stopped.
    """

    job: Job
    scratch: Path
    progress: Progress
    redactor: Redactor
    session: RunSession
    recorder: RunningRecording
    tell: Callable[[Failure], None]
    clock: ClockWatch = field(default_factory=ClockWatch)
    _free_since: float = field(default_factory=time.monotonic)
    _window_end: float = field(default_factory=time.monotonic)

    @property
    def workload(self) -> Workload:
        """The load, of which every level is one point."""
        return self.job.specification.workload

    @property
    def seconds_since_window(self) -> float:
        """Seconds since the last level's window ended; its load generator takes some more to write its report."""
        return time.monotonic() - self._window_end

    def measure(self) -> list[dict[str, Any]]:
        """Measure every level and return their entries for run.json. Raises a level's Failure if it is final."""
        measured: list[dict[str, Any]] = []
        delivered: dict[int, float] = {}
        count = self.workload.level_count
        while (
            level := load.next_level(self.workload, self.job.run, delivered)
        ) is not None:
            number = len(measured) + 1
            if number == 1:
                # In a search only the first level is known in advance.
                self.session.load.expect(
                    load.levels_known_ahead(self.workload, self.job.run)
                )
            else:
                self._refresh()
            self.progress.note(level=level.streams)
            title = f"{self._named(level)} (level {number} of {count})"
            levels_left = 1 if self.workload.searched else count - number + 1
            self.progress.begin_level(title, levels_left, self.workload.seconds)
            entry = self._level(level, title)
            look = first_look(self.job, entry, self.scratch)
            delivered[level.streams] = look.throughput_tok_s
            self._require_within_limit(level, look)
            if look.throughput_tok_s:
                self.progress.say(f"{self._named(level)}: {look.in_words}")
            for word in look.flagged:
                self.progress.say(f"{self._named(level)}: a check warns · {word}")
            measured.append(
                {**entry, "throughput_tok_s": round(delivered[level.streams], 3)}
            )
        return measured

    def _require_within_limit(self, level: load.Level, look: "FirstLook") -> None:
        """Raise MeasurementError if a server that ran already answered more requests a minute than it may get."""
        existing = self.job.existing
        limit = None if existing is None else existing.most_requests_per_minute
        if limit is not None and look.requests_per_minute > limit:
            message = f"{self._named(level)}: {look.requests_per_minute:.0f} requests a minute were answered"
            right = f"existing.{self.job.specification.cell.scenario}.most_requests_per_minute is {limit:g}"
            raise MeasurementError(
                f"{message}, and {right}: leave higher levels out of the workload",
                code="above_most_requests",
            )

    def _refresh(self) -> None:
        restart = self.job.specification.reset_caches == "restart"
        # The start of a server finds the causes of its failures itself, and no server runs meanwhile.
        with contextlib.nullcontext() if restart else self._blamed():
            self.session.deployer.refresh(restart=restart)

    def _named(self, level: load.Level) -> str:
        return f"{level.streams} {level_unit(self.workload)}"

    def _level(self, level: load.Level, title: str) -> dict[str, Any]:
        """Measure one level; an attempt that fails while server and recording run is repeated, with empty caches.

        One that was too short for this server to answer a single request is repeated with more time, as often as
        necessary: a request that takes longer than the workload's request_timeout_s fails.
        """
        failed = 0
        while True:
            try:
                with self._blamed():
                    return self._attempt(level, title)
            except load.LoadError as error:
                # In an open loop the arrival times are given, perhaps by a trace: a level keeps its time.
                if error.code == "too_short" and load.loaded_s(
                    self.workload, level.streams
                ):
                    level = replace(level, longer=_LONGER * level.longer)
                    seconds = load.lasting(self.workload, level).seconds
                    self.progress.say(
                        f"{self._named(level)}: {error}; once more, for {seconds:g} s"
                    )
                elif (failed := failed + 1) == _ATTEMPTS:
                    raise
                else:
                    self.progress.say(
                        f"{self._named(level)}: failed ({error}); once more"
                    )
                self._refresh()

    def _attempt(self, level: load.Level, title: str) -> dict[str, Any]:
        server, workload = (
            self.session.deployer.server,
            load.lasting(self.workload, level),
        )
        report = self.scratch / "raw" / level.report_name
        checks = [
            *server.stall_checks(
                self.job.stall_limit_s,
                load.start_allowance_s(workload, level.streams),
                load.loaded_s(workload, level.streams),
            ),
            (self.recorder.check_alive, _RECORDING_CHECK_S),
            (self.clock.check, 1.0),
            (self.session.require_room, 1.0),
            *self.session.checks,
        ]
        work_before_ms = self._work_ms()
        before: dict[str, float] = {}
        times: list[CpuTime] = []
        # When the load was sent; before that, the caches are primed.
        sent: list[float] = []

        def sending() -> None:
            before.update(server.counters())
            times.append(CpuTime.now(self._server_processes()))
            sent.append(time.monotonic())

        with monitored(checks) as require_fine:

            def watch(elapsed_s: float) -> None:
                try:
                    server.require_alive()
                    self.recorder.require_running()
                    require_fine()
                except Failure as failure:
                    self.tell(failure)
                    raise
                if not workload.prime:
                    self.progress.level(title, elapsed_s, workload.seconds)
                elif sent:
                    loaded_s = time.monotonic() - sent[0]
                    self.progress.level(title, loaded_s, workload.seconds)
                else:
                    self.progress.priming(title, elapsed_s)

            ran = self.session.load.generate(level, report, watch, sending)
            times.append(CpuTime.now(self._server_processes()))
            ready_s, self._free_since = ran.started - self._free_since, ran.ended
            require_fine()
        self.clock.check()
        after = server.counters()
        host_work = self._host_work(work_before_ms)
        facts = load.report_facts(report, self.job.specification.versions["guidellm"])
        # Both times of the difference are by the generator's clock.
        self._window_end = min(ran.ended, ran.started + facts.end - ran.began)
        packed = pack(report, self.redactor)
        return {
            "level": level.streams,
            "index": level.index,
            "seed": level.seed,
            "start": facts.start,
            "end": facts.end,
            "report": packed.relative_to(self.scratch).as_posix(),
            "command": [self.session.anonymous(argument) for argument in ran.argv],
            "wall_s": round(ran.ended - ran.started, 2),
            "load_start_s": round(facts.start - ran.began, 2),
            "ready_s": round(ready_s, 2),
            "counters": changes(before, after),
            "others_cpu_percent": self._others_percent(times),
            "host_work": host_work,
            **({} if ran.primed is None else {"primed": asdict(ran.primed)}),
            **({} if level.longer == 1 else {"seconds": workload.seconds}),
            "status": "ok",
            "error": None,
        }

    def _others_percent(self, times: Sequence[CpuTime]) -> float | None:
        """Return what share of the processors others took from the first time to the last; None if no server is here."""
        if not self._server_processes():
            return None
        share = times[-1].others_percent(times[0])
        return None if share is None else round(share, 2)

    def _work_ms(self) -> float | None:
        """Return the time of the fixed work on the server's cores; None of a server that computes on a GPU, or elsewhere."""
        processes = self._server_processes()
        if not processes or not self.job.specification.on_cpu:
            return None
        taken_ms = work.work_ms(processes)
        return None if taken_ms is None else round(taken_ms, 3)

    def _host_work(self, before_ms: float | None) -> dict[str, Any] | None:
        """Return how fast the host was, from the time of the work before the level and now; None where neither is known."""
        after_ms = self._work_ms()
        if before_ms is None and after_ms is None:
            return None
        return {"version": work.VERSION, "before_ms": before_ms, "after_ms": after_ms}

    def _server_processes(self) -> Sequence[int]:
        server = self.session.deployer.server
        return server.process_ids if isinstance(server, AddressedServer) else ()

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Raise, in place of a failure of the body, what caused it: a dead server, a full disk, a clock step."""
        try:
            yield
        except WatchError:
            raise
        except (Failure, OSError) as error:
            # These errors already name the cause; after others, wait whether a process is about to die.
            known = isinstance(error, ServerDied | RecordingError)
            deadline = time.monotonic() + (0.0 if known else _SETTLING_S)
            while True:
                try:
                    self.clock.check()
                    self.session.require_room()
                    self.session.deployer.server.require_alive()
                    self.recorder.require_running()
                except Failure as cause:
                    raise cause from error
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)


class FirstLook(NamedTuple):
    """The first impression of a level; throughput and requests are 0 where they are not known.

    `flagged`: failed checks, requests that failed and a load generator that did not keep up; that a level is short is
    known without measuring it.
    """

    throughput_tok_s: float
    requests_per_minute: float
    flagged: list[str]

    @property
    def in_words(self) -> str:
        """The rates delivered, for the terminal: three digits, since a single run has no interval."""
        rates = (self.throughput_tok_s, self.requests_per_minute)
        tokens, requests = (f"{float(f'{rate:.3g}'):,.10g}" for rate in rates)
        return f"{tokens} output tok/s, {requests} requests a minute"


def import_first_look() -> None:
    """Import what `first_look` needs: pandas and all, which take seconds, and which a job that adopts never needs."""
    importlib.import_module("kveval.conditions.facts")
    importlib.import_module("kveval.tables.levels.outcomes")
    importlib.import_module("kveval.tables.levels.rows")


def first_look(job: Job, entry: Mapping[str, Any], scratch: Path) -> FirstLook:
    """Look at a level that was just measured, with the checks that the report will apply."""
    from kveval.conditions.facts import described  # noqa: PLC0415
    from kveval.tables.levels.outcomes import outcomes_of  # noqa: PLC0415
    from kveval.tables.levels.rows import level_row  # noqa: PLC0415

    content = job.specification.to_json()
    content_of_run = {
        **{key: content[key] for key in ("cell", "engine", "weights")},
        **{
            "schema": SCHEMA,
            "measurement": "",
            "run": job.run,
            "started": "",
            "finished": "",
        },
        "specification": content,
    }
    try:
        report = read_report(scratch / entry["report"])
        run = described(msgspec.convert({**content_of_run, "levels": [entry]}, Run))
        row = level_row(
            run,
            run.levels[0],
            report.levels[0],
            report.guidellm_version,
        )
    except (
        Failure,
        msgspec.MsgspecError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
    ) as problem:
        # The level counts as measured; the report will say the same.
        return FirstLook(0.0, 0.0, [f"not judged yet: {problem}"])
    flagged = [
        f"{outcome.code}: {outcome.message}"
        for outcome in outcomes_of(row)
        if outcome.severity == "fail"
        or (outcome.code in ("errors", "closed_loop") and outcome.severity == "warn")
    ]
    throughput, per_s = float(row[THROUGHPUT]), float(row["throughput_req_s"])
    return FirstLook(_or_zero(throughput), 60 * _or_zero(per_s), flagged)


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def pack(path: Path, redactor: Redactor) -> Path:
    """Take secrets out of a file and compress it in place; return the compressed one."""
    redactor.file(path)
    target = path.with_name(path.name + ".zst")
    with path.open("rb") as source, target.open("wb") as sink:
        zstandard.ZstdCompressor(level=9).copy_stream(source, sink)
    path.unlink()
    return target
