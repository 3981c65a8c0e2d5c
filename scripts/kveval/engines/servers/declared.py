"""Checks of a server's cache sizes against what the campaign declares."""

from collections.abc import Mapping, Sequence
from typing import Any

from kveval.engines.servers.errors import DeploymentError


def require_device_cache(
    reported: int | None, declared: int | None, log: object
) -> None:
    """Raise DeploymentError if the device's KV cache, in tokens, differs by more than 2 % from the declared size."""
    if declared is None or reported is None:
        return
    if abs(reported - declared) > 0.02 * declared:
        raise DeploymentError(
            f"the server reports a device KV cache of {reported} tokens, the campaign declares {declared}; see {log}",
            code="other_device_cache",
            found=reported,
            declared=declared,
        )


def require_tier(reported: int | None, budget: int, log: object) -> None:
    """Raise DeploymentError if the arm's tier in host memory, bytes, differs by more than 2 % from its budget.

    Not checked if the server does not report the size of its tier (`reported` is None).
    """
    if reported is not None and abs(reported - budget) > 0.02 * budget:
        raise DeploymentError(
            f"the tier in host memory has {reported} bytes, the budget is {budget} bytes:"
            f" the arms would not be equal; see {log}",
            code="other_tier",
            found_bytes=reported,
            budget_bytes=budget,
        )


def check_tiers(
    facts: dict[str, Any],
    beside: Sequence[int],
    budget: int,
    split: Mapping[str, int],
    log: object,
) -> None:
    """Check the tiers in host memory against their budget, and store their bytes in `facts`.

    `facts`: as the server reported them; `beside`: bytes that sidecars report; `budget`: of all, bytes;
    `split`: native_bytes and lmcache_bytes if two tiers share it. Raises DeploymentError.
    """
    own: int | None = facts.get("tier_bytes")
    if split or not beside:
        require_tier(own, split.get("native_bytes", budget), log)
    for reported in beside:
        require_tier(reported, split.get("lmcache_bytes", budget), log)
    if split and (own is None or not beside):
        # The size of one tier only is not the size of both.
        facts.pop("tier_bytes", None)
    elif beside:
        facts["tier_bytes"] = beside[0] + (own if split and own is not None else 0)
