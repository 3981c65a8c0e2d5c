"""The command line of pcp-parquet: pcp2arrow's options where they make sense for an archive, and its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pcp_parquet import __version__
from pcp_parquet.tool.intervals import parse_interval

DESCRIPTION = """Convert an archive of Performance Co-Pilot to Parquet, without PCP.

The long form (default) has a row per value, exactly as recorded; OUT is a file.
--wide has a row per time and a column per series, as pcp2arrow writes it; OUT is a new folder.
METRIC is a name, the beginning of names up to a dot, a shell pattern, or pmrep's
metric[,label[,instances[,unit[,raw]]]]; all metrics if there is none.
Without -a, the first word is the ARCHIVE: a folder, a base name, a tar (.tar.zst).

columns of the long form:
  timestamp  of the record, UTC, in microseconds, or in nanoseconds where those would lose something
  metric     the name that libpcp uses first
  instance   the external name at that time; null for metrics without instances
  value      every number, as a double; null for text
  value_int  the exact integer, decimal(20, 0), only where a double cannot hold it (2^53 and beyond)
  text       values of type string
  host       only where the source holds archives of several hosts
--series SERIES writes a second table, a row per series, to be joined by metric and instance: metric, instance,
host, type, semantics, units, labels (a map), help."""

EPILOG = """TIME (PCPIntro(1)): 5min from the start, -1hour back from the end, @10:00, @2024-03-04 13:07, '@Mon Mar 4
13:07:47 2024'; also ISO 8601 and @SECONDS since 1970. INTERVAL: 10, 5min, 1h30m, 250msec.

examples:
  pcp-parquet -a ARCHIVE -o OUT.parquet                         every value, in the long form
  pcp-parquet -a ARCHIVE -o OUT.parquet kernel.all -S @10:00 -T 5min
  pcp-parquet -a ARCHIVE --wide -t 10s -o OUT                   rates and values every 10 s
  pcp-parquet -a ARCHIVE --wide -r -o OUT mem.util disk.dev     a row per record, counters as recorded
  pcp-parquet -a ARCHIVE --wide -t 1min -i sda,sdb -b MB -o OUT disk.dev.read_bytes
  pcp-parquet -a ARCHIVE --list kernel.all
  pcp-parquet -a ARCHIVE -o OUT.parquet --series SERIES.parquet
  pcp-parquet -a OUT.parquet --series SERIES.parquet            of a file in the long form

exit codes: 0 all well; 1 the archive is damaged, and what could be read was converted; 2 nothing was
written: wrong options, no archive, no such metric, an empty window, an output that cannot be written.

