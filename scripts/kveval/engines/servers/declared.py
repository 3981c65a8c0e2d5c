"""Checks of a server's release, model and cache sizes against what the campaign declares; warm-up, emptying caches."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import InvalidVersion, Version

from kveval.engines.protocol import DeploymentError
from kveval.engines.servers.protocol import Ask, ServerProgram


def reset_caches(program: ServerProgram, ask: Ask, log: object, timeout_s: float = 20.0, *, tiers: bool = True) -> None:
    """Empty a server's caches, without `tiers` only the device's; retried while it refuses, as during transfers.

    Raises DeploymentError if it still refuses after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not program.emptied(ask, tiers=tiers):
        if time.monotonic() > deadline:
            message = f"the server refused to reset its caches for {timeout_s:.0f} s; see {log}"
            raise DeploymentError(message, code="caches_not_reset")
        time.sleep(0.5)


def warm_up(
    program: ServerProgram, ask: Ask, served_model: str, prompt_tokens: int, log: object, timeout_s: float = 120.0
) -> None:
    """Let the server generate a few tokens from a long and a short prompt, before anything is measured.

    The first request triggers lazy initialisation, and a healthy server may be unable to generate: DeploymentError.
    """
    for length in (prompt_tokens, 16):
        if program.generated(ask, served_model, length, timeout_s) < 1:
            raise DeploymentError(f"the server is healthy but generates nothing; see {log}", code="generates_nothing")


def same_release(found: str, declared: str) -> bool:
    """Tell whether a reported version is the declared release; it may also name a build (+cpu) or LMCache's commit."""
    try:
        # LMCache reports the release and the commit that it was built from: 0.5.6-g3e11e108.
        return Version(found.partition("-g")[0]).public == Version(declared).public
    except InvalidVersion:
        return found == declared


def require_declared(program: ServerProgram, ask: Ask, served_model: str, versions: Mapping[str, str]) -> str:
    """Return the server's version. Raises DeploymentError if version or model differ, as those of a foreign server."""
    version, declared = program.version(ask), versions[program.software.name]
    if not same_release(version, declared):
        found = f"{program.software.title} {version or 'of unknown version'}"
        message = f"the server is {found}, the campaign declares {declared}"
        raise DeploymentError(message, code="other_version", found=version, declared=declared)
    names = program.models(ask)
    if served_model not in names:
        message = f"the server serves {names}, the campaign declares {served_model}"
        raise DeploymentError(message, code="other_model", found=names, declared=served_model)
    return version


def require_device_cache(found: int | None, declared: int | None, log: object) -> None:
    """Raise DeploymentError if the device's KV cache, in tokens, differs by more than 2 % from the declared size."""
    if declared is None or found is None:
        return
    if abs(found - declared) > 0.02 * declared:
        raise DeploymentError(
            f"the server reports a device KV cache of {found} tokens, the campaign declares {declared}; see {log}",
            code="other_device_cache",
            found=found,
            declared=declared,
        )


def require_tier(reported: int | None, wanted: int, log: object) -> None:
    """Raise DeploymentError if the arm's tier in host memory, bytes, differs by more than 2 % from its budget.

    Not checked if the server does not report the size of its tier (`reported` is None).
    """
    if reported is not None and abs(reported - wanted) > 0.02 * wanted:
        raise DeploymentError(
            f"the tier in host memory has {reported} bytes, the budget is {wanted} bytes:"
            f" the arms would not be equal; see {log}",
            code="other_tier",
            found_bytes=reported,
            budget_bytes=wanted,
        )


def check_tiers(
    facts: dict[str, Any], beside: Sequence[int], wanted: int, split: Mapping[str, int], log: object
) -> None:
    """Check the tiers in host memory against their budget, and store their bytes in `facts`.

    `facts`: as the server reported them; `beside`: bytes that sidecars report; `wanted`: the whole budget, bytes;
    `split`: native_bytes and lmcache_bytes if two tiers share it. Raises DeploymentError.
    """
    own: int | None = facts.get("tier_bytes")
    if split or not beside:
        require_tier(own, split.get("native_bytes", wanted), log)
    for reported in beside:
        require_tier(reported, split.get("lmcache_bytes", wanted), log)
    if split and (own is None or not beside):
        # The size of one tier only is not the size of both.
        facts.pop("tier_bytes", None)
    elif beside:
        facts["tier_bytes"] = beside[0] + (own if split and own is not None else 0)
