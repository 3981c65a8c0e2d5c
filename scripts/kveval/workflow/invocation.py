"""How snakemake was called: the one module that uses Snakemake's internals, where no documented name exists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake.persistence import PersistenceBase

from kveval.host.findings import pluralize


@dataclass(frozen=True)
class Invocation:
    """The settings that the rules depend on besides the campaign.

    `configfiles`: those of --configfile; needed because `config` has their values merged into the default campaign,
    while a campaign is a file of its own, which may extend one beside it. `cores`: the most threads; 1 if not given, as
    `workflow.cores` is an error for --lint and --list-rules. `shared_folder`: whether jobs see this folder; they do
    not with a storage provider. `sent`: the rules to which a profile's set-resources gives resources.
    """

    configfiles: tuple[Path, ...]
    cores: int
    shared_folder: bool
    sent: frozenset[str]

    @classmethod
    def of(cls, workflow: Any) -> Invocation:
        """Read the settings from Snakemake's object of the workflow."""
        return cls(
            configfiles=tuple(Path(file) for file in workflow.overwrite_configfiles),
            cores=workflow.resource_settings.cores or 1,
            shared_folder=workflow.storage_settings.default_storage_provider is None,
            sent=frozenset(workflow.resource_settings.overwrite_resources),
        )


def limit_of(workflow: Any, resource: str, default: int) -> int:
    """Return how much of a custom resource jobs may hold at once: as a profile or --resources says, else `default`.

    The default is registered with Snakemake here, because no directive limits a resource, and in profiles/default the
    limit would override that of --profile.
    """
    if resource not in workflow.global_resources:
        workflow.register_resource(resource, default)
    limit = workflow.global_resources[resource]
    return int(getattr(limit, "value", limit))


@dataclass(frozen=True)
class SlurmPolling:
    """How Snakemake's plugin for SLURM asks how jobs end: `squeue` or `sacct`, and its first pause in seconds."""

    command: str
    first_pause_s: int

    @classmethod
    def of(cls, workflow: Any) -> SlurmPolling | None:
        """Read it from a running workflow; None where jobs are not sent by that plugin."""
        settings = workflow.executor_settings
        if not hasattr(settings, "status_command") or not hasattr(
            settings, "init_seconds_before_status_checks"
        ):
            return None
        return cls(
            settings.status_command or "sacct",
            settings.init_seconds_before_status_checks or 40,
        )


def is_planning(workflow: Any) -> bool:
    """Return whether no job can have been started yet, or none will be, in a dry run."""
    return workflow.scheduler is None or workflow.dryrun


def is_executing(workflow: Any) -> bool:
    """Return whether jobs are started, or will be.

    Only `execute` sets an executor: --lint, --unlock, --summary and the like have none.
    """
    return workflow.executor_plugin is not None and not workflow.dryrun


def prints_everything(workflow: Any) -> bool:
    """Return whether all that Snakemake prints by itself is wanted: for a dry run it is the result."""
    output = workflow.output_settings
    requested = output.verbose or output.printshellcmds or output.debug_dag
    return bool(requested or output.dryrun or workflow.touch)


def holds_lock(workflow: Any) -> bool:
    """Return whether this snakemake has locked its folder."""
    return bool(getattr(workflow.persistence, "_lockfile", None))


def record_parameters_without_pandas() -> None:
    """Have Snakemake compare and record parameters without looking for tables of pandas among them.

    No parameter of these rules is a table, and for the search Snakemake imports pandas: a fifth of the processor time
    of every start. Its records stay the same. A release of Snakemake that keeps them in another way is left alone.
    """
    if hasattr(PersistenceBase, "_serialize_param_builtin"):
        PersistenceBase._serialize_param = PersistenceBase._serialize_param_builtin


def drains(workflow: Any) -> bool:
    """Return whether SIGTERM has told snakemake to start no more jobs."""
    return getattr(workflow.scheduler, "_user_kill", None) is not None


def left_elsewhere(workflow: Any) -> str:
    """Return what becomes of jobs that a stopped snakemake had sent to other machines; "" if there are none."""
    jobs = (
        []
        if workflow.local_exec
        else [job for job in workflow.scheduler.running if not job.is_local]
    )
    if not jobs:
        return ""
    them = f"{pluralize(len(jobs), 'job')} elsewhere (executor {workflow.executor_plugin.name})"
    if getattr(workflow.executor_settings, "cancel_cmd", "its own") is None:
        return f"Not stopped: {them}, for which the profile has no command that cancels jobs."
    return f"Cancelled by Snakemake: {them}. Look there whether they have ended."


def failed_analyses(workflow: Any) -> list[str]:
    """Return a line for each job that failed and measures nothing: its rule, what it was for, its log."""
    lines = []
    for failed in workflow.scheduler.failed:
        for job in failed.jobs if failed.is_group() else [failed]:
            made = all(Path(file).exists() for file in job.output)
            if job.rule.name not in _MEASURING and not made:
                what = "/".join(map(str, job.wildcards))
                log = ", ".join(map(str, job.log)) or "no log"
                lines.append(f"{job.rule.name} {what} [{log}]")
    return sorted(lines)


def beside_snakemake(workflow: Any) -> int:
    """Return how many cores jobs on this host may take together."""
    settings = workflow.resource_settings
    return int((settings.cores if workflow.local_exec else settings.local_cores) or 1)


def target_names(workflow: Any) -> list[str]:
    """Return the names of the rules that can be targets."""
    return [rule.name for rule in workflow.rules if not rule.has_wildcards()]


def made_files(workflow: Any) -> list[str]:
    """Return the paths that the rules make, with wildcards as they are written."""
    return [str(path) for rule in workflow.rules for path in rule.output]


def plan_anyway(workflow: Any, files: Iterable[str]) -> list[str]:
    """Have Snakemake plan the jobs that make these files, if what was requested depends on them; return no files.

    For input functions: they are called while the graph of jobs is built, before Snakemake decides which of the jobs
    have to run. `files` as the rules name their outputs. A job that a batch system starts plans nothing further.
    """
    if workflow.is_main_process and workflow.dag is not None:
        workflow.dag.forcefiles.update(files)
    return []


_MEASURING = frozenset({"benchmark", "pilot"})


@dataclass(frozen=True)
class RequestedJobs:
    """The jobs that snakemake was asked for.

    `measured`: the pointers of the measurements to make; `reports`: the folder of each report below the results, "" for
    the complete report; `files`: those requested by path.
    """

    measured: tuple[Path, ...]
    reports: tuple[str, ...]
    files: tuple[Path, ...]

    @classmethod
    def of(cls, workflow: Any) -> RequestedJobs:
        """Read the graph of jobs of a running or finished workflow."""
        jobs = list(workflow.dag.jobs)
        making = workflow.dag.needrun_jobs(exclude_finished=False)
        return cls(
            measured=tuple(
                Path(job.output[0]) for job in making if job.rule.name in _MEASURING
            ),
            reports=tuple(
                job.wildcards.so_far for job in jobs if job.rule.name == "write_report"
            ),
            files=tuple(sorted(Path(file) for file in workflow.dag.targetfiles)),
        )

    @classmethod
    def if_up_to_date(cls, workflow: Any) -> RequestedJobs | None:
        """Return what was requested if all of it existed; None if there was work, or no files were requested."""
        if not workflow.is_main_process or not is_executing(workflow):
            return None
        if workflow.dag is None or len(workflow.dag):
            return None
        return cls.of(workflow)
