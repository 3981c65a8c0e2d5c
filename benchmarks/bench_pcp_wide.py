"""Compares pcp-parquet --wide with PCP's own pcp2arrow, value by value, on the given archives.

python benchmarks/bench_pcp_wide.py ARCHIVES_DIR... [--pcp2arrow COMMAND] [--keep DIR] [--only PATTERN]

For each archive both tools run three times: records as they are (-r), samples of rates (-t), and samples of counters
(-t -R); the interval is a 37th of the recording, so that most samples lie between records. Prints the number of values
that pcp2arrow has and that are equal to the last bit, what only one of the two has, and why. Exit code 1 if a value,
a name, a type or the order differs without a known reason. `COMMAND` runs pcp2arrow of PCP 6.2 or later
("bash -c '. env.sh; exec pcp2arrow \"$@\"' -"); its results are kept in DIR and used again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from pcp_parquet.archive.files import opened  # noqa: E402
from pcp_parquet.archive.loading import load_all  # noqa: E402
from pcp_parquet.archive.meta import Desc  # noqa: E402
from pcp_parquet.archive.problems import ArchiveError, ProblemLog  # noqa: E402
from pcp_parquet.archive.units import COUNTER, STRING, U64  # noqa: E402
from pcp_parquet.conversion.conversion import Scan  # noqa: E402
from pcp_parquet.tool.domains import Inventory  # noqa: E402
from pcp_parquet.tool.interpolation import Moments, present, rates  # noqa: E402
from pcp_parquet.tool.intervals import parse_interval  # noqa: E402
from pcp_parquet.tool.samples import SampleStore, SeriesSamples  # noqa: E402
from pcp_parquet.tool.scaling import scaling  # noqa: E402

COLUMNS_AT_ONCE = 500
MODES = {"raw": ["-r"], "rates": ["-t"], "samples": ["-R", "-t"]}


class Facts:
    """The facts about an archive that explain differences between the two tools."""

    def __init__(self, archive: Path) -> None:
        problems = ProblemLog()
        self.archive = archive
        with opened(archive, problems) as found:
            archives = load_all(found, archive, problems)
            scan = Scan(problems)
            scan.run(archives)
        self.goes_back = any(problem.kind == "clock step" for problem in problems.all())
        self.start_ns, self.marks_ns = (
            archives[0].label.start_ns,
            np.array(scan.marks, dtype=np.int64),
        )
        self.span_s = (scan.info(archives, 0).end_ns - archives[0].label.start_ns) / 1e9
        metadata = [archive.metadata for archive in archives]
        self.inventory = Inventory(metadata)
        self.lists = metadata[0].instance_lists
        self.renamed = {
            indom
            for indom, domain in metadata[0].domains.items()
            if len({number for _, number, _ in domain.events}) < len(domain.events)
        }
        self.shared = {
            indom
            for indom, domain in metadata[0].domains.items()
            if len(set(domain.current.values())) < len(domain.current)
        }

    def desc(self, column: str) -> Desc:
        """The descriptor of a column's metric."""
        name = column.split("[", 1)[0]
        return self.inventory.descs[self.inventory.pmids[name]]

    @property
    def interval(self) -> str:
        """Seconds between samples."""
        return f"{max(self.span_s / 37.3, 0.05):.3f}"

    def explained(self, column: str, theirs: pa.ChunkedArray, mode: str) -> str:
        """Why libpcp's values of an unsigned 64-bit counter differ: the reason that yields `theirs` exactly, or ""."""
        desc, instance = (
            self.desc(column),
            column.partition("[")[2].removesuffix("]") or None,
        )
        with (
            tempfile.TemporaryDirectory() as folder,
            opened(self.archive, ProblemLog()) as found,
        ):
            store = SampleStore(Path(folder))
            scan = Scan(
                ProblemLog(), lambda one: one.pmid == desc.pmid, sink=store.take
            )
            scan.run(load_all(found, self.archive, ProblemLog()))
            series = store.series(desc.pmid, instance, desc.type)
        step = parse_interval(self.interval)
        moments = Moments(
            self.start_ns + step * np.arange(len(theirs)), self.start_ns, self.marks_ns
        )
        for reason, samples in (
            ("unsigned counters beyond 2^63, which libpcp takes for negative", series),
            (
                "64-bit counters recorded without their type: libpcp does not swap their bytes",
                SeriesSamples(series.times_ns, series.values.byteswap()),
            ),
        ):
            values, valid = signed(samples, moments)
            if mode == "rates":
                values, valid = rates(values, valid, moments.at_ns)
                values *= scaling(desc.units, counter=True, raw=False).ratio
            if pa.array(values.astype(float), mask=~valid).equals(
                theirs.combine_chunks()
            ):
                return reason
        return ""


