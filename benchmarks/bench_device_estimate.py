"""The estimate of what a device holds, against the sizes that servers reported (device_truths.yaml); for the docs.

    python benchmarks/bench_device_estimate.py

Prints a table in Markdown, and below it how many ranges have what the server reported.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from tests.support.device_truths import Truth, read_truths  # noqa: E402

HEADER = (
    "model",
    "GPUs",
    "vLLM",
    "share",
    "reported",
    "estimate",
    "range",
    "half width",
    "inside",
)


def row(truth: Truth) -> tuple[str, ...]:
    """Return the cells of a truth's row."""
    server, estimate = truth.server, truth.estimate
    requests = f", {server.max_num_seqs} requests" if server.max_num_seqs else ""
    return (
        truth.model,
        f"{server.ranks} x {truth.gpu}",
        server.version + requests,
        f"{server.utilization:g}",
        f"{truth.tokens:,}",
        f"{estimate.tokens:,} ({100 * truth.error:+.1f} %)",
        f"{estimate.low_tokens:,} to {estimate.high_tokens:,}",
        f"{100 * truth.half_width:.0f} %",
        "yes" if truth.inside else "**no**",
    )


def main() -> None:
    """Print the table and what it comes to."""
    truths = read_truths()
    print(f"| {' | '.join(HEADER)} |")
    print("|---" * len(HEADER) + "|")
    for truth in truths:
        print(f"| {' | '.join(row(truth))} |")
    inside = sum(truth.inside for truth in truths)
    widest = max(truth.half_width for truth in truths)
    print()
    print(
        f"{inside} of {len(truths)} inside; the widest range is +-{100 * widest:.0f} %"
    )


if __name__ == "__main__":
    main()
