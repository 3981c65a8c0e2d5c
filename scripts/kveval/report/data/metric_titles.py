"""Titles of the compared quantities in figures and tables."""

METRIC_TITLES = {
    "throughput_tok_s": "Throughput",
    "goodput_per_s": "Goodput",
    "ttft_ms_p50": "Median TTFT",
    "ttft_ms_p90": "P90 TTFT",
    "tpot_ms_p50": "Median TPOT",
    "itl_ms_p50": "Median ITL",
    "e2e_ms_p50": "Median E2E latency",
    "e2e_ms_p90": "P90 E2E latency",
}
