"""A whole run with nothing but the rights that the account's manifest gives."""

import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cluster.test_cluster_account import Site
from tests.cluster.test_kubernetes_faults import in_level
from tests.support.cluster_chain import (
    CLUSTER,
    NAMESPACE,
    Cluster,
    cluster_chain,
    needs_cluster,
)
from tests.support.fault_chain import PATIENCE_S
from tests.support.testbed import wait_until

from kveval.campaign import site as config_cluster
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.errors import ClusterError
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    LEASE,
    POD,
    SERVICE_ACCOUNT,
    Kind,
    kind_of,
)
from kveval.engines.kubernetes.api.kinds import NAMESPACE as NAMESPACES
from kveval.engines.kubernetes.api.names import selector
from kveval.engines.kubernetes.manifests.permissions import (
    ACCOUNT,
    manifest,
    namespaces,
)
from kveval.engines.kubernetes.manifests.recorder import INSTALLED, installed_documents
from kveval.engines.kubernetes.preview import preview_text
from kveval.engines.kubernetes.teardown import remove

pytestmark = [pytest.mark.workflow, pytest.mark.cluster, needs_cluster]
PCP_NAMESPACE = "kveval-pcp-of-the-account"
SITE = CLUSTER | {"pcp_namespace": PCP_NAMESPACE}


def test_a_run_needs_no_more_rights_than_the_manifest_gives_and_makes_what_the_preview_shows(
    tmp_path: Path, cluster: Cluster
) -> None:
    admin = cluster.api
    asked = config_cluster.Cluster.model_validate(SITE)
    admin.apply(
        [*yaml.safe_load_all(namespaces(asked)), *yaml.safe_load_all(manifest(asked))]
    )
    for namespace, name in (
        (NAMESPACE, ACCOUNT),
        (NAMESPACE, "default"),
        (PCP_NAMESPACE, "default"),
    ):
        wait_until(
            partial(admin.read, SERVICE_ACCOUNT, name, namespace),
            f"account {namespace}/{name}",
        )
    site = Site(admin, tmp_path, cluster.testbed.kubeconfig)
    chain = cluster_chain(tmp_path, cluster, {"cluster": SITE})
    chain.env["KUBECONFIG"] = str(site.kubeconfig)
    job, made = chain.start(), set[str]()
    deadline = time.monotonic() + 5 * PATIENCE_S
    while job.process.poll() is None and time.monotonic() < deadline:
        made |= set(cluster.ours())
    assert job.end(5 * PATIENCE_S) == 0, job.words()
    config = load_config(tmp_path / "campaign.yaml", chain.catalogues)
    text = preview_text(
        config.specification(config.cell(chain.cell)), asked, config.campaign.name
    )
    shown = {
        f"{document['kind']} {document['metadata']['name']}"
        for document in yaml.safe_load_all(text)
        if document["kind"] != "Namespace"
    }
    # What controllers make of it is not the run's own.
    own = {
        name
        for name in made
        if name.split()[0] not in ("Pod", "ReplicaSet", "ControllerRevision")
    }
    assert own - shown == set()
    # It is held for a moment.
    assert {name for name in shown - own if "-removal-" not in name} == set()
    assert chain.left(15) == []
    assert cluster.ours() == []
    # What the administrator made is the administrator's.
    assert admin.read(NAMESPACES, PCP_NAMESPACE) is not None


def test_a_run_beside_an_installed_recorder_makes_no_pod_where_pods_are_privileged(
    tmp_path: Path, cluster: Cluster
) -> None:
    admin, namespace = cluster.api, "kveval-pcp-of-the-administrator"
    given = SITE | {"pcp_namespace": namespace, "recorder": {"installed": True}}
    asked = config_cluster.Cluster.model_validate(given)
    key = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": INSTALLED, "namespace": namespace},
        "stringData": {"key": "k" * 64},
    }
    admin.apply([*yaml.safe_load_all(namespaces(asked)), key])
    installed = installed_documents(asked)
    admin.apply([*yaml.safe_load_all(manifest(asked)), *installed])
    for place in (NAMESPACE, namespace):
        wait_until(
            partial(admin.read, SERVICE_ACCOUNT, "default", place),
            f"account of {place}",
        )
    site = Site(admin, tmp_path, cluster.testbed.kubeconfig)
    chain = cluster_chain(tmp_path, cluster, {"cluster": given})
    chain.env["KUBECONFIG"] = str(site.kubeconfig)
    try:
        with pytest.raises(ClusterError, match="403"):
            site.account.exec(namespace, "any", "pmcd", ["id"])
        job = chain.start()
        assert job.end(5 * PATIENCE_S) == 0, job.words()
        assert chain.left(15) == []
        assert cluster.ours() == []
        [recording] = chain.store.rglob("pcp.tar.zst")
        assert recording.stat().st_size > 10_000
        # It stays, for the next campaign.
        assert admin.read(DAEMON_SET, INSTALLED, namespace) is not None
    finally:
        for document in (*installed, key):
            metadata = document["metadata"]
            admin.delete(kind_of(document), metadata["name"], namespace)


def test_a_right_that_is_taken_away_in_a_level_is_named_with_what_is_left(
    tmp_path: Path, cluster: Cluster
) -> None:
    admin = cluster.api
    asked = config_cluster.Cluster.model_validate(SITE)
    admin.apply(
        [*yaml.safe_load_all(namespaces(asked)), *yaml.safe_load_all(manifest(asked))]
    )
    for namespace, name in ((NAMESPACE, ACCOUNT), (PCP_NAMESPACE, "default")):
        wait_until(
            partial(admin.read, SERVICE_ACCOUNT, name, namespace),
            f"account {namespace}/{name}",
        )
    site = Site(admin, tmp_path, cluster.testbed.kubeconfig)
    chain = cluster_chain(
        tmp_path, cluster, {"cluster": SITE, "workloads": {"short": {"seconds": 40}}}
    )
    chain.env["KUBECONFIG"] = str(site.kubeconfig)
    job = chain.start()
    in_level(job, cluster)
    binding = Kind("rbac.authorization.k8s.io/v1", "RoleBinding")
    taken = admin.read(binding, ACCOUNT, NAMESPACE)
    assert taken is not None
    admin.delete(binding, ACCOUNT, NAMESPACE)
    try:
        assert job.end(PATIENCE_S) == 1, job.words()
        [last] = [line for line in job.log_text().splitlines() if "FAILED: " in line]
        assert "403" in last and 'in the namespace "kveval"' in last, job.log_text()
        for place in (NAMESPACE, PCP_NAMESPACE):
            assert f"kubectl -n {place} delete lease,job" in last
        # All that is left belongs to the run's Lease, by way of its lifetime.
        for lease in admin.list(LEASE, NAMESPACE, selector()):
            admin.delete(LEASE, lease["metadata"]["name"], NAMESPACE)
        kinds = (JOB, DEPLOYMENT, POD, CONFIG_MAP)
        wait_until(
            lambda: not any(admin.list(kind, NAMESPACE, selector()) for kind in kinds),
            "the end of all of it",
        )
    finally:
        for namespace in (NAMESPACE, PCP_NAMESPACE):
            remove(admin, {namespace: ""})
