"""The command pcp-parquet from its options to a finished file, and its exit codes."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.compression import allowance, allowance_hint
from pcp_parquet.archive.files import opened
from pcp_parquet.archive.loading import Archive, load_all
from pcp_parquet.archive.problems import (
    PERHAPS_LOST,
    ArchiveError,
    ArchiveProblem,
    ProblemLog,
)
from pcp_parquet.archive.records import Volume
from pcp_parquet.conversion.conversion import Scan, convert, matcher, survey
from pcp_parquet.tool.intervals import (
    SECOND,
    TimeWindow,
    nanoseconds,
    shown,
    time_window,
)
from pcp_parquet.tool.options import parse

OK, DAMAGED, NOTHING = 0, 1, 2
DEFAULT_INTERVAL_NS = 60 * SECOND
MICROSECOND = 1000
# Bounds of the wide table, which `allowance` raises: rows, and cells, or so many for each value if that is more.
ROWS = 5_000_000
CELLS = 200_000_000
CELLS_PER_VALUE = 100


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 all well, 1 something recorded could not be read (the rest was), 2 nothing was written."""
    options = parse(argv)
    try:
        problems = _run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe: at exit there is nowhere to flush the rest to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (ArchiveError, OSError, ValueError) as error:
        print(f"pcp-parquet: {' '.join(str(error).split())}", file=sys.stderr)
        return NOTHING
    for problem in problems:
        print(problem, file=sys.stdout if options.check else sys.stderr)
    return DAMAGED if any(problem.damage for problem in problems) else OK


def _run(options: argparse.Namespace) -> list[ArchiveProblem]:
    sources = [Path(name) for name in options.archive]
    if options.check:
        return _check(sources)
    output = Path(options.output) if options.output is not None else None
    if output is not None:
        _writable(output, wide=options.wide)
    if options.series is not None:
        _writable(Path(options.series), wide=False)
        if output is None:
            _write_series(sources[0], Path(options.series))
            return []
    with ExitStack() as stack:
        problems = ProblemLog()
        needs_window = any(
            (options.start, options.finish, options.origin, options.align)
        )
        if options.wide or options.words or needs_window:
            file_sets = [
                files
                for source in sources
                for files in stack.enter_context(opened(source, problems))
            ]
            archives = load_all(file_sets, ", ".join(options.archive), problems)
            stack.enter_context(_zone(options, archives))
            window = time_window(
                _span(archives),
                options.start,
                options.finish,
                options.origin,
                options.align,
            )
            _known(options.words, archives)
        else:
            archives, window = [], None
        if options.wide and output is not None and window is not None:
            return _wide(options, archives, window, output, problems)
        start, finish = (
            (window.start_ns, window.finish_ns)
            if needs_window and window
            else (None, None)
        )
        metrics = options.words or None
        if output is None:
            summaries = [
                survey(source, metrics=metrics, start_ns=start, finish_ns=finish)
                for source in sources
            ]
            for info in (
                info
                for summary in summaries
                for _, info in sorted(summary.metrics.items())
            ):
                print(
                    f"{info.name}\t{info.type}\t{info.semantics}\t{info.units or '-'}\t{info.samples}"
                )
            return [problem for summary in summaries for problem in summary.problems]
        begin = time.monotonic()
        source = sources[0] if len(sources) == 1 else sources
        summary = convert(
            source, output, metrics=metrics, start_ns=start, finish_ns=finish
        )
        _done(
            output,
            f"{summary.rows:,} values of {len(summary.metrics):,} metrics",
            begin,
        )
        if options.series is not None:
            _write_series(output, Path(options.series))
        return summary.problems


def _write_series(parquet: Path, output: Path) -> None:
    from pcp_parquet.parquet.series_table import write_series_table  # noqa: PLC0415  (only needed here)

    begin = time.monotonic()
    _done(output, f"{write_series_table(parquet, output):,} series", begin)


