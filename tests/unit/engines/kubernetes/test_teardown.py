"""A teardown removes what is ours, all of it and nothing else, and does not end before it is gone."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster_cells import all_documents
from tests.support.fake_cluster import FakeTransport, Objects, made
from tests.support.paths import REPOSITORY

from kveval.campaign.site import Cluster
from kveval.engines.kubernetes import teardown
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    SERVICE,
    kind_of,
)
from kveval.engines.kubernetes.api.names import MANAGED_BY, MANAGER, selector
from kveval.engines.kubernetes.manifests.permissions import permissions
from kveval.engines.kubernetes.teardown import TeardownError, ours, remove

SITES = [
    {"gateway": {"name": "any", "class": name, "create": True}}
    for name in ("istio", "gke-l7-rilb")
]
OURS = {MANAGED_BY: MANAGER, "kveval.dev/campaign": "c"}
OTHER_CAMPAIGN = OURS | {"kveval.dev/campaign": "d"}
THEIRS = {"app": "somebody-else", "kveval.dev/campaign": "c"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown.time, "sleep", lambda seconds: None)


def removed(
    objects: Objects, wanted: str = selector("c"), **options: Any
) -> teardown.Removed:
    places = dict.fromkeys(("bench", "pcp"), wanted)
    return remove(Api(FakeTransport(objects)), places, **options)


def names(objects: Objects) -> list[str]:
    return [f"{found['kind']} {found['metadata']['name']}" for found in objects.present]


def a_deployment() -> list[dict[str, Any]]:
    deployment = made("Deployment", "server", OURS, version="apps/v1")
    replicas = made("ReplicaSet", "server-1", OURS, owner=deployment, version="apps/v1")
    return [deployment, replicas, made("Pod", "server-1-a", OURS, owner=replicas)]


def test_all_of_one_campaign_goes_and_nothing_else() -> None:
    others = [
        made("Pod", "theirs", THEIRS),
        made("ConfigMap", "other-campaign", OTHER_CAMPAIGN),
        made("ConfigMap", "elsewhere", OURS, namespace="default"),
    ]
    objects = Objects(
        *a_deployment(), made("Job", "load", OURS, version="batch/v1"), *others
    )
    objects.present.append(made("ConfigMap", "plan", OURS, namespace="pcp"))
    found = removed(objects)
    assert names(objects) == [
        "Pod theirs",
        "ConfigMap other-campaign",
        "ConfigMap elsewhere",
    ]
    assert sorted(found.removed) == [
        "ConfigMap pcp/plan",
        "Deployment bench/server",
        "Job bench/load",
        "Pod bench/server-1-a",
        "ReplicaSet bench/server-1",
    ]


def test_a_pod_goes_with_its_deployment_whose_replica_set_is_not_listed() -> None:
    objects = Objects(*a_deployment())
    removed(objects, kinds=[DEPLOYMENT, POD])
    assert (objects.deleted, objects.present) == (["Deployment server"], [])


def test_what_belongs_to_something_goes_with_it_or_it_would_be_made_anew() -> None:
    objects = Objects(*reversed(a_deployment()))
    objects.stay = {"server-1"}
    with pytest.raises(TeardownError):
        removed(objects, timeout_s=0.0)
    assert objects.deleted == ["Deployment server"]


def test_an_orphan_goes_too() -> None:
    objects = Objects(*a_deployment()[1:])
    removed(objects)
    assert names(objects) == []


def test_what_works_goes_before_what_it_needs() -> None:
    kinds = ("PersistentVolumeClaim", "ConfigMap", "Service", "Pod")
    objects = Objects(
        *(made(kind, kind.lower(), OURS, namespace="pcp") for kind in kinds)
    )
    removed(objects)
    assert [entry.split()[0] for entry in objects.deleted] == list(reversed(kinds))


def test_every_kind_that_is_made_is_looked_for() -> None:
    made_kinds = {
        kind_of(document) for _, documents in all_documents() for document in documents
    }
    assert made_kinds - {NAMESPACE} <= set(teardown.KINDS)
    rights = {
        one.resource
        for values in SITES
        for one in permissions(Cluster.model_validate(values))
    }
    assert {kind.plural for kind in teardown.KINDS} - {"replicasets"} <= rights


def test_the_commands_without_this_repository_remove_every_kind() -> None:
    page = (REPOSITORY / "docs" / "cluster.md").read_text(encoding="utf-8")
    commands = page.partition("**Without this repository**")[2].partition("\n## ")[0]
    # Of a Deployment; asked for by name.
    apart = {"replicaset", "persistentvolumeclaim"}
    named = {
        word.partition(".")[0].removesuffix("s")
        for word in re.findall(r"[\w.]+", commands)
    }
    kinds = {kind.kind.lower() for kind in teardown.KINDS} - apart
    assert {kind.removesuffix("s") for kind in kinds} <= named


def test_namespaces_stay() -> None:
    objects = Objects(
        made("Namespace", "pcp", OURS), made("Pod", "p", OURS, namespace="pcp")
    )
    assert removed(objects).removed == ["Pod pcp/p"]
    assert names(objects) == ["Namespace pcp"]


def test_kinds_that_the_account_may_not_list_are_noted() -> None:
    objects = Objects(made("Pod", "p", OURS))
    objects.forbidden = {"services", "configmaps"}
    found = removed(objects)
    assert names(objects) == []
    assert sorted(found.unlisted) == sorted(
        itertools.product((CONFIG_MAP, SERVICE), ("bench", "pcp"))
    )


def test_what_will_not_go_is_named_with_what_holds_it() -> None:
    volume = made(
        "PersistentVolumeClaim",
        "results",
        OURS,
        metadata={"finalizers": ["kubernetes.io/pvc-protection"]},
    )
    objects = Objects(volume)
    objects.stay = {"results"}
    with pytest.raises(TeardownError, match="pvc-protection") as error:
        removed(objects, timeout_s=0.0)
    assert error.value.facts == {
        "finalizers": {
            "PersistentVolumeClaim bench/results": ["kubernetes.io/pvc-protection"]
        }
    }
    assert objects.deleted == ["PersistentVolumeClaim results"]


def test_what_appears_while_the_rest_goes_is_removed_as_well() -> None:
    objects = Objects(made("Pod", "first", OURS))
    objects.changes = [
        lambda state: None,
        lambda state: state.present.append(
            made("ConfigMap", "late", OURS, namespace="pcp")
        ),
    ]
    assert sorted(removed(objects).removed) == ["ConfigMap pcp/late", "Pod bench/first"]


@given(
    st.sampled_from(
        [
            "",
            "app=x",
            "kveval.dev/cell=a,kveval.dev/run=1",
            selector(),
            selector("c", "cell", 3),
        ]
    )
)
def test_a_selector_always_asks_for_ours(text: str) -> None:
    assert f"{MANAGED_BY}={MANAGER}" in ours(text).split(",")
    assert ours(ours(text)) == ours(text)
    assert set(filter(None, text.split(","))) <= set(ours(text).split(","))
