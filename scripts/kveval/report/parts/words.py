"""The words of the report, and the files beside it."""

from kveval.report.data.campaign import Table

WORDS = Table(
    ["word", "meaning"],
    [
        [
            "better, worse",
            "the difference is significant after Holm's correction: over all comparisons of the primary quantity, else"
            " over those of a model and quantity",
        ],
        [
            "no relevant difference",
            "the difference is significantly smaller than the margin (two one-sided tests); `parity` in tables for"
            " programs",
        ],
        [
            "cannot tell yet",
            "neither a difference nor its absence was shown, or too few runs count; more runs or longer levels are needed."
            ' "Indicates" names the verdict that the runs point to; `inconclusive`, `indicative` in tables for programs',
        ],
        [
            "not comparable",
            "no verdict is possible, for the reason given; an effect given with it describes these runs only;"
            " `not assessed` in tables for programs",
        ],
        [
            "idle",
            "by its own counters the arm served nothing or almost nothing, and what this costs has no verdict",
        ],
        [
            "idle, and worse",
            "by its own counters the arm served nothing or almost nothing, and it is significantly worse all the same;"
            " adjusted over idle arms",
        ],
        [
            "idle, costs at most",
            "by its own counters the arm served nothing or almost nothing, and it costs significantly less than the"
            " margin (one-sided test); the number is the end of its interval, which it exceeds with a chance of 5 %",
        ],
        [
            "exploratory",
            "verdicts on quantities other than the primary one: the error rate holds for each verdict alone, so some of"
            " many are wrong",
        ],
        [
            "interval",
            "over runs, Student's t on the logarithm; wide with few runs. It decides the verdict: for the primary"
            " quantity its confidence is that of all comparisons together (Holm), 95 % or more for each; for no"
            " relevant difference, and what an idle arm costs at most, 90 % or more, as in the one-sided tests",
        ],
        [
            "chance of showing none",
            "that no relevant difference would be shown if none of the arms differed, at this spread and number of runs,"
            " after Holm's correction",
        ],
        [
            "samples",
            "of the recording in the window; a published figure should rest on 30",
        ],
        [
            "common level",
            "the one at which a model's cells are compared: that of the baseline's peak, or the campaign's",
        ],
        [
            "TTFT",
            "time to the first token; a request without a first token has no TTFT",
        ],
        ["TPOT", "a request's latency per output token, first token included"],
        ["E2E", "latency of the whole request"],
        ["p50, p90, P90", "median and 90th percentile of the requests observed"],
        ["10K, 20K", "CPU tiers of so many thousand blocks of 16 tokens"],
        [
            "digits",
            "no number is finer than its interval allows; one of a single run has two digits",
        ],
    ],
)
FILES = Table(
    ["file", "content"],
    [
        [
            "`analysis/summary.csv`",
            "a row per cell: its peak, its differences from the baseline",
        ],
        [
            "`analysis/detailed.csv`",
            "a row per level and run, under the names of older evaluations",
        ],
        [
            "`analysis/complete_metrics.csv`",
            "a row per level and run with everything measured, unrounded",
        ],
        [
            "`analysis/peak_throughput_all.csv`",
            "the peak of every cell, also without the bias of choosing it",
        ],
        [
            "`analysis/pcp_metrics_peak.csv`",
            "system metrics in the window of each peak",
        ],
        ["`analysis/pcp_summary_stats.csv`", "means over models, in balanced panels"],
        [
            "`analysis/predicted.csv`",
            "the gains from tiers as predicted from the runs without one",
        ],
        [
            "`analysis/one_request.csv`",
            "the times of one request: computed, from the device's cache, from the tier",
        ],
        [
            "`analysis/waterfall.csv`",
            "prompt tokens that came before, that caches hold, find and deliver, and where most is lost",
        ],
        [
            "`analysis/comparison.csv`",
            "every comparison with its interval, p values and verdict",
        ],
        [
            "`analysis/contrasts.csv`, `analysis/averages.csv`",
            "declared pairs of arms, neighbouring sizes of an arm; effects averaged over models",
        ],
        ["`analysis/peak_comparison.csv`", "peaks against the baselines' peaks"],
        ["`analysis/checks.csv`", "what every check found"],
        ["`report.json`", "the numbers of this report for programs"],
        ["`figures/`", "the figures as PNG and SVG"],
        ["`MODEL/SCENARIO/BLOCKS/`", "a cell's levels, peak and runs"],
        [
            "`measurements/NUMBER/run-N/`",
            "the runs themselves, checksummed; the number is the hash of what defines a measurement",
        ],
    ],
)
