"""The workflow's account: the table of its permissions, and the RBAC manifest made of it."""

import itertools
import subprocess
import sys

import pytest
import yaml
from tests.support.config_files import CONFIG, RAW, ROOT

import print_permissions
from kveval.campaign.problems import ConfigError
from kveval.campaign.site import Cluster
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.kinds import kind_of
from kveval.engines.kubernetes.manifests.permissions import (
    ACCOUNT,
    manifest,
    namespace_of,
    namespaces,
    permissions,
)
from kveval.workflow.doctor.documents import planned

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
        if document["kind"] == kind
        and document["metadata"].get("namespace") == namespace
        for rule in document["rules"]
        for group, resource, verb, name in itertools.product(
            rule["apiGroups"],
            rule["resources"],
            rule["verbs"],
            rule.get("resourceNames", [""]),
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
    site = Cluster.model_validate(
        {"address": "service", "token_secret": {"name": "hub"}}
    )
    for permission in permissions(site):
        # Reading a secret is reading a token: the one that is named, and no list of them.
        if permission.resource == "secrets":
            assert (permission.verbs, permission.names) == (("get",), ("hub",))
        if permission.place == "cluster":
            assert set(permission.verbs) <= {"get", "list"}
        assert "escalate" not in permission.verbs
        assert "bind" not in permission.verbs


OF_THE_PICKER = {
    "serviceaccounts",
    "roles",
    "rolebindings",
    "inferencepools",
    "httproutes",
    "inferenceobjectives",
}


@pytest.mark.parametrize("address", ["service", "http://127.0.0.1:{port}"])
def test_an_account_that_deploys_no_picker_may_make_none_of_its_rights(address):
    gateway = {"name": "gw", "class": "istio", "create": True}
    for site in ({"address": address}, {"address": address, "gateway": gateway}):
        assert not OF_THE_PICKER & {
            one.resource for one in permissions(Cluster.model_validate(site))
        }
    routed = {
        one.resource
        for one in permissions(
            Cluster.model_validate({"address": "gateway", "gateway": gateway})
        )
    }
    assert routed >= OF_THE_PICKER


def test_an_account_whose_recorder_an_administrator_installs_cannot_be_root_on_a_node():
    site = Cluster.model_validate(
        {"address": "service", "recorder": {"installed": True}}
    )
    made = {
        (one.resource, verb)
        for one in permissions(site)
        if one.place == "pcp_namespace"
        for verb in one.verbs
    }
    workloads = ("pods", "daemonsets", "jobs", "pods/exec")
    assert not {(resource, "create") for resource in workloads} & made
    # A WebSocket is a GET before Kubernetes 1.35.
    assert ("pods/exec", "get") not in made


def test_namespaces_are_the_administrators():
    spaces = list(
        yaml.safe_load_all(namespaces(Cluster.model_validate({"address": "service"})))
    )
    assert [space["metadata"]["name"] for space in spaces] == ["kveval", "kveval-pcp"]
    for space in spaces:
        assert not [
            label for label in space["metadata"]["labels"] if "managed-by" in label
        ]
    assert (
        spaces[1]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "privileged"
    )


def test_every_role_is_bound_to_the_account():
    documents = list(yaml.safe_load_all(manifest(Cluster.model_validate(SITES[2]))))
    roles = {
        (one["kind"], one["metadata"].get("namespace"))
        for one in documents
        if one["kind"].endswith("Role")
    }
    bound = {
        (one["roleRef"]["kind"], one["metadata"].get("namespace")): one["subjects"]
        for one in documents
        if one["kind"].endswith("RoleBinding")
    }
    assert (
        set(bound)
        == roles
        == {("Role", n) for n in ("kveval", "kveval-pcp", "istio-system")}
        | {("ClusterRole", None)}
    )
    assert all(
        one == [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "kveval"}]
        for one in bound.values()
    )


def test_a_user_takes_the_place_of_the_service_account():
    documents = list(
        yaml.safe_load_all(
            manifest(Cluster.model_validate(SITES[0]), ("User", "ada@example.com"))
        )
    )
    assert "ServiceAccount" not in {document["kind"] for document in documents}
    subject = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "User",
        "name": "ada@example.com",
    }
    assert all(
        one["subjects"] == [subject]
        for one in documents
        if one["kind"].endswith("RoleBinding")
    )


def test_the_documented_command_prints_it():
    script = [
        sys.executable,
        "scripts/print_permissions.py",
        "config/campaigns/cluster-first.yaml",
    ]
    done = subprocess.run(
        script, cwd=ROOT, env={"PATH": "/usr/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "ServiceAccount" in {
        document["kind"] for document in yaml.safe_load_all(done.stdout)
    }


def printed(*arguments, monkeypatch, capsys):
    """What the command prints, in this process; asserts that nothing is wrong."""
    monkeypatch.setattr(sys, "argv", ["print_permissions.py", *arguments])
    monkeypatch.chdir(ROOT)
    assert print_permissions.main() is None
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_namespaces_are_created_apart_so_that_none_that_exists_is_relabelled(
    tmp_path, monkeypatch, capsys
):
    site = tmp_path / "ours.yaml"
    site.write_text("namespace: ours\n")
    campaign = "config/campaigns/cluster-first.yaml"
    made = printed(
        campaign, f"site={site}", "namespaces", monkeypatch=monkeypatch, capsys=capsys
    )
    assert [(one["kind"], one["metadata"]["name"]) for one in made] == [
        ("Namespace", "ours"),
        ("Namespace", "kveval-pcp"),
    ]
    applied = printed(campaign, f"site={site}", monkeypatch=monkeypatch, capsys=capsys)
    assert "Namespace" not in {one["kind"] for one in applied}
    assert "ours" in {one["metadata"].get("namespace") for one in applied}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config/config.yaml"], "engine local"),
        (["config/config.yaml", "User"], "usage"),
        (["config/none.yaml"], ""),
    ],
    ids=str,
)
def test_it_says_what_is_wrong(arguments, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["print_permissions.py", *arguments])
    monkeypatch.chdir(ROOT)
    wrong = print_permissions.main()
    assert wrong
    assert said in wrong


