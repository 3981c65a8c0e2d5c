"""Whether a campaign can run on its engine, checked before hours are spent on it."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from kveval.configuration.config import Config
from kveval.configuration.warnings import WITHOUT_EFFECT
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.manifests.permissions import fix_command
from kveval.engines.kubernetes.routes import with_controller
from kveval.host.errors import Failure
from kveval.host.findings import FindingRow, error, ok, pluralize, warning
from kveval.workflow.doctor.cluster import examine
from kveval.workflow.doctor.cluster_facts import collect
from kveval.workflow.doctor.documents import planned
from kveval.workflow.doctor.existing import examine_existing
from kveval.workflow.doctor.gpus import examine_gpus, gpu_facts
from kveval.workflow.doctor.local import (
    build_findings,
    examine_local,
    local_facts,
    module_findings,
    prometheus_findings,
)
from kveval.workflow.planning.costs import cost
from kveval.workflow.planning.host_room import declared_room, room_problems
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.stored import StoreIndex

IMAGE_LIMIT_S = 60.0
_OUTAGE_S = 10.0


def diagnose(
    config: Config,
    campaign: str,
    *,
    store: Path,
    server_environment: Path,
    at_once: int | None,
    say: Callable[[str], None],
    image_limit_s: float = IMAGE_LIMIT_S,
) -> list[FindingRow]:
    """Return the findings about a campaign.

    `campaign`: its file, for commands; `store` and `server_environment`: of the local engine; `at_once`: measurements
    that the workflow would run at once, None for no limit; `say` gets progress messages; `image_limit_s`: longest wait
    for images on a cluster, seconds.
    """
    if config.sheet is not None:
        return [
            ok(
                "campaign",
                f"{config.campaign.name} imports results; nothing is measured",
            )
        ]
    cells, runs = (
        pluralize(len(config.cells), "cell"),
        pluralize(config.campaign.runs, "run"),
    )
    said = f"{config.campaign.name}: {cells} x {runs}, {config.campaign.engine}"
    found = [
        ok("campaign", said),
        *_without_effect(config),
        *_declared_host(config),
    ]
    if config.campaign.engine == "kubernetes":
        return [
            *found,
            *_slots(config, at_once),
            *_cluster(config, campaign, store, say, image_limit_s),
        ]
    specifications = [config.specification(cell) for cell in config.cells]
    facts = local_facts(specifications, config, store, server_environment)
    if config.campaign.engine == "existing":
        found += prometheus_findings(config)
        return [*found, *examine_existing(config, specifications, facts)]
    builds = (
        [
            *build_findings(config, server_environment),
            *module_findings(config, server_environment),
        ]
        if not isinstance(facts.versions, Failure)
        else ()
    )
    found += [*examine_local(config, specifications, facts), *builds]
    has_server = not isinstance(facts.versions, Failure)
    if facts.gpus and has_server and not config.campaign.server.on_cpu:
        found += examine_gpus(gpu_facts(server_environment))
    return [*found, *prometheus_findings(config)]


def _without_effect(config: Config) -> Iterator[FindingRow]:
    """Yield a warning for arms that can have no effect with the workload."""
    for finding in config.warnings:
        if finding.code in WITHOUT_EFFECT:
            words = (finding.what, finding.fix)
            yield warning("workload", *words, finding.code, **finding.facts)


def _declared_host(config: Config) -> Iterator[FindingRow]:
    """Yield an error for each cell whose KV caches the host that the campaign declares does not hold."""
    room = declared_room(config)
    for problem in room_problems(config, config.cells, room) if room else ():
        yield error(
            "host_gib", problem.message, f"matrix: {problem.valid}", problem.code
        )


def _slots(config: Config, at_once: int | None) -> list[FindingRow]:
    """Compare the cells that the workflow starts at once with those that the campaign has room for."""
    assert config.campaign.cluster is not None
    slots = config.campaign.cluster.slots
    if at_once == slots:
        return []
    many = "all cells" if at_once is None else f"{at_once} at once"
    said = f"measurement_slot lets {many} be measured, and cluster.slots is {slots}"
    fix = f"leave --resources measurement_slot out of command and profile, or give {slots}"
    level = error if at_once is None or at_once > slots else warning
    return [level("slots", said, fix)]


def _cluster(
    config: Config,
    campaign: str,
    store: Path,
    say: Callable[[str], None],
    image_limit_s: float,
) -> list[FindingRow]:
    site = config.campaign.cluster
    assert site is not None
    say(
        f"querying the cluster; images are tested with pods that end at once, for at most {image_limit_s:.0f} s"
    )
    try:
        api = Api.connect(site.kubeconfig, site.context, outage_s=_OUTAGE_S)
        plan = planned(config, with_controller(api, site))
        facts = collect(api, plan, image_limit_s)
    except ClusterError as failure:
        fix = "cluster.context, cluster.kubeconfig, or KUBECONFIG; `kubectl config get-contexts` shows what there is"
        if failure.status == 401:
            fix = "credentials that the cluster accepts: log in again, or make a new token (docs/cluster.md)"
        return [error("API server", str(failure), fix)]
    ends = api.transport.credential_ends()
    return [
        *examine(plan, facts, fix_command(campaign)),
        *lasts(ends, api.now(), _planned_s(config, store)),
    ]


def _planned_s(config: Config, store: Path) -> float:
    """Estimate how many seconds the campaign will still measure; runs in the store are not measured again."""
    index = StoreIndex.read(store)
    plan = make_plan(config, {}, index)
    runs = plan.to_measure.items()
    slots = config.campaign.cluster.slots if config.campaign.cluster is not None else 1
    return (
        sum(
            cost(plan.specification(cell), index).seconds * len(each)
            for cell, each in runs
        )
        / slots
    )


def lasts(ends: datetime | None, now: datetime, needed_s: float) -> list[FindingRow]:
    """Compare a token's expiry with the time that is needed; no finding if the expiry is not known."""
    if ends is None:
        return []
    left_s = (ends - now).total_seconds()
    left_h, needed_h = left_s / 3600, needed_s / 3600
    said = f"the token ends in {left_h:.1f} h ({ends:%Y-%m-%d %H:%M} UTC); about {needed_h:.1f} h are to be measured"
    if left_h >= needed_h:
        return [ok("credential", said, left_s=left_s, needed_s=needed_s)]
    fix = (
        f"kubectl create token --duration {max(1, round(1.5 * needed_h + 1))}h (docs/cluster.md), unless a plugin of"
        " the kubeconfig renews it: a run whose token ends is lost"
    )
    return [warning("credential", said, fix, left_s=left_s, needed_s=needed_s)]
