"""llm-d's endpoint picker: what it counts, and its configuration.

The configuration says which scorers choose a replica, and how they know its caches. Weights are those of llm-d's own
charts and guides. What differs between deployments stays open as a placeholder: `{redis_host}`, `{redis_port}` (`valkey`
likewise), `{events_port}`, `{tokenizer_port}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, get_args

from kveval.campaign.release import Release, Routing
from kveval.host.http import HttpError
from kveval.stacks.arms import HASH_SEED
from kveval.stacks.counters import CounterError, parse_counters
from kveval.stacks.sidecar import Container, HttpSidecar, Port, SidecarError

ROUTER_BLOCK_TOKENS = {"scorer": 16, "producer": 64}
"""Tokens of one entry in an approximate scorer's memory: 64 characters, counted as 16 tokens, in the older
generation; at least 64 tokens in the newer one."""
_PRECISE = {
    "scorer": "precise-prefix-cache-scorer",
    "producer": "precise-prefix-cache-producer",
}
_RENDERER = "http://127.0.0.1:{tokenizer_port}"
_COUNTERS = ("kvcache", "llm_d", "inference")

Plugin = dict[str, Any]


class Picker(HttpSidecar):
    """The picker, which runs on clusters alone, from llm-d's charts.

    It has no tier; its index need not be emptied between levels: their prompts differ.
    """

    name = "epp"
    title = "endpoint picker"
    metrics_port = "epp_metrics_port"
    ports: ClassVar[Mapping[str, Port]] = {"epp_metrics_port": Port(9090)}

    @classmethod
    def in_pod(cls, container: Container) -> Self:
        """Return the one in a container, of the version that its image's tag names; run.json has the digest.

        It cannot be asked for its release.
        """
        picker = super().in_pod(container)
        picker.version = container.image.rpartition(":")[2]
        return picker

    def counters(self) -> dict[str, float]:
        """Return its counters of scheduling and of the index. Raises SidecarError."""
        try:
            text = self._fetch("/metrics", timeout_s=10.0).decode()
            counters = parse_counters(text, prefix="")
        except (CounterError, HttpError) as error:
            raise SidecarError(
                f"the endpoint picker: {error}; see {self.log}"
            ) from error
        return {
            name: value
            for name, value in counters.items()
            if name.startswith(_COUNTERS)
        }


@dataclass(frozen=True)
class Index:
    """An index of KV blocks: its store, and the name and block size of the model whose prompts it hashes."""

    store: str
    served_name: str
    block_size: int


def picker_config(
    release: Release, routing: Routing, tier_tokens: int, index: Index | None
) -> dict[str, Any]:
    """Return the EndpointPickerConfig of a deployment.

    `tier_tokens`: what the tier in host memory behind each replica holds, 0 for none; `index`: a precise index,
    which replaces the approximate scorers. Raises ValueError for a routing that is none of `Routing`.
    """
    if routing not in get_args(Routing):
        raise ValueError(f"routing {routing}: known are {', '.join(get_args(Routing))}")
    epp = release.epp
    head = {"apiVersion": epp.api_version, "kind": "EndpointPickerConfig"}
    if index is not None:
        return head | _precise(release, index)
    load: list[Plugin] = [
        {"type": "queue-scorer"},
        {"type": "kv-cache-utilization-scorer"},
    ]
    weights = {"queue-scorer": 2, "kv-cache-utilization-scorer": 2}
    if routing == "prefix":
        prefixes, of_prefixes = (
            [{"type": "prefix-cache-scorer"}],
            {"prefix-cache-scorer": 3},
        )
    else:
        prefixes, of_prefixes = _tiered(epp.prefix_state, tier_tokens)
    return head | {
        "plugins": [*load, *prefixes],
        "schedulingProfiles": [_profile(weights | of_prefixes)],
    }


def _tiered(prefix_state: str, tier_tokens: int) -> tuple[list[Plugin], dict[str, int]]:
    """One approximate scorer for the device, and one for the tier in host memory with that tier's capacity.

    vLLM says how many blocks its device holds, but not how many the tier does, hence the computed capacity.
    """
    tiers: dict[str, Plugin] = {"gpu": {}}
    if tier_tokens:
        # A capacity of 0 entries would be refused; a tier smaller than one entry is of no use anyway.
        entries = max(1, tier_tokens // ROUTER_BLOCK_TOKENS[prefix_state])
        tiers["cpu"] = {
            "parameters": {"autoTune": False, "lruCapacityPerServer": entries}
        }
    plugins: list[Plugin] = []
    if prefix_state == "producer":
        plugins += [
            {
                "type": "approx-prefix-cache-producer",
                "name": f"{tier}-prefix-cache-producer",
                **own,
            }
            for tier, own in tiers.items()
        ]
        tiers = {
            tier: {
                "parameters": {
                    "prefixMatchInfoProducerName": f"{tier}-prefix-cache-producer"
                }
            }
            for tier in tiers
        }
    plugins += [
        {"type": "prefix-cache-scorer", "name": f"{tier}-prefix-cache-scorer", **own}
        for tier, own in tiers.items()
    ]
    return plugins, {f"{tier}-prefix-cache-scorer": 1 for tier in tiers}


def _precise(release: Release, index: Index) -> dict[str, Any]:
    state = release.epp.prefix_state
    hashing = {"blockSize": index.block_size, "hashSeed": HASH_SEED}
    # Both generations have an index in memory by default, which the older one prefers: null removes it.
    store: dict[str, Any] = {"inMemoryConfig": None, "enableMetrics": True}
    address = f"redis://{{{index.store}_host}}:{{{index.store}_port}}"
    load: list[Plugin] = [
        {"type": "kv-cache-utilization-scorer"},
        {"type": "queue-scorer"},
    ]
    weights = {
        "kv-cache-utilization-scorer": 1,
        "queue-scorer": 1,
        "max-score-picker": None,
    }
    if state == "scorer":
        # Without a writable folder, the picker's request for a tokenizer never returns.
        tokenizers = {"hf": {"tokenizersCacheDir": release.epp.tokenizer_cache}}
        store[f"{index.store}Config"] = {"address": address, "backendType": index.store}
        scorer: Plugin = {
            "type": _PRECISE[state],
            "parameters": {
                "indexerConfig": {
                    "tokenProcessorConfig": hashing,
                    "kvBlockIndexConfig": store,
                    "tokenizersPoolConfig": tokenizers,
                },
                "kvEventsConfig": {
                    "zmqEndpoint": "tcp://*:{events_port}",
                    "topicFilter": "kv@",
                    "concurrency": 4,
                },
            },
        }
        return {
            "plugins": [
                {"type": "single-profile-handler"},
                scorer,
                *load,
                {"type": "max-score-picker"},
            ],
            "schedulingProfiles": [_profile({_PRECISE[state]: 2, **weights})],
        }
    # A Valkey server is addressed like Redis.
    store["redisConfig"] = {"address": address}
    producer: Plugin = {
        "type": _PRECISE[state],
        "parameters": {
            "tokenProcessorConfig": hashing,
            "indexerConfig": {"kvBlockIndexConfig": store},
            "kvEventsConfig": {
                "topicFilter": "kv@",
                "concurrency": 4,
                "discoverPods": True,
                "podDiscoveryConfig": {"socketPort": "{events_port}"},
            },
        },
    }
    sources = {
        "metrics-data-source": "core-metrics-extractor",
        "endpoint-notification-source": _PRECISE[state],
    }
    return {
        "plugins": [
            # Without it, four bytes count as a token, and nothing is ever found in the index.
            {
                "type": "token-producer",
                "parameters": {
                    "modelName": index.served_name,
                    "vllm": {"url": _RENDERER},
                },
            },
            *({"type": name} for name in sources),
            {"type": "core-metrics-extractor"},
            {"type": "single-profile-handler"},
            producer,
            {
                "type": "prefix-cache-scorer",
                "parameters": {"prefixMatchInfoProducerName": _PRECISE[state]},
            },
            *load,
            {"type": "max-score-picker"},
        ],
        "dataLayer": {
            "sources": [
                {"pluginRef": source, "extractors": [{"pluginRef": extractor}]}
                for source, extractor in sources.items()
            ]
        },
        "schedulingProfiles": [_profile({"prefix-cache-scorer": 2, **weights})],
    }


def _profile(weights: Mapping[str, int | None]) -> dict[str, Any]:
    return {
        "name": "default",
        "plugins": [
            {"pluginRef": name, **({} if weight is None else {"weight": weight})}
            for name, weight in weights.items()
        ],
    }