def _wide(
    options: argparse.Namespace,
    archives: Sequence[Archive],
    window: TimeWindow,
    output: Path,
    problems: ProblemLog,
) -> list[ArchiveProblem]:
    # The long form does without these; they are slow to import.
    from pcp_parquet.tool.domains import Inventory  # noqa: PLC0415
    from pcp_parquet.tool.interpolation import Moments  # noqa: PLC0415
    from pcp_parquet.tool.samples import SampleStore  # noqa: PLC0415
    from pcp_parquet.tool.selection import requested_metrics  # noqa: PLC0415
    from pcp_parquet.tool.sheet import Sheet, write_wide  # noqa: PLC0415

    begin = time.monotonic()
    hosts = sorted({archive.label.host for archive in archives})
    if len(hosts) > 1:
        raise ArchiveError(
            f"archives of several hosts ({', '.join(hosts)}): --wide takes those of one host"
        )
    inventory = Inventory([archive.metadata for archive in archives])
    chosen = {metric.desc.pmid for metric in requested_metrics(inventory, options, {})}
    with tempfile.TemporaryDirectory(prefix="pcp-parquet-") as folder:
        store = SampleStore(Path(folder))
        scan = Scan(problems, lambda desc: desc.pmid in chosen, sink=store.take)
        if options.raw:
            scan.watcher = store.watch
            # Of records with one time the later ones are moved by some ns; one recorded outside the window has no row.
            scan.start_ns, scan.finish_ns = (
                window.origin_ns,
                window.finish_ns + MICROSECOND,
            )
        scan.run(archives)
        info = scan.info(archives, 0)
        at_ns, stamps = _moments(options, store.record_times(), window)
        moments = Moments(
            at_ns, archives[0].label.start_ns, np.array(info.marks_ns, dtype=np.int64)
        )
        metrics = requested_metrics(
            inventory, options, {pmid: store.names(pmid) for pmid in chosen}
        )
        values = sum(metric.samples for metric in scan.metrics.values())
        _require_few_cells(
            len(at_ns), sum(len(metric.instances) for metric in metrics), values
        )
        sheet = Sheet(store, inventory, moments, stamps, options.raw)
        zone = "UTC" if options.raw else os.environ.get("TZ") or "local"
        facts = {
            "host": info.host,
            "timezone": zone,
            "sampling": "records" if options.raw else "interpolated",
        }
        columns = write_wide(
            sheet, metrics, output, {"kveval.pcp.wide": json.dumps(facts)}
        )
    _done(output, f"{len(at_ns):,} rows of {columns:,} columns", begin)
    return info.problems


