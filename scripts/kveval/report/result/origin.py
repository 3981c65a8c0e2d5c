"""The facts by which a campaign is found or repeated, as its result lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kveval.report.data.campaign import ReportPlan
from kveval.report.data.run_facts import (
    distinct,
    machine_descriptions,
    versions_by_title,
)
from kveval.report.result.model import ReportedBuild, ReportedOrigin
from kveval.store.run_file import Run


def origin_of(plan: ReportPlan, runs: Sequence[Run]) -> ReportedOrigin:
    """Return when, where and with what the runs were measured, each fact once."""
    days = sorted(run.started[:10] for run in runs if run.started)
    commits = (run.build.get("commit") for run in runs)
    reduced = distinct(filter(None, (run.reduced_environment for run in runs)))
    return ReportedOrigin(
        measured_on=list(dict.fromkeys((*days[:1], *days[-1:]))),
        command=plan.command,
        workflow_commit=plan.workflow_commit,
        versions=versions_by_title(runs),
        server_commits=list(dict.fromkeys(filter(None, commits))),
        images=list(dict.fromkeys(_images(runs))),
        builds=_builds(runs),
        reduced_environments=[dict(facts) for facts in reduced],
        machines=machine_descriptions(runs),
        measurements=list(dict.fromkeys(run.measurement for run in runs)),
    )


def _images(runs: Sequence[Run]) -> Iterator[str]:
    for run in runs:
        images = run.server.get("images", ())
        yield from images.values() if isinstance(images, Mapping) else images


def _builds(runs: Sequence[Run]) -> list[ReportedBuild]:
    """The builds that arms name, each arm's once."""
    builds = []
    for run in runs:
        if run.build:
            released = run.build.get("kind") == "release"
            build = ReportedBuild(
                scenario=run.cell.scenario,
                title=str(run.build.get("title", "")),
                key="" if released else str(run.build.get("key", "")),
            )
            builds += [build] if build not in builds else []
    return builds
