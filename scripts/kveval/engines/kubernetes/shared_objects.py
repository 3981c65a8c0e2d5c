"""Removal of what a campaign shares, when nobody of it measures any more: the recorder.

The cache of weights stays: it costs hours to fill. `snakemake teardown` removes that as well.
"""

from kveval.config.site import Cluster
from kveval.engines.kubernetes import leases
from kveval.engines.kubernetes.api import names
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import CONFIG_MAP, DAEMON_SET, JOB, POD
from kveval.engines.kubernetes.manifests.recorder import COMPONENT
from kveval.engines.kubernetes.teardown import remove
from kveval.engines.protocol import Say
from kveval.host.processes import signals_deferred

_RECORDER_KINDS = (JOB, DAEMON_SET, POD, CONFIG_MAP)
_LIMIT_S = 120.0
_OUTAGE_S = 10.0


def release_shared(api: Api, site: Cluster, campaign: str, say: Say) -> bool:
    """Remove what the campaign's runs share unless one is being measured; tell whether it is gone.

    A failure is said, not raised: what was measured is not worse for it, and `snakemake teardown` repeats this.
    """
    try:
        with signals_deferred():
            if leases.living(api, site.namespace, campaign):
                return False
            chosen = names.selector(campaign, component=COMPONENT)
            remove(api, chosen, [site.pcp_namespace], kinds=_RECORDER_KINDS, timeout_s=_LIMIT_S, say=say)
    except ClusterError as error:
        say(f"what the campaign's runs share was not removed ({error}); snakemake teardown does")
        return False
    return True


def release_after_failures(site: Cluster, campaign: str, say: Say) -> None:
    """Do the same at the end of a workflow whose last runs failed, so that none of them knew that it was the last."""
    try:
        api = Api.connect(site.kubeconfig, site.context, outage_s=_OUTAGE_S)
    except ClusterError as error:
        say(f"what the campaign's runs share was not removed ({error}); snakemake teardown does")
        return
    release_shared(api, site, campaign, say)
