"""A whole run with nothing but the rights that the account's manifest gives."""

from pathlib import Path

import pytest
import yaml
from tests.cluster.test_cluster_account import Site
from tests.support.cluster_chain import CLUSTER, NAMESPACE, Cluster, cluster_chain, needs_cluster
from tests.support.fault_chain import PATIENCE_S
from tests.support.testbed import wait_until

from kveval.config import site as config_cluster
from kveval.engines.kubernetes.api.kinds import NAMESPACE as NAMESPACES
from kveval.engines.kubernetes.api.kinds import SERVICE_ACCOUNT
from kveval.engines.kubernetes.manifests.permissions import ACCOUNT, manifest

pytestmark = [pytest.mark.workflow, pytest.mark.cluster, needs_cluster]
PCP_NAMESPACE = "kveval-pcp-of-the-account"
SITE = CLUSTER | {"pcp_namespace": PCP_NAMESPACE}


def test_a_run_needs_no_more_rights_than_the_manifest_gives(tmp_path: Path, cluster: Cluster) -> None:
    admin = cluster.api
    admin.apply(list(yaml.safe_load_all(manifest(config_cluster.Cluster.model_validate(SITE)))))
    for namespace, name in ((NAMESPACE, ACCOUNT), (NAMESPACE, "default"), (PCP_NAMESPACE, "default")):
        wait_until(lambda: admin.read(SERVICE_ACCOUNT, name, namespace), f"account {namespace}/{name}")  # noqa: B023
    site = Site(admin, tmp_path, cluster.testbed.kubeconfig)
    chain = cluster_chain(tmp_path, cluster, {"cluster": SITE})
    chain.env["KUBECONFIG"] = str(site.kubeconfig)
    job = chain.start()
    assert job.end(5 * PATIENCE_S) == 0, job.words()
    assert chain.left(15) == []
    assert cluster.ours() == []
    # What the administrator made is the administrator's.
    assert admin.read(NAMESPACES, PCP_NAMESPACE) is not None
