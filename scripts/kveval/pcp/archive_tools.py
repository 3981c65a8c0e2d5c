"""Checking and packing a PCP archive with PCP's own tools, which know every version of the format."""

import csv
import os
import re
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import zstandard

from kveval.host.files import make_last, replacing
from kveval.pcp.archive.files import split_name
from kveval.pcp.installation import Pcp, RecordingError, base_environment, find_pcp


@dataclass(frozen=True)
class ArchiveFacts:
    """A verified archive: its span in epoch seconds, and how often it sampled each required metric."""

    start: float
    end: float
    metrics: int
    samples: dict[str, int]
    bytes: int


def archive_files(base: Path) -> list[Path]:
    """Return the files of the archive ``base``: volumes, .meta and .index."""
    found = ((path, split_name(path.name)) for path in base.parent.glob("*"))
    return sorted(path for path, parts in found if parts is not None and parts[0] == base.name)


def verify_archive(
    base: Path,
    *,
    start: float,
    end: float,
    required: Sequence[str],
    windows: Sequence[tuple[float, float]] = (),
    interval_s: float = 1.0,
) -> ArchiveFacts:
    """Check that an archive is readable to its end, covers the window and has the metrics.

    Args:
        base: path of the archive without .0, .meta or .index.
        start: start of the window, seconds since the epoch; the archive may begin two intervals later.
        end: end of the window, seconds since the epoch; the archive may end two intervals earlier.
        required: metric names; each must have a sample in the window.
        windows: parts of the window; in each, every metric must have a third of the samples that are due.
        interval_s: sampling interval of the archive, seconds.

    Raises:
        RecordingError: saying what is wrong with the archive.
    """
    pcp = find_pcp()
    files = archive_files(base)
    if not files:
        raise RecordingError(f"there is no PCP archive {base}", code="no_archive")
    _run(pcp, base, "pmlogcheck", "-w", base.name, what=f"the PCP archive {base} is damaged")
    first, last = _span(pcp, base)
    slack = 2 * interval_s
    if first > start + slack or last < end - slack:
        raise RecordingError(
            f"the PCP archive {base} covers {_utc(first)} to {_utc(last)}, not the window {_utc(start)} to {_utc(end)}",
            code="window_not_covered",
        )
    names = set(_run(pcp, base, "pminfo", "-a", base.name, what=f"no metrics in the PCP archive {base}").split())
    missing = [metric for metric in required if metric not in names]
    if missing:
        message = f"the PCP archive {base} lacks {', '.join(missing)}"
        raise RecordingError(message, code="metrics_missing", missing=missing)
    window = (max(start - slack, first) - first, min(end + slack, last) - first)
    samples = _samples(pcp, base, window, required)
    empty = [metric for metric, count in samples.items() if count == 0]
    if empty:
        raise RecordingError(
            f"the PCP archive {base} has no sample of {', '.join(empty)} between {_utc(start)} and {_utc(end)}"
        )
    for begin, finish in windows:
        due = int((finish - begin) / interval_s / 3)
        seen = _samples(pcp, base, (begin - first, finish - first), required)
        sparse = {metric: count for metric, count in seen.items() if count < due}
        if sparse:
            listed = ", ".join(f"{metric} ({count})" for metric, count in sparse.items())
            raise RecordingError(
                f"the PCP archive {base} has fewer than {due} samples between {_utc(begin)} and {_utc(finish)}"
                f" of {listed}: an agent was silent or the host too busy",
                code="too_few_samples",
                window_s=(begin, finish),
                due=due,
                sparse=sparse,
            )
    return ArchiveFacts(first, last, len(names), samples, sum(path.stat().st_size for path in files))


def has_metric(pcp: Pcp, base: Path, metric: str) -> bool:
    """Whether the archive, possibly still being written, has a value of ``metric``."""
    result = _call(pcp, base, "pmprobe", "-a", base.name, metric)
    fields = result.stdout.split()
    return result.returncode == 0 and len(fields) == 2 and int(fields[1]) > 0


