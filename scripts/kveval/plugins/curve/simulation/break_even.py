"""Finds from how many tokens of a prefix on loading them from a tier takes no longer than computing them.

    computing n tokens   token_s x (n + context_share x n^2 / 2), as in kveval.plugins.curve.simulation.service
    loading n tokens     fixed_s + token_s x n

The batch that computes the rest of the prompt is needed in both cases, so that it counts in neither.
"""

import math
from dataclasses import dataclass
from typing import Self

from kveval.campaign.geometry import Geometry


@dataclass(frozen=True)
class ComputeTime:
    """The time that a server takes to compute a prefix.

    Attributes:
        token_s: seconds for the first token.
        context_share: part of `token_s` by which a token takes longer for each token before it.
    """

    token_s: float
    context_share: float = 0.0

    @classmethod
    def from_prefix(cls, tokens: int, seconds: float, context_share: float) -> Self:
        """Return the times at which a prefix of so many tokens takes so long."""
        return cls(seconds / (tokens + context_share * tokens**2 / 2), context_share)

    def seconds(self, tokens: int) -> float:
        """Return the time for a prefix of so many tokens."""
        return self.token_s * (tokens + self.context_share * tokens**2 / 2)


@dataclass(frozen=True)
class LoadTime:
    """The time that a tier takes to load a prefix: `fixed_s` for a request, and `token_s` for each token, seconds."""

    fixed_s: float
    token_s: float

    def seconds(self, tokens: int) -> float:
        """Return the time for a prefix of so many tokens."""
        return self.fixed_s + self.token_s * tokens


def break_even(compute: ComputeTime, load: LoadTime) -> int | None:
    """Return the tokens from which on loading takes no longer than computing: 1 if it always does, None if it never does.

    The positive root of token_s x context_share / 2 x n^2 + (token_s - load.token_s) x n - load.fixed_s.
    """
    square = compute.token_s * compute.context_share / 2
    behind = load.token_s - compute.token_s
    if square:
        root = behind + math.sqrt(behind**2 + 4 * square * load.fixed_s)
        tokens = root / (2 * square)
    elif behind < 0:
        tokens = load.fixed_s / -behind
    else:
        tokens = 0.0 if behind == load.fixed_s == 0 else math.inf
    return max(1, math.ceil(tokens)) if math.isfinite(tokens) else None


def context_share(geometry: Geometry) -> float:
    """Return the relative increase of a prompt token's compute time per token before it, by floating-point operations.

    Per layer: 4 x query heads x head size for attention to one earlier token, against 2 for each weight.
    """
    queries = geometry.attention_heads * geometry.head_dim
    projections = (
        2
        * geometry.hidden_size
        * geometry.head_dim
        * (geometry.attention_heads + geometry.kv_heads)
    )
    return (
        2
        * queries
        / (projections + 3 * geometry.hidden_size * geometry.intermediate_size)
    )
