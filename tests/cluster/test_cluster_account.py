"""The workflow's account and the doctor, on an API server that grants nothing but what the manifest says."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.support.command import kveval
from tests.support.config_files import CONFIG, ROOT
from tests.support.documentation import FENCE
from tests.support.fault_chain import workflow_copy
from tests.support.testbed import own_testbed, wait_until

from kveval.campaign.site import Cluster
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.errors import Refused
from kveval.engines.kubernetes.api.kinds import (
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    SERVICE_ACCOUNT,
    Kind,
)
from kveval.engines.kubernetes.api.names import labels, selector
from kveval.engines.kubernetes.manifests.permissions import (
    ACCOUNT,
    manifest,
    namespaces,
)
from kveval.host.findings import table, worst
from kveval.workflow.doctor.doctor import diagnose
from kveval.workflow.doctor.documents import planned
from kveval.workflow.teardown import StillMeasuring, tear_down

pytestmark = pytest.mark.cluster
ROLE = Kind("rbac.authorization.k8s.io/v1", "Role")
CLUSTER_ROLE = Kind("rbac.authorization.k8s.io/v1", "ClusterRole")
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {
        "name": "standard",
        "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
    },
    "provisioner": "rancher.io/local-path",
}
FIRST = yaml.safe_load((CONFIG / "campaigns" / "cluster-first.yaml").read_text())


class Site:
    """A testbed as an administrator leaves it for the workflow: `admin` made it, `account` runs the workflow."""

    def __init__(self, admin: Api, folder: Path, kubeconfig: Path) -> None:
        self.admin, self.folder = admin, folder
        self.kubeconfig = folder / "account.kubeconfig"
        config = yaml.safe_load(kubeconfig.read_text())
        path = f"/api/v1/namespaces/kveval/serviceaccounts/{ACCOUNT}/token"
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token = admin.request("POST", path, body=wanted).json()["status"]["token"]
        config["users"] = [
            {"name": user["name"], "user": {"token": token}} for user in config["users"]
        ]
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.account = Api.connect(self.kubeconfig, outage_s=30.0)

    def campaign(self, **cluster):
        """The shipped first campaign, on this site."""
        values = {
            **FIRST,
            "cluster": {
                **FIRST["cluster"],
                "kubeconfig": str(self.kubeconfig),
                **cluster,
            },
        }
        return load_config(values, CONFIG)

    def doctor(self, **cluster):
        """The findings, by check and level."""
        found = diagnose(
            self.campaign(**cluster),
            "first.yaml",
            store=self.folder,
            server_environment=self.folder,
            at_once=1,
            say=lambda text: None,
            image_limit_s=30.0,
        )
        print(table(found))
        return found

    def trial_pods(self):
        """The doctor's pods that are still there."""
        return self.admin.list(
            POD, "kveval", selector("cluster-first", component="doctor")
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("account")
    with own_testbed(
        folder / "run", "--default-mode serve --job-mode succeed", authz="Node,RBAC"
    ) as testbed:
        admin = testbed.api()
        asked = Cluster.model_validate(FIRST["cluster"])
        admin.apply(
            [
                STORAGE_CLASS,
                *yaml.safe_load_all(namespaces(asked)),
                *yaml.safe_load_all(manifest(asked)),
            ]
        )
        accounts = [
            ("kveval", ACCOUNT),
            ("kveval", "default"),
            ("kveval-pcp", "default"),
        ]
        for namespace, name in accounts:
            wait_until(
                partial(admin.read, SERVICE_ACCOUNT, name, namespace),
                f"account {namespace}/{name}",
            )
        wait_until(
            lambda: not admin.read(NODE, "fake-0")["spec"].get("taints"),
            "the node's readiness",
        )
        yield Site(admin, folder, testbed.kubeconfig)


def test_with_the_manifest_applied_the_doctor_finds_nothing_wrong(site):
    found = site.doctor()
    assert worst(found) != "error"
    assert {one.check for one in found if one.level == "ok"} >= {
        "permissions",
        "namespace",
        "kinds",
        "GPUs",
        "host memory",
        "/dev/shm",
        "storage",
        "images",
        "recorder",
        "dry run",
        "clocks",
    }
    # The testbed's API server is older than what the manifests are validated for; no token, as the campaign says.
    assert {one.check for one in found if one.level == "warning"} <= {
        "API server",
        "GPU metrics",
        "token",
    }
    wait_until(lambda: not site.trial_pods(), "the end of the trials' pods", 20.0)


@pytest.mark.parametrize(
    ("kind", "name", "namespace", "resource", "verb", "words"),
    [
        (
            ROLE,
            ACCOUNT,
            "kveval",
            "jobs",
            "create",
            "may not create jobs.batch in namespace kveval",
        ),
        (
            ROLE,
            ACCOUNT,
            "kveval",
            "pods/exec",
            "get",
            "may not get pods/exec in namespace kveval",
        ),
        (
            ROLE,
            ACCOUNT,
            "kveval-pcp",
            "daemonsets",
            "patch",
            "may not patch daemonsets.apps in namespace kveval-pcp",
        ),
        (
            CLUSTER_ROLE,
            f"{ACCOUNT}-kveval",
            "",
            "nodes",
            "list",
            "may not list nodes in the cluster",
        ),
    ],
)
def test_without_a_permission_the_doctor_names_it_and_the_fix(
    site, kind, name, namespace, resource, verb, words
):
    role = site.admin.read(kind, name, namespace)
    rules = []
    for rule in role["rules"]:
        if resource not in rule["resources"]:
            rules.append(rule)
            continue
        others = [one for one in rule["resources"] if one != resource]
        rules += [{**rule, "resources": others}] if others else []
        rules.append(
            {
                **rule,
                "resources": [resource],
                "verbs": [one for one in rule["verbs"] if one != verb],
            }
        )
    try:
        site.admin.patch(kind, name, namespace, {"rules": rules})
        (finding,) = [one for one in site.doctor() if one.check == "permissions"]
        assert finding.level == "error"
        assert finding.what.startswith(words)
        assert (
            finding.fix
            == "python scripts/print_permissions.py first.yaml | kubectl apply -f -"
        )
    finally:
        site.admin.patch(kind, name, namespace, {"rules": role["rules"]})


def test_an_image_that_nodes_cannot_pull(site):
    found = site.doctor(
        component_annotations={"model-server": {"fakelet/mode": "imagepull"}}
    )
    wrong = [one for one in found if one.level == "error"]
    assert {one.check for one in wrong} == {"image"}
    assert "llm-d-cuda" in wrong[0].what
    assert "ImagePullBackOff" in wrong[0].what
    wait_until(lambda: not site.trial_pods(), "the end of the trials' pods", 20.0)


def test_a_namespace_a_class_and_gpus_that_are_not_there(site):
    found = site.doctor(
        storage_class="nfs", gpu_resource="amd.com/gpu", token_secret={"name": "hub"}
    )
    wrong = {one.check: one.what for one in found if one.level == "error"}
    assert wrong["storage"].endswith(" storage class nfs")
    # An autoscaler may add them.
    assert "none_offered" in {one.code for one in found if one.level == "warning"}
    # The manifest of this site names no secret.
    assert "secrets hub" in next(
        one.what for one in found if one.check == "permissions"
    )


def test_a_gateway_without_the_kinds_for_it(site):
    found = site.doctor(
        address="gateway", gateway={"name": "gw", "namespace": "istio-system"}
    )
    kinds = {one.what: one.fix for one in found if one.check == "kinds"}
    (pool,) = [what for what in kinds if "InferencePool" in what]
    assert pool.endswith(" InferencePool of inference.networking.k8s.io/v1")
    assert kinds[pool].startswith("kubectl apply -f https://")
    # The manifest of this site names no Gateway, and none of the rights that go with one.
    missing = [one.what for one in found if one.check == "permissions"]
    assert "gateways.gateway.networking.k8s.io gw in" in " ".join(missing)
    assert next(one for one in found if one.check == "Gateway").level == "warning"


def test_the_account_is_not_refused_the_routers_rights_in_a_rehearsal(site):
    found = [one for one in site.doctor(address="router") if one.check == "dry run"]
    assert not [
        one
        for one in found
        if "rbac.authorization" in one.what or one.facts["document"].startswith("Role")
    ]


def test_the_account_applies_and_removes_a_campaign_and_nothing_else(site):
    config = site.campaign()
    stranger = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "somebodys",
            "namespace": "kveval",
            "labels": {"kveval.dev/campaign": "cluster-first"},
        },
    }
    site.admin.apply([stranger])
    site.account.apply(planned(config).documents)
    ours = selector("cluster-first")
    assert len(site.admin.list(Kind("apps/v1", "Deployment"), "kveval", ours)) == 2
    assert len(site.admin.list(Kind("apps/v1", "DaemonSet"), "kveval-pcp")) == 1
    said = []
    tear_down(config, said.append)
    assert "removed DaemonSet kveval-pcp/" in "\n".join(said)
    assert "removed PersistentVolumeClaim kveval/" in "\n".join(said)
    for kind in ("Pod", "Service", "ConfigMap", "PersistentVolumeClaim"):
        for namespace in ("kveval", "kveval-pcp"):
            assert site.admin.list(Kind("v1", kind), namespace, ours) == []
    assert site.admin.read(Kind("v1", "ConfigMap"), "somebodys", "kveval") is not None
    assert site.admin.read(NAMESPACE, "kveval-pcp") is not None
    said.clear()
    tear_down(config, said.append)
    assert said[-1].startswith("nothing of campaign cluster-first ")