def campaign(release, vllm, address, scenarios, **site):
    """A campaign of these arms on a cluster, as raw values."""
    tiers = [name for name, tier in scenarios if tier]
    bare = [name for name, tier in scenarios if not tier]
    return {
        "name": "all-arms",
        "engine": "kubernetes",
        "cluster": {
            "address": address,
            "gateway": {"name": "gw", "class": "istio", "create": True}
            if address != "service"
            else None,
            "model_cache": {"size": "10Gi"},
            "token_secret": {"name": "hub"},
            **site,
        },
        "server": {
            "release": release,
            "vllm": vllm,
            "guidellm": "0.8.1",
            "lmcache": RAW["releases"][release].get("lmcache", "0.5.6"),
            "weights": "full",
            "block_size": 64,
            "replicas": 2,
        },
        "workload": "published",
        "reset_caches": "restart",
        "matrix": [
            {"models": ["Qwen3-0.6B"], "scenarios": names, "cpu_blocks": [blocks]}
            for names, blocks in ((tiers, 10_000), (bare, 0))
            if names
        ],
    }


def rendered(release, vllm, address):
    """Everything that the arms of a release put on a cluster; arms that it does not support are left out."""
    documents, arms = [], 0
    for name, scenario in RAW["scenarios"].items():
        if "extends" in scenario and "mempress" in name:
            continue
        tier = scenario.get(
            "cpu_tier",
            RAW["scenarios"].get(scenario.get("extends"), {}).get("cpu_tier"),
        )
        try:
            config = load_config(
                campaign(release, vllm, address, [(name, tier)]), CONFIG
            )
        except ConfigError:
            continue
        arms += 1
        documents += planned(config).documents
    return documents, arms


@pytest.fixture(scope="module")
def documents():
    """The documents of every arm, by release and address; and how many arms there were."""
    releases = yaml.safe_load((CONFIG / "releases.yaml").read_text())
    return {
        (release, address): rendered(release, entry["vllm"], address)
        for release, entry in releases.items()
        for address in ("router", "gateway", "service")
    }


SITE = Cluster.model_validate(
    {"gateway": {"name": "gw", "class": "istio", "create": True}}
)


def test_the_table_covers_every_kind_that_is_rendered(documents):
    made = {
        (namespace_of(permission.place, SITE), permission.group, permission.resource)
        for permission in permissions(SITE)
        if {"create", "patch", "delete", "get", "list"} <= set(permission.verbs)
    }
    seen = set()
    for (release, address), (found, arms) in documents.items():
        assert arms >= (6 if address == "service" else 8), (release, address, arms)
        for document in found:
            kind = kind_of(document)
            if kind.kind == "Namespace":
                # The administrator's; an account that may, makes the recorder's.
                continue
            asked = (document["metadata"]["namespace"], kind.group, kind.plural)
            assert asked in made, f"{release}, address {address}"
            seen.add(kind.kind)
    assert seen >= {
        "Deployment",
        "Job",
        "PersistentVolumeClaim",
        "DaemonSet",
        "InferencePool",
        "HTTPRoute",
    }


def test_gke_has_kinds_of_its_own():
    site = {"gateway": {"name": "gw", "class": "gke-l7-rilb", "create": True}}
    config = load_config(
        campaign("llm-d-0.8.0", "0.23.0", "gateway", [("no-offload", False)], **site),
        CONFIG,
    )
    made = {(one.group, one.resource) for one in permissions(config.campaign.cluster)}
    kinds = {kind_of(document) for document in planned(config).documents}
    assert {kind.kind for kind in kinds if kind.group == "networking.gke.io"} == {
        "HealthCheckPolicy",
        "GCPBackendPolicy",
    }
    assert made >= {
        ("networking.gke.io", "healthcheckpolicies"),
        ("networking.gke.io", "gcpbackendpolicies"),
    }


def test_the_account_has_what_the_roles_it_makes_give_away(documents):
    """Kubernetes lets nobody make a Role that grants more than he has."""
    held = {
        (
            namespace_of(permission.place, SITE),
            permission.group,
            permission.resource,
            verb,
        )
        for permission in permissions(SITE)
        for verb in permission.verbs
        if not permission.names
    }
    roles = [
        one
        for found, _ in documents.values()
        for one in found
        if one["kind"] in ("Role", "ClusterRole")
    ]
    assert roles
    for role in roles:
        assert role["kind"] == "Role", (
            "the workflow's account makes nothing outside namespaces"
        )
        for rule in role["rules"]:
            wanted = itertools.product(
                rule["apiGroups"], rule["resources"], rule["verbs"]
            )
            missing = {(role["metadata"]["namespace"], *one) for one in wanted} - held
            assert not missing, f"{role['metadata']['name']}: {missing}"
