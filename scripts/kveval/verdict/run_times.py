"""Effects of when runs were measured: the order within blocks, a drift of the machine, pauses of the campaign.

Tables are runs x cells: ln of a metric, and when each run started, in seconds. Runs of unknown time are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kveval.estimators.distributions import distributions
from kveval.estimators.spreads import Array, residuals
from kveval.verdict.pairing import Span

# With fewer runs no trend has a standard error.
_FEWEST = 3
# A campaign paused where none of its runs was measured for this many times the duration of a run.
_PAUSE = 3.0
BLOCK_PAUSE = 6.0
"""A block ends where no run of the campaign was measured for this many times the duration of a run.

Suites that are started by hand pause between two arms; a machine is another one after half a day.
"""
# The p value below which runs between two pauses are clearly more alike than others.
_ALIKE = 0.1
# With this many degrees of freedom the estimated effect of pauses is used even if it is not significant.
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


def find_pauses(
    spans: Iterable[Span], runs: float = _PAUSE, least_s: float = 0.0
) -> list[float]:
    """Return when a campaign paused: the middle of each gap without a run that is longer than so many runs take.

    A run takes `least_s` seconds at least; as long as the median run, if that is longer.
    """
    known = sorted(span for span in spans if np.isfinite(span).all())
    durations = [end - begin for begin, end in known]
    longest = runs * max(float(np.median(durations)), least_s) if known else 0.0
    pauses, busy = [], known[0][1] if known else 0.0
    for begin, end in known:
        if begin - busy > longest:
            pauses.append((begin + busy) / 2)
        busy = max(busy, end)
    return pauses


def pause_effect(
    logs: Array, starts: Array, pauses: Sequence[float]
) -> tuple[float, float] | None:
    """Return the factor of a mean's variance, and its degrees of freedom, because runs between two pauses are alike.

    The mean square of the residuals between such groups of blocks over that of all runs: with equal groups the variance
    of a mean is that between them (one-way random effects). A factor above 1 is used, significant or not, if it has at
    least four degrees of freedom; with fewer only if it is significant (F test, p < 0.1). None where there is none.
    """
    times = starts.mean(axis=1)
    if not np.isfinite(times).all():
        return None
    runs, cells = logs.shape
    period = np.searchsorted(np.asarray(pauses, dtype=np.float64), times)
    groups = [np.flatnonzero(period == number) for number in np.unique(period)]
    between = (len(groups) - 1) * (cells - 1)
    within = (runs - len(groups)) * (cells - 1)
    if between < 1 or within < 1:
        return None
    residual = residuals(logs)
    sizes = np.array([len(group) for group in groups])
    means = np.array([residual[group].mean(axis=0) for group in groups])
    among, total = (
        float((sizes[:, None] * means**2).sum()),
        float((residual**2).sum()),
    )
    if not total > 0:
        return None
    # If groups are unequal, the larger ones weigh more in the mean than in the mean square.
    unequal = float((sizes**2).sum()) / runs
    unequal *= (len(groups) - 1) / (runs - unequal)
    factor = unequal * (among / between) / (total / (between + within))
    if not factor > 1:
        return None
    rest = total - among
    ratio = (among / between) / (rest / within) if rest > 0 else np.inf
    significant = float(distributions().fdtrc(between, within, ratio)) < _ALIKE
    return (factor, between) if significant or between >= _TELLING else None
