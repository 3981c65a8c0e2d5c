"""Typed reading of load reports: one decoder per schema, one neutral result for everything after it.

`read_report` reads a file of GuideLLM 0.2 to 0.8 or of `vllm bench serve`. What differs between versions ends here;
docs/importing.md says what each version's numbers mean.
"""

from kveval.load.reports.data import SyntheticData
from kveval.load.reports.model import (
    CLOSED_LOOP,
    SCHEDULED,
    Aggregate,
    ByStatus,
    LevelReport,
    LoadReport,
    ReportFileError,
    RequestRecord,
    Statistics,
    Status,
)
from kveval.load.reports.reading import decode_report, read_report

__all__ = [
    "CLOSED_LOOP",
    "SCHEDULED",
    "Aggregate",
    "ByStatus",
    "LevelReport",
    "LoadReport",
    "ReportFileError",
    "RequestRecord",
    "Statistics",
    "Status",
    "SyntheticData",
    "decode_report",
    "read_report",
]
