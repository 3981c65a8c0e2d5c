"""What was in service before the measurements is restored, however snakemake ends."""

import contextlib
import functools
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.paths import REPOSITORY

from kveval.engines.switching import CommandError, Switches, run_command
from kveval.host.lock import host_lock
from kveval.workflow import restoring
from kveval.workflow.restoring import Restore, guard

NAME = "feb"
# Stands for snakemake: it starts the guardian, one of its jobs switches, and it ends as its argument says.
SNAKEMAKE = f"""
import os, signal, sys, types
from pathlib import Path
from kveval.engines.switching import Switches, run_command
from kveval.workflow.restoring import Restoring

ending, command = sys.argv[1:]
campaign = types.SimpleNamespace(
    name="{NAME}", restore=command, restore_limit_s=20.0, secrets=(), keys=()
)
restoring = Restoring(campaign)
restoring.begin([Path("measurement.json")])
if ending != "unswitched":
    run_command("true", 5.0, Path("switch.log"), Switches.of_campaign("{NAME}").note)
if ending == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if ending == "guardian killed":
    restoring._guardian.kill()
restored, lines = restoring.finish()
print(restored, *lines, sep="\\n")
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_lock = functools.partial(host_lock, path=tmp_path / "lock")
    monkeypatch.setattr(restoring, "host_lock", own_lock)
    monkeypatch.setenv("KVEVAL_HOST_LOCK", str(tmp_path / "lock"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "scripts"))


def snakemake(ending: str, command: str = "touch restored") -> str:
    """Run the program above to its end; return what it and its guardian have printed."""
    argv = [sys.executable, "-c", SNAKEMAKE, ending, command]
    # The guardian has the same standard error, so that this waits for it, too.
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout + ran.stderr


def switched() -> Switches:
    switches = Switches.of_campaign(NAME)
    run_command("true", 5.0, Path("switch.log"), switches.note)
    assert switches
    return switches


def restore(command: str, limit_s: float = 20.0, secrets: tuple[str, ...] = ()) -> int:
    told = Restore(NAME, command, limit_s, secrets)
    return guard(told, io.StringIO("all jobs have ended\n"))


def test_an_ordinary_end_restores_and_says_so() -> None:
    output = snakemake("finished")
    assert output.startswith("True\nRestored what was in service before, by touch")
    assert "Restoring: touch restored (at most 20 s)" in output
    assert Path("restored").exists()
    assert not Switches.of_campaign(NAME)
    assert "touch restored" in Path("logs", NAME, "restore.log").read_text()


def test_a_killed_snakemake_is_followed_by_it_too() -> None:
    assert "Restored what was in service before" in snakemake("killed")
    assert Path("restored").exists()


def test_without_a_switch_nothing_is_restored() -> None:
    assert snakemake("unswitched") == "True\n"
    assert not Path("restored").exists()


def test_a_guardian_that_was_killed_is_no_silence() -> None:
    output = snakemake("guardian killed")
    assert output.startswith("False\nNOT RESTORED")
    assert "Run it by hand: touch restored" in output


@pytest.mark.parametrize(
    ("command", "cause"), [("exit 3", "exit code 3"), ("sleep 60", "more than 0.3 s")]
)
def test_a_failure_has_its_cause_and_the_command_to_run_by_hand(
    capsys: pytest.CaptureFixture[str], command: str, cause: str
) -> None:
    switched()
    assert restore(command, limit_s=0.3) == 1
    message = capsys.readouterr().out
    assert message.startswith("NOT RESTORED")
    assert cause in message
    assert message.endswith(f"Run it by hand: {command}\n")
    # The next snakemake must not restore because of switches of this one.
    assert not Switches.of_campaign(NAME)


def test_its_output_is_kept_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", "sesame")
    switched()
    assert restore("echo with $OUR_KEY", secrets=("OUR_KEY",)) == 0
    assert "with [OUR_KEY]" in Path("logs", NAME, "restore.log").read_text()


def test_a_switch_that_its_killed_job_has_left_is_ended_before() -> None:
    """Neither it nor what it has begun goes on; what a command that has ended has started stays."""
    job = """
from pathlib import Path
from kveval.engines.switching import Switches, run_command
note = Switches.of_campaign("feb").note
run_command("sleep 60 & echo $! > kept", 5.0, Path("switch.log"), note)
run_command("sleep 61 & echo $! > left; wait", 60.0, Path("switch.log"), note)
"""
    killed = subprocess.Popen([sys.executable, "-c", job])
    deadline = time.monotonic() + 20
    while not (Path("left").exists() and Path("left").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert restore("true") == 0
    kept, left = (int(Path(name).read_text()) for name in ("kept", "left"))
    os.kill(kept, signal.SIGKILL)
    while not has_ended(left):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent; a killed one takes a moment on a busy machine."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][1] == "Z"
    return True


def test_a_command_is_noted_also_if_it_ends_at_once_or_fails() -> None:
    switches = Switches.of_campaign(NAME)
    with pytest.raises(CommandError, match="exit code 2"):
        run_command("exit 2", 5.0, Path("switch.log"), switches.note)
    assert switches
    # Cut off with its job.
    with Path("logs", NAME, "switches.jsonl").open("a") as file:
        file.write('{"sid": ')
    switches.end_unfinished()
