"""What the compared quantities are called in figures and tables."""

METRIC_TITLES = {
    "throughput_tok_s": "Throughput",
    "ttft_ms_p50": "TTFT, median",
    "ttft_ms_p90": "TTFT, 90th percentile",
    "tpot_ms_p50": "TPOT, median",
    "e2e_ms_p50": "End-to-end latency, median",
    "e2e_ms_p90": "End-to-end latency, 90th percentile",
}
