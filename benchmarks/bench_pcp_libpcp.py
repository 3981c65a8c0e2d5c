"""Bit-by-bit comparison of our reading of PCP archives with libpcp's own.

python benchmarks/bench_pcp_libpcp.py ARCHIVES_DIR... [--python PYTHON] [--only NAME]...

Needs a Python with the module `pcp` of PCP 7.2 or later (default: `pmpython`; see docs/pcp.md for how to build one) and
archives, such as the folder qa/archives of PCP's sources. Prints one line per archive that differs, with the kinds of
difference and how often each occurs, and the totals. A difference is explained only where a check of its own says so;
exit code 1 if one is not.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from pcp_parquet.archive.files import opened, split_name  # noqa: E402
from pcp_parquet.archive.member import Stream  # noqa: E402
from pcp_parquet.archive.problems import ArchiveError, ProblemLog  # noqa: E402
from pcp_parquet.archive.records import Block  # noqa: E402
from pcp_parquet.conversion.conversion import ConversionSummary, convert, survey  # noqa: E402
from pcp_parquet.parquet.reading import LongFile, codes  # noqa: E402

Reading = dict[str, Any]
FLOATS = ("float", "double")
# Bytes of the largest member that is uncompressed for libpcp.
MOST = 1 << 30
# pmTypeStr's names are ours in capitals, but for these.
TYPES = {
    "static aggregate": "AGGREGATE_STATIC",
    "event record array": "EVENT",
    "highres event record array": "HIGHRES_EVENT",
    "no support": "NO_SUPPORT",
}


class Difference(Counter[str]):
    """Unexplained differences of one archive, by kind; `explained`: those that a check accounts for."""

    def __init__(self) -> None:
        super().__init__()
        self.explained: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def note(self, kind: str, example: object, count: int = 1) -> None:
        """Count differences that nothing explains."""
        self[kind] += count
        self.examples.setdefault(kind, str(example)[:300])


def archives(folders: list[Path]) -> list[Path]:
    """Base names of all archives below the folders."""
    found = set()
    for folder in folders:
        for path in folder.rglob("*"):
            parts = split_name(path.name)
            if parts is not None and parts[1] == "meta" and path.is_file():
                found.add(path.with_name(parts[0]))
    return sorted(found)


def libpcp_reading(python: str, base: Path, folder: Path) -> Reading:
    """What libpcp reads of an archive; {"refused": why} where it opens nothing."""
    out = folder / "libpcp.pickle"
    out.unlink(missing_ok=True)
    command = [
        python,
        str(ROOT / "benchmarks" / "libpcp_reading.py"),
        str(base),
        str(out),
    ]
    # Derived metrics are no part of an archive.
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "PCP_DERIVED_CONFIG": ""},
    )
    if run.returncode > 0:
        raise SystemExit(f"{python} cannot read archives: {run.stderr.strip()[-300:]}")
    if not out.exists():
        return {"refused": f"status {run.returncode}: {run.stderr.strip()[-300:]}"}
    reading: Reading = pickle.loads(out.read_bytes())
    return reading


def plain_copy(base: Path, folder: Path) -> Path:
    """The archive with its members uncompressed: not every build of libpcp can read all compressions."""
    folder.mkdir()
    problems = ProblemLog()
    with opened(base, problems) as found:
        for member in found[0].members():
            stream = Stream(member, problems)
            name = member.path.name.removesuffix(member.suffix)
            (folder / name).write_bytes(stream.read_all(MOST))
            stream.close()
    return folder / base.name


def our_columns(
    parquet: Path, numbers: dict[tuple[str, str | None], int], kinds: dict[str, str]
) -> tuple[Any, Any]:
    """(times, series, bits) of the numbers, and the same of the texts, of a converted archive."""
    table = pq.read_table(parquet)
    times = (
        table["timestamp"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64()).to_numpy()
    )
    (metrics, words), (instances, names) = (
        codes(table["metric"]),
        codes(table["instance"]),
    )
    keys, inverse = np.unique(
        metrics * (len(names) + 1) + instances + 1, return_inverse=True
    )
    pairs = [
        (words[key // (len(names) + 1)], [None, *names][key % (len(names) + 1)])
        for key in keys.tolist()
    ]
    mapped = np.array(
        [numbers.setdefault(pair, len(numbers)) for pair in pairs] or [0],
        dtype=np.int64,
    )
    series = mapped[inverse]
    floats = np.array([kinds[word] in FLOATS for word in words] or [False])[metrics]
    values = table["value"].to_numpy()
    bits = values.view(np.uint64).copy()
    whole = np.flatnonzero(~floats & ~np.isnan(values))
    small = whole[np.abs(values[whole]) < 2.0**53]
    bits[small] = values[small].astype(np.int64).view(np.uint64)
    exact = table["value_int"]
    large = np.flatnonzero(exact.is_valid().to_numpy())
    bits[large] = [
        int(value) & 0xFFFFFFFFFFFFFFFF
        for value in exact.take(pa.array(large)).to_pylist()
    ]
    is_text = np.array([kinds[word] == "string" for word in words] or [False])[metrics]
    at = np.flatnonzero(is_text)
    texts = list(
        zip(
            times[at].tolist(),
            series[at].tolist(),
            table["text"].take(pa.array(at)).to_pylist(),
            strict=True,
        )
    )
    return (times[~is_text], series[~is_text], bits[~is_text]), texts


def unequal(
    theirs: tuple[Any, ...], ours: tuple[Any, ...]
) -> tuple[Counter[Any], Counter[Any]]:
    """Rows (time, series, bits) that only libpcp has, and that only we have."""
    ordered = []
    for columns in (theirs, ours):
        order = np.lexsort(columns[::-1])
        ordered.append([column[order] for column in columns])
    if len(ordered[0][0]) == len(ordered[1][0]) and all(map(np.array_equal, *ordered)):
        return Counter(), Counter()
    rows = [
        Counter(zip(*(column.tolist() for column in columns), strict=True))
        for columns in ordered
    ]
    return rows[0] - rows[1], rows[1] - rows[0]


def explain_swapped(
    missing: Counter[Any], more: Counter[Any], found: Difference
) -> None:
    """Account for values that libpcp has with their eight bytes in the wrong order: blocks that name no type (1996)."""
    for row in list(missing):
        moment, series, value = row
        swapped = (
            (moment, series, int.from_bytes(int(value).to_bytes(8, "little"), "big"))
            if value != str(value)
            else row
        )
        if (count := min(missing[row], more.get(swapped, 0))) and swapped != row:
            found.explained[
                "64-bit values without a type that libpcp does not swap"
            ] += count
            missing[row] -= count
            more[swapped] -= count
            missing += Counter()
            more += Counter()


def explain_backwards(more: Counter[Any], base: Path, found: Difference) -> None:
    """Account for values of records that are earlier than one before them: libpcp leaves these records out."""
    if not more:
        return
    latest, behind = 0, set()

    def watch(block: Block, _: str) -> None:
        nonlocal latest
        for moment in block.times.tolist():
            if moment < latest:
                behind.add(moment)
            latest = max(latest, moment)

    survey(base, watcher=watch)
    for row in [row for row in more if row[0] in behind]:
        found.explained[
            "values of records earlier than their predecessor, left out by libpcp"
        ] += more.pop(row)


def compare(
    base: Path, reading: Reading, summary: ConversionSummary, parquet: Path
) -> Difference:
    """All differences of one archive."""
    found = Difference()
    kinds = {name: info.type for name, info in summary.metrics.items()}
    numbers = {pair: number for number, pair in enumerate(reading["names"])}
    ours, our_texts = our_columns(parquet, numbers, kinds)
    pairs = list(numbers)
    columns = zip(
        ("times", "series", "bits"), (np.int64, np.int64, np.uint64), strict=True
    )
    theirs = tuple(np.array(reading[name], dtype=kind) for name, kind in columns)
    their_texts = Counter(reading["texts"])
    for what, (missing, more) in (
        ("value", unequal(theirs, ours)),
        ("text", (their_texts - Counter(our_texts), Counter(our_texts) - their_texts)),
    ):
        explain_swapped(missing, more, found)
        explain_backwards(more, base, found)
        start = min(archive["start_ns"] for archive in summary.info.archives)
        for row in [row for row in more if row[0] < start]:
            found.explained[
                "values earlier than the archive's label, left out by libpcp"
            ] += more.pop(row)
        if reading["error"] and more and not missing:
            found.explained["values after the damage at which libpcp stops"] += (
                more.total()
            )
            more.clear()
        for side, rows in (("only libpcp", missing), ("only ours", more)):
            for (moment, series, value), count in rows.items():
                found.note(f"{what} {side}", (moment, *pairs[series], value), count)
    compare_metrics(reading, summary, found)
    compare_labels(reading, LongFile(parquet), found)
    for name, mine in (
        ("host", summary.info.host),
        ("timezone", summary.info.timezone),
    ):
        if reading[name] != mine:
            found.note(name, (reading[name], mine))
    if sorted(reading["marks"]) != summary.info.marks_ns:
        found.note("marks", (reading["marks"][:3], summary.info.marks_ns[:3]))
    return found


def compare_metrics(
    reading: Reading, summary: ConversionSummary, found: Difference
) -> None:
    """Names, types, semantics, units, domains, help, and what has no value."""
    theirs = reading["metrics"]
    for name in theirs.keys() ^ summary.metrics.keys():
        found.note("metric only libpcp" if name in theirs else "metric only ours", name)
    for name in theirs.keys() & summary.metrics.keys():
        info, entry = summary.metrics[name], theirs[name]
        mine = {
            **{
                "names": set(info.names),
                "type": TYPES.get(info.type, info.type.upper()),
                "semantics": info.semantics,
            },
            **{"units": info.units, "indom": info.indom, "help": info.help},
        }
        for field, value in mine.items():
            if entry[field] == "???" and info.type.startswith("unknown type"):
                continue
            if entry[field] != value:
                found.note(field, (name, entry[field], value))
    errors = Counter(
        {
            (name, int(code)): count
            for name, info in summary.metrics.items()
            for code, count in info.errors.items()
        }
    )
    if errors != reading["errors"]:
        found.note(
            "error codes",
            (Counter(reading["errors"]) - errors, errors - Counter(reading["errors"])),
        )
    others = {
        name: info.not_converted
        for name, info in summary.metrics.items()
        if info.not_converted
    }
    if summary.damaged and others.keys() < reading["others"].keys():
        found.explained[
            "metrics with values in no block of their type, which we report as damage"
        ] += 1
    elif others != reading["others"]:
        found.note("not converted", (reading["others"], others))


def compare_labels(reading: Reading, file: LongFile, found: Difference) -> None:
    """Labels of metrics and instances at the times at which libpcp was asked."""
    metrics, host = file.metrics(), file.archive().host
    for at, (moment, labels) in enumerate(reading["labels"]):
        for name in labels.keys() & metrics.keys():
            mine = labels_at(metrics[name].labels_of(host), moment, first=True)
            if labels[name] == mine:
                continue
            # Labels that libpcp lacks at this time and has at a later one.
            if labels[name].keys() < mine.keys() and any(
                later[name] == mine for _, later in reading["labels"][at:]
            ):
                found.explained[
                    "labels before their first record, which we let hold from the beginning"
                ] += 1
            else:
                found.note("labels", (moment, name, labels[name], mine))
    histories = {
        info.indom: file.instance_labels(info, host)
        for info in metrics.values()
        if info.indom
    }
    for moment, indom, labels, elsewhere in reading["instances"]:
        history = histories.get(indom, {})
        mine = {
            name: held
            for name, through in history.items()
            if (held := labels_at(through, moment, first=False))
        }
        theirs = {name: held for name, held in labels.items() if held}
        # A number that the domain does not hold at the time keeps its last name with us, and takes any with libpcp.
        for name in [
            name for name in mine.keys() - theirs.keys() if mine[name] in elsewhere
        ]:
            elsewhere.remove(mine.pop(name))
            found.explained[
                "labels of instances that are in the domain at another time only"
            ] += 1
        if theirs != mine:
            found.note("instance labels", (moment, indom, theirs, mine))


def labels_at(history: list[tuple[int, Any]], moment: int, *, first: bool) -> Any:
    """The labels at a time; before the first record the first ones, or none."""
    known = [labels for since, labels in history if since <= moment]
    return known[-1] if known else history[0][1] if first else {}


def damage(summary: ConversionSummary) -> str:
    """The first damage that we report."""
    return next(
        (str(problem) for problem in summary.problems if problem.damage), "no damage"
    )


def main() -> int:
    """Compare, report, count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="ARCHIVES_DIR")
    parser.add_argument(
        "--python", default="pmpython", help="a Python that has PCP's module `pcp`"
    )
    parser.add_argument(
        "--only", action="append", help="base name of an archive; repeatable"
    )
    options = parser.parse_args()
    begin, values, compared = time.monotonic(), 0, 0
    explained: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    unexplained = 0
    with tempfile.TemporaryDirectory(prefix="bench-pcp-libpcp-") as room:
        parquet = Path(room, "ours.parquet")
        for base in archives(options.folders):
            if options.only and base.name not in options.only:
                continue
            reading = libpcp_reading(options.python, base, Path(room))
            try:
                summary = convert(base, parquet)
            except ArchiveError as error:
                refused["both" if "refused" in reading else "only us"] += 1
                print(
                    f"{base}: refused: {error}; libpcp: {reading.get('refused', 'reads it')}"
                )
                continue
            if "refused" in reading:
                with tempfile.TemporaryDirectory(dir=room) as copies:
                    again = libpcp_reading(
                        options.python,
                        plain_copy(base, Path(copies, "plain")),
                        Path(room),
                    )
                reading = again if "refused" not in again else reading
            if "refused" in reading:
                refused[
                    "only libpcp"
                    if summary.damaged
                    else "only libpcp, and we see no damage"
                ] += 1
                print(
                    f"{base}: refused by libpcp: {reading['refused']}; ours: {summary.rows:,} values, {damage(summary)}"
                )
                continue
            compared += 1
            values += len(reading["times"]) + len(reading["texts"])
            found = compare(base, reading, summary, parquet)
            explained += found.explained
            unexplained += found.total()
            if found or reading["error"]:
                print(
                    f"{base}: libpcp {reading['error'] or 'ended well'}; ours: {damage(summary)}"
                )
                for kind, count in found.items():
                    print(f"    {kind}: {count:,}, such as {found.examples[kind]}")
    print(
        f"{compared:,} archives, {values:,} values in {time.monotonic() - begin:.0f} s"
    )
    for kind, count in refused.items():
        print(f"refused: {kind}: {count:,} archives")
    for kind, count in explained.items():
        print(f"explained: {kind}: {count:,}")
    print(f"unexplained differences: {unexplained:,}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    raise SystemExit(main())
