"""Speed and memory of the archive converter on archives made here, compared with PCP's own tools.

python benchmarks/bench_pcp.py [--folder DIR] [--scale 1.0] [--keep] [--repeats 3]

For each archive: values per second of the whole command (start of Python to the finished file; the fastest of the
repeats), peak memory, size of the Parquet file beside the archive compressed with zstd, and the time of pmdumplog and
of `pcp2arrow -r`, where PATH has them, on the same archive. Everything runs on one core.

pcp2arrow comes with PCP 6.2 and later, and takes minutes. To build PCP's main branch for it, away from the system's:
    git clone https://github.com/performancecopilot/pcp && cd pcp
    ./configure --prefix=$PWD/to --sysconfdir=$PWD/to/etc --localstatedir=$PWD/to/var --with-rundir=$PWD/to/run \\
        --with-qt=no --with-qt3d=no --with-systemd=no --with-perl=no --with-selinux=no
    make && make install
    export PCP_CONF=$PWD/to/etc/pcp.conf LD_LIBRARY_PATH=$PWD/to/lib PATH=$PWD/to/bin:$PATH
Its Python (`pmpython`) needs pyarrow and, on its path, the module `pcp` that was installed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import zstandard

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from pcp_parquet.tests.test_archive_writer import (  # noqa: E402
    COUNTER,
    DOUBLE,
    STRING,
    U32,
    U64,
    Metric,
    Writer,
    indom,
    packed_sets,
    pmid,
    units,
)

SECOND = 10**9


def wide(folder: Path, scale: float) -> tuple[Path, int]:
    """20,000 instances x 600 samples: one metric of each of three types, every record of the same shape."""
    rng = np.random.default_rng(1)
    metrics, samples = 3, max(2, int(600 * scale))
    sizes = [
        20_000 // metrics + (number < 20_000 % metrics) for number in range(metrics)
    ]
    writer = Writer(folder, "wide")
    values, steps = [], []
    for number, size in enumerate(sizes):
        kind = (U32, U64, DOUBLE)[number % 3]
        domain = indom(60, number)
        writer.metric(
            Metric(
                pmid(60, 0, number),
                (f"wide.metric{number}",),
                kind,
                domain,
                COUNTER,
                units(count=1),
            )
        )
        writer.domain(
            writer.start, domain, {k: f"instance-{k:05}" for k in range(size)}
        )
        values.append(rng.integers(0, 1 << 30, size).astype(np.float64))
        steps.append(rng.integers(1, 4000, size))
    for step in range(samples):
        groups = []
        for number, size in enumerate(sizes):
            # Like real counters: some are idle, the others have their own pace; gauges drift.
            moving = rng.random(size) < 0.7
            values[number] += moving * rng.integers(0, steps[number])
            kind = (U32, U64, DOUBLE)[number % 3]
            shown = (
                values[number] / 8
                if kind == DOUBLE
                else values[number].astype(np.uint64)
            )
            groups.append((pmid(60, 0, number), kind, np.arange(size), shown))
        writer.raw_record(
            _jittered(writer, rng, step),
            packed_sets(3, groups),
            metrics,
            index=step % 30 == 0,
        )
    return writer.close(), samples * sum(sizes)


def churn(folder: Path, scale: float) -> tuple[Path, int]:
    """Processes come and go: 40 metrics of some 150 processes, another set of them in every seventh record."""
    rng = np.random.default_rng(2)
    samples, metrics, alive = max(8, int(3300 * scale)), 40, 152
    writer = Writer(folder, "churn")
    processes = indom(3, 9)
    kinds = [(U32, U64, U64, DOUBLE)[number % 4] for number in range(metrics)]
    for number, kind in enumerate(kinds):
        writer.metric(
            Metric(
                pmid(3, 8, number),
                (f"proc.metric{number:02}",),
                kind,
                processes,
                COUNTER,
            )
        )
    writer.metric(Metric(pmid(60, 0, 0), ("kernel.uname",), STRING))
    pids = np.arange(100, 100 + alive)
    values = rng.integers(0, 1 << 24, (metrics, alive)).astype(np.float64)
    writer.domain(
        writer.start, processes, {int(pid): _process(int(pid)) for pid in pids}
    )
    total, next_pid = 0, 100 + alive
    for step in range(samples):
        now = _jittered(writer, rng, step)
        if step % 7 == 6:
            leave = rng.choice(alive, 3, replace=False)
            new = np.arange(next_pid, next_pid + 3)
            next_pid += 3
            delta: dict[int, str | None] = {int(pid): None for pid in pids[leave]}
            writer.domain(
                now,
                processes,
                {**delta, **{int(pid): _process(int(pid)) for pid in new}},
                delta=True,
            )
            order = np.delete(np.arange(alive), leave)
            pids = np.concatenate([pids[order], new])
            values = np.concatenate([values[:, order], np.zeros((metrics, 3))], axis=1)
        values += (rng.random(values.shape) < 0.3) * rng.integers(0, 500, values.shape)
        groups = [
            (
                pmid(3, 8, number),
                kind,
                pids,
                values[number] / 4
                if kind == DOUBLE
                else values[number].astype(np.uint64),
            )
            for number, kind in enumerate(kinds)
        ]
        if step in (samples // 4, samples // 2, 3 * samples // 4):
            writer.volume()
        writer.raw_record(now, packed_sets(3, groups), metrics, index=step % 30 == 0)
        total += metrics * len(pids)
        if step % 60 == 0:
            writer.record(
                now + 1000, {pmid(60, 0, 0): {0xFFFFFFFF: "Linux testhost 6.1"}}
            )
            total += 1
    return writer.close(), total


def _jittered(writer: Writer, rng: np.random.Generator, step: int) -> int:
    return writer.start + step * SECOND + int(rng.integers(0, 2_000_000))


def _process(pid: int) -> str:
    return f"{pid:06} /usr/bin/python3 worker --number {pid % 97}"


# A child's peak memory includes what its parent had when it forked, so a small process starts the commands.
LAUNCHER = """
import json, os, subprocess, sys, time
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
seconds = time.perf_counter() - begin
print(json.dumps([status, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def timed(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak memory (MiB) of a command, its output thrown away."""
    launcher = [sys.executable, "-c", LAUNCHER, *command]
    run = subprocess.run(launcher, stdout=subprocess.PIPE, text=True, check=True)
    status, seconds, busy, memory = json.loads(run.stdout)
    if status:
        raise SystemExit(f"{command} failed with status {status}")
    return seconds, busy, memory


def compressed_size(folder: Path) -> int:
    """Bytes of the archive's files, each compressed by zstd at its default level."""
    return sum(len(zstandard.compress(path.read_bytes())) for path in folder.iterdir())


def read_back(parquet: Path, metric: str, window: tuple[int, int]) -> float:
    """Best of five: milliseconds to read one metric's window, in a process that has everything imported."""
    from pcp_parquet.parquet.reading import series  # noqa: PLC0415

    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        frame = series(parquet, metric, start_ns=window[0], finish_ns=window[1])
        best = min(best, time.perf_counter() - begin)
    assert len(frame)
    return best * 1e3


def session(name: str, base: Path, values: int, metric: str, repeats: int) -> None:
    """Convert and report."""
    parquet = base.parent.parent / f"{name}.parquet"
    command = [sys.executable, "-m", "pcp_parquet", str(base), "-o", str(parquet)]
    os.environ["PYTHONPATH"] = str(ROOT / "scripts")
    runs = [timed(command) for _ in range(repeats)]
    seconds, busy, _ = min(runs)
    memory = max(run[2] for run in runs)
    raw = sum(path.stat().st_size for path in base.parent.iterdir())
    stored, small = parquet.stat().st_size, compressed_size(base.parent)
    print(f"{name}: {values:,} values, archive {raw / 1e6:.1f} MB", flush=True)
    rate = values / seconds / 1e6
    print(
        f"  pcp_parquet {seconds:.2f} s ({busy:.2f} s processor) = {rate:.1f} M values/s, peak {memory:.0f} MiB"
    )
    print(
        f"  Parquet {stored / 1e6:.1f} MB, archive as .zst {small / 1e6:.1f} MB, ratio {stored / small:.2f}"
    )
    start = 1_700_000_000 * SECOND
    for first, last in ((30, 90), (0, 10**6)):
        took = read_back(
            parquet, metric, (start + first * SECOND, start + last * SECOND)
        )
        print(f"  reading {metric} back, seconds {first} to {last}: {took:.1f} ms")
    if shutil.which("pmdumplog"):
        seconds, theirs, _ = timed(["pmdumplog", str(base)])
        print(
            f"  pmdumplog {seconds:.1f} s ({theirs:.1f} s processor), {theirs / busy:.0f} times as much"
        )
    if shutil.which("pcp2arrow"):
        # It makes a folder, which must not exist.
        with tempfile.TemporaryDirectory(dir=base.parent.parent) as folder:
            seconds, theirs, memory = timed(
                ["pcp2arrow", "-a", str(base), "-r", "-o", str(Path(folder, "out"))]
            )
        times = f"{theirs / busy:.0f} times as much"
        print(
            f"  pcp2arrow -r {seconds:.1f} s ({theirs:.1f} s processor), {times}, peak {memory:.0f} MiB"
        )


def main() -> None:
    """Make the archives, measure, clean up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where archives are made (and found again with --keep)",
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the samples")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="leave the archives")
    options = parser.parse_args()
    # Commands inherit it: what is measured runs on one core.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    folder = options.folder or Path(tempfile.mkdtemp(prefix="bench-pcp-"))
    for name, make, metric in (
        ("wide", wide, "wide.metric1"),
        ("churn", churn, "proc.metric07"),
    ):
        count = folder / name / "VALUES"
        if not count.exists():
            _, values = make(folder / name, options.scale)
            count.write_text(str(values))
        session(
            name, folder / name / name, int(count.read_text()), metric, options.repeats
        )
        if not options.keep:
            shutil.rmtree(folder / name)


if __name__ == "__main__":
    main()
