"""The session of a run joins what its three parts say."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kveval.engines.protocol import THIS_CLOCK, MachineClock, RunSession


def part(**facts: Any) -> SimpleNamespace:
    return SimpleNamespace(
        facts=lambda: facts, clock=lambda: THIS_CLOCK, placeholders={}, checks=()
    )


def session(
    deployer: SimpleNamespace, load: SimpleNamespace, recorder: SimpleNamespace
) -> RunSession:
    return RunSession(deployer, load, recorder, Path("/results/scratch"))  # type: ignore[arg-type]


def test_facts_of_all_parts_are_joined_key_by_key() -> None:
    parts = [
        part(cluster={"images": {"server": "a"}, "nodes": ["n"]}, hardware={"cpus": 2}),
        part(cluster={"images": {"load": "b"}}),
        part(cluster={"images": {"pcp": "c"}, "neighbours": []}),
    ]
    assert session(*parts).facts() == {
        "clock_offset_s": 0.0,
        "hardware": {"cpus": 2},
        "cluster": {
            "images": {"server": "a", "load": "b", "pcp": "c"},
            "nodes": ["n"],
            "neighbours": [],
        },
    }


@pytest.mark.parametrize(
    ("machine", "ahead_s", "offset_s"),
    [("n", 0.5, 0.0), ("m", 0.5, 0.3), ("m", 0.21, 0.0), ("m", -1.0, -1.2)],
    ids=["one machine", "ahead", "within the error", "behind"],
)
def test_clocks_differ_if_they_differ_by_more_than_is_known(
    machine: str, ahead_s: float, offset_s: float
) -> None:
    load, recorder = part(), part()
    load.clock = lambda: MachineClock("n", 0.2, 0.01)
    recorder.clock = lambda: MachineClock(machine, ahead_s, 0.02)
    assert session(part(), load, recorder).clock_offset_s() == pytest.approx(offset_s)


def test_paths_of_all_parts_are_replaced_the_runs_own_first() -> None:
    deployer, load = part(), part()
    deployer.placeholders = {"/env": "{server_environment}"}
    load.placeholders = {"/results": "{results}"}
    text = "/results/scratch/raw /results/x /env/bin/python"
    expected = "{scratch}/raw {results}/x {server_environment}/bin/python"
    assert session(deployer, load, part()).anonymous(text) == expected
