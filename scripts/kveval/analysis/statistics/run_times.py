"""Effects of when runs were measured: the order within blocks, a drift of the machine, runs of one session.

Tables are runs x cells: ln of a metric, and when each run started, in seconds. Runs of unknown time are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kveval.analysis.estimators.distributions import distributions
from kveval.analysis.estimators.spreads import Array, residuals
from kveval.analysis.statistics.pairing import Span

# With fewer runs no trend has a standard error.
_FEWEST = 3
# A session ends where no run of the campaign was measured for this many times the duration of a run.
_PAUSE = 3.0
# The p value below which runs of a session are clearly more alike than runs of different sessions.
_ALIKE = 0.1
# With this many degrees of freedom the estimated effect of sessions is used even if it is not significant.
_TELLING = 4


def trend_error(logs: Array, starts: Array) -> float | None:
    """Return the standard error per second between two cells that a trend of the machine may cause; None if not known.

    The whole trend of blocks over time, since the machine may have caused it, by least squares on the blocks' means,
    combined with the standard error of the trend.
    """
    times, values = starts.mean(axis=1), logs.mean(axis=1)
    apart = times - times.mean()
    square = float((apart**2).sum())
    if len(times) < _FEWEST or not square > 0:
        return None
    slope = float((apart * values).sum()) / square
    left = values - values.mean() - slope * apart
    return float(np.hypot(slope, np.sqrt((left**2).sum() / (len(times) - 2) / square)))


def constant_offset(starts: Array, arm: int, reference: int) -> float | None:
    """Return by how much one column ran after another on average, seconds, if the order never changed; else 0.

    Unchanged: the same one of both ran first in every block, and one of them always had the same place among all cells;
    by chance, so do two cells in random order in one of four campaigns of three runs. None where times are not known.
    """
    offsets = starts[:, arm] - starts[:, reference]
    if not np.isfinite(starts).all():
        return None
    places = starts.argsort(axis=1, kind="stable").argsort(axis=1)[:, [arm, reference]]
    one_place = bool((places == places[0]).all(axis=0).any())
    fixed = len(starts) >= _FEWEST and one_place and len(set(np.sign(offsets))) == 1
    return float(offsets.mean()) if fixed else 0.0


def find_pauses(spans: Iterable[Span]) -> list[float]:
    """Return when a campaign paused: the middle of each gap without a run that is longer than three runs take."""
    known = sorted(span for span in spans if np.isfinite(span).all())
    longest = (
        _PAUSE * float(np.median([end - begin for begin, end in known]))
        if known
        else 0.0
    )
    pauses, busy = [], known[0][1] if known else 0.0
    for begin, end in known:
        if begin - busy > longest:
            pauses.append((begin + busy) / 2)
        busy = max(busy, end)
    return pauses


def group_by_session(starts: Array, pauses: Sequence[float]) -> list[list[int]]:
    """Return the runs of each session: the blocks between two pauses."""
    times = starts.mean(axis=1)
    if not np.isfinite(times).all():
        return [[run] for run in range(len(times))]
    session = np.searchsorted(np.asarray(pauses, dtype=np.float64), times)
    return [np.flatnonzero(session == number).tolist() for number in np.unique(session)]


class SessionEffect(NamedTuple):
    """`variance_factor`: factor on the variance of a mean because runs of a session are alike; `significant`: if it is."""

    variance_factor: float
    df: float
    significant: bool


def session_effect(logs: Array, groups: list[list[int]]) -> SessionEffect | None:
    """Return the effect of sessions on the variance of the mean of runs; None where there is none, or it is not known.

    The mean square of the residuals between sessions over that of all runs: with equal sessions the variance of a mean
    is that between sessions (one-way random effects). A factor above 1 is used, significant or not, if it has at least
    four degrees of freedom; with fewer only if it is significant (F test, p < 0.1).
    """
    runs, cells = logs.shape
    between, within = (
        (len(groups) - 1) * (cells - 1),
        (runs - len(groups)) * (cells - 1),
    )
    if between < 1 or within < 1:
        return None
    residual = residuals(logs)
    sizes = np.array([len(group) for group in groups])
    means = np.array([residual[group].mean(axis=0) for group in groups])
    among = float((sizes[:, None] * means**2).sum())
    total = float((residual**2).sum())
    if not total > 0:
        return None
    # If sessions are unequal, the larger ones weigh more in the mean than in the mean square.
    unequal = float((sizes**2).sum()) / runs
    unequal *= (len(groups) - 1) / (runs - unequal)
    factor = unequal * (among / between) / (total / (between + within))
    within_total = total - among
    chance = 0.0
    if within_total > 0:
        ratio = (among / between) / (within_total / within)
        chance = float(distributions().fdtrc(between, within, ratio))
    significant = chance < _ALIKE
    if not factor > 1 or not (significant or between >= _TELLING):
        return None
    return SessionEffect(factor, between, significant)
