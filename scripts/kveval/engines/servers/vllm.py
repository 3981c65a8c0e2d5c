"""vLLM's behaviour: how it is started, queried and emptied, how it reports version and death, what it allocates.

Its names and arguments are in kveval.campaign.servers.vllm.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kveval.campaign.servers.vllm import VLLM, shares_native_tier
from kveval.campaign.specification import Specification
from kveval.engines.servers.protocol import Ask, Completion
from kveval.host.logs import LogForm

_MIB = 2**20
# Shared-memory queues between its processes: one to all workers, one back from each.
_QUEUE_TO_WORKERS_BYTES = 160 * _MIB
_QUEUE_FROM_WORKER_BYTES = 240 * _MIB
# Time for a short answer, and for what the server compiles at the first request for log-probabilities.
_GREEDY_S = 120.0


class VllmProgram:
    """vLLM's API server with its engine and workers."""

    software = VLLM
    health_path = "/health"
    model_path = "/v1/models"
    metrics_path = "/metrics"
    plugins: Path | None = Path(__file__).resolve().parents[1] / "local" / "plugin"
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

    def distributions(self, build: str) -> Sequence[str]:
        """Return the build's name, then vllm, because a wheel of the CPU build may be called vllm as well."""
        return [build, "vllm"]

    def is_part(self, title: str) -> bool:
        """Tell whether this is a title of a vLLM process: VLLM::EngineCore, VLLM::Worker_TP0 and so on."""
        return title.startswith("VLLM::")

    def publishes_events(self, argv: Sequence[str]) -> bool:
        """Tell whether the events of its caches are configured."""
        return "--kv-events-config" in argv

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
        shared = shares_native_tier(
            specification.argv, specification.versions[VLLM.name], on_cpu=on_cpu
        )
        # LMCache's server reads and writes a CPU device's cache in place.
        in_place = on_cpu and any(
            "LMCacheMPConnector" in argument for argument in specification.argv
        )
        device = (
            (budget.device_tokens or 0) * model.kv_bytes_per_token if in_place else 0
        )
        return queues + (budget.host_bytes if shared else 0) + device

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
                [str(token) for token in choice["token_ids"]],
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


def _by_token_id(place: Mapping[str, float]) -> dict[str, float]:
    """Return the log-probabilities at a place of an answer by the token's id."""
    return {name.removeprefix("token_id:"): value for name, value in place.items()}
