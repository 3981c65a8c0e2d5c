"""What a campaign shares is removed when nobody of it measures any more."""

from kveval.cluster import leases
from kveval.cluster.api import Api
from kveval.cluster.errors import ClusterError
from kveval.cluster.names import selector
from kveval.cluster.recorder import COMPONENT
from kveval.cluster.teardown import remove
from kveval.config_cluster import Cluster
from kveval.engines.protocol import Say
from kveval.processes import signals_deferred


def release_recorder(api: Api, site: Cluster, campaign: str, say: Say) -> bool:
    """Remove the campaign's recorder unless a run of it is being measured; tell whether it is gone.

    A failure is said, not raised: what was measured is not worse for it, and `snakemake teardown` repeats this.
    """
    try:
        with signals_deferred():
            if leases.living(api, site.namespace, campaign):
                return False
            chosen = selector(campaign, component=COMPONENT)
            remove(api, chosen, [site.pcp_namespace], timeout_s=120.0, say=say)
    except ClusterError as error:
        say(f"the recorder was not removed ({error}); snakemake teardown does")
        return False
    return True