def _moments(
    options: argparse.Namespace,
    records: tuple[NDArray[np.int64], NDArray[np.int64]],
    window: TimeWindow,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The moments of the rows, ns since 1970 UTC, and the times to be written. ValueError if there are none."""
    if options.raw:
        recorded, distinct = records
        rows = np.flatnonzero(
            (recorded >= window.origin_ns) & (recorded <= window.finish_ns)
        )
        if not len(rows):
            raise ValueError(
                f"no record from {shown(window.origin_ns)} to {shown(window.finish_ns)}"
            )
        return distinct[rows[: options.samples or None]], recorded[
            rows[: options.samples or None]
        ]
    span = window.finish_ns - window.origin_ns
    step = options.interval or DEFAULT_INTERVAL_NS
    samples = (
        max(2, options.samples)
        if options.samples and options.finish is not None
        else options.samples
    )
    if options.samples and options.finish is not None:
        step = max(1, nanoseconds(span / SECOND / (samples - 1)))
    # A sample counts if it is in the window to the microsecond, the resolution of times in libpcp's Python.
    count = min((span + 999) // step + 1, samples or sys.maxsize)
    if count > ROWS * allowance():
        every = f"one every {step / SECOND:g} s from {shown(window.origin_ns)} to {shown(window.finish_ns)}"
        remedy = (
            "a window by -S and -T, a longer interval by -t or a number of rows by -s"
        )
        most = f"more than {ROWS * allowance():,.0f}"
        raise ValueError(
            f"--wide would write {count:,} rows, {every}: {most}. Choose {remedy}; {allowance_hint()}"
        )
    at_ns = window.origin_ns + step * np.arange(count, dtype=np.int64)
    # Local times in the process's time zone, rounded down to the microsecond.
    offsets = np.array(
        [time.localtime(second).tm_gmtoff for second in (at_ns // SECOND).tolist()],
        dtype=np.int64,
    )
    return at_ns, np.asarray(at_ns // 1000 * 1000 + offsets * SECOND)


def _require_few_cells(rows: int, columns: int, values: int) -> None:
    """ValueError if a table of so many rows and columns is too large for an archive of so many values."""
    cells, most = rows * columns, max(CELLS, CELLS_PER_VALUE * values) * allowance()
    if cells > most:
        size = f"{cells:,} cells, {rows:,} rows of {columns:,} columns, for {values:,} values: more than {most:,.0f}"
        remedy = "metrics by METRIC, instances by -i, a window by -S and -T or, without -r, a longer interval by -t"
        raise ValueError(
            f"--wide would write {size}. Choose {remedy}; {allowance_hint()}"
        )


def _span(archives: Sequence[Archive]) -> tuple[int, int]:
    """Start of the first archive, as its label says, and time of the last record."""
    start = archives[0].label.start_ns
    return start, max([start, *(_last_record(archive) for archive in archives)])


def _last_record(archive: Archive) -> int:
    """Time of an archive's last record, ns; -1 without any. Damage is for the conversion to report."""
    for number, member in sorted(archive.files.volumes.items(), reverse=True):
        offsets = (
            [entry.offset for entry in archive.index if entry.volume == number]
            if not member.suffix
            else []
        )
        for first in ([max(offsets)] if offsets else []) + [None]:
            blocks = Volume(member, ProblemLog(), archive.label.version).blocks(
                first, None, None
            )
            last = max(
                (int(block.times.max()) for block in blocks if len(block.times)),
                default=-1,
            )
            if last >= 0:
                return last
    return -1


def _known(words: Sequence[str], archives: Sequence[Archive]) -> None:
    """ValueError if a word of the command line matches no metric."""
    for word in words:
        selected = matcher([word.split(",", 1)[0]])
        if not any(
            selected(desc)
            for archive in archives
            for desc in archive.metadata.descs.values()
        ):
            raise ValueError(
                f"no metric {word.split(',', 1)[0]!r} in the archive (--list shows those that it has)"
            )


@contextmanager
def _zone(options: argparse.Namespace, archives: Sequence[Archive]) -> Iterator[None]:
    """The time zone of -z or -Z, for as long as the context lasts."""
    zone = archives[0].label.timezone if options.hostzone else options.timezone
    before = os.environ.get("TZ")
    if zone is not None:
        os.environ["TZ"] = zone
        time.tzset()
    try:
        yield
    finally:
        if zone is not None:
            os.environ.pop("TZ")
            os.environ.update({"TZ": before} if before is not None else {})
            time.tzset()


def _writable(output: Path, *, wide: bool) -> None:
    """OSError or ValueError if the output cannot be written there; nothing is made."""
    if wide and os.path.lexists(output):
        raise FileExistsError(f"{output} exists already: --wide writes a new folder")
    if not wide and output.exists() and not output.is_file():
        raise OSError(f"{output} is not a file (the long form is written to a file)")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output}: there is no folder {output.parent}")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{output}: the folder {output.parent} cannot be written to"
        )


def _done(output: Path, what: str, begin: float) -> None:
    print(f"{output}: {what} in {time.monotonic() - begin:.2f} s")


def _check(sources: Sequence[Path]) -> list[ArchiveProblem]:
    from pcp_parquet.conversion.checking import check  # noqa: PLC0415  (only needed here)

    all_problems: list[ArchiveProblem] = []
    for source in sources:
        summary, problems = check(source)
        info = summary.info
        spans = " .. ".join(
            datetime.fromtimestamp(ns / 1e9, UTC).isoformat()
            for ns in (info.start_ns, info.end_ns)
        )
        state = "whole"
        if any(problem.kind == PERHAPS_LOST for problem in problems):
            state = "perhaps incomplete"
        if any(problem.damage for problem in problems):
            state = "damaged"
        print(
            f"{state}: {summary.rows:,} values of {len(summary.metrics)} metrics, {spans}, {len(info.marks_ns)} marks"
        )
        all_problems += problems
    return all_problems
