"""The facts of a server's software for the specification and the analysis, under names that all servers share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveval.campaign.arms import ArmArguments, ArmError, Platform
from kveval.campaign.cache_layout import CacheLayout, Retention
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import Gpu, Scenario, name_for
from kveval.campaign.device_estimate import DeviceEstimate
from kveval.campaign.sizing import CacheSizes, pinned_bytes
from kveval.campaign.specification import ServedModel, Specification
from kveval.campaign.types import BLOCK_TOKENS

Arm = Callable[[Scenario, Platform, CacheSizes], ArmArguments]
_BATCH_TOKENS = 2048


def _no_tokenizer(model: str, served_name: str) -> tuple[str, ...]:
    raise ArmError(
        "this server has no command that tokenizes for an index; use arms without one"
    )


@dataclass(frozen=True)
class ServerSoftware:
    """The names and the arguments of one server's software.

    Attributes:
        name: its key among the versions of a specification, and its name among the sources of a recording.
        title: the name in sentences.
        prefix: what the names of its counters begin with.
        metrics: term (generation_tokens, prefix_cache_hits, requests_running, ...) -> {first version: name on wire};
            "*" is before all versions, and a name may carry one label.
        common_arguments: given model, server and engine ("local" or "kubernetes"), those that every arm shares.
        common_environment: given model and server, what every arm shares.
        arms: what an arm adds, by kind of arm; raises ArmError when a version cannot run it.
        arm_flags: flags that belong to arms, so that nobody else may give them.
        flags_per_start: flags whose values differ from start to start.
        invented_counters: names that circulate as its counters, but that no version has.
        lmcache_form: whether LMCache is inside the server's "process" or a "server" of its own.
        reset_reaches_tiers: whether emptying the caches of a running server reaches the tiers in host memory.
        pinned_layouts: given arguments, release, layers and whether the device is a CPU, the numbers of tensors that a
            rank may pin its share of the native tier as; none if nothing is rounded up.
        batch_tokens: given arguments, the most tokens that it computes in one batch.
        startup_facts: given a log's text, what it reports at start-up, as far as it does. kv_cache_tokens: of the
            device; max_concurrency: requests of full length at once; tier_bytes: the tier in host memory.
        release_in_log: given a log's text, the release that it names, None if it names none.
        tokenizer: given model and served name, the command that tokenizes for an index on a cluster.
        offloads: given arguments, whether the server's own tier in host memory or files is behind its device.
        serves_from_device: given arguments, whether what the device holds of finished requests serves later ones.
        retention: given arguments and release, which windows and states of a prompt it keeps.
        unserved_prefix: given layout of the cache and tokens of a shared prefix, why its tier serves none of them: a code,
            the reason, what helps.
        refusals: given model, arguments and whether the device is a CPU, what it cannot run, or must not: what is
            wrong, what would be right, a code.
        device_estimate: given a specification, a GPU and its name, an estimate of what the server's device holds; None
            if there is none.
        wrong_answers: given arguments and whether the device is a CPU, why its tier is known to give wrong answers; ""
            if it is not.
    """

    name: str
    title: str
    prefix: str
    metrics: Mapping[str, Mapping[str, str]]
    common_arguments: Callable[[ServedModel, ServerConfig, str], tuple[str, ...]]
    common_environment: Callable[[ServedModel, ServerConfig], dict[str, str]]
    arms: Mapping[str, Arm]
    arm_flags: frozenset[str] = frozenset()
    flags_per_start: frozenset[str] = frozenset()
    invented_counters: frozenset[str] = frozenset()
    lmcache_form: Callable[[Platform], str] = lambda platform: "server"
    reset_reaches_tiers: Callable[[Platform], bool] = lambda platform: True
    pinned_layouts: Callable[[Sequence[str], str, int, bool], Sequence[int]] = (
        lambda argv, version, layers, on_cpu: ()
    )
    batch_tokens: Callable[[Sequence[str]], int] = lambda argv: _BATCH_TOKENS
    startup_facts: Callable[[str], dict[str, Any]] = lambda log_text: {}
    release_in_log: Callable[[str], str | None] = lambda log_text: None
    tokenizer: Callable[[str, str], tuple[str, ...]] = _no_tokenizer
    offloads: Callable[[Sequence[str]], bool] = lambda argv: False
    serves_from_device: Callable[[Sequence[str]], bool] = lambda argv: True
    retention: Callable[[Sequence[str], str], Retention] = lambda argv, version: (
        Retention()
    )
    unserved_prefix: Callable[[CacheLayout, int], Iterable[tuple[str, str, str]]] = (
        lambda layout, prefix_tokens: ()
    )
    refusals: Callable[..., Iterable[tuple[str, str, str]]] = (
        lambda model, argv, version, block_size, *, on_cpu: ()
    )
    device_estimate: Callable[[Specification, Gpu, str], DeviceEstimate | None] = (
        lambda specification, gpu, name: None
    )
    wrong_answers: Callable[..., str] = lambda argv, *, on_cpu: ""

    def arm_arguments(
        self, scenario: Scenario, platform: Platform, sizes: CacheSizes
    ) -> ArmArguments:
        """Return what `scenario` adds to the server. Raises ArmError when this software cannot run it."""
        if scenario.arm not in self.arms:
            message = f"{self.title} has no arguments for arm {scenario.arm}; it has {', '.join(self.arms)}"
            raise ArmError(message, code="not_of_this_server")
        if scenario.cpu_tier and sizes.tier_blocks < 1:
            block = f"one server block of {platform.block_size} tokens ({platform.block_size // BLOCK_TOKENS} cpu_blocks)"
            raise ArmError(
                f"{sizes.cpu_blocks} cpu_blocks are less than {block}",
                code="less_than_a_block",
            )
        return self.arms[scenario.arm](scenario, platform, sizes)

    def held_bytes(
        self,
        argv: Sequence[str],
        version: str,
        model: ServedModel,
        sizes: CacheSizes,
        *,
        on_cpu: bool,
    ) -> int:
        """Return the host memory that the tier takes, bytes: its size, as rounded up by its allocator."""
        native = sizes.split.get("native_bytes", sizes.host_bytes)
        layouts = self.pinned_layouts(argv, version, model.geometry.layers, on_cpu)
        return (
            sizes.host_bytes
            - native
            + pinned_bytes(native, model.tensor_parallel_size, layouts)
        )

    def on_wire(self, metric: str, version: str) -> str | None:
        """Return the name on the wire of a metric in a release; None where it has none."""
        return name_for(self.metrics.get(metric, {}), version)

    def recorded(self, metric: str, version: str) -> str | None:
        """Return the PCP name of a metric in a release; None if it has none of its own, but a label.

        For an unknown release ("0"), or one older than the metric, it is the oldest name: the recording decides.
        """
        name = self.on_wire(metric, version) or next(
            iter(self.metrics.get(metric, {}).values()), None
        )
        return (
            None
            if name is None or "{" in name
            else f"openmetrics.{self.name}.{name.replace(':', '.')}"
        )
