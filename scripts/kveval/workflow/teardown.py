"""Removal of what a campaign left running, on a cluster or on this host, and of nothing else."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from kveval.campaign.site import Cluster
from kveval.configuration.config import Config
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import Kind
from kveval.engines.kubernetes.leases import LIVING_S, holder_of, living_leases
from kveval.engines.kubernetes.manifests.permissions import namespace_of, permissions
from kveval.engines.kubernetes.manifests.recorder import campaign_selectors
from kveval.engines.kubernetes.teardown import remove
from kveval.engines.protocol import Log
from kveval.host.errors import Failure
from kveval.host.lock import LOCK, holder, host_lock
from kveval.host.registry import registry_path, remove_leftovers


class StillMeasuring(Failure):
    """A running job owns what would be removed."""


class NotChecked(Failure):
    """This account may not list kinds of objects that the campaign can have left."""


def tear_down(config: Config, say: Log) -> None:
    """Remove what the campaign's jobs left, and say the name of everything that was removed.

    On a cluster: every object with the campaign's label, volumes included. On this host: what killed measurements of
    any campaign had registered. Raises StillMeasuring while a job is running, ClusterError if something remains,
    NotChecked if something may remain.
    """
    if config.campaign.cluster is not None:
        _on_cluster(config.campaign.name, config.campaign.cluster, say)
    else:
        _on_host(say)


def _on_cluster(campaign: str, site: Cluster, say: Log) -> None:
    api = Api.connect(site.kubeconfig, site.context, say=say)
    selectors = campaign_selectors(campaign, site)
    jobs = [holder_of(lease) for lease in living_leases(api, site.namespace, campaign)]
    if jobs:
        raise StillMeasuring(
            f"campaign {campaign} is being measured by {', '.join(jobs)}: stop snakemake there (Ctrl-C), or, if it was"
            f" killed, wait until {LIVING_S:.0f} s after the last renewal of its Lease",
            holders=jobs,
        )
    result = remove(api, selectors, say=say)
    for name in result.removed:
        say(f"removed {name}")
    for name in result.kept:
        say(f"kept {name}")
    if lacking := _unlisted(site, result.unlisted):
        unlisted = [f"{kind.plural} in {namespace}" for kind, namespace in lacking]
        message = (
            f"{api.server}: this account may not list {', '.join(unlisted)}, so that objects of campaign {campaign} may"
            " be left there. With one that may: "
            + "; ".join(_deletions(selectors, lacking))
        )
        raise NotChecked(message, code="right_missing", unlisted=unlisted)
    if not result.removed:
        say(
            f"nothing of campaign {campaign} is on {api.server} in {' or '.join(selectors)}"
        )


def _deletions(
    selectors: Mapping[str, str], lacking: Collection[tuple[Kind, str]]
) -> Iterator[str]:
    """Yield the commands that delete these kinds in these namespaces, with the namespaces' labels."""
    for namespace, labels in selectors.items():
        kinds = [kind for kind, place in lacking if place == namespace]
        # With its group, because several may have kinds of one name.
        names = ",".join(f"{kind.plural}.{kind.group}".rstrip(".") for kind in kinds)
        if kinds:
            yield f"kubectl -n {namespace} delete {names} -l {labels}"


def _unlisted(
    site: Cluster, places: Iterable[tuple[Kind, str]]
) -> list[tuple[Kind, str]]:
    """Return those of these kinds, with the namespace, that a campaign on this site makes there."""
    made = {
        (permission.group, permission.resource, namespace_of(permission.place, site))
        for permission in permissions(site)
        if "create" in permission.verbs
    }
    return [
        (kind, namespace)
        for kind, namespace in places
        if (kind.group, kind.plural, namespace) in made
    ]


def _on_host(say: Log) -> None:
    measuring = holder(LOCK)
    if measuring is not None:
        message = f"a measurement is running ({measuring}): stop it first (Ctrl-C in its snakemake)"
        raise StillMeasuring(message, holders=[measuring])
    with host_lock("teardown", waiting=say, path=LOCK):
        removed = remove_leftovers(registry_path())
    for name in removed:
        say(f"removed {name}")
    if not removed:
        say("no killed measurement has left anything on this host")
