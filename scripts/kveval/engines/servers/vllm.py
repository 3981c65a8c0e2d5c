"""What vLLM is asked and says of itself, wherever it runs: version, model, caches, sizes."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from packaging.version import InvalidVersion, Version

from kveval.engines.protocol import DeploymentError

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_TIER_BYTES = re.compile(r"host offloading: CPU tier of (\d+) bytes")
_TIER_GB = re.compile(r"Created mmap file \S*vllm_offload\S* \((\d+\.\d\d) GB\)")
_MAX_CONCURRENCY = re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x")


class Ask(Protocol):
    """Sends a request to one server and returns the decoded JSON, None for other answers. Raises HttpError."""

    def __call__(self, path: str, method: str = "GET", body: object = None, timeout_s: float = 30.0) -> Any:
        """Ask."""


def reset_caches(ask: Ask, log: object, timeout_s: float = 20.0) -> None:
    """Use the development endpoint (VLLM_SERVER_DEV_MODE=1); it refuses while transfers are in flight."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask("/reset_prefix_cache?reset_external=true", method="POST")
        # vLLM before 0.14 answers 200 with an empty body; later ones say whether it worked.
        if not isinstance(answer, dict) or answer.get("success", True):
            return
        if time.monotonic() > deadline:
            raise DeploymentError(f"the server refused to reset its caches for {timeout_s:.0f} s; see {log}")
        time.sleep(0.5)


def warm_up(ask: Ask, served_model: str, prompt_tokens: int, log: object, timeout_s: float = 120.0) -> None:
    """Have the server generate a few tokens from a long and a short prompt, before anything is measured.

    The first request pays for lazy initialisation; and a server that answers /health need not be able to generate.
    """
    for length in (prompt_tokens, 16):
        body = {"model": served_model, "prompt": [7] * length, "max_tokens": 4, "ignore_eos": True}
        answer = ask("/v1/completions", method="POST", body=body, timeout_s=timeout_s)
        produced = answer.get("usage", {}).get("completion_tokens", 0) if isinstance(answer, dict) else 0
        if produced < 1:
            raise DeploymentError(f"the server is healthy but generates nothing; see {log}")


def require_declared(ask: Ask, served_model: str, versions: Mapping[str, str]) -> str:
    """Check version and model; another server on a port that was free a moment ago would be noticed here, too."""
    answer = ask("/version")
    version, declared = str(answer.get("version", "")) if isinstance(answer, dict) else "", versions["vllm"]
    try:
        same = Version(version).public == Version(declared).public
    except InvalidVersion:
        same = version == declared
    if not same:
        raise DeploymentError(f"the server is vLLM {version or 'of unknown version'}, the campaign declares {declared}")
    models = ask("/v1/models")
    names = [entry.get("id") for entry in models.get("data", [])] if isinstance(models, dict) else []
    if served_model not in names:
        raise DeploymentError(f"the server serves {names}, the campaign declares {served_model}")
    return version


def require_device_cache(found: int | None, declared: int | None, log: object) -> None:
    """Raise DeploymentError when the device's KV cache, tokens, is more than 2 % off what the campaign declares."""
    if declared is None or found is None:
        return
    if abs(found - declared) > 0.02 * declared:
        raise DeploymentError(
            f"the server reports a device KV cache of {found} tokens, the campaign declares {declared}; see {log}"
        )


def require_tier(reported: int | None, wanted: int, log: object) -> None:
    """Raise DeploymentError when the arm's tier in host memory is more than 2 % off its budget, bytes.

    A server that does not say how large its tier is (`reported` is None) cannot be held to it.
    """
    if reported is not None and abs(reported - wanted) > 0.02 * wanted:
        raise DeploymentError(
            f"the tier in host memory has {reported} bytes, the budget is {wanted} bytes:"
            f" the arms would not be equal; see {log}"
        )


def check_tiers(
    facts: dict[str, Any], beside: Sequence[int], wanted: int, split: Mapping[str, int], log: object
) -> None:
    """Hold the tiers in host memory to their budget, and note in `facts` what there is, bytes.

    `facts`: as the server reported them; `beside`: what sidecars report of theirs; `wanted`: the whole budget;
    `split`: native_bytes and lmcache_bytes where two tiers share it. Raises DeploymentError.
    """
    own: int | None = facts.get("tier_bytes")
    if split or not beside:
        require_tier(own, split.get("native_bytes", wanted), log)
    for reported in beside:
        require_tier(reported, split.get("lmcache_bytes", wanted), log)
    if split and (own is None or not beside):
        # What only one of them says is not the size of both.
        facts.pop("tier_bytes", None)
    elif beside:
        facts["tier_bytes"] = beside[0] + (own if split and own is not None else 0)


def startup_facts(log_text: str) -> dict[str, Any]:
    """Read what vLLM says of itself at start-up.

    The device's KV capacity in tokens, maximum concurrency at full length, and the bytes of the tier in host memory.
    """
    facts: dict[str, Any] = {}
    if match := _KV_TOKENS.search(log_text):
        facts["kv_cache_tokens"] = int(match[1].replace(",", ""))
    if match := _MAX_CONCURRENCY.search(log_text):
        facts["max_concurrency"] = float(match[1])
    if match := _TIER_BYTES.search(log_text):
        facts["tier_bytes"] = int(match[1])
    elif (match := _TIER_GB.search(log_text)) and float(match[1]) >= 1:
        # vLLM's own region; below a GB its two decimals say too little.
        facts["tier_bytes"] = round(float(match[1]) * 1e9)
    return facts
