"""The workflow's account: the table of its permissions, and the RBAC manifest made of it."""

import itertools
import subprocess
import sys

import pytest
import yaml
from tests.config_files import ROOT

from kveval.cluster.permissions import ACCOUNT, manifest, namespace_of, permissions
from kveval.config_cluster import Cluster

SITES = [
    {"address": "service"},
    {"address": "service", "token_secret": {"name": "hub"}},
    {"gateway": {"name": "gw", "namespace": "istio-system"}},
    {"gateway": {"name": "gw", "class": "istio", "create": True}},
]


def rules_of(documents, kind, namespace=None):
    """Return what the roles of a namespace grant, in single questions."""
    return {
        (group, resource, verb, name)
        for document in documents
        if document["kind"] == kind and document["metadata"].get("namespace") == namespace
        for rule in document["rules"]
        for group, resource, verb, name in itertools.product(
            rule["apiGroups"], rule["resources"], rule["verbs"], rule.get("resourceNames", [""])
        )
    }


@pytest.mark.parametrize("values", SITES, ids=str)
def test_the_manifest_grants_the_table_and_nothing_else(values):
    site = Cluster.model_validate(values)
    documents = list(yaml.safe_load_all(manifest(site)))
    table = permissions(site)
    for place in {permission.place for permission in table}:
        namespace = namespace_of(place, site) or None
        granted = rules_of(documents, "Role" if namespace else "ClusterRole", namespace)
        wanted = {
            (permission.group, permission.resource, verb, name)
            for permission in table
            if (namespace_of(permission.place, site) or None) == namespace
            for verb in permission.verbs
            for name in permission.names or ("",)
        }
        assert granted == wanted
    assert "*" not in manifest(site)


def test_the_account_may_not_touch_what_is_not_its_own():
    site = Cluster.model_validate({"address": "service", "token_secret": {"name": "hub"}})
    for permission in permissions(site):
        # Reading a secret is reading a token: the one that is named, and no list of them.
        if permission.resource == "secrets":
            assert (permission.verbs, permission.names) == (("get",), ("hub",))
        if permission.place == "cluster":
            assert set(permission.verbs) <= {"get", "list"}
        assert "escalate" not in permission.verbs
        assert "bind" not in permission.verbs


def test_namespaces_are_the_administrators():
    documents = list(yaml.safe_load_all(manifest(Cluster.model_validate({"address": "service"}))))
    spaces = [document for document in documents if document["kind"] == "Namespace"]
    assert [space["metadata"]["name"] for space in spaces] == ["kveval", "kveval-pcp"]
    for space in spaces:
        assert not [label for label in space["metadata"]["labels"] if "managed-by" in label]
    assert spaces[1]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"


def test_every_role_is_bound_to_the_account():
    documents = list(yaml.safe_load_all(manifest(Cluster.model_validate(SITES[2]))))
    roles = {(one["kind"], one["metadata"].get("namespace")) for one in documents if one["kind"].endswith("Role")}
    bound = {
        (one["roleRef"]["kind"], one["metadata"].get("namespace")): one["subjects"]
        for one in documents
        if one["kind"].endswith("RoleBinding")
    }
    assert (
        set(bound) == roles == {("Role", n) for n in ("kveval", "kveval-pcp", "istio-system")} | {("ClusterRole", None)}
    )
    assert all(one == [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kveval"}] for one in bound.values())


def test_a_user_takes_the_place_of_the_service_account():
    documents = list(yaml.safe_load_all(manifest(Cluster.model_validate(SITES[0]), ("User", "ada@example.com"))))
    assert "ServiceAccount" not in {document["kind"] for document in documents}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada@example.com"}
    assert all(one["subjects"] == [subject] for one in documents if one["kind"].endswith("RoleBinding"))


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "kveval.cluster.permissions", *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": "scripts", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
    )


def test_the_documented_command_prints_it():
    done = command("config/campaigns/cluster-first.yaml", "config")
    assert done.returncode == 0, done.stderr
    assert "ServiceAccount" in {document["kind"] for document in yaml.safe_load_all(done.stdout)}


def test_it_says_what_is_wrong():
    assert "engine local" in command("config/config.yaml", "config").stderr
    assert command("config/config.yaml").returncode == 2
    assert command("config/none.yaml", "config").returncode == 1
