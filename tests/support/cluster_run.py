"""The context of a run on a stand-in for a cluster."""

from tests.support.cluster_cells import cells
from tests.support.config_files import RELEASES
from tests.support.fake_cluster import FakeTransport

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.manifests.context import RunContext
from kveval.engines.kubernetes.manifests.rendering import PORTS

SPECIFICATION = cells(RELEASES[0])[0]["Qwen3-0.6B/native-offload/10000"]
SITE = Cluster.model_validate({"namespace": "bench", "address": "service"})


def run_context(transport: FakeTransport, site: Cluster = SITE) -> RunContext:
    """Return the context of run 1 of a cell on a stand-in for a cluster."""
    return RunContext(
        SPECIFICATION,
        site,
        1,
        "spring",
        PORTS,
        "0123456789abcdef",
        Api(transport, outage_s=0),
    )
