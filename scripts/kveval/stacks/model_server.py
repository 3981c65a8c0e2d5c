"""A program that serves models, for the configuration, the engines and the analysis: the class that each one fills in.

Its other half, which needs no campaign, is `running_server`.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kveval.campaign.cache_layout import CacheLayout, Retention
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import Gpu, Scenario
from kveval.campaign.device_estimate import DeviceEstimate
from kveval.campaign.metric import name_for
from kveval.campaign.sizing import CacheSizes, pinned_bytes
from kveval.campaign.specification import ServedModel, Specification
from kveval.campaign.types import BLOCK_TOKENS
from kveval.host.findings import Remark
from kveval.host.logs import PLAIN, LogForm
from kveval.stacks.arms import ArmArguments, ArmError, Platform
from kveval.stacks.running_server import RunningServer
from kveval.stacks.settings import ServerSettings
from kveval.stacks.talk import Ask

Arm = Callable[[Scenario, Platform, CacheSizes], ArmArguments]
"""What a kind of arm adds to the server; raises ArmError where a version cannot run it."""
_BATCH_TOKENS = 2048
TERMS: Mapping[str, str] = {
    "generation_tokens": "output tokens",
    "prompt_tokens": "prompt tokens",
    "requests_completed": "requests that were answered",
    "requests_running": "requests that are computed now",
    "requests_waiting": "requests that wait now",
    "requests_preempted": "requests whose blocks another one took",
    "kv_cache_usage": "share of the device's cache in use, 0 to 1",
    "prefix_cache_queries": "prompt tokens looked up in the device's cache",
    "prefix_cache_hits": "prompt tokens that the device's cache served",
    "external_prefix_cache_queries": "prompt tokens looked up in what is behind the device",
    "external_prefix_cache_hits": "prompt tokens that what is behind the device served",
    "offload_load_bytes": "bytes from the server's own tier to the device",
    "offload_store_bytes": "bytes from the device to the server's own tier",
    "offload_load_seconds": "seconds of these loads",
    "offload_store_seconds": "seconds of these stores",
    "file_tier_read_bytes": "bytes read from the tier of files",
    "file_tier_written_bytes": "bytes written to the tier of files",
    "tier_chunk_queries": "chunks looked up in each tier behind the device",
    "tier_chunk_hits": "of these, those that were there",
    "tier_lookup_seconds": "such lookups by the seconds that they blocked, cumulative",
    "tier_deferred_seconds": "such lookups that were put off by the seconds until they had an answer, cumulative",
    "lookup_seconds": "lookups of prompts behind the device by the seconds that they blocked, cumulative",
    "deferred_seconds": "such lookups that were put off by the seconds until they had an answer, cumulative",
    "delivered_device_tokens": "prompt tokens not computed, as the device's cache delivered them",
    "delivered_external_tokens": "prompt tokens not computed, as what is behind the device delivered them",
    "stores_dropped": "blocks not stored because the tier behind the first was slow",
    "stores_skipped": "blocks not stored because they were not asked for often enough",
    "store_allocations_failed": "stores for which the first tier had no room",
    "stores_behind_failed": "stores to the tier behind the first that failed",
    "promotions_failed": "loads from the tier behind the first that failed",
    "promotion_allocations_failed": "loads from it for which the first tier had no room",
    "queue_seconds_sum": "seconds that requests waited",
    "queue_seconds_count": "requests in that sum",
    "prefill_seconds_sum": "seconds of prefill",
    "prefill_seconds_count": "requests in that sum",
    "ttft_seconds_sum": "seconds to the first token",
    "ttft_seconds_count": "requests in that sum",
}
"""The terms that catalogues, checks and tables have for what a server counts, under which each server has its names."""


class ModelServer(RunningServer):
    """A program that campaigns start; a subclass is complete with the attributes without a value and the abstract methods.

    Those of RunningServer included.

    Attributes:
        arms: what an arm adds, by kind of arm.
        arm_flags: flags that belong to arms, so that nobody else may give them.
        flags_per_start: flags whose values differ from start to start.
        settings: what its arguments and variables set, for comparisons of two servers.
        invented_counters: names that circulate as its counters, but that no version has.
        log_form: how its log reports why it died.
        plugins: folder of modules that its process imports, None for none.
    """

    arms: ClassVar[Mapping[str, Arm]]
    arm_flags: ClassVar[frozenset[str]] = frozenset()
    flags_per_start: ClassVar[frozenset[str]] = frozenset()
    settings: ClassVar[ServerSettings] = ServerSettings()
    invented_counters: ClassVar[frozenset[str]] = frozenset()
    log_form: ClassVar[LogForm] = PLAIN
    plugins: ClassVar[Path | None] = None

    # Arguments and environment.

    @abstractmethod
    def common_arguments(
        self, model: ServedModel, server: ServerConfig, engine: str
    ) -> tuple[str, ...]:
        """Return the arguments that every arm shares; `engine`: "local" or "kubernetes"."""

    @abstractmethod
    def common_environment(
        self, model: ServedModel, server: ServerConfig
    ) -> dict[str, str]:
        """Return the environment that every arm shares."""

    def arm_arguments(
        self, scenario: Scenario, platform: Platform, sizes: CacheSizes
    ) -> ArmArguments:
        """Return what `scenario` adds to the server. Raises ArmError when this server cannot run it."""
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

    def refusals(
        self,
        model: ServedModel,
        argv: Sequence[str],
        version: str,
        block_size: int,
        *,
        on_cpu: bool,
    ) -> Iterable[tuple[str, str, str]]:
        """Yield what it cannot run, or must not: what is wrong, what would be right, a code."""
        return ()

    @abstractmethod
    def command(self, environment: Path) -> list[str]:
        """Return the command that starts it from a virtual environment; the specification's arguments are appended."""

    @abstractmethod
    def container_command(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return command and arguments of its container, from the specification's arguments."""

    def tokenizer(self, model: str, served_name: str) -> tuple[str, ...]:
        """Return the command that tokenizes for an index on a cluster. Raises ArmError if there is none."""
        message = f"{self.title} has no command that tokenizes for an index; use arms without one"
        raise ArmError(message)

    def distributions(self, build: str) -> Sequence[str]:
        """Return the names of the Python distributions that may contain it, the build's own first."""
        return (build, self.name)

    # Sizes, and what its caches keep.

    def lmcache_form(self, platform: Platform) -> str:
        """Return whether LMCache is inside the server's "process" or a "server" of its own."""
        return "server"

    def reset_reaches_tiers(self, platform: Platform) -> bool:
        """Tell whether emptying the caches of a running server reaches the tiers in host memory."""
        return True

    def offloads(self, argv: Sequence[str]) -> bool:
        """Tell whether the server's own tier in host memory or files is behind its device."""
        return False

    def modules(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the names of the Python modules that its arguments have it load."""
        return ()

    def serves_from_device(self, argv: Sequence[str]) -> bool:
        """Tell whether what the device holds of finished requests serves later ones."""
        return True

    def batch_tokens(
        self, argv: Sequence[str], gpus: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Return the most tokens that it computes in one batch; `gpus`: that it runs on, as run.json has them."""
        return _BATCH_TOKENS

    def pinned_layouts(
        self, argv: Sequence[str], version: str, layers: int, *, on_cpu: bool
    ) -> Sequence[int]:
        """Return the numbers of tensors that a rank may pin its share of the native tier as; none: nothing is rounded."""
        return ()

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
        layers = model.geometry.layers
        layouts = self.pinned_layouts(argv, version, layers, on_cpu=on_cpu)
        pinned = pinned_bytes(native, model.tensor_parallel_size, layouts)
        return sizes.host_bytes - native + pinned

    def shared_memory_bytes(self, specification: Specification) -> int:
        """Return the bytes of /dev/shm that it allocates: its queues, and the tier if it is kept there."""
        return 0

    def retention(self, argv: Sequence[str], version: str) -> Retention:
        """Return which windows and states of a prompt it keeps, and in which steps prompts are compared."""
        return Retention()

    def unserved_prefix(
        self, layout: CacheLayout, prefix_tokens: int
    ) -> Iterable[Remark]:
        """Yield why its tier serves nothing of a shared prefix."""
        return ()

    def device_estimate(
        self, specification: Specification, gpu: Gpu, name: str
    ) -> DeviceEstimate | None:
        """Return an estimate of what its device holds, on a GPU of this name; None if there is none."""
        return None

    def wrong_answers(self, argv: Sequence[str], *, on_cpu: bool) -> str:
        """Return why its tier is known to give wrong answers; "" if it is not."""
        return ""

    # Names on the wire, and what proves that a cache served.

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

    def required_counters(
        self, scenario: Scenario, platform: Platform
    ) -> tuple[dict[str, Any], ...]:
        """Return the counters that an arm requires, by their names in this release.

        Those of later releases are left out, and those of an LMCache server if there is none.
        """
        lmcache_inside = (
            "lmcache" in scenario.kind.parts
            and self.lmcache_form(platform) == "process"
        )
        version, counters = platform.server_version, []
        for counter in scenario.exercised:
            name = name_for(counter.name, version)
            if name is None:
                continue
            # Other names are those of programs beside the server.
            if name in TERMS:
                name = self.on_wire(name, version)
            elsewhere = lmcache_inside and counter.of == "lmcache server"
            if name is not None and not elsewhere:
                counters.append(
                    {
                        "counter": name,
                        "at_least": counter.at_least,
                        "unit": counter.unit,
                    }
                )
        return tuple(counters)

    # What it says at its start, and its processes.

    def startup_facts(self, log_text: str) -> dict[str, Any]:
        """Return what a log's text reports at the start, as far as it does.

        kv_cache_tokens: of the device; max_concurrency: requests of full length at once; tier_bytes: the tier in host
        memory.
        """
        return {}

    def release_in_log(self, log_text: str) -> str | None:
        """Return the release that a log's text names, None if it names none."""
        return None

    def is_part(self, title: str) -> bool:
        """Tell whether a process with this title is one that the server cannot serve without."""
        return False

    def publishes_events(self, argv: Sequence[str]) -> bool:
        """Tell whether it publishes events of blocks that its caches store and evict."""
        return False

    # A running server.

    @abstractmethod
    def generated(
        self, ask: Ask, served_model: str, prompt_tokens: int, timeout_s: float
    ) -> int:
        """Request a few tokens for a prompt of `prompt_tokens` tokens; return how many it generated."""
