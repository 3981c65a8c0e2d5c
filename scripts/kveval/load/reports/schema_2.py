"""Reports of GuideLLM 0.7 and 0.8 (`metadata.version` 2).

The shape is that of schema 1, with strategies named by `kind`. What changed in meaning, from the sources of 0.8.1:
`output_tokens_per_second` is the tokens of the window over its length, and the times to the first token are those of
first tokens inside the window.
"""

import msgspec

from kveval.load.reports.model import LevelReport
from kveval.load.reports.schema_1 import Benchmark, level_report
from kveval.load.reports.wire import by_status


def decode(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=Benchmark)
    rate = by_status(benchmark.metrics.output_tokens_per_second).everything
    return level_report(benchmark, None if rate is None else rate.mean * (benchmark.end_time - benchmark.start_time))
