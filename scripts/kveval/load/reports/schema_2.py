"""Reports of GuideLLM 0.7 and 0.8 (`metadata.version` 2).

The shape is that of schema 1, with strategies named by `kind`. What changed in meaning, from the sources of 0.8.1:
`output_tokens_per_second` is the tokens of the window over its length, and the times to the first token are those of
first tokens inside the window.
"""

from dataclasses import replace

import msgspec

from kveval.load.reports.model import LevelReport
from kveval.load.reports.schema_1 import Benchmark, level_of
from kveval.load.reports.wire import by_status


def decode(raw: msgspec.Raw) -> LevelReport:
    """Decode one benchmark. Raises msgspec.DecodeError."""
    benchmark = msgspec.json.decode(raw, type=Benchmark)
    level = level_of(benchmark)
    rate = by_status(benchmark.metrics.output_tokens_per_second).everything
    delivered = None if rate is None else rate.mean * (benchmark.end_time - benchmark.start_time)
    return replace(level, aggregate=level.aggregate and replace(level.aggregate, delivered_tokens=delivered))
