"""vLLM: its API server with engine and workers. The one class of all that is known of it.

Beside it are what each kind of arm adds (`vllm_arms`), the names of its counters and its log (`vllm_wire`), and how
much of a GPU it leaves to its cache (`vllm_memory`).
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from packaging.version import InvalidVersion, Version

from kveval.campaign import sizing
from kveval.campaign.cache_layout import CacheLayout, Retention
from kveval.campaign.campaign_file import ServerConfig
from kveval.campaign.catalogue import Gpu
from kveval.campaign.device_estimate import DeviceEstimate
from kveval.campaign.specification import ServedModel, Specification
from kveval.campaign.verbatim import modules_of
from kveval.host.findings import Remark
from kveval.host.http import HttpError
from kveval.host.logs import LogForm
from kveval.stacks import vllm_arms, vllm_wire
from kveval.stacks.arms import HASH_SEED, Platform
from kveval.stacks.counters import MetricSample
from kveval.stacks.model_server import Arm, ModelServer
from kveval.stacks.running_server import Completion, RunningFacts
from kveval.stacks.talk import Ask
from kveval.stacks.vllm_memory import default_batch_tokens, estimate_for, given_flags
from kveval.stacks.vllm_settings import SETTINGS

# From this release on the native tier of a GPU server is one file in /dev/shm, as the tier before files always was
# (vllm/v1/kv_offload/cpu/spec.py); earlier ones pin private memory.
_SHARED_TIER_SINCE = Version("0.27")
# From this release on the connector asks for all layers of a block in one tensor, which not every attention backend
# gives (vllm/v1/worker/kv_connector_model_runner_mixin.py).
_LAYERS_JOINED_SINCE = Version("0.12")
# From this release on windows and states of a prompt are kept at its end alone, and an argument asks for more; earlier
# ones keep all (vllm#52216).
_KEPT_AT_THE_END_SINCE = Version("0.29")
# From this release on a request can limit what is loaded for it (offloading/scheduler.py of vLLM's connectors).
_SWITCHES_LOADING_SINCE = Version("0.32")
_WITHOUT_LOADING = {"kv_transfer_params": {"max_load_tokens": 0}}
_INTERVAL, _MATCH_UNIT = "--prefix-cache-retention-interval", "--prefix-match-unit"
# vLLM's default on CPUs, and on GPUs below 70 GiB.
_MIB = 2**20
# Shared-memory queues between its processes: one to all workers, one back from each.
_QUEUE_TO_WORKERS_BYTES = 160 * _MIB
_QUEUE_FROM_WORKER_BYTES = 240 * _MIB
# Time for a short answer, and for what the server compiles at the first request for log-probabilities.
_GREEDY_S = 120.0


class Vllm(ModelServer):
    """vLLM, installed from a wheel or in its image."""

    name = "vllm"
    title = "vLLM"
    prefix = "vllm:"
    metrics = vllm_wire.METRICS
    arms: ClassVar[dict[str, Arm]] = {
        "none": vllm_arms.none,
        "native": vllm_arms.native,
        "lmcache": vllm_arms.lmcache,
        "files": vllm_arms.files,
        "hybrid": vllm_arms.hybrid,
        "llm-d-index": vllm_arms.llm_d_index,
        "verbatim": vllm_arms.verbatim,
    }
    arm_flags = frozenset(
        {
            "--kv-transfer-config",
            "--kv-offloading-size",
            "--kv-offloading-backend",
            "--kv-events-config",
        }
    )
    flags_per_start = frozenset({"--port"})
    settings = SETTINGS
    # They circulate in articles.
    invented_counters = frozenset(
        {
            "vllm_kv_offload_total",
            "vllm_kv_offload_bytes",
            "vllm_kv_reload_total",
            "vllm_kv_cache_hit_rate",
            "kv_cache_hit_rate",
        }
    )
    health_path = "/health"
    model_path = "/v1/models"
    # The salt is part of a text's first block (vllm/v1/core/kv_cache_utils.py).
    salted = True
    empties_device_alone = True
    advice = vllm_wire.ADVICE
    plugins = Path(__file__).resolve().parents[1] / "engines" / "local" / "plugin"
    log_form = LogForm(
        # Every line begins with "(EngineCore pid=12) ", then, unless it is plain output, "ERROR 11-21 ...] ".
        speaker=re.compile(r"^\((?P<who>[^()]+?) pid=\d+\)\s?"),
        telling=re.compile(r"\bproc \S+ died unexpectedly"),
        hearsay=re.compile(
            r"Engine core initialization failed|EngineDeadError|EngineCore (?:encountered an issue|failed to start)"
            r"|initialization failed due to an exception in a background process|See (?:root cause|stack trace)"
        ),
        # A process that another one started fails first; its log lines have the cause.
        depths={"Worker": 2, "EngineCore": 1},
    )

    def common_arguments(
        self, model: ServedModel, server: ServerConfig, engine: str
    ) -> tuple[str, ...]:
        """Return the server arguments that every arm shares."""
        miniature = server.weights == "miniature"
        folder = _in_a_folder(model, server)
        argv = [
            "--model",
            "{model_dir}" if folder else model.hf_id,
            "--served-model-name",
            model.served_name,
        ]
        if server.weights != "full":
            argv += ["--load-format", "dummy"]
        if miniature or server.on_cpu:
            argv += ["--enforce-eager"]
        argv += ["--dtype", model.dtype, "--block-size", str(server.block_size)]
        if model.kv_cache_dtype != "auto":
            argv += ["--kv-cache-dtype", model.kv_cache_dtype]
        if server.device_blocks is not None:
            blocks = self._device_layout(model, server)[0]
            argv += ["--num-gpu-blocks-override", str(blocks)]
        if model.gpu_memory_utilization is not None:
            argv += ["--gpu-memory-utilization", repr(model.gpu_memory_utilization)]
        if not miniature:
            argv += ["--tensor-parallel-size", str(model.tensor_parallel_size)]
        argv += ["--max-model-len", str(model.max_model_len)]
        if server.max_num_seqs is not None:
            argv += ["--max-num-seqs", str(server.max_num_seqs)]
        host = "127.0.0.1" if engine == "local" else "0.0.0.0"
        return (*argv, "--host", host, "--port", "{port}", "--no-enable-log-requests")

    def common_environment(
        self, model: ServedModel, server: ServerConfig
    ) -> dict[str, str]:
        """Return the server environment that every arm shares."""
        env = {
            "PYTHONHASHSEED": HASH_SEED,
            # The endpoint that empties the caches between levels is a development one.
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        if _in_a_folder(model, server):
            env["HF_HUB_OFFLINE"] = "1"
        if server.on_cpu:
            # With a KV connector vLLM would keep one more core from its worker than without: an arm and its baseline would
            # then run on different numbers of cores.
            env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "1"
        if server.on_cpu and server.device_tokens is not None:
            # Whole GiB only; the override of the number of blocks then takes what it needs of it.
            device_bytes = self._device_layout(model, server)[1]
            env["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(sizing.gib(device_bytes)))
        return env

    def _device_layout(
        self, model: ServedModel, server: ServerConfig
    ) -> tuple[int, int]:
        """Return the blocks of the device's pool, of a server with `device_blocks`, and their bytes.

        With layers of several kinds so many that the device holds `device_tokens` in conversations of full length, which is
        what the server reports as its size (get_kv_cache_capacity in vllm/v1/core/kv_cache_utils.py).
        """
        assert server.device_blocks is not None and server.device_tokens is not None
        if not model.geometry.grouped:
            blocks = sizing.server_blocks(server.device_blocks, server.block_size)
            return blocks, server.device_tokens * model.kv_bytes_per_token
        layout = CacheLayout.from_model(
            model,
            server.block_size,
            on_cpu=server.on_cpu,
            retention=self.retention(server.args, server.declared_version),
        )
        longest = model.max_model_len
        needed = layout.blocks_in_use(longest, self.batch_tokens(server.args))
        blocks = -(-server.device_tokens * needed // longest)
        return blocks, blocks * layout.row_bytes

    def refusals(
        self,
        model: ServedModel,
        argv: Sequence[str],
        version: str,
        block_size: int,
        *,
        on_cpu: bool,
    ) -> Iterator[tuple[str, str, str]]:
        """Yield combinations that a server ignores, refuses after its model is loaded, or answers wrongly with."""
        tier = self.offloads(argv) or any("LMCache" in argument for argument in argv)
        if self.offloads(argv) and any(name.startswith("--spec") for name in argv):
            what = "speculative decoding together with the server's own tier: the drafting layers make every lookup a miss"
            yield f"{what} (vllm#47890)", "one of them", "speculative_offload"
        shape = model.geometry
        if shape.latent is not None and on_cpu and tier:
            what = f"{model.name} has latent attention (MLA), and a tier behind it on a CPU gave wrong answers"
            yield what, "no-offload, or a GPU", "latent_on_cpu"
        if shape.recurrent is not None and on_cpu and "LMCacheMPConnector" in str(argv):
            what = f"{model.name} has layers with a recurrent state, with which LMCache 0.5 starts in no mode on a CPU"
            yield what, "native-offload", "lmcache_recurrent"
        interval = given_flags(argv).get(_INTERVAL, "")
        if not interval.isdecimal() or not int(interval):
            return
        if not shape.grouped:
            what = f"{model.name} has no windows or states that {_INTERVAL} could keep, and the server does not start with it"
            right = "extra_args of the models that have them"
            yield what, right, "retention_without_windows"
            return
        layout = CacheLayout.from_model(
            model, block_size, on_cpu=on_cpu, retention=self.retention(argv, version)
        )
        step = math.lcm(*(group.block_tokens for group in layout.groups))
        if int(interval) % step:
            what = f"{_INTERVAL} {interval} is no multiple of the blocks of {model.name}, {step} tokens"
            right = str(max(1, round(int(interval) / step)) * step)
            yield what, right, "retention_uneven"

    def command(self, environment: Path) -> list[str]:
        """Return Python with the module of the API server."""
        return [
            str(environment / "bin" / "python"),
            "-m",
            "vllm.entrypoints.openai.api_server",
        ]

    def container_command(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return `vllm serve`, which takes the model without --model."""
        place = argv.index("--model")
        return ["vllm", "serve"], [argv[place + 1], *argv[:place], *argv[place + 2 :]]

    def tokenizer(self, model: str, served_name: str) -> tuple[str, ...]:
        """Return the command of a server without a device, which turns prompts into the model's tokens."""
        named = ("--served-model-name", served_name)
        return (
            "vllm",
            "launch",
            "render",
            model,
            *named,
            "--host",
            "0.0.0.0",
            "--port",
            "{tokenizer_port}",
        )

    def lmcache_form(self, platform: Platform) -> str:
        """Return where LMCache is; a server of its own is the only form for a CPU."""
        return vllm_arms.lmcache_form(platform)

    def reset_reaches_tiers(self, platform: Platform) -> bool:
        """Tell whether the release can reset the connector as well."""
        return platform.version >= Version("0.24")

    def offloads(self, argv: Sequence[str]) -> bool:
        """Tell whether a connector of its own is configured, by flag or by name."""
        return "--kv-offloading-size" in argv or any(
            '"OffloadingConnector"' in argument for argument in argv
        )

    def modules(self, argv: Sequence[str]) -> list[str]:
        """Return the modules that --kv-transfer-config names by its keys on module_path."""
        given = given_flags(argv).get("--kv-transfer-config", "")
        try:
            return modules_of(json.loads(given))
        except ValueError:
            return []

    def serves_from_device(self, argv: Sequence[str]) -> bool:
        """Tell whether the prefix cache is on, as it is by default."""
        return "--no-enable-prefix-caching" not in argv

    def batch_tokens(
        self, argv: Sequence[str], gpus: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Return --max-num-batched-tokens, or its default on these GPUs."""
        flag = "--max-num-batched-tokens"
        if flag in argv:
            return int(argv[argv.index(flag) + 1])
        return default_batch_tokens(gpus)

    def pinned_layouts(
        self, argv: Sequence[str], version: str, layers: int, *, on_cpu: bool
    ) -> tuple[int, ...]:
        """Return the numbers of tensors of a tier in private pinned memory: one, or one a layer."""
        if (
            on_cpu
            or not self.offloads(argv)
            or self._shares_native_tier(argv, version, on_cpu=on_cpu)
        ):
            return ()
        return (layers,) if Version(version) < _LAYERS_JOINED_SINCE else (1, layers)

    def shared_memory_bytes(self, specification: Specification) -> int:
        """Return the bytes of its queues, the tier if it is kept there, and a device cache that LMCache shares."""
        model, budget = specification.model, specification.budget
        ranks, on_cpu = model.tensor_parallel_size, specification.on_cpu
        # A single GPU's worker lives in the engine's process.
        queues = (
            _QUEUE_TO_WORKERS_BYTES + ranks * _QUEUE_FROM_WORKER_BYTES
            if on_cpu or ranks > 1
            else 0
        )
        shared = self._shares_native_tier(
            specification.argv, specification.versions[self.name], on_cpu=on_cpu
        )
        # LMCache's server reads and writes a CPU device's cache in place.
        in_place = on_cpu and any(
            "LMCacheMPConnector" in argument for argument in specification.argv
        )
        device = (
            (budget.device_tokens or 0) * model.kv_bytes_per_token if in_place else 0
        )
        return queues + (budget.host_bytes if shared else 0) + device

    def _shares_native_tier(
        self, argv: Sequence[str], version: str, *, on_cpu: bool
    ) -> bool:
        """Whether the native tier is a file in /dev/shm."""
        if any("TieringOffloadingSpec" in argument for argument in argv):
            return True
        if on_cpu or not self.offloads(argv):
            return False
        return Version(version) >= _SHARED_TIER_SINCE

    def retention(self, argv: Sequence[str], version: str) -> Retention:
        """Return what is kept of windows and states, and in which steps prompts are compared."""
        flags = given_flags(argv)
        interval, match = flags.get(_INTERVAL, ""), flags.get(_MATCH_UNIT, "")
        kept = 0 if Version(version) >= _KEPT_AT_THE_END_SINCE else None
        return Retention(
            interval_tokens=int(interval) if interval.isdecimal() else kept,
            match_tokens=int(match) if match.isdecimal() else None,
            grouped="--disable-hybrid-kv-cache-manager" not in argv,
        )

    def unserved_prefix(
        self, layout: CacheLayout, prefix_tokens: int
    ) -> Iterator[Remark]:
        """Yield why a shared prefix is stored and never loaded, and the argument that helps."""
        step = layout.match_tokens
        facts: dict[str, Any] = {"prefix_tokens": prefix_tokens, "block_tokens": step}
        if 0 < prefix_tokens < step:
            facts |= {"issue": "vllm#53749", "argument": _MATCH_UNIT}
            yield Remark(
                "prefix_below_block",
                "warning",
                facts,
                "a shared prefix of {prefix_tokens:,} tokens is shorter than a block of {block_tokens:,} ({issue})",
                "longer prefixes, or {argument}",
            )
        elif prefix_tokens and not layout.shared_tokens(prefix_tokens):
            facts |= {"issue": "vllm#53595", "argument": _INTERVAL}
            facts["interval_tokens"] = prefix_tokens // step * step
            yield Remark(
                "windows_at_the_end",
                "warning",
                facts,
                "of {prefix_tokens:,} shared tokens it keeps windows or states at the end of each prompt alone ({issue})",
                "server.args: [{argument}, '{interval_tokens}']",
            )

    def device_estimate(
        self, specification: Specification, gpu: Gpu, name: str
    ) -> DeviceEstimate | None:
        """Return what a GPU's memory leaves to the cache, see `vllm_memory`."""
        return estimate_for(specification, gpu, name)

    def wrong_answers(self, argv: Sequence[str], *, on_cpu: bool) -> str:
        """Return why a server with these arguments gives wrong answers from its tier, "" if nothing is known to.

        On a CPU LMCache moves the device's cache into shared memory when it is registered
        (lmcache/v1/platform/devices/cpu/shm.py). MultiConnector registers in the order given: a native tier before it keeps
        the address of the memory that was left, and copies stale blocks.
        """
        flag = "--kv-transfer-config"
        value = next(
            (value for name, value in itertools.pairwise(argv) if name == flag), ""
        )
        if not on_cpu or not value:
            return ""
        try:
            # A port that is not filled in is no number.
            config = json.loads(re.sub(r"(?<!\")\{\w+_port\}(?!\")", "0", value))
        except ValueError:
            return ""
        parts = config.get("kv_connector_extra_config", {}).get("connectors", ())
        names = [part.get("kv_connector", "") for part in parts]
        if "OffloadingConnector" not in names:
            return ""
        after_native = names[names.index("OffloadingConnector") + 1 :]
        if not any(name.startswith("LMCache") for name in after_native):
            return ""
        return "vLLM's own tier was registered before LMCache, which moves the device's cache on a CPU: wrong answers"

    def startup_facts(self, log_text: str) -> dict[str, Any]:
        """Return the device's capacity, the tier and the version of random weights, see `vllm_wire`."""
        return vllm_wire.startup_facts(log_text)

    def release_in_log(self, log_text: str) -> str | None:
        """Return the release that the log of a start names."""
        return vllm_wire.release_in_log(log_text)

    def is_part(self, title: str) -> bool:
        """Tell whether this is a title of a vLLM process: VLLM::EngineCore, VLLM::Worker_TP0 and so on."""
        return title.startswith("VLLM::")

    def publishes_events(self, argv: Sequence[str]) -> bool:
        """Tell whether the events of its caches are configured."""
        return "--kv-events-config" in argv

    def facts(self, samples: Sequence[MetricSample], ask: Ask) -> RunningFacts:
        """Return what the labels of its metrics tell, and its arguments where the development endpoint is open."""
        try:
            info = ask("/server_info?config_format=json")
        except HttpError:
            info = None
        return vllm_wire.server_facts(samples, info)

    def text_request(
        self, model: str, text: str, tokens: int, *, salt: str = "", loads: bool = True
    ) -> dict[str, Any]:
        """Return the body of a stream that also has the ids of its tokens, and always so many of them."""
        body = super().text_request(model, text, tokens, salt=salt)
        body |= {"seed": 0, "ignore_eos": True, "return_token_ids": True}
        return body | ({} if loads else _WITHOUT_LOADING)

    def without_loading(self, version: str) -> Mapping[str, Any] | None:
        """Return the parameter that vLLM's own connectors read, from 0.32 on."""
        try:
            knows = Version(version) >= _SWITCHES_LOADING_SINCE
        except InvalidVersion:
            return None
        return _WITHOUT_LOADING if knows else None

    def switches_loading(self, version: str, facts: RunningFacts) -> bool:
        """Tell whether the connector is vLLM's own, of a release that reads `max_load_tokens`."""
        own = "OffloadingConnector" in (facts.connector or "")
        return own and self.without_loading(version) is not None

    def version(self, ask: Ask) -> str:
        """Return the release from /version."""
        answer = ask("/version")
        return str(answer.get("version", "")) if isinstance(answer, dict) else ""

    def models(self, ask: Ask) -> list[str]:
        """Return the names from /v1/models."""
        answer = ask(self.model_path)
        return (
            [entry.get("id") for entry in answer.get("data", [])]
            if isinstance(answer, dict)
            else []
        )

    def generated(
        self, ask: Ask, served_model: str, prompt_tokens: int, timeout_s: float
    ) -> int:
        """Request a completion of one repeated token; return the number of generated tokens."""
        body = {
            "model": served_model,
            "prompt": [7] * prompt_tokens,
            "max_tokens": 4,
            "ignore_eos": True,
        }
        answer = ask("/v1/completions", method="POST", body=body, timeout_s=timeout_s)
        return (
            int(answer.get("usage", {}).get("completion_tokens", 0))
            if isinstance(answer, dict)
            else 0
        )

    def completed(
        self, ask: Ask, served_model: str, prompt: str, tokens: int, likeliest: int
    ) -> Completion | None:
        """Request a greedy completion; tokens are returned as their ids."""
        body = {
            "model": served_model,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        body |= {"temperature": 0, "seed": 0, "return_token_ids": True}
        body |= (
            {"logprobs": likeliest, "return_tokens_as_token_ids": True}
            if likeliest
            else {}
        )
        answer = ask("/v1/completions", method="POST", body=body, timeout_s=_GREEDY_S)
        try:
            choice = answer["choices"][0]
            places = choice["logprobs"]["top_logprobs"] if likeliest else []
            return Completion(
                int(answer["usage"]["prompt_tokens"]),
                tuple(map(str, choice["token_ids"])),
                [_by_token_id(place) for place in places],
            )
        except (LookupError, TypeError):
            return None

    def emptied(self, ask: Ask, *, tiers: bool = True) -> bool:
        """Use the development endpoint (VLLM_SERVER_DEV_MODE=1); it refuses while transfers are in flight."""
        answer = ask(
            f"/reset_prefix_cache{'?reset_external=true' if tiers else ''}",
            method="POST",
        )
        # Before 0.14 it answers 200 with an empty body; later releases report success or failure.
        return not isinstance(answer, dict) or bool(answer.get("success", True))


def _in_a_folder(model: ServedModel, server: ServerConfig) -> bool:
    """Whether this host has the model's files, so that no hub is asked."""
    return server.weights != "full" or model.folder is not None


def _by_token_id(place: Mapping[str, float]) -> dict[str, float]:
    """Return the log-probabilities at a place of an answer by the token's id."""
    return {name.removeprefix("token_id:"): value for name, value in place.items()}


VLLM = Vllm()