def lease(age_s):
    """A Lease of a job on another host, renewed so long ago."""
    renewed = datetime.now(UTC) - timedelta(seconds=age_s)
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {
            "name": "first-lease",
            "namespace": "kveval",
            "labels": labels("cluster-first", "M/native-offload/1", 1, "ab", "lease"),
        },
        "spec": {
            "holderIdentity": "elsewhere-4711-1",
            "leaseDurationSeconds": 40,
            "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def test_a_teardown_waits_for_no_dead_job_and_kills_no_living_one(site):
    site.account.apply([lease(age_s=5)])
    with pytest.raises(StillMeasuring, match="elsewhere-4711-1"):
        tear_down(site.campaign(), print)
    assert site.admin.read(LEASE, "first-lease", "kveval") is not None
    site.account.apply([lease(age_s=3600)])
    said = []
    tear_down(site.campaign(), said.append)
    assert "removed Lease kveval/first-lease" in said
    assert site.admin.read(LEASE, "first-lease", "kveval") is None


def test_the_account_has_no_other_rights(site):
    for forbidden in (
        lambda api: api.list(Kind("v1", "Secret"), "kveval"),
        lambda api: api.list(POD, "kube-system"),
        lambda api: api.delete(NAMESPACE, "kveval-pcp"),
        lambda api: api.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "more"}}
        ),
        lambda api: api.patch(
            ROLE,
            ACCOUNT,
            "kveval",
            {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]},
        ),
    ):
        with pytest.raises(Refused) as refused:
            forbidden(site.account)
        assert refused.value.status == 403


