"""Where snakemake would never learn how SLURM's jobs end, it says so at the start."""

from pathlib import Path

import pytest

from kveval.workflow.invocation import SlurmPolling
from kveval.workflow.slurm import UnseenJobs, require_seen_jobs

SACCT, SQUEUE = SlurmPolling("sacct", 40), SlurmPolling("squeue", 40)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Set what this SLURM's configuration says of accounting and of finished jobs, and whether there is a sacct."""

    def configure(
        accounting: str, kept: str, *, programs: tuple[str, ...] = ("scontrol", "sacct")
    ) -> None:
        lines = f"AccountingStorageType   = {accounting}\\nMinJobAge               = {kept}\\n"
        for name in programs:
            program = tmp_path / name
            program.write_text(f"#!/bin/sh\nprintf '{lines}'\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
        monkeypatch.setattr(
            "shutil.which",
            lambda name: str(tmp_path / name) if name in programs else None,
        )

    return configure


def warnings(polling: SlurmPolling | None) -> list[str]:
    found: list[str] = []
    require_seen_jobs(polling, found.append)
    return found


@pytest.mark.parametrize(
    "accounting", ["accounting_storage/none", "none", "(null)", ""]
)
def test_sacct_without_accounting_is_refused_with_the_setting_that_works(
    slurm, accounting: str
) -> None:
    slurm(accounting, "300 sec")
    with pytest.raises(
        UnseenJobs, match=r"no accounting here.*Set slurm-status-command: squeue"
    ):
        warnings(SACCT)
    assert warnings(SQUEUE) == []


def test_accounting_is_enough_for_either(slurm) -> None:
    slurm("accounting_storage/slurmdbd", "300 sec")
    assert warnings(SACCT) == warnings(SQUEUE) == []
    slurm("accounting_storage/slurmdbd", "10 sec")
    assert warnings(SACCT) == warnings(SQUEUE) == []


def test_squeue_is_refused_where_the_plugin_would_ask_sacct_instead(slurm) -> None:
    slurm("accounting_storage/none", "60 sec")
    with pytest.raises(
        UnseenJobs, match=r"for 120 s \(MinJobAge is 60 s\).*profiles/cluster-generic"
    ):
        warnings(SQUEUE)


def test_a_queue_that_forgets_between_two_queries_is_a_warning(slurm) -> None:
    slurm("accounting_storage/slurmdbd", "150 sec")
    (warning,) = warnings(SQUEUE)
    assert (
        "forgets a finished job after 150 s" in warning
        and "slurm-status-command: sacct" in warning
    )
    slurm("accounting_storage/none", "150 sec")
    (warning,) = warnings(SQUEUE)
    assert "profiles/cluster-generic" in warning


def test_without_the_program_sacct_the_plugin_asks_squeue(slurm) -> None:
    slurm("accounting_storage/none", "300 sec", programs=("scontrol",))
    assert warnings(SACCT) == []


def test_jobs_that_are_sent_elsewhere_and_a_silent_slurm_are_no_matter(slurm) -> None:
    slurm("accounting_storage/none", "1 sec", programs=())
    assert warnings(None) == warnings(SACCT) == []
