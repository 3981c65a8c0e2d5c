"""How often the default campaign reaches a verdict: measures it several times, and resamples campaigns from blocks.

    python benchmarks/bench_default_campaign.py FOLDER [CAMPAIGNS] [--beside-a-busy-core]

Every campaign has its own store, empty at first, in FOLDER/N (FOLDER/N-busy if another process keeps a core busy
meanwhile); those that have a report are not measured again. A resampled campaign has three blocks (runs of all cells
that were measured together), drawn with replacement from all blocks of the undisturbed campaigns.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from kveval.campaign.campaign_file import Comparison
from kveval.tables.csv_files import read_table
from kveval.verdict.verdicts import compare_all

REPOSITORY = Path(__file__).resolve().parents[1]
RESAMPLED = 1000
ENOUGH_PERCENT = 50.0
METRICS = {"throughput_tok_s": True, "ttft_ms_p50": False}
COLUMNS = [
    "scenario",
    "cpu_blocks",
    "metric",
    "verdict",
    "effect_percent",
    "low_percent",
    "high_percent",
    "runs",
]


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy with another process while the body runs."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def measure(folder: Path) -> float:
    """Run the default campaign into `folder`, from an empty store to the report; return the wall seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with (folder / "log").open("wb") as log:
        command = ["snakemake", "--cores", "4", "report", "--directory", str(folder)]
        subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=log, check=True)
    return time.monotonic() - begin


def tables(folder: Path) -> pd.DataFrame:
    """Return every level of every run of a campaign; column `block` is the run's number, with the campaign's name."""
    levels = read_table(folder / "results" / "analysis" / "complete_metrics.csv").copy()
    return levels.assign(block=[f"{folder.name}/{run}" for run in levels["run"]])


def compared(levels: pd.DataFrame) -> pd.DataFrame:
    """Compare the arms of a campaign as the workflow does."""
    baselines = {
        name: "no-offload" if name != "no-offload" else None
        for name in levels["scenario"].unique()
    }
    return compare_all(levels, baselines, Comparison(), METRICS).baseline


def resampled(
    blocks: list[pd.DataFrame], runs: int, generator: np.random.Generator
) -> pd.DataFrame:
    """Draw a campaign of `runs` blocks; one that is drawn again differs in its last digits, or it would be a copy."""
    drawn = generator.integers(0, len(blocks), runs)
    parts = [blocks[place].assign(run=number + 1) for number, place in enumerate(drawn)]
    for number, part in enumerate(parts):
        part["throughput_tok_s"] *= 1 + 1e-12 * number
    return pd.concat(parts, ignore_index=True)


def main() -> None:
    """Measure what is missing, then print the campaigns' verdicts and the shares among resampled ones."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("campaigns", type=int, nargs="?", default=4)
    parser.add_argument("--beside-a-busy-core", action="store_true")
    chosen = parser.parse_args()
    root = chosen.folder.absolute()
    for number in range(1, chosen.campaigns + 1):
        folder = root / (f"{number}-busy" if chosen.beside_a_busy_core else str(number))
        if not (folder / "results" / "REPORT.md").exists():
            if chosen.beside_a_busy_core:
                with busy_core():
                    seconds = measure(folder)
            else:
                seconds = measure(folder)
            print(f"campaign {folder.name}: {seconds / 60:.1f} minutes", flush=True)
    campaigns = {folder.name: tables(folder) for folder in sorted(root.iterdir())}
    for name, levels in campaigns.items():
        print(
            f"\ncampaign {name}\n{compared(levels)[COLUMNS].round(1).to_string(index=False)}"
        )
    quiet = pd.concat(
        [levels for name, levels in campaigns.items() if not name.endswith("-busy")]
    )
    blocks = [rows for _, rows in quiet.groupby("block", sort=False)]
    generator = np.random.default_rng(1)
    counts: Counter[tuple[str, int, str, str]] = Counter()
    enough: Counter[tuple[str, int, str, str]] = Counter()
    for _ in range(RESAMPLED):
        for row in compared(resampled(blocks, 3, generator)).to_dict("records"):
            key = (row["scenario"], row["cpu_blocks"], row["metric"], row["verdict"])
            counts[key] += 1
            enough[key] += row["low_percent"] > ENOUGH_PERCENT
    print(f"\n{RESAMPLED} campaigns of 3 out of {len(blocks)} blocks")
    for key, count in sorted(counts.items()):
        print(
            f"  {key[0]}/{key[1]} {key[2]}: {key[3]} in {100 * count / RESAMPLED:.1f} %",
            end="",
        )
        share = 100 * enough[key] / RESAMPLED
        print(
            f", lower end above +{ENOUGH_PERCENT:g} % in {share:.1f} %"
            if enough[key]
            else ""
        )


if __name__ == "__main__":
    main()
