"""Levels that fail while the server lives: repeated, longer where the server was too slow for them."""

import dataclasses
import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.config_files import BASE, CONFIG, RAW

from kveval.campaign.campaign_file import ExistingServer
from kveval.configuration.loading import load_config
from kveval.engines.job import Job, MeasurementError
from kveval.engines.protocol import LoadResult
from kveval.host.redaction import Redactor
from kveval.load import guidellm as load
from kveval.load.guidellm import Level, LoadError
from kveval.measure import level_run, progress
from kveval.measure.level_run import FirstLook, Levels
from kveval.measure.progress import Progress

SPECIFICATION = load_config(RAW["config"], CONFIG).specification(BASE)
SECONDS = SPECIFICATION.workload.seconds


@pytest.fixture(autouse=True)
def no_cause_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_run, "_SETTLING_S", 0.0)


@dataclass
class SlowSession:
    """A run whose server answers a request in `answer_s`, and fails `errored` of them at once."""

    answer_s: float
    errored: int = 0
    lasted_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    """From its start to its end, of a generator."""
    emptied: int = 0
    checks: tuple[()] = ()

    @property
    def deployer(self) -> Any:
        return SimpleNamespace(server=self, refresh=self.refresh)

    @property
    def load(self) -> Any:
        return self

    def refresh(self, *, restart: bool) -> None:
        assert not restart
        self.emptied += 1

    def expect(self, levels: Any) -> None: ...
    def require_alive(self) -> None: ...
    def require_running(self) -> None: ...
    def require_room(self) -> None: ...
    def check_alive(self) -> None: ...

    def stall_checks(self, *limits_s: float) -> list[Any]:
        return []

    def counters(self) -> dict[str, float]:
        return {}

    def anonymous(self, text: str) -> str:
        return text

    def generate(
        self, level: Level, report: Path, watch: Any, sending: Any
    ) -> LoadResult:
        target = load.LoadTarget("http://127.0.0.1:1", "tiny", Path("/model"))
        argv = load.command("guidellm", SPECIFICATION.workload, level, target, report)
        lasts = float(re.search(r"max_duration,seconds=([\d.]+)", " ".join(argv))[1])  # type: ignore[index]
        self.lasted_s.append(lasts)
        done = int(lasts / self.answer_s)
        totals = {
            "successful": done,
            "errored": self.errored,
            "incomplete": level.streams,
        }
        benchmark = {
            "start_time": 0.0,
            "end_time": lasts,
            "metrics": {"request_totals": totals},
        }
        report.write_text(
            json.dumps(
                {"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [benchmark]}
            )
        )
        ended = time.monotonic()
        return LoadResult(argv, 0.0, ended - self.wall_s, ended, None)


class PrimingSession(SlowSession):
    """Primes the caches for 170 s before it sends the load."""

    def generate(
        self, level: Level, report: Path, watch: Any, sending: Any
    ) -> LoadResult:
        watch(170.0)
        sending()
        watch(172.0)
        return super().generate(level, report, watch, sending)


def levels(folder: Path, session: SlowSession) -> Levels:
    (folder / "raw").mkdir()
    job, lines = (
        Job(SPECIFICATION, "", 1, folder, folder),
        Progress("run", 60.0, folder / "log"),
    )
    return Levels(
        job, folder, lines, Redactor.of([]), session, session, lambda failure: None
    )  # type: ignore[arg-type]


def test_a_level_too_short_for_any_answer_is_repeated_longer_with_empty_caches(
    tmp_path: Path,
) -> None:
    session = SlowSession(answer_s=10 * SECONDS)
    entry = levels(tmp_path, session)._level(Level(4, 0, 1), "level 1 of 1")
    assert session.lasted_s == [SECONDS, 4 * SECONDS, 16 * SECONDS]
    assert session.emptied == 2
    assert entry["seconds"] == entry["end"] - entry["start"] == 16 * SECONDS
    assert (
        f"none of 4 requests was answered within {SECONDS:.0f} s; once more"
        in (tmp_path / "log").read_text()
    )


def test_a_level_that_lasts_as_the_workload_says_does_not_say_for_how_long(
    tmp_path: Path,
) -> None:
    session = SlowSession(answer_s=SECONDS / 3)
    assert "seconds" not in levels(tmp_path, session)._level(
        Level(4, 0, 1), "level 1 of 1"
    )
    assert session.lasted_s == [SECONDS]


@pytest.mark.parametrize(
    ("wall_s", "since_s"),
    # The window ends with its seconds; where clocks disagree, no later than the generator.
    [(SECONDS + 2.5, 2.5), (SECONDS, 0.0), (SECONDS - 1.0, 0.0)],
)
def test_the_recording_counts_from_the_end_of_the_window(
    wall_s: float, since_s: float, tmp_path: Path
) -> None:
    session = SlowSession(answer_s=SECONDS / 3, wall_s=wall_s)
    measuring = levels(tmp_path, session)
    measuring._level(Level(4, 0, 1), "level 1 of 1")
    assert measuring._free_since - measuring._window_end == pytest.approx(since_s)
    assert measuring.seconds_since_window >= since_s


def test_a_level_whose_requests_fail_is_tried_twice_and_not_longer(
    tmp_path: Path,
) -> None:
    session = SlowSession(answer_s=10 * SECONDS, errored=3)
    with pytest.raises(LoadError) as error:
        levels(tmp_path, session)._level(Level(4, 0, 1), "level 1 of 1")
    assert (error.value.code, error.value.facts["errored"]) == ("nothing_completed", 3)
    assert session.lasted_s == [SECONDS, SECONDS]


@pytest.mark.parametrize("prime", [True, False])
def test_a_level_counts_from_the_load_and_not_from_the_priming(
    prime: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_REPEAT_S", 0.0)
    specification = SPECIFICATION.with_workload(prime=prime)
    measuring = levels(tmp_path, PrimingSession(answer_s=SECONDS / 3))
    measuring.job = dataclasses.replace(measuring.job, specification=specification)
    measuring._level(Level(4, 0, 1), "level 1 of 1")
    about = f"of about {SECONDS + 12:.0f} s"
    lines = [
        line for line in (tmp_path / "log").read_text().splitlines() if "left" in line
    ]
    expected = (
        ["priming the caches, 170 s so far", f"0 s {about}"]
        if prime
        else [f"170 s {about}", f"172 s {about}"]
    )
    assert len(lines) == 2
    assert all(text in line for text, line in zip(expected, lines, strict=True)), lines


def test_more_requests_a_minute_than_a_server_may_get_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = levels(tmp_path, SlowSession(answer_s=1.0))
    monkeypatch.setattr(measuring, "_level", lambda level, title: {})
    look = FirstLook(150.0, 61.0, [])
    monkeypatch.setattr(level_run, "first_look", lambda *_: look)
    limits: dict[str, Any] = {"url": "http://h:1", "most_requests_per_minute": 61}
    allowing = ExistingServer.model_validate(limits)
    measuring.job = dataclasses.replace(measuring.job, existing=allowing)
    assert len(measuring.measure()) == 1
    limits["most_requests_per_minute"] = 60
    refusing = ExistingServer.model_validate(limits)
    measuring.job = dataclasses.replace(measuring.job, existing=refusing)
    with pytest.raises(MeasurementError, match="61 requests a minute") as error:
        measuring.measure()
    assert error.value.code == "above_most_requests"


@pytest.mark.parametrize(
    ("look", "text"),
    [
        (FirstLook(1234.5, 61.27, []), "1,230 output tok/s, 61.3 requests a minute"),
        (FirstLook(0.0, 0.0, ["not judged yet: no report"]), None),
    ],
)
def test_a_level_says_what_it_delivered_as_soon_as_that_is_known(
    look: FirstLook, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = levels(tmp_path, SlowSession(answer_s=1.0))
    monkeypatch.setattr(measuring, "_level", lambda level, title: {})
    monkeypatch.setattr(level_run, "first_look", lambda *_: look)
    measuring.measure()
    lines = (tmp_path / "log").read_text().splitlines()
    delivered = [line.partition(": ")[2] for line in lines if "output tok/s" in line]
    assert delivered == ([text] if text else [])


class LocalSession(SlowSession):
    """Its server's processes are on this host."""

    process_ids: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_how_fast_the_host_is_is_measured_before_and_after_a_level(
    on_cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[int, ...]] = []

    def work_ms(processes: tuple[int, ...]) -> float | None:
        done.append(processes)
        return None if len(done) > 2 else 90.0 + len(done)

    monkeypatch.setattr(level_run, "AddressedServer", LocalSession)
    monkeypatch.setattr(level_run.work, "work_ms", work_ms)
    session = LocalSession(answer_s=SECONDS / 3)
    measuring = levels(tmp_path, session)
    build = SPECIFICATION.build if on_cpu else "vllm"
    specification = msgspec.structs.replace(SPECIFICATION, build=build)
    measuring.job = dataclasses.replace(measuring.job, specification=specification)
    level = Level(4, 0, 1)
    entry = measuring._level(level, "level 1 of 1")
    if not on_cpu:
        assert (entry["host_work"], done) == (None, [])
        return
    assert entry["host_work"] == {"version": 1, "before_ms": 91.0, "after_ms": 92.0}
    assert done == [(1, 2)] * 2
    # It failed: the level goes on without it.
    (tmp_path / "raw" / f"{level.report_name}.zst").unlink()
    assert measuring._level(level, "level 1 of 1")["host_work"] is None
