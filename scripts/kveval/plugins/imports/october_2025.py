"""The tree of the evaluation of October 2025: oct2025-MODEL-CONFIGURATION.json, a sweep of ten strategies in each.

The publication's three numbers of a configuration are the highest token rate over the strategies, and the plain means
over them of the time to the first token and of the gap between tokens (published as "TPOT"), each of GuideLLM's status
`total`: with requests that were cut off. The rate is that of the saturated strategy alone, the mean time to the first
token is for the most part that strategy's queue, and neither says what an arm does. They serve to see that files are
those of the publication; the workflow's own tables count otherwise.
"""

from dataclasses import dataclass
from statistics import fmean

from kveval.load.reports import LoadReport

SCENARIOS = {
    "default": "no-offload",
    "offload": "native-offload",
    "lmcache": "lmcache-local",
}
"""What the evaluation called an arm -> its scenario."""
VLLM = "0.11.0"
"""The release that was evaluated; the files do not name it."""


@dataclass(frozen=True)
class PublishedRow:
    """A row as it was published, in tokens per second and milliseconds; `strategies` counts what the means are over.

    `itl_ms` was published as "Avg TPOT"; `incomplete_share` is that of the strategy of the highest rate, `strategy`, of
    its requests that did not fail.
    """

    max_output_tok_s: float
    ttft_ms: float
    itl_ms: float
    strategies: int
    strategy: str
    incomplete_share: float

    def __str__(self) -> str:
        cut_off = f"{100 * self.incomplete_share:.0f} % of its requests cut off"
        return (
            f"{self.max_output_tok_s:.1f} tok/s at most ({self.strategy}, {cut_off}), mean TTFT {self.ttft_ms:.1f} ms,"
            f" mean ITL {self.itl_ms:.1f} ms, over {self.strategies} strategies"
        )


def published_row(report: LoadReport) -> PublishedRow | None:
    """Sum a sweep up as the publication did; None where a strategy lacks one of the statistics."""
    means: dict[str, list[float]] = {"output_tok_s": [], "ttft_ms": [], "itl_ms": []}
    for level in report.levels:
        for quantity, values in means.items():
            statistics = getattr(level.aggregate, quantity).everything
            if statistics is None:
                return None
            values.append(statistics.mean)
    rates, ttft_ms, itl_ms = means.values()
    fastest = report.levels[rates.index(max(rates))]
    share = fastest.incomplete / max(1, fastest.completed + fastest.incomplete)
    return PublishedRow(
        max(rates), fmean(ttft_ms), fmean(itl_ms), len(rates), fastest.strategy, share
    )
