"""python -m kveval.pcp ARCHIVE -o OUT.parquet | --list | --check."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from kveval.pcp.archive.problems import ArchiveError, ArchiveProblem
from kveval.pcp.conversion.conversion import ConversionSummary, convert, survey

OK, DAMAGED, NO_ARCHIVE = 0, 1, 2


def parse_time(text: str) -> int:
    """ns since 1970 of an ISO 8601 time (UTC unless it has an offset) or of seconds since 1970."""
    seconds, _, fraction = text.partition(".")
    if seconds.isdigit() and (not fraction or fraction.isdigit()):
        return int(seconds) * 1_000_000_000 + int(fraction[:9].ljust(9, "0"))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither ISO 8601 nor seconds since 1970") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    whole = int(moment.replace(microsecond=0).timestamp())
    return whole * 1_000_000_000 + moment.microsecond * 1000


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m kveval.pcp", description="PCP archive to Parquet.")
    parser.add_argument("archive", type=Path, help="folder, base name of an archive, or .tar.zst")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("-o", "--output", type=Path, metavar="OUT.parquet", help="convert to this file")
    action.add_argument("--list", action="store_true", help="list metrics with type, semantics, units, samples")
    action.add_argument("--check", action="store_true", help="check integrity; exit code 1 if something is lost")
    parser.add_argument(
        "--metric", action="append", metavar="PATTERN", help="name, prefix or shell pattern; repeatable"
    )
    parser.add_argument("--start", type=parse_time, metavar="TIME", help="ISO 8601 (UTC without an offset) or epoch s")
    parser.add_argument("--finish", type=parse_time, metavar="TIME", help="end of the window, included")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 all well, 1 something recorded could not be read (the rest was), 2 no archive."""
    options = arguments(argv)
    try:
        if options.check:
            return _check(options)
        selection = {"metrics": options.metric, "start_ns": options.start, "finish_ns": options.finish}
        if options.list:
            summary = survey(options.archive, **selection)
            _list(summary)
        else:
            begin = time.monotonic()
            summary = convert(options.archive, options.output, **selection)
            seconds = time.monotonic() - begin
            print(f"{options.output}: {summary.rows:,} values of {len(summary.metrics)} metrics in {seconds:.2f} s")
    except (ArchiveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_ARCHIVE
    _report(summary.problems, sys.stderr)
    return DAMAGED if summary.damaged else OK


def _list(summary: ConversionSummary) -> None:
    for info in sorted(summary.metrics.values(), key=lambda info: info.name):
        units = info.units or "-"
        print(f"{info.name}\t{info.type}\t{info.semantics}\t{units}\t{info.samples}")


def _check(options: argparse.Namespace) -> int:
    from kveval.pcp.conversion.checking import check  # noqa: PLC0415  (only needed here)

    summary, problems = check(options.archive)
    _report(problems, sys.stdout)
    info = summary.info
    spans = " .. ".join(datetime.fromtimestamp(ns / 1e9, UTC).isoformat() for ns in (info.start_ns, info.end_ns))
    state = "damaged" if any(problem.damage for problem in problems) else "whole"
    print(f"{state}: {summary.rows:,} values of {len(summary.metrics)} metrics, {spans}, {len(info.marks_ns)} marks")
    return DAMAGED if state == "damaged" else OK


def _report(problems: list[ArchiveProblem], stream: object) -> None:
    for problem in problems:
        print(problem, file=stream)  # type: ignore[call-overload]


if __name__ == "__main__":
    raise SystemExit(main())
