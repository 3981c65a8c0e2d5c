"""PCP archives to Parquet in the long form, and reading it back.

`convert` needs numpy and zstandard only; pyarrow and pandas are imported when something is read back.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .problems import ArchiveError, Problem

if TYPE_CHECKING:
    from .bulk import Samples, samples_of
    from .checking import check
    from .conversion import ConversionSummary, convert, survey, write_empty
    from .footer import ArchiveInfo, MetricInfo
    from .pcp2arrow import ToolError, from_pcp2arrow
    from .rates import increase, rate
    from .reading import archive_info, describe, series, wide

__all__ = [
    "ArchiveError",
    "ArchiveInfo",
    "ConversionSummary",
    "MetricInfo",
    "Problem",
    "Samples",
    "ToolError",
    "archive_info",
    "check",
    "convert",
    "describe",
    "from_pcp2arrow",
    "increase",
    "rate",
    "samples_of",
    "series",
    "survey",
    "wide",
    "write_empty",
]

_HOME = {
    **dict.fromkeys(("ConversionSummary", "convert", "survey", "write_empty"), "conversion"),
    **dict.fromkeys(("ArchiveInfo", "MetricInfo"), "footer"),
    **dict.fromkeys(("archive_info", "describe", "series", "wide"), "reading"),
    **dict.fromkeys(("increase", "rate"), "rates"),
    "check": "checking",
    **dict.fromkeys(("Samples", "samples_of"), "bulk"),
    **dict.fromkeys(("ToolError", "from_pcp2arrow"), "pcp2arrow"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
