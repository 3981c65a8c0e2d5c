"""The levels of a cell in few numbers, from its rows of a table, without a table library: `kveval show` starts fast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kveval.report.data.metric_titles import METRIC_TITLES
from kveval.report.result.model import LevelResult, known_number, known_text
from kveval.tables.cells import THROUGHPUT

# A row of levels.csv, with its values as text or as numbers.
Row = Mapping[Any, Any]
_MEANS = (
    THROUGHPUT,
    *("ttft_ms_p50", "ttft_ms_p90", "itl_ms_p50"),
    *("prefix_hit_ratio", "external_hit_ratio"),
)
_COUNTS = ("requests_completed", "requests_errored")
# What tables round by its spread over runs, and what is compared.
_BY_RUN = (
    *(name for name in METRIC_TITLES if name != THROUGHPUT),
    *("ttft_ms_mean", "e2e_ms_mean"),
    *("throughput_completed_tok_s", "total_tok_s"),
    *("prefix_cache_hit_percent", "goodput_share"),
)


def level_results(rows: Iterable[Row]) -> list[LevelResult]:
    """Return the levels of a cell in their order: means over the runs that have a value, counts summed over runs.

    `rows`: one for each run and level, in any order.
    """
    by_level: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_level[int(row["level"])].append(row)
    return [_level(level, by_level[level]) for level in sorted(by_level)]


def _level(level: int, rows: Sequence[Row]) -> LevelResult:
    activity = {known_text(row.get("activity")) for row in rows}
    return LevelResult.model_validate(
        {
            "level": level,
            "streams": _mean(rows, "streams_asked"),
            "rate_req_s": _mean(rows, "rate_req_s"),
            "runs": len(_numbers(rows, THROUGHPUT)),
            "throughput_by_run_tok_s": _by_run(rows, THROUGHPUT),
            "by_run": {
                column: _by_run(rows, column)
                for column in _BY_RUN
                if _numbers(rows, column)
            },
            **{column: _mean(rows, column) for column in _MEANS},
            **{column: int(sum(_numbers(rows, column))) for column in _COUNTS},
            "activity": sorted(filter(None, activity)),
            "failed_runs": [
                int(row["run"]) for row in rows if known_text(row.get("checks_failed"))
            ],
        }
    )


def _by_run(rows: Iterable[Row], column: str) -> dict[str, float | None]:
    return {str(row["run"]): known_number(row.get(column)) for row in rows}


def _numbers(rows: Iterable[Row], column: str) -> list[float]:
    values = (known_number(row.get(column)) for row in rows)
    return [value for value in values if value is not None]


def _mean(rows: Iterable[Row], column: str) -> float | None:
    values = _numbers(rows, column)
    return sum(values) / len(values) if values else None
