"""Put a cell's runs together - load and system, level by level - and extract its peak."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import yaml

from kveval.analysis.peaks import cell_tables


def main(
    levels: Sequence[Path], pcp: Sequence[Path], metrics: Path, vllm: str, min_samples: int, output: Sequence[Path]
) -> None:
    """`vllm`: the release of the server, for metrics whose names changed; `min_samples`: of a window."""
    catalogue = yaml.safe_load(metrics.read_text())
    tables = cell_tables(levels, pcp, catalogue, version=vllm, min_samples=min_samples)
    for table, path in zip(tables, output, strict=True):
        table.to_csv(path, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--levels", "--pcp"):
        parser.add_argument(option, type=Path, nargs="+", required=True)
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--min-samples", type=int, required=True)
    parser.add_argument("--output", type=Path, nargs=2, required=True, help="the table of levels and that of the peak")
    main(**vars(parser.parse_args()))
