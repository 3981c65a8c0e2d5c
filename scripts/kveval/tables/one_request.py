"""one_request.csv: what a request takes in each cell, computed, from the device's cache, and from the tier."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kveval.campaign.cell import CELL_COLUMNS, Cell
from kveval.store.run_file import OneRequest, Run

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = [
    *(*CELL_COLUMNS, "source", "runs", "requests"),
    *("ttft_ms_median", "ttft_ms_least", "ttft_ms_most"),
    *("prompt_tokens", "served_tokens", "through", "reason"),
]


def one_request_times(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a row per cell and source ("cold", "device", "tier") of the runs in which a request was timed.

    The times to the first token, ms, are over all requests of all runs, tokens are medians; both are missing where no
    request came from the source, and `reason` says why.
    """
    # `kveval show` answers without it.
    import pandas as pd  # noqa: PLC0415

    by_cell: dict[Cell, list[OneRequest]] = {}
    for run in runs:
        if run.one_request is not None:
            by_cell.setdefault(run.cell, []).append(run.one_request)
    rows = [
        {**cell.row, **of_source}
        for cell, timed in by_cell.items()
        for of_source in times_by_source(timed)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def times_by_source(timed: Sequence[OneRequest]) -> Iterator[dict[str, Any]]:
    """Yield the columns of `one_request_times` for each source of a cell, of whose runs at least one was timed."""
    for source in timed[0].by_source:
        of_source = [times.by_source[source] for times in timed]
        requests = [request for times in of_source for request in times.requests]
        reasons = dict.fromkeys(times.reason for times in of_source if times.reason)
        yield {
            "source": source,
            "runs": len(timed),
            "requests": len(requests),
            **_spread([request.ttft_ms for request in requests]),
            "prompt_tokens": _median([request.prompt_tokens for request in requests]),
            "served_tokens": _median([request.served_tokens for request in requests]),
            "through": timed[0].through,
            "reason": "" if requests else "; ".join(reasons),
        }


def _spread(ttft_ms: Sequence[float]) -> dict[str, float]:
    """Return the median, the least and the most of times; nothing of none."""
    if not ttft_ms:
        return {}
    return {
        "ttft_ms_median": statistics.median(ttft_ms),
        "ttft_ms_least": min(ttft_ms),
        "ttft_ms_most": max(ttft_ms),
    }


def _median(tokens: Sequence[int]) -> float | None:
    return statistics.median(tokens) if tokens else None
