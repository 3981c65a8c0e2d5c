"""What an attempt does between the server's start and the recording: answers are compared, caches emptied again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.config_files import BASE, CONFIG, LMCACHE, RAW

from kveval.campaign.cell import Cell
from kveval.configuration.loading import load_config
from kveval.engines.job import Job
from kveval.engines.servers.errors import ServerDied
from kveval.host.redaction import Redactor
from kveval.measure.attempt import Attempt
from kveval.measure.progress import Progress
from kveval.store.run_file import Answers, OneRequest, RequestTime, RequestTimes

COLD = RequestTimes([RequestTime(900.0, 4064, 0)])


class Session:
    """A run whose server answers as it is told to, and notes what it is asked."""

    def __init__(self, found: Answers, *, dead: bool = False) -> None:
        self.asked: list[Any] = []
        self.found, self.dead = found, dead
        self.deployer = SimpleNamespace(
            server=self, refresh=lambda restart: self.asked.append(("refresh", restart))
        )

    def check_answers(self, *, tier: bool, longest: int) -> Answers:
        self.asked.append(("answers", tier, longest))
        return self.found

    def time_one_request(self, *, tier: bool, prompt_tokens: int) -> OneRequest:
        self.asked.append(("one request", tier, prompt_tokens))
        lacking = RequestTimes(reason="refused; see /secret/log")
        return OneRequest(COLD, COLD, lacking if tier else None)

    def require_alive(self) -> None:
        if self.dead:
            raise ServerDied("gone")

    def anonymous(self, text: str) -> str:
        return text.replace("/secret", "{scratch}")


def attempt(folder: Path, cell: Cell) -> Attempt:
    specification = load_config(RAW["config"], CONFIG).specification(cell)
    job = Job(specification, specification.measurement_id, 1, folder, folder)
    return Attempt(
        job, folder, None, {}, Progress("run", 60.0, folder / "log"), Redactor.of([])
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("cell", "tier"), [(LMCACHE, True), (BASE, False)])
def test_a_tier_is_asked_of_an_arm_that_has_one_and_caches_are_emptied_after(
    tmp_path: Path, cell: Cell, tier: bool
) -> None:
    session = Session(Answers(prompts=4, same=4, served_from="tier"))
    found = attempt(tmp_path, cell)._answers(session)  # type: ignore[arg-type]
    assert found == session.found
    assert session.asked == [("answers", tier, 8192)]
    assert not (tmp_path / "log").exists()
    times = attempt(tmp_path, cell)._one_request(session)  # type: ignore[arg-type]
    assert session.asked[1:] == [("one request", tier, 2000), ("refresh", False)]
    assert times.cold == times.device == COLD
    assert (times.tier is None) == (not tier)


def test_why_a_request_was_not_timed_is_said_without_this_hosts_paths(
    tmp_path: Path,
) -> None:
    session = Session(Answers())
    times = attempt(tmp_path, LMCACHE)._one_request(session)  # type: ignore[arg-type]
    assert times.tier is not None
    assert times.tier.reason == "refused; see {scratch}/log"
    said = "one request was not timed, tier: refused; see {scratch}/log"
    assert said in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (
            Answers(prompts=4, changed=2, served_from="tier", device=Answers()),
            "2 of 4 greedy answers changed when the tier served",
        ),
        (
            Answers(unchecked="refused; see /secret/log"),
            "not checked: refused; see {scratch}/log",
        ),
        (
            Answers(
                served_from="tier",
                device=Answers(prompts=4, changed=1, served_from="device"),
            ),
            "1 of 4 greedy answers changed when the device served their prompts",
        ),
        # Also of a miniature: the weights were made such that its answers show something.
        (
            Answers(prompts=4, unchecked="one answer to all"),
            "are not checked: one answer to all",
        ),
    ],
)
def test_what_the_answers_do_not_show_or_show_is_said_without_this_hosts_paths(
    tmp_path: Path, found: Answers, word: str
) -> None:
    kept = attempt(tmp_path, LMCACHE)._answers(Session(found))  # type: ignore[arg-type]
    assert "/secret" not in kept.unchecked
    assert word in (tmp_path / "log").read_text()


def test_a_server_that_died_meanwhile_is_the_failure(tmp_path: Path) -> None:
    session = Session(Answers(unchecked="no answer"), dead=True)
    with pytest.raises(ServerDied):
        attempt(tmp_path, LMCACHE)._answers(session)  # type: ignore[arg-type]
    with pytest.raises(ServerDied):
        attempt(tmp_path, LMCACHE)._one_request(session)  # type: ignore[arg-type]