left out of pcp2arrow: live sources (-h --host, -L, -K, --container), --archive-folio, configuration files
(-c, -C), -D. Derived metrics are there if they were recorded. In --wide: metrics without a column (aggregates,
events) are left out; columns of instances that -i does not choose are not written; -r keeps singular metrics
and takes -T as a time only; 64-bit integers stay exact; time stamps have no zone: UTC with -r, else local
(-z, -Z); the metadata say which."""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = argparse.ArgumentParser(
        prog="pcp-parquet",
        usage="pcp-parquet (-a ARCHIVE | ARCHIVE) (-o OUT [--wide | --series SERIES] | --list | --check)"
        " [option...] [METRIC...]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    made.add_argument("words", nargs="*", metavar="METRIC", help=argparse.SUPPRESS)
    group = made.add_argument_group("what to do")
    group.add_argument(
        "-a",
        "--archive",
        action="append",
        help="the archive; several with commas or by repeating",
    )
    group.add_argument(
        "-o",
        "--output",
        "--output-file",
        metavar="OUT",
        help="convert to this file, or folder",
    )
    group.add_argument("--wide", action="store_true", help="write pcp2arrow's table")
    group.add_argument(
        "--series",
        metavar="SERIES",
        help="also write units, semantics and labels of each series to this file",
    )
    group.add_argument(
        "--list",
        action="store_true",
        help="list metrics: type, semantics, units, number of values",
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="check integrity; exit code 1 if something is lost",
    )
    group.add_argument(
        "--metric", action="append", default=[], help="the same as METRIC"
    )
    group.add_argument(
        "-V",
        "--version",
        action="version",
        version=f"pcp-parquet {__version__}",
    )
    group.add_argument("-?", "-h", "--help", action="help", help="this text")
    group = made.add_argument_group("time")
    group.add_argument(
        "-S", "--start", metavar="TIME", help="start of the window (included)"
    )
    group.add_argument(
        "-T",
        "--finish",
        metavar="TIME",
        help="end of the window (included); 5min: after its start",
    )
    group.add_argument(
        "-O", "--origin", metavar="TIME", help="first sample, within the window"
    )
    group.add_argument(
        "-A", "--align", metavar="INTERVAL", help="begin at a multiple of this"
    )
    group.add_argument(
        "-z",
        "--hostzone",
        action="store_true",
        help="times are in the recorded host's zone",
    )
    group.add_argument(
        "-Z",
        "--timezone",
        metavar="ZONE",
        help="times are in this zone (UTC, Europe/Berlin, EST5EDT)",
    )
    group = made.add_argument_group("values of the wide form")
    group.add_argument(
        "-t",
        "--interval",
        type=_interval,
        metavar="INTERVAL",
        help="between samples (default 60 s)",
    )
    group.add_argument(
        "-s",
        "--samples",
        type=_count,
        metavar="N",
        help="number of rows; with -T: spread evenly",
    )
    group.add_argument(
        "-r",
        "--raw",
        action="store_true",
        help="a row per record, every value as recorded",
    )
    group.add_argument(
        "-R",
        "--raw-prefer",
        action="store_true",
        help="samples of counters instead of rates",
    )
    group.add_argument(
        "-i",
        "--instances",
        action="append",
        metavar="LIST",
        help="names, numbers, programs, patterns",
    )
    group.add_argument(
        "-j",
        "--live-filter",
        action="store_true",
        help="no effect: -i sees instances of all times",
    )
    group.add_argument(
        "-n",
        "--invert-filter",
        action="store_true",
        help="rank before instances are chosen",
    )
    group.add_argument(
        "-J",
        "--rank",
        type=int,
        default=0,
        metavar="N",
        help="the N highest of a metric (-N: lowest)",
    )
    group.add_argument(
        "-8",
        "--limit-filter",
        type=int,
        default=0,
        metavar="N",
        help="values from N on (-N: up to N)",
    )
    group.add_argument(
        "-9",
        "--limit-filter-force",
        type=int,
        default=0,
        metavar="N",
        help="overrides -8 and METRIC's",
    )
    group.add_argument(
        "-v", "--omit-flat", action="store_true", help="only metrics with instances"
    )
    group.add_argument(
        "-q", "--count-scale", metavar="UNIT", help="unit of counts (count x 10^3)"
    )
    group.add_argument(
        "-b", "--space-scale", metavar="UNIT", help="unit of space (KB, MiB)"
    )
    group.add_argument(
        "-y", "--time-scale", metavar="UNIT", help="unit of time (ms, hour)"
    )
    return made


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; ends the process with code 2 and a line that says what is wrong, as argparse does."""
    made = parser()
    options = made.parse_intermixed_args(
        _joined(sys.argv[1:] if argv is None else argv, made)
    )
    archives = [
        name for text in options.archive or [] for name in text.split(",") if name
    ]
    if not archives and options.words:
        archives = [options.words.pop(0)]
    options.archive, options.words = archives, options.words + options.metric
    if not archives:
        made.error("no archive: give one with -a")
    chosen = (options.output is not None) + options.list + options.check
    if chosen != 1 and not (options.series and not chosen):
        made.error("one of -o OUT, --list and --check is needed, and only one")
    _check_series(options, made)
    names = [
        "interval",
        "samples",
        "instances",
        "rank",
        "limit_filter",
        "limit_filter_force",
        "raw",
        "raw_prefer",
    ]
    names += ["omit_flat", "origin", "count_scale", "space_scale", "time_scale"]
    wide_only = [name for name in names if getattr(options, name)]
    if wide_only and not options.wide:
        made.error(
            f"--{wide_only[0].replace('_', '-')} needs --wide (the long form has every value as recorded)"
        )
    if options.wide and options.output is None:
        made.error("--wide needs -o OUT")
    if options.hostzone and options.timezone:
        made.error("-z and -Z exclude each other")
    return options


def _check_series(options: argparse.Namespace, made: argparse.ArgumentParser) -> None:
    if options.series is None:
        return
    if options.list or options.check or options.wide:
        made.error("--series describes the long form: give -o OUT, without --wide")
    if options.output is None and (len(options.archive) > 1 or options.words):
        made.error("--series without -o OUT describes one file in the long form")
    if options.series == options.output:
        made.error("--series and -o name the same file")


def _joined(argv: Sequence[str], made: argparse.ArgumentParser) -> list[str]:
    """The words, each value joined to its option as by getopt(3): in "-T -5min", -5min is a value, not an option."""

    joined, rest = [], iter(argv)
    for word in rest:
        action = made._option_string_actions.get(word)
        takes_value = action is not None and action.nargs is None
        value = next(rest, None) if takes_value else None
        if value is None:
            joined.append(word)
        elif word.startswith("--"):
            joined.append(f"{word}={value}")
        else:
            joined.append(f"{word}{value}")
    return joined


def _interval(text: str) -> int:
    try:
        if (interval := parse_interval(text)) > 0:
            return interval
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    raise argparse.ArgumentTypeError("must be more than 0")


def _count(text: str) -> int:
    if text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of samples")