def test_the_command_prints_and_logs_its_findings(site, tmp_path):
    campaign = tmp_path / "campaign.yaml"
    cluster = {**FIRST["cluster"], "kubeconfig": str(site.kubeconfig)}
    campaign.write_text(
        yaml.safe_dump({**FIRST, "name": "doctored", "cluster": cluster})
    )
    try:
        code, output = kveval(ROOT, "doctor", str(campaign))
        assert code == 0, output
        assert "0 errors" in output
        log = ROOT / "logs" / "doctored" / "doctor.log"
        assert "ok       permissions" in log.read_text()
    finally:
        for file in (ROOT / "logs" / "doctored").glob("*"):
            file.unlink()
        (ROOT / "logs" / "doctored").rmdir()


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="no kubectl: it must be in PATH"
)
def test_the_documented_commands_make_the_account(tmp_path):
    """In their order, from nothing, by an administrator whose kubeconfig lies elsewhere than usual."""
    way = (
        (ROOT / "docs" / "cluster.md")
        .read_text()
        .partition("**1. The site.**")[2]
        .partition("**3. ")[0]
    )
    found = {
        name: [at[3] for at in FENCE.finditer(way) if at[2] == name]
        for name in ("yaml", "bash")
    }
    folder = workflow_copy(tmp_path / "repository")
    (folder / "site.yaml").write_text(found["yaml"][0])
    elsewhere = ("bash scripts/setup.sh", "oc ")
    told = [
        line
        for block in found["bash"]
        for line in block.splitlines()
        if not line.startswith(elsewhere)
    ]
    asked = [
        "kubectl auth can-i create jobs -n kveval",
        "kubectl auth can-i create namespaces || true",
    ]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with own_testbed(
        tmp_path / "run", "--default-mode serve", authz="Node,RBAC"
    ) as testbed:
        env = {
            **os.environ,
            "PATH": path,
            "HOME": str(tmp_path),
            "KUBECONFIG": str(testbed.kubeconfig),
        }
        script = "\n".join([*told, *asked])
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["yes", "no"]
    assert (folder / "kveval.kubeconfig").stat().st_mode & 0o77 == 0
