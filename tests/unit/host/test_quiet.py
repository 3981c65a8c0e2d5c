"""Whether the machine is quiet, and waiting for it, with a clock that only looking moves on."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.host import quiet
from kveval.host.cpu_time import CpuTime
from kveval.host.quiet import (
    DEFAULT_QUIET_WAIT_S,
    QUIET_WAIT,
    QuietWaitError,
    describe_now,
    others_percent,
    quiet_wait_s,
    wait_until_quiet,
)


class Machine:
    """A machine of which others take these shares, %, one look after the other; the last one stays."""

    def __init__(self, *shares: float) -> None:
        self.shares: Iterator[float] = iter(shares)
        self.share, self.time_s = 0.0, 0.0

    def look(self, seconds: float) -> float:
        self.time_s += seconds
        self.share = next(self.shares, self.share)
        return self.share

    def clock(self) -> float:
        return self.time_s

    def wait(self, limit_s: float) -> list[str]:
        lines: list[str] = []
        wait_until_quiet(lines.append, limit_s, self.look, self.clock)
        return lines


def test_a_quiet_machine_is_looked_at_for_a_second_and_nothing_is_said() -> None:
    machine = Machine(10.0, 90.0)
    assert machine.wait(300) == []
    assert machine.time_s == 1


def test_a_busy_machine_is_waited_for_until_it_has_been_quiet_for_five_seconds() -> (
    None
):
    machine = Machine(62.0, 40.0, 10.1, 3.0)
    first, last = machine.wait(300)
    assert first == (
        "waiting for a quiet machine, 300 s at most: other programs take 62 % of its processors;"
        " KVEVAL_QUIET_WAIT_S=0 does not wait"
    )
    assert last == "the machine is quiet after 16 s"


def test_a_machine_that_stays_busy_is_measured_beside_the_others_and_that_is_said() -> (
    None
):
    lines = Machine(55.0).wait(150)
    assert lines[1:-1] == ["still waiting: other programs take 55 %"] * 2
    assert lines[-1] == (
        "other programs still take 55 % after 151 s: measuring beside them; levels that they disturb are named"
    )


@given(st.lists(st.floats(0, 100)), st.floats(0.1, 400))
def test_no_run_waits_longer_than_it_may(shares: list[float], limit_s: float) -> None:
    machine = Machine(*shares)
    machine.wait(limit_s)
    assert machine.time_s <= limit_s + 6
    assert machine.share <= 10 or machine.time_s >= limit_s


def test_who_does_not_wait_does_not_look_either() -> None:
    machine = Machine(80.0)
    assert machine.wait(0) == []
    assert machine.time_s == 0


def test_a_campaign_begins_with_how_busy_the_machine_is_and_what_that_means() -> None:
    assert describe_now(300, Machine(2.4).look) == (
        "Other programs take 2 % of this machine's processors now: quiet enough to measure.",
        True,
    )
    text, quiet = describe_now(60, Machine(62.0).look)
    assert not quiet
    assert text == (
        "Other programs take 62 % of this machine's processors now: wait until they have ended, or expect wide"
        " intervals. Each run waits until they take at most 10 %, for 60 s at most (KVEVAL_QUIET_WAIT_S)."
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", DEFAULT_QUIET_WAIT_S), ("0", 0.0), ("90", 90.0), (" 1.5 ", 1.5)],
)
def test_the_environment_says_how_long_a_run_may_wait(
    text: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET_WAIT, text)
    assert quiet_wait_s() == seconds


@pytest.mark.parametrize("text", ["-1", "five", "nan", "inf", "5 min"])
def test_what_is_no_number_of_seconds_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET_WAIT, text)
    with pytest.raises(QuietWaitError, match="write the seconds that a run may wait"):
        quiet_wait_s()


def test_what_others_take_now_is_a_share() -> None:
    assert 0 <= others_percent(0.05) <= 100


def test_other_jobs_of_the_workflow_are_no_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: list[list[int]] = []

    def now(pids: list[int]) -> CpuTime:
        own.append(pids)
        return CpuTime(0.0, float(len(own)), 2.0 * len(own))

    monkeypatch.setattr(quiet, "workflow_process", lambda: SimpleNamespace(pid=4711))
    monkeypatch.setattr(quiet, "CpuTime", SimpleNamespace(now=now))
    assert quiet.others_percent(0.0) == 50.0
    assert own == [[4711], [4711]]
