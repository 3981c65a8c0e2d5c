"""Jobs without pods, which own what a run, or a campaign's recorder, has on a cluster."""

from collections.abc import Mapping

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.api.kinds import Document
from kveval.engines.kubernetes.manifests.context import RenderContext
from kveval.engines.kubernetes.manifests.templates import documents

COMPONENT = "lifetime"
EXPIRY_S = 900
"""Seconds after a job's last sign of life when Kubernetes removes the run's objects."""


def owner_job(
    site: Cluster, namespace: str, name: str, labels: Mapping[str, str]
) -> Document:
    """Return the Job as it is made."""
    metadata = {"name": name, "namespace": namespace, "labels": dict(labels)}
    values = {"metadata": metadata, "expiry_s": EXPIRY_S, "image": site.pause_image}
    return documents("lifetime.yaml.j2", **values)[0]


def run_lifetime(context: RenderContext) -> Document:
    """Return the Job that owns what a run has in the campaign's namespace."""
    name, labels = context.name(COMPONENT), context.labels(COMPONENT)
    return owner_job(context.site, context.site.namespace, name, labels)
