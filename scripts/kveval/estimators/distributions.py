"""Probabilities and quantiles of distributions: scipy.special, once something is asked of it."""

from __future__ import annotations

from functools import cache
from types import ModuleType


@cache
def distributions() -> ModuleType:
    """Return scipy.special.

    Its import takes a quarter of a second of processor time, a tenth of a job that draws or exports tables: those
    import what estimates and ask for no estimate.
    """
    from scipy import special  # noqa: PLC0415

    loaded: ModuleType = special
    return loaded
