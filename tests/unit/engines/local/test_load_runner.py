"""Generators that start while the server does: they stand still until their level, and only fitting ones are used."""

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
import yaml
from tests.support.fault_chain import CAMPAIGN, CELL, stand_in_environment
from tests.support.paths import REPOSITORY
from tests.support.testbed import wait_until

from kveval.configuration.loading import load_config
from kveval.engines.job import Job
from kveval.engines.local.load_runner import HostLoadRunner
from kveval.engines.protocol import LoadResult
from kveval.host.processes import Supervisor, supervisor
from kveval.host.sessions import members_of
from kveval.load.guidellm import Level, levels_known_ahead


class Place:
    """A run without a server: nothing answers at the address that its load is sent to."""

    def __init__(self, job: Job, folder: Path, processes: Supervisor) -> None:
        self.job, self.folder, self.processes = job, folder, processes
        self.deployer = SimpleNamespace(
            expected_url=lambda: "http://127.0.0.1:9",
            server=SimpleNamespace(url="http://127.0.0.1:9"),
        )
        self.runner = self.make_runner(job)
        self.levels = levels_known_ahead(job.specification.workload, 1)
        self.states_at_sending: list[list[str]] = []

    def make_runner(self, job: Job) -> HostLoadRunner:
        return HostLoadRunner(job, self.deployer, 1, self.folder, self.processes)  # type: ignore[arg-type]

    @property
    def states(self) -> list[str]:
        """The states of all generators, in the order of their starts."""
        processes = members_of(self.processes.registry.sessions())
        processes.sort(key=lambda process: process.create_time())
        return [process.status() for process in processes]

    def generate(self, level: Level) -> LoadResult:
        return self.runner.generate(
            level,
            self.folder / "raw" / level.report_name,
            lambda elapsed_s: None,
            lambda: self.states_at_sending.append(self.states),
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    content = copy.deepcopy(CAMPAIGN)
    content["workloads"]["short"] |= {"levels": [1, 2, 3], "seconds": 1}
    campaign = tmp_path / "campaign.yaml"
    campaign.write_text(yaml.safe_dump(content))
    config = load_config(campaign, REPOSITORY / "config")
    specification = config.specification(config.cell(CELL))
    environment = stand_in_environment(tmp_path / "environment")
    job = Job(
        specification, specification.measurement_id, 1, tmp_path / "store", environment
    )
    scratch = tmp_path / "scratch"
    (scratch / "raw").mkdir(parents=True)
    with supervisor(tmp_path / "registry.json") as processes:
        place = Place(job, scratch, processes)
        with contextlib.closing(place.runner):
            yield place


def test_generators_of_the_first_levels_stand_still_until_their_turn(
    place: Place,
) -> None:
    stopped = psutil.STATUS_STOPPED
    with place.runner.preparing(place.levels):
        assert len(place.states) == 2
    # The signal takes a while to arrive on a busy machine.
    wait_until(lambda: place.states == [stopped, stopped], "both stand still", 60)
    results = [place.generate(level) for level in place.levels]
    assert [states[1:] for states in place.states_at_sending] == [[stopped], [], []]
    assert stopped not in [states[0] for states in place.states_at_sending]
    assert place.states == []
    for level, result in zip(place.levels, results, strict=True):
        assert (place.folder / "raw" / level.report_name).exists()
        assert "target=http://127.0.0.1:9" in " ".join(result.argv)
        assert result.ended - result.started >= 1


def test_a_generator_with_another_address_is_not_used(place: Place) -> None:
    with place.runner.preparing(place.levels[:1]):
        pass
    place.deployer.server.url = "http://127.0.0.1:10"
    result = place.generate(place.levels[0])
    assert "target=http://127.0.0.1:10" in " ".join(result.argv)
    assert place.states == []


def test_a_generator_that_has_ended_is_started_again(place: Place) -> None:
    with place.runner.preparing(place.levels[:1]):
        [generator] = members_of(place.processes.registry.sessions())
        generator.kill()
        psutil.wait_procs([generator], timeout=10)
    place.generate(place.levels[0])
    assert (place.folder / "raw" / place.levels[0].report_name).exists()


def test_generators_whose_level_does_not_come_are_ended(place: Place) -> None:
    with contextlib.suppress(RuntimeError), place.runner.preparing(place.levels):
        raise RuntimeError("the server did not start")
    assert len(place.states) == 2
    place.runner.close()
    assert place.states == []


def test_nothing_starts_ahead_where_the_address_or_the_release_is_not_known(
    place: Place,
) -> None:
    versions = {**place.job.specification.versions, "guidellm": "0.9.0"}
    other = replace(
        place.job,
        specification=msgspec.structs.replace(
            place.job.specification, versions=versions
        ),
    )
    with place.make_runner(other).preparing(place.levels):
        assert place.states == []
    place.deployer.expected_url = lambda: None
    with place.runner.preparing(place.levels):
        assert place.states == []
