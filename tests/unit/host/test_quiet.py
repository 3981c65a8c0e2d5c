"""Whether the machine is quiet, and waiting for it, with a clock that only looking moves on."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.job_status import ELSEWHERE, HERE

from kveval.host import quiet
from kveval.host.cpu_time import CpuTime
from kveval.host.quiet import (
    DEFAULT_QUIET_WAIT_S,
    QUIET_WAIT,
    QuietWaitError,
    WaitBudget,
    busy_remark,
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

    def wait(self, budget: WaitBudget) -> list[str]:
        lines: list[str] = []
        wait_until_quiet(lines.append, budget, self.look, self.clock)
        return lines


@pytest.fixture
def budget(tmp_path: Path) -> WaitBudget:
    return budget_below(tmp_path)


def budget_below(folder: Path, limit_s: float = 300.0) -> WaitBudget:
    return WaitBudget(limit_s, folder / "logs" / "wait.json", HERE)


def test_a_quiet_machine_is_looked_at_for_a_second_and_nothing_is_said(
    budget: WaitBudget,
) -> None:
    machine = Machine(10.0, 90.0)
    assert machine.wait(budget) == []
    assert machine.time_s == 1
    assert not budget.path.exists()


def test_a_busy_machine_is_waited_for_until_it_has_been_quiet_for_five_seconds(
    budget: WaitBudget,
) -> None:
    machine = Machine(62.0, 40.0, 10.1, 3.0)
    first, last = machine.wait(budget)
    assert first == (
        "waiting for a quiet machine, all runs together at most 300 s more: other programs take 62 % of its processors;"
        " KVEVAL_QUIET_WAIT_S=0 does not wait"
    )
    assert last == "the machine is quiet after 16 s"
    assert budget.left_s() == 284


def test_runs_share_the_time_and_measure_beside_the_others_once_it_is_used_up(
    budget: WaitBudget,
) -> None:
    # A look of one second, then such of five.
    assert Machine(*[55.0] * 30, 5.0).wait(budget)[-1] == (
        "the machine is quiet after 151 s"
    )
    first, *reminders, last = Machine(55.0).wait(budget)
    assert "all runs together at most 149 s more" in first
    assert reminders == ["still waiting: other programs take 55 %"] * 2
    beside = "measuring beside them; levels that they disturb are named"
    assert last == f"other programs still take 55 % after 151 s: {beside}"
    machine = Machine(40.0)
    assert machine.wait(budget) == [
        "other programs take 40 % of this machine's processors, and the 300 s of waiting for them are used up:"
        f" {beside}"
    ]
    assert machine.time_s == 1


@given(
    st.lists(st.lists(st.floats(0, 100)), min_size=1, max_size=6), st.floats(0.1, 400)
)
def test_all_runs_together_wait_no_longer_than_they_may(
    shares_of_runs: list[list[float]], limit_s: float
) -> None:
    with TemporaryDirectory() as folder:
        budget = budget_below(Path(folder), limit_s)
        machines = [Machine(*shares) for shares in shares_of_runs]
        for machine in machines:
            machine.wait(budget)
        # Each run looks for a second; the last look takes five, and the file has tenths of seconds.
        total_s = sum(machine.time_s for machine in machines)
        assert total_s <= limit_s + 5 + 1.1 * len(machines)
        for machine in machines:
            assert (
                machine.share <= 10 or machine.time_s >= limit_s or not budget.left_s()
            )


def test_another_snakemake_has_a_budget_of_its_own(budget: WaitBudget) -> None:
    budget.spend(100.0)
    budget.spend(20.0)
    assert budget.left_s() == 180
    other = WaitBudget(300.0, budget.path, ELSEWHERE)
    assert other.left_s() == 300
    other.spend(400.0)
    assert other.left_s() == 0
    assert budget.left_s() == 300


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workflow": 1, "waited_s": 9}'])
def test_a_damaged_file_costs_nothing_but_what_was_waited(
    budget: WaitBudget, text: str
) -> None:
    budget.path.parent.mkdir()
    budget.path.write_text(text)
    assert budget.left_s() == 300
    budget.spend(1.0)
    assert budget.left_s() == 299


def test_a_run_whose_wait_cannot_be_noted_goes_on(budget: WaitBudget) -> None:
    budget.path.parent.write_text("a file where the folder would be")
    assert Machine(90.0, 1.0).wait(budget)[-1] == "the machine is quiet after 6 s"
    assert budget.left_s() == 300


def test_who_does_not_wait_does_not_look_either(tmp_path: Path) -> None:
    machine = Machine(80.0)
    assert machine.wait(budget_below(tmp_path, limit_s=0)) == []
    assert machine.time_s == 0


def test_a_job_shares_the_budget_of_the_snakemake_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET_WAIT, "60")
    monkeypatch.setattr(quiet, "workflow_process", lambda: ELSEWHERE)
    first = WaitBudget.from_environment(tmp_path / "wait.json")
    first.spend(50.0)
    assert WaitBudget.from_environment(tmp_path / "wait.json").left_s() == 10
    monkeypatch.setattr(quiet, "workflow_process", lambda: None)
    by_hand = WaitBudget.from_environment(tmp_path / "wait.json")
    assert by_hand.workflow == HERE
    assert by_hand.left_s() == 60


def test_a_campaign_begins_with_how_busy_the_machine_is_and_what_that_means() -> None:
    assert describe_now(300, Machine(2.4).look) == (
        "Other programs take 2 % of this machine's processors now: quiet enough to measure.",
        True,
    )
    text, quiet = describe_now(60, Machine(62.0).look)
    assert not quiet
    assert text == (
        "Other programs take 62 % of this machine's processors now: wait until they have ended, or expect wide"
        " intervals. Runs wait until they take at most 10 %, for 60 s in all (KVEVAL_QUIET_WAIT_S)."
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", DEFAULT_QUIET_WAIT_S), ("0", 0.0), ("90", 90.0), (" 1.5 ", 1.5)],
)
def test_the_environment_says_how_long_runs_may_wait(
    text: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET_WAIT, text)
    assert quiet_wait_s() == seconds


@pytest.mark.parametrize("text", ["-1", "five", "nan", "inf", "5 min"])
def test_what_is_no_number_of_seconds_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(QUIET_WAIT, text)
    with pytest.raises(QuietWaitError, match="write the seconds that runs may wait"):
        quiet_wait_s()


def test_a_failed_run_says_that_the_machine_was_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(QUIET_WAIT, raising=False)
    assert busy_remark(Machine(10.0).look) == ""
    assert "other programs take 93 %" in busy_remark(Machine(93.0).look)
    monkeypatch.setenv(QUIET_WAIT, "soon")
    assert "93 %" in busy_remark(Machine(93.0).look)
    monkeypatch.setenv(QUIET_WAIT, "0")
    assert busy_remark(Machine(93.0).look) == ""


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
