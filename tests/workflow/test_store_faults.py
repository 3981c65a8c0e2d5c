"""Whatever happens to a job on its way into the store: the next one completes, and what was measured before is intact.

One table: what is done at which step of the transaction, and whether the run had been measured by then. The job, the
recording and the store are real, vLLM and GuideLLM are stand-ins (see fault_chain.py); the steps are recognised by the
files that are made (see interrupted.py). Every change of the store by itself: test_store_crashes.py.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import interrupted
from tests.support.fault_chain import (
    ADOPTED,
    NOTICED,
    PATIENCE_S,
    STAND_INS,
    Chain,
    in_level,
    needs_pcp,
    stand_in_environment,
)
from tests.support.stored_runs import CELL, measured

from kveval.configuration.config import measurement_id
from kveval.store.store import Store
from kveval.workflow.upkeep.references import References
from kveval.workflow.upkeep.verify import verify_store

pytestmark = [pytest.mark.workflow, needs_pcp]
EARLIER = {"cell": CELL, "engine": "local", "seconds": 60}


@dataclass(frozen=True)
class Step:
    """A step of the transaction: just before this change of this file the job is stopped.

    `measured`: the run is complete and sealed by then, so that the next job does not measure.
    """

    name: str
    event: str
    path: str
    measured: bool = False

    def prefix(self, action: str) -> list[str]:
        return [
            sys.executable,
            interrupted.__file__,
            action,
            self.event,
            self.path,
            "1",
        ]


STEPS = [
    Step("its folder is made", "os.mkdir", r"partial/[^/]+/raw$"),
    Step("its server starts", "open", r"raw/server\.log$"),
    Step("its recording starts", "os.mkdir", r"partial/.+/pcp$"),
    Step("a report is packed", "open", r"raw/guidellm-0002\.json\.zst$"),
    Step("the recording is packed", "open", r"raw/\.pcp\.tar\.zst\.\d+$"),
    Step("the server's log is packed", "open", r"raw/server\.log\.zst$"),
    Step("its description is in place", "os.rename", r"partial/.+/run\.json$"),
    Step("its checksums are in place", "os.rename", r"SHA256SUMS$"),
    Step("the run is in place", "os.rename", r"/run-1$", measured=True),
    Step("its pointer is in place", "os.rename", r"measurement\.json$", measured=True),
]
# On a full disk what cannot be made is a file's content.
FULL = [
    Step("a report is packed", "open", r"raw/guidellm-0002\.json\.zst$"),
    Step("the recording is packed", "open", r"raw/\.pcp\.tar\.zst\.\d+$"),
    Step("its description is written", "open", r"partial/.+/\.run\.json\."),
    Step("its checksums are written", "open", r"/\.SHA256SUMS\."),
    Step("its pointer is written", "open", r"/\.measurement\.json\.", measured=True),
]


@pytest.fixture
def stored(chain: Chain) -> Iterator[Chain]:
    """A chain whose store holds an earlier measurement, which is the same afterwards."""
    chain.configure(workloads={"short": {"seconds": 1}})
    measured(Store(chain.store), EARLIER)
    before = checksums(chain)
    yield chain
    assert checksums(chain) == before


def checksums(chain: Chain) -> dict[str, str]:
    place = chain.store / measurement_id(EARLIER) / "run-1"
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()
        for path in files
    }


def complete(chain: Chain, *, measures: bool) -> None:
    """Run the job again, undisturbed; everything in the store is sound then, and nothing is left over."""
    before = chain.log.read_text() if chain.log.exists() else ""
    job = chain.start()
    assert job.end(2 * PATIENCE_S) == 0, job.words()
    said = job.log_text().removeprefix(before)
    assert ("starting the server" in said) is measures
    assert (ADOPTED in said) is not measures
    content = json.loads(chain.pointer.read_text())
    assert (Path(content["path"]) / "run.json").exists()
    checked = verify_store(Store(chain.store), chain.folder, References(), threads=1)
    assert checked.sound, checked.text()
    assert checked.again == []
    assert list((chain.store / "partial").iterdir()) == []


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_killed_before(stored: Chain, step: Step) -> None:
    job = stored.start(step.prefix("kill"))
    assert job.end(2 * PATIENCE_S) == -9, job.words()
    assert stored.left(20, noted=False) == []
    assert not stored.pointer.exists()
    complete(stored, measures=not step.measured)


@pytest.mark.parametrize("step", FULL, ids=lambda step: step.name)
def test_no_byte_left_on_the_disk_before(stored: Chain, step: Step) -> None:
    job = stored.start(step.prefix("fill"))
    assert job.end(2 * PATIENCE_S) == 1, job.words()
    assert stored.left(20) == []
    assert not stored.pointer.exists()
    assert len(whole(stored)) == (2 if step.measured else 1)
    complete(stored, measures=not step.measured)


def whole(chain: Chain) -> list[Path]:
    return list(chain.store.glob("*/run-*/SHA256SUMS"))


def test_the_clock_is_set_in_a_level_and_stays_so(stored: Chain) -> None:
    """An hour back: what is older than the run seems younger, and the other way round."""
    stored.configure(workloads={"short": {"seconds": 30}})
    stepped = stored.folder / "stepped"
    clock = [sys.executable, str(STAND_INS / "stepped_clock.py"), str(stepped)]
    job = stored.start(clock)
    in_level(job)
    stepped.write_text("-3600")
    job.wait_for(NOTICED + r"the wall clock was set by -3600\.\d s", 5)
    assert job.end(PATIENCE_S) == 1
    stored.configure(workloads={"short": {"seconds": 1}})
    assert stored.start(clock).end(2 * PATIENCE_S) == 0
    complete(stored, measures=False)


def test_two_machines_measure_the_same_at_once(stored: Chain, tmp_path: Path) -> None:
    """Two locks and two homes make two machines of one host; they share the store."""
    folder = tmp_path / "second"
    folder.mkdir()
    second = Chain(
        folder,
        stand_in_environment(folder / "server"),
        env={"KVEVAL_HOST_LOCK": str(folder / "lock")},
    )
    stored.configure(workloads={"short": {"seconds": 3}})
    second.campaign = stored.campaign
    second.store.symlink_to(stored.store)
    jobs = [stored.start(), second.start()]
    assert [job.end(3 * PATIENCE_S) for job in jobs] == [0, 0], (
        jobs[0].words() + jobs[1].words()
    )
    assert ["starting the server" in job.log_text() for job in jobs] == [True, True]
    # Both measured, neither disturbed the other's files; the first in place is the one both point to.
    first, beside = sorted(
        path.parent
        for path in whole(stored)
        if path.parents[1].name != measurement_id(EARLIER)
    )
    assert (first.name, beside.name.partition("@")[0]) == ("run-1", "run-1")
    sums = {
        json.loads(chain.pointer.read_text())["sha256"] for chain in (stored, second)
    }
    assert sums == {hashlib.sha256((first / "SHA256SUMS").read_bytes()).hexdigest()}
    assert second.left(15) == []
    complete(stored, measures=False)


def test_two_workflows_of_one_machine_measure_the_same_once(
    stored: Chain, tmp_path: Path
) -> None:
    folder = tmp_path / "second"
    folder.mkdir()
    second = Chain(
        folder, stand_in_environment(folder / "server"), env=dict(stored.env)
    )
    stored.configure(workloads={"short": {"seconds": 8}})
    second.campaign = stored.campaign
    second.store.symlink_to(stored.store)
    first = stored.start()
    in_level(first)
    waiting = second.start()
    waiting.wait_for("waiting for the host", PATIENCE_S)
    assert first.end(2 * PATIENCE_S) == 0
    assert waiting.end(2 * PATIENCE_S) == 0
    assert ADOPTED in waiting.log_text()
    assert len(whole(stored)) == 2
    assert second.left(15) == []
    complete(stored, measures=False)
