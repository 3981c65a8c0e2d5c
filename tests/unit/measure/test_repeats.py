"""Attempts that a known defect ended are repeated, at most twice, and noted; all others are not."""

import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_files import CONFIG, LMCACHE, RAW
from tests.support.known_crash import KNOWN, LOG, NAME
from tests.support.stored_runs import described

from kveval.configuration.loading import load_config
from kveval.engines.job import Job
from kveval.engines.protocol import Log
from kveval.engines.servers.errors import DeploymentError, ServerDied
from kveval.host.errors import Failure
from kveval.measure import attempt, transaction
from kveval.measure.progress import Progress
from kveval.measure.transaction import MeasurementError, measure
from kveval.store.run_file import pointed_run
from kveval.store.store import Store

SPECIFICATION = load_config(RAW["config"], CONFIG).specification(LMCACHE)
HOST = {"fingerprint": "aaaa"}


class StandInEngine:
    """An engine of which nothing runs: it only says where attempts are written."""

    def hardware(self) -> Mapping[str, Any]:
        return HOST

    def may_adopt(self, stored: Path, say: Log) -> bool:
        return True

    @contextlib.contextmanager
    def exclusive_host(self, say: Log) -> Iterator[None]:
        yield

    def remove_leftovers(self, say: Log) -> None:
        pass

    def require_possible(self, store: Store) -> None:
        pass

    def wait_until_quiet(self, say: Log) -> None:
        pass


def crash(scratch: Path) -> Failure:
    log = scratch / "raw" / "server.log"
    log.write_text(LOG)
    return ServerDied(
        f"the server's process 7 (VLLM::EngineCore) died: AssertionError; see {log}",
        log=log,
        offset=0,
    )


def unknown(scratch: Path) -> Failure:
    log = scratch / "raw" / "server.log"
    log.write_text(LOG.replace("assert req_id", "assert block_id"))
    return ServerDied(
        f"the server's process 7 (VLLM::EngineCore) died: AssertionError; see {log}",
        log=log,
        offset=0,
    )


def hang(scratch: Path) -> Failure:
    crash(scratch)
    return DeploymentError("the server hangs")


class Attempts:
    """Attempts, each ending in a failure of its own, until one completes; `begun`: how many there were."""

    def __init__(self, *failures: Any) -> None:
        self.failures = list(failures)
        self.begun = 0

    def perform(self, this: attempt.Attempt) -> None:
        self.begun += 1
        if self.failures:
            raise self.failures.pop(0)(this.scratch)
        facts = described(
            SPECIFICATION.to_json(), 1, HOST, levels=[], **this.repeated()
        )
        (this.scratch / "raw" / "pcp.tar.zst").write_bytes(b"archive")
        (this.scratch / "run.json").write_text(json.dumps(facts))


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measure with these failures; return pointer, log, attempts and the failure that came out."""
    stamps = itertools.count()
    monkeypatch.setattr(transaction, "engine_of", lambda job: StandInEngine())
    # Real attempts are never kept within one second.
    monkeypatch.setattr(
        "kveval.store.store.time.strftime",
        lambda *_: f"20260101T0000{next(stamps):02d}Z",
    )

    def run(*failures: Any) -> tuple[Path, str, Attempts, MeasurementError | None]:
        attempts = Attempts(*failures)

        def perform(this: attempt.Attempt) -> None:
            attempts.perform(this)

        monkeypatch.setattr(attempt.Attempt, "perform", perform)
        job = Job(
            SPECIFICATION,
            SPECIFICATION.measurement_id,
            1,
            tmp_path / "store",
            tmp_path,
            known_defects=KNOWN,
        )
        pointer, failure = tmp_path / "measurement.json", None
        try:
            measure(job, pointer, Progress("cell", 60.0, tmp_path / "log"))
        except MeasurementError as error:
            failure = error
        return pointer, (tmp_path / "log").read_text(), attempts, failure

    return run


@pytest.mark.parametrize("crashes", [0, 1, 2])
def test_a_run_that_a_known_defect_ended_is_measured_again(
    tried: Any, tmp_path: Path, crashes: int
) -> None:
    pointer, said, attempts, failure = tried(*[crash] * crashes)
    assert failure is None
    assert attempts.begun == crashes + 1
    run = pointed_run(pointer)
    assert [repeat.defect for repeat in run.repeats] == [NAME] * crashes
    kept = [tmp_path / "store" / repeat.attempt for repeat in run.repeats]
    assert sorted(kept) == sorted((tmp_path / "store" / "failed").glob("*"))
    assert all((folder / "raw" / "server.log").exists() for folder in kept)
    assert said.count(KNOWN[NAME].link) == crashes


def test_the_third_attempt_is_the_last_and_all_are_named(
    tried: Any, tmp_path: Path
) -> None:
    pointer, _, attempts, failure = tried(*[crash] * 3)
    assert attempts.begun == 3
    assert not pointer.exists()
    assert (failure.code, failure.facts["defect"]) == ("known_defect", NAME)
    kept = {
        f"failed/{folder.name}" for folder in (tmp_path / "store" / "failed").glob("*")
    }
    assert set(failure.facts["attempts"]) == kept
    assert len(kept) == 3
    assert all(name in str(failure) for name in kept)


@pytest.mark.parametrize("failure_of", [unknown, hang])
def test_any_other_failure_is_not_repeated(tried: Any, failure_of: Any) -> None:
    pointer, _, attempts, failure = tried(failure_of)
    assert attempts.begun == 1
    assert failure is not None
    assert failure.code != "known_defect"
    assert not pointer.exists()


def test_nor_is_one_after_a_known_one(tried: Any) -> None:
    _, _, attempts, failure = tried(crash, unknown)
    assert attempts.begun == 2
    assert failure.code != "known_defect"
