"""Removal of what a campaign left running, on a cluster or on this host, and of nothing else."""

from kveval.campaign.site import Cluster
from kveval.configuration.config import Config
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.leases import LIVING_S, holder_of, living_leases
from kveval.engines.kubernetes.teardown import remove
from kveval.engines.protocol import Log
from kveval.host.errors import Failure
from kveval.host.lock import LOCK, holder, host_lock
from kveval.host.registry import registry_path, remove_leftovers


class StillMeasuring(Failure):
    """A running job owns what would be removed."""


def tear_down(config: Config, say: Log) -> None:
    """Remove what the campaign's jobs left, and say the name of everything that was removed.

    On a cluster: every object with the campaign's label, volumes included. On this host: what killed measurements of
    any campaign had registered. Raises StillMeasuring while a job is running, ClusterError if something remains.
    """
    if config.campaign.cluster is not None:
        _on_cluster(config.campaign.name, config.campaign.cluster, say)
    else:
        _on_host(say)


def _on_cluster(campaign: str, site: Cluster, say: Log) -> None:
    api = Api.connect(site.kubeconfig, site.context, say=say)
    ours, namespaces = selector(campaign=campaign), [site.namespace, site.pcp_namespace]
    jobs = [holder_of(lease) for lease in living_leases(api, site.namespace, campaign)]
    if jobs:
        raise StillMeasuring(
            f"campaign {campaign} is being measured by {', '.join(jobs)}: stop snakemake there (Ctrl-C), or, if it was"
            f" killed, wait until {LIVING_S:.0f} s after the last renewal of its Lease",
            holders=jobs,
        )
    result = remove(api, ours, namespaces, say=say)
    for name in result.removed:
        say(f"removed {name}")
    for name in result.kept:
        say(f"kept {name}")
    if result.unlisted:
        # An account that may not list a kind cannot have made one.
        say(f"not checked: {len(result.unlisted)} kinds that this account may not list")
    if not result.removed:
        say(
            f"nothing of campaign {campaign} is on {api.server} in {' or '.join(namespaces)}"
        )


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