def rewrite_archive(source: Path, target: Path, prefixes: Mapping[str, str], host: str) -> None:
    """Copy the archive ``source`` to ``target``, with ``host`` as its host name.

    Metrics below each key of ``prefixes`` are renamed to lie below its value.
    RecordingError if the archive cannot be read or written.
    """
    pcp = find_pcp()
    names = _run(pcp, source, "pminfo", "-a", source.name, what=f"no metrics in the PCP archive {source}").split()
    rules = [
        f"metric {name} {{ name -> {new}{name.removeprefix(old)} }}"
        for name in names
        for old, new in prefixes.items()
        if name.startswith(f"{old}.")
    ]
    configuration = source.parent / "rewritten.conf"
    configuration.write_text("\n".join([f"global {{ hostname -> {host} }}", *rules, ""]))
    what = f"the PCP archive {source} cannot be rewritten"
    _run(pcp, source, "pmlogrewrite", "-c", configuration.name, source.name, str(target.absolute()), what=what)


def pack_archives(bases: Sequence[Path], target: Path) -> None:
    """Pack the files of archives into ``target``, a .tar.zst that is written completely or not at all.

    Paths in it are relative to the folder that the archives have in common. RecordingError if one is missing.
    """
    files = [archive_files(base) for base in bases]
    if not all(files):
        raise RecordingError(f"there is no PCP archive {bases[files.index([])]}", code="no_archive")
    root = os.path.commonpath([base.parent for base in bases])
    compressor = zstandard.ZstdCompressor(level=9, write_checksum=True)
    with (
        replacing(target) as partial,
        compressor.stream_writer(partial.open("wb")) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in (path for found in files for path in found):
            tar.add(path, arcname=path.relative_to(root), filter=_anonymous)
    make_last([target.parent])


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _call(pcp: Pcp, base: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Run in the archive's folder with its bare name, since PCP splits paths at commas.
    return subprocess.run(
        [pcp.program(program), *arguments],
        cwd=base.parent,
        env=base_environment(os.environ),
        capture_output=True,
        text=True,
        errors="replace",
    )


def _run(pcp: Pcp, base: Path, program: str, *arguments: str, what: str) -> str:
    result = _call(pcp, base, program, *arguments)
    if result.returncode != 0:
        said = (result.stderr + result.stdout).strip().splitlines()
        cause = said[0] if said else f"exit status {result.returncode}"
        raise RecordingError(f"{what}: {program}: {cause}", code="tool_failed", program=program)
    return result.stdout


def _span(pcp: Pcp, base: Path) -> tuple[float, float]:
    """First and last record of an archive, seconds since the epoch, from the lines of ``pmdumplog -l``."""
    text = _run(pcp, base, "pmdumplog", "-Z", "UTC", "-l", base.name, what=f"the PCP archive {base} cannot be read")
    found = dict(re.findall(r"^\s*(commencing|ending)\s+\w{3} (\w{3} +\d+ [\d:]+\.\d+ \d{4})", text, re.MULTILINE))
    try:
        first, last = (_epoch(found[key]) for key in ("commencing", "ending"))
    except (KeyError, ValueError) as error:
        raise RecordingError(f"the PCP archive {base} does not say when it starts and ends: {text!r}") from error
    return first, last


def _epoch(text: str) -> float:
    """Convert ``Nov 21 08:08:44.648140613 2026`` in UTC to seconds since the epoch."""
    month_to_second, _, fraction_and_year = text.partition(".")
    fraction, year = fraction_and_year.split()
    moment = datetime.strptime(f"{month_to_second} {year}", "%b %d %H:%M:%S %Y").replace(tzinfo=UTC)
    return moment.timestamp() + float(f"0.{fraction}")


def _samples(pcp: Pcp, base: Path, window_s: tuple[float, float], metrics: Sequence[str]) -> dict[str, int]:
    """Largest number of samples of any instance of each metric; the window is in seconds from the archive's start.

    For a counter, pmlogsummary counts the intervals between samples, since it averages the rate.
    """
    counts = dict.fromkeys(metrics, 0)
    if not counts:
        return counts
    span = ["-S", f"{window_s[0]:.3f}sec", "-T", f"{window_s[1]:.3f}sec"]
    text = _run(
        pcp,
        base,
        "pmlogsummary",
        "-F",
        "-x",
        "-y",
        *span,
        base.name,
        *metrics,
        what=f"cannot read the archive {base}",
    )
    for row in csv.reader(text.splitlines()):  # metric, [instance], average, samples, units
        if len(row) >= 4 and row[0] in counts and row[-2].strip().isdigit():
            counts[row[0]] = max(counts[row[0]], int(row[-2]))
    return counts


def _utc(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
