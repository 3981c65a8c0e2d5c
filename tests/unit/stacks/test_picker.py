"""What the endpoint picker is told, in both generations."""

import json
from dataclasses import replace

import pytest
from tests.support.config_files import CONFIG, RELEASES

from kveval.configuration.loading import load_config
from kveval.host.http import HttpError
from kveval.stacks.picker import Index, Picker, picker_config
from kveval.stacks.sidecar import Container, SidecarError
from kveval.stacks.talk import Fetch

CATALOGUE = load_config(CONFIG / "config.yaml", CONFIG).catalogue.releases
INDEX = Index("redis", "Qwen/Qwen3-14B", 64)


def config(release, routing="prefix", tier_tokens=0, index=None):
    return picker_config(CATALOGUE[release], routing, tier_tokens, index)


def plugins(release, **given):
    return {
        plugin.get("name", plugin["type"]): plugin
        for plugin in config(release, **given)["plugins"]
    }


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"routing": "tiered-prefix"},
        {"routing": "tiered-prefix", "tier_tokens": 160_000},
        {"index": INDEX},
    ],
    ids=str,
)
def test_every_plugin_that_is_used_is_declared_once(release, given):
    found = config(release, **given)
    declared = [plugin.get("name", plugin["type"]) for plugin in found["plugins"]]
    assert len(set(declared)) == len(declared)
    (profile,) = found["schedulingProfiles"]
    used = [entry["pluginRef"] for entry in profile["plugins"]]
    for source in found.get("dataLayer", {}).get("sources", []):
        used += [
            source["pluginRef"],
            *(extractor["pluginRef"] for extractor in source["extractors"]),
        ]
    assert set(used) <= set(declared)
    producers = {
        plugin["parameters"]["prefixMatchInfoProducerName"]
        for plugin in found["plugins"]
        if "prefixMatchInfoProducerName" in plugin.get("parameters", {})
    }
    assert producers <= set(declared)
    assert found["kind"] == "EndpointPickerConfig"
    assert found["apiVersion"] == CATALOGUE[release].epp.api_version


@pytest.mark.parametrize(
    ("release", "where", "entries"),
    [
        ("llm-d-0.4.0", "cpu-prefix-cache-scorer", 10_000),
        ("llm-d-0.8.0", "cpu-prefix-cache-producer", 2_500),
    ],
)
def test_the_tier_in_host_memory_is_remembered_to_its_size(release, where, entries):
    """10,000 blocks of 16 tokens; an entry is 16 tokens in the older generation and 64 in the newer."""
    found = plugins(release, routing="tiered-prefix", tier_tokens=160_000)
    assert found[where]["parameters"] == {
        "autoTune": False,
        "lruCapacityPerServer": entries,
    }


@pytest.mark.parametrize("release", RELEASES)
def test_without_a_tier_there_is_one_scorer_of_prefixes(release):
    assert not [
        name
        for name in plugins(release, routing="tiered-prefix")
        if name.startswith("cpu-")
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_the_two_tiers_weigh_as_in_the_guide(release):
    (profile,) = config(release, routing="tiered-prefix", tier_tokens=160_000)[
        "schedulingProfiles"
    ]
    weights = {entry["pluginRef"]: entry["weight"] for entry in profile["plugins"]}
    assert weights == {
        "queue-scorer": 2,
        "kv-cache-utilization-scorer": 2,
        "gpu-prefix-cache-scorer": 1,
        "cpu-prefix-cache-scorer": 1,
    }


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_the_older_index_is_configured_inside_its_scorer(store):
    """It was once under prefix-cache-scorer, which ignores it: the arm was a copy of its baseline."""
    found = plugins("llm-d-0.4.0", index=replace(INDEX, store=store))
    assert "prefix-cache-scorer" not in found
    parameters = found["precise-prefix-cache-scorer"]["parameters"]
    index = parameters["indexerConfig"]["kvBlockIndexConfig"]
    assert (
        index.pop(f"{store}Config")["address"]
        == f"redis://{{{store}_host}}:{{{store}_port}}"
    )
    # Left out, the default in memory would stay and win.
    assert index == {"inMemoryConfig": None, "enableMetrics": True}
    assert parameters["indexerConfig"]["tokenProcessorConfig"] == {
        "blockSize": 64,
        "hashSeed": "0",
    }
    assert parameters["kvEventsConfig"]["zmqEndpoint"] == "tcp://*:{events_port}"


def test_the_newer_index_is_a_producer_with_tokens_and_the_replicas_it_is_notified_of():
    found = plugins("llm-d-0.8.0", index=replace(INDEX, store="valkey"))
    parameters = found["precise-prefix-cache-producer"]["parameters"]
    index = parameters["indexerConfig"]["kvBlockIndexConfig"]
    assert index["redisConfig"] == {"address": "redis://{valkey_host}:{valkey_port}"}
    assert index["inMemoryConfig"] is None
    assert parameters["tokenProcessorConfig"]["blockSize"] == 64
    assert parameters["kvEventsConfig"]["podDiscoveryConfig"] == {
        "socketPort": "{events_port}"
    }
    assert found["token-producer"]["parameters"]["modelName"] == "Qwen/Qwen3-14B"
    assert found["prefix-cache-scorer"]["parameters"] == {
        "prefixMatchInfoProducerName": "precise-prefix-cache-producer"
    }
    sources = {
        source["pluginRef"]: source["extractors"]
        for source in config("llm-d-0.8.0", index=INDEX)["dataLayer"]["sources"]
    }
    assert sources["endpoint-notification-source"] == [
        {"pluginRef": "precise-prefix-cache-producer"}
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_the_configuration_is_small(release):
    assert len(json.dumps(config(release, index=INDEX))) < 2_000


@pytest.mark.parametrize("index", [None, INDEX])
def test_a_routing_that_is_not_known_is_refused(index):
    with pytest.raises(
        ValueError, match="routing least-loaded: known are prefix, tiered-prefix"
    ):
        config(RELEASES[0], routing="least-loaded", index=index)


def container_of(fetch: Fetch) -> Container:
    """Return a picker's container that `fetch` answers for."""
    ports, image = {"epp_metrics_port": 9090}, "ghcr.io/llm-d/epp:v0.9.0"
    return Container(["epp"], image, "epp.log", ports, lambda port: fetch, str)


def test_the_picker_counts_its_scheduling_and_its_index_and_nothing_else() -> None:
    names = ("kvcache_index_lookup_hits_total", "llm_d_x_total", "go_gc_total")
    page = "".join(f"# TYPE {name} counter\n{name} 3\n" for name in names).encode()
    picker = Picker.in_pod(container_of(lambda *_, **__: page))
    assert picker.version == "v0.9.0"
    assert picker.counters() == {
        "kvcache_index_lookup_hits_total": 3.0,
        "llm_d_x_total": 3.0,
    }


def test_a_picker_that_does_not_answer_is_named_with_its_log() -> None:
    def fetch(*_: object, **__: object) -> bytes:
        raise HttpError("GET /metrics: no answer")

    with pytest.raises(SidecarError, match=r"endpoint picker: .*; see epp\.log"):
        Picker.in_pod(container_of(fetch)).counters()