def signed(series: SeriesSamples, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Values of an unsigned 64-bit counter, and where they exist, as PCP's interp.c has them: with signed samples."""
    times, at = series.times_ns, moments.at_ns
    before = np.maximum(np.searchsorted(times, at, side="right") - 1, 0)
    after = np.minimum(np.searchsorted(times, at), len(times) - 1)
    low, high = series.values[before], series.values[after]
    low_signed = low.view(np.int64)
    rise = (high.view(np.int64) - low_signed).astype(
        float
    )  # overflows as the compiled C does
    asked, first, second = (
        moments.seconds(each) for each in (at, times[before], times[after])
    )
    with np.errstate(all="ignore"):
        line = np.trunc(
            0.5 + low_signed.astype(float) + (asked - first) * rise / (second - first)
        )
        whole = np.where(
            line < 2.0**63,
            line.astype(np.int64).view(np.uint64),
            line.astype(np.uint64),
        )
    values = np.where(first == asked, low, whole)
    return values, present(series, moments, COUNTER)


def compare(
    our_folder: Path, their_folder: Path, facts: Facts, mode: str
) -> Counter[str]:
    """Counts of equal values, and of differences by their reason; those that begin with "!" are unexplained.

    Some columns at a time: a table of tens of thousands takes gigabytes.
    """
    found: Counter[str] = Counter()
    ours, theirs = ds.dataset(our_folder), ds.dataset(their_folder)
    # libpcp adds these to every archive, without values.
    names = [
        name
        for name in theirs.schema.names
        if name not in ("event.flags", "event.missed")
    ]
    mine = set(ours.schema.names)
    our_times, their_times = (
        one.to_table(columns=["timestamp"])["timestamp"] for one in (ours, theirs)
    )
    if our_times.cast(pa.int64()) != their_times.cast(pa.int64()):
        found[f"! time stamps ({len(our_times)} rows, theirs {len(their_times)})"] += 1
        return found
    found["columns"] = len(names)
    for name, times in Counter(names).items():
        if times > 1:
            found["column twice in pcp2arrow (instances of one name)"] += 1
        elif name not in mine:
            found[f"! column {name} is missing"] += 1
    if [name for name in ours.schema.names if name in set(names)] != list(
        dict.fromkeys(names)
    ):
        found["! order of columns"] += 1
    found["columns of ours alone (instances under earlier names)"] += len(
        mine - set(names)
    )
    counts = Counter(names)
    once = [
        name
        for name in counts
        if name != "timestamp" and name in mine and counts[name] == 1
    ]
    for batch in batched(once, COLUMNS_AT_ONCE):
        our_columns, their_columns = (
            one.to_table(columns=batch) for one in (ours, theirs)
        )
        for name in batch:
            found.update(
                _column(our_columns[name], their_columns[name], facts, name, mode)
            )
    return found


def batched(names: list[str], count: int) -> Iterator[list[str]]:
    """Some names at a time."""
    for begin in range(0, len(names), count):
        yield names[begin : begin + count]


def _column(
    ours: pa.ChunkedArray, theirs: pa.ChunkedArray, facts: Facts, name: str, mode: str
) -> Counter[str]:
    found: Counter[str] = Counter()
    desc = facts.desc(name)
    if ours.type != theirs.type:
        found[f"! type of {name}: {ours.type}, theirs {theirs.type}"] += 1
        return found
    mine, other = pc.is_valid(ours).to_numpy(), pc.is_valid(theirs).to_numpy()
    both = mine & other
    beyond = np.zeros(len(both), dtype=bool)
    if pa.types.is_string(ours.type):
        same = np.array(
            [a == b for a, b in zip(ours.to_pylist(), theirs.to_pylist(), strict=True)],
            dtype=bool,
        )
    else:
        left, right = (column.fill_null(0).to_numpy() for column in (ours, theirs))
        # Bit by bit, so that NaN is equal to itself.
        same = left.view(f"u{left.itemsize}") == right.view(f"u{left.itemsize}")
        beyond = (
            np.abs(left.astype(float)) > 2.0**53
            if pa.types.is_integer(ours.type)
            else beyond
        )
    renamed = "the number had another name then" if desc.indom in facts.renamed else ""
    rated = (
        "-R: pcp2arrow takes rates of dimensionless counters"
        if mode == "samples" and _dimensionless(desc)
        else ""
    )
    left_out = "pcp2arrow leaves out (instance not in its domain at the next sample, or another's name)"
    if facts.inventory.instances(desc) is None:
        left_out = "pcp2arrow -r leaves singular metrics out" if mode == "raw" else ""
    differ = both & ~same
    unknown = (
        (other & ~mine).any()
        | (differ & ~beyond).any()
        | (not left_out and (mine & ~other).any())
    )
    if unknown and not renamed and not rated and mode != "raw":
        if desc.type == U64 and desc.semantics == COUNTER:
            rated = facts.explained(name, theirs, mode)
        elif desc.type == STRING and desc.units >> 8:
            rated = "texts with units, which libpcp's fetch groups do not convert"
        elif facts.goes_back:
            rated = "time goes back in the archive: libpcp looks for values in the order of the file"
    example = f"{name}: {ours[int(np.argmax(differ))]} theirs {theirs[int(np.argmax(differ))]}"
    found["equal"] += int((both & same).sum())
    found["values of pcp2arrow"] += int(other.sum())
    found[rated or left_out or f"! only ours: {name}"] += int((mine & ~other).sum())
    found[rated or renamed or f"! only theirs: {name}"] += int((other & ~mine).sum())
    found["integers beyond 2^53, which pcp2arrow rounds"] += int(
        (differ & beyond).sum()
    )
    found[rated or renamed or f"! {example}"] += int((differ & ~beyond).sum())
    return +found


def _dimensionless(desc: Desc) -> bool:
    return desc.semantics == COUNTER and desc.units >> 8 == 0


def main() -> int:
    """Exit code 0 if nothing differs without a reason."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="ARCHIVES_DIR")
    parser.add_argument("--pcp2arrow", default="pcp2arrow", metavar="COMMAND")
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--only", default="*", metavar="PATTERN")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    os.environ["TZ"] = "UTC"
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        for index in sorted(
            path for folder in options.folders for path in folder.glob("*.index*")
        ):
            archive = index.with_name(index.name.split(".index")[0])
            if fnmatch(archive.name, options.only):
                _archive(
                    archive, shlex.split(options.pcp2arrow), keep, Path(scratch), total
                )
    print("\nin all:")
    for reason, count in total.most_common():
        print(f"  {count:>12,}  {reason}")
    return int(any(reason.startswith("!") for reason in total))


def _archive(
    archive: Path, tool: list[str], keep: Path, scratch: Path, total: Counter[str]
) -> None:
    try:
        facts = Facts(archive)
    except ArchiveError as error:
        print(f"{archive.name}: not read: {str(error)[:100]}")
        return
    clean = True
    for mode, switches in MODES.items():
        arguments = [*switches, facts.interval] if switches[-1] == "-t" else switches
        theirs = keep / archive.name / mode
        if not (keep / archive.name / f"{mode}.done").exists():
            theirs.parent.mkdir(parents=True, exist_ok=True)
            run = subprocess.run(
                [*tool, "-a", archive, *arguments, "-o", theirs],
                capture_output=True,
                text=True,
            )
            (keep / archive.name / f"{mode}.done").write_text(run.stderr)
        ours = scratch / archive.name / mode
        shutil.rmtree(ours, ignore_errors=True)
        ours.parent.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pcp_parquet",
            "-a",
            archive,
            "--wide",
            *arguments,
            "-o",
            ours,
        ]
        run = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")},
        )
        if not theirs.exists():
            said = (
                (keep / archive.name / f"{mode}.done").read_text().strip().splitlines()
            )
            print(
                f"{archive.name} {mode}: pcp2arrow fails: {said[-1][:100] if said else ''}"
            )
            clean = False
            continue
        if not ours.exists():
            print(f"{archive.name} {mode}: ! ours fails: {run.stderr.strip()[-300:]}")
            total["! ours fails"] += 1
            continue
        found = compare(ours, theirs, facts, mode)
        total += found
        others = "; ".join(
            f"{count:,} {reason}"
            for reason, count in found.items()
            if count and reason not in ("equal", "values of pcp2arrow", "columns")
        )
        print(
            f"{archive.name} {mode}: {found['equal']:,} of {found['values of pcp2arrow']:,} equal. {others[:600]}",
            flush=True,
        )
        clean &= found["equal"] == found["values of pcp2arrow"] and not any(
            r.startswith("!") for r in found
        )
    total["archives without any difference in pcp2arrow's values"] += clean
    shutil.rmtree(scratch / archive.name, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
