"""The whole conversion: archive files -> records -> pieces -> chunks -> one Parquet file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from pcp_parquet.archive.files import ArchiveFiles, opened
from pcp_parquet.archive.index import IndexedRecords, IndexEntry, check_size
from pcp_parquet.archive.loading import Archive, load_all
from pcp_parquet.archive.member import Member
from pcp_parquet.archive.meta import Desc
from pcp_parquet.archive.problems import ArchiveError, ArchiveProblem, ProblemLog
from pcp_parquet.archive.records import Block, Volume, time_at
from pcp_parquet.archive.sanity import Order, check_metadata
from pcp_parquet.archive.units import indom_string, pmid_string
from pcp_parquet.archive.wire import HEADER_SIZE, LABEL_SIZE
from pcp_parquet.conversion.catalog import Catalog
from pcp_parquet.conversion.chunks import Chunk, chunks_of
from pcp_parquet.conversion.decode import Decoder, Piece
from pcp_parquet.conversion.footer import (
    ArchiveInfo,
    LabelHistory,
    MetricInfo,
    encode,
    instance_labels,
    metric_info,
)
from pcp_parquet.conversion.table import LongWriter


@dataclass(frozen=True)
class ConversionSummary:
    """The result of a conversion: the recording, with every problem found, and the values seen per metric."""

    info: ArchiveInfo
    metrics: dict[str, MetricInfo]

    @property
    def rows(self) -> int:
        """Number of values."""
        return self.info.rows

    @property
    def problems(self) -> list[ArchiveProblem]:
        """Damage, and faults of the recording itself such as gaps."""
        return self.info.problems

    @property
    def damaged(self) -> bool:
        """True if something that was recorded could not be read."""
        return any(problem.damage for problem in self.problems)


LAST_NS = (1 << 63) - 1
# Marks are kept in memory and in the footer; a normal recording has only a few.
MARKS = 100_000

Sink = Callable[[Chunk, Catalog, str], None]
"""Takes the chunks of an archive, with its host's name."""
Watcher = Callable[[Block, str], None]
"""Looks at blocks before they are decoded, with the file's name; it may change the times of their records."""


@dataclass
class Scan:
    """One pass over the archives of a source; collects what the footer needs."""

    problems: ProblemLog
    selected: Callable[[Desc], bool] = lambda desc: True
    start_ns: int = 0
    finish_ns: int = LAST_NS
    sink: Sink | None = None
    watcher: Watcher | None = None
    metrics: dict[str, MetricInfo] = field(default_factory=dict)
    labels: dict[str, dict[str, dict[str, LabelHistory]]] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    first: int | None = None
    last: int | None = None
    _latest: int = -1

    def run(self, archives: Sequence[Archive]) -> None:
        """Read every archive, in order of their starts."""
        ends: dict[str, int] = {}
        for archive in archives:
            end = ends.get(archive.label.host)
            if end is not None and archive.label.start_ns > end:
                # Nothing is known of the time between two archives: counters may have been reset.
                self.marks.append(end + 1)
            self._latest = -1
            self._archive(archive)
            ends[archive.label.host] = max(self._latest, end or 0)

    def _archive(self, archive: Archive) -> None:
        catalog = Catalog(archive.metadata, self.selected)
        decoder = Decoder(catalog, self.problems, values_wanted=self.sink is not None)
        for chunk in chunks_of(self._pieces(archive, decoder)):
            if self.sink is not None and len(chunk.times):
                self.sink(chunk, catalog, archive.label.host)
            # A chunk must not stay in memory while the next one is collected.
            del chunk
        self._account(archive, decoder)
        if archive.files.meta is not None:
            windowed = (self.start_ns, self.finish_ns) != (0, LAST_NS)
            end = None if windowed or self._latest < 0 else self._latest
            check_metadata(
                archive.metadata,
                archive.files.meta.name,
                archive.label,
                end,
                self.problems,
            )

    def _pieces(self, archive: Archive, decoder: Decoder) -> Iterator[Piece]:
        order = Order(self.problems, archive.label.start_ns)
        for member, block in self._blocks(archive):
            decoder.where = member.name
            order.watch(block, member.name)
            records = self._records(block, member.name)
            yield from decoder.pieces(block, records) if len(records) else ()

    def _blocks(self, archive: Archive) -> Iterator[tuple[Member, Block]]:
        """The blocks that the window needs according to the index; a wrong index is detected and costs only time."""
        begin = next(
            (
                entry
                for entry in reversed(archive.index)
                if entry.time_ns < self.start_ns
            ),
            None,
        )
        end = next(
            (entry for entry in archive.index if entry.time_ns > self.finish_ns), None
        )
        if begin is not None and not self._confirmed(archive, begin):
            name = (
                archive.files.index.name if archive.files.index else archive.files.base
            )
            self.problems.add(
                "bad index",
                name,
                "does not fit the volumes; they are read from their start",
            )
            begin = None
        beyond = False
        indexed = IndexedRecords(archive.index, self.problems)
        for number, member in sorted(archive.files.volumes.items()):
            if number in archive.files.repeated:
                continue
            if not beyond and (begin is None or number >= begin.volume):
                first = (
                    begin.offset
                    if begin is not None
                    and number == begin.volume
                    and not member.suffix
                    else None
                )
                limit = end.offset if end is not None and number == end.volume else None
                volume = Volume(member, self.problems, archive.label.version)
                for block in volume.blocks(first, limit, self.finish_ns):
                    indexed.watch(block, number)
                    # Past the window's end according to the index and to the records themselves.
                    beyond = (
                        end is not None
                        and number >= end.volume
                        and bool(block.times[-1] > self.finish_ns)
                    )
                    if self.watcher is not None:
                        self.watcher(block, member.name)
                    yield member, block
                if volume.size is not None:
                    self._check_end(archive, number, volume.size)
                    if begin is None:
                        indexed.check_volume(number, volume.size, member.name)
        if (
            begin is None
            and archive.metadata.descs
            and archive.files.volumes
            and not archive.files.repeated
        ):
            indexed.check_archive(
                archive.files.volumes[min(archive.files.volumes)].name
            )

    def _check_end(self, archive: Archive, number: int, size: int) -> None:
        """Report a volume, read to its end at `size` bytes, if it holds no record or is shorter than the index says."""
        member = archive.files.volumes[number]
        if size <= LABEL_SIZE[archive.label.version]:
            # A pmlogger that was stopped before its first record leaves a last volume with only a label.
            kind = "no data" if number == max(archive.files.volumes) else "truncated"
            self.problems.add(kind, member.name, "it holds no record", size)
        if member.suffix:
            check_size(archive.index, number, size, member.name, self.problems)

    def _confirmed(self, archive: Archive, entry: IndexEntry) -> bool:
        """Whether there is a record where the index says, not after the window's start (so that none is missed)."""
        member = archive.files.volumes.get(entry.volume)
        if member is None:
            return False
        version = archive.label.version
        time = time_at(
            member, LABEL_SIZE[version] if member.suffix else entry.offset, version
        )
        return time is not None and time <= self.start_ns

    def _records(
        self, block: Block, where: str
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The records of a block that are in the window and hold values; notes marks and times."""
        inside = block.times >= 0
        if not inside.all():
            lost = int((~inside).sum())
            offset = block.offset + int(block.starts[np.argmin(inside)])
            self.problems.add(
                "bad record", where, f"{lost:,} records with an impossible time", offset
            )
        inside &= (block.times >= self.start_ns) & (block.times <= self.finish_ns)
        if not inside.any():
            return np.empty(0, dtype=np.int64)
        # A record without metrics that is longer than a mark is not a mark: its number of metrics is damaged.
        times, marks = (
            block.times[inside],
            (block.counts == 0) & (block.sizes == HEADER_SIZE[block.version] + 4),
        )
        self.first = min(
            times.min().item(),
            self.first if self.first is not None else times.min().item(),
        )
        self._latest = max(self._latest, times.max().item())
        self.last = max(
            self._latest, self.last if self.last is not None else self._latest
        )
        # Several marks in a row say no more than the first.
        first = marks & ~np.concatenate([[False], marks[:-1]])
        interruptions, room = (
            block.times[inside & first].tolist(),
            max(0, MARKS - len(self.marks)),
        )
        if len(interruptions) > room:
            left_out = len(interruptions) - room
            self.problems.add(
                "too large",
                where,
                f"more than {MARKS:,} interruptions; {left_out:,} are left out",
            )
        self.marks.extend(interruptions[:room])
        return np.flatnonzero(inside & ~marks)

    def _account(self, archive: Archive, decoder: Decoder) -> None:
        where = archive.files.base
        errors: dict[int, Counter[str]] = {}
        for (metric, code), count in decoder.errors.items():
            errors.setdefault(metric, Counter())[str(code)] += count
        for number, desc in enumerate(decoder.catalog.metrics):
            samples, lost = (
                int(decoder.counts[number]),
                int(decoder.not_converted[number]),
            )
            info = metric_info(
                archive.metadata,
                archive.label,
                desc,
                samples - lost,
                lost,
                dict(errors.get(number, {})),
            )
            if lost:
                self.problems.add(
                    "not converted",
                    where,
                    f"{lost:,} values of {info.name} ({info.type}) have no column",
                )
            self._merge(info, archive)
        for pmid, count in decoder.unknown.items():
            self.problems.add(
                "bad metadata",
                where,
                f"pmid {pmid_string(pmid)} has {count:,} value sets and no descriptor",
            )
        for domain, instance in sorted(decoder.catalog.unnamed):
            self.problems.add(
                "unnamed instance",
                where,
                f"number {instance} of domain {indom_string(domain)}",
            )
        indoms = {desc.indom for desc in decoder.catalog.metrics}
        for indom, names in instance_labels(archive.metadata, indoms).items():
            merged = self.labels.setdefault(archive.label.host, {}).setdefault(
                indom_string(indom), {}
            )
            for name, history in names.items():
                merged[name] = sorted(
                    [*merged.get(name, []), *history], key=lambda entry: entry[0]
                )

    def _merge(self, info: MetricInfo, archive: Archive) -> None:
        old = self.metrics.get(info.name)
        if old is None:
            self.metrics[info.name] = info
            return
        if (old.type, old.units, old.semantics) != (
            info.type,
            info.units,
            info.semantics,
        ):
            change = f"{old.type}, {old.units}, {old.semantics} -> {info.type}, {info.units}, {info.semantics}"
            self.problems.add(
                "metadata changed", archive.files.base, f"{info.name}: {change}"
            )
        added = Counter(old.errors) + Counter(info.errors)
        last = {host: labels for host, _, labels in old.label_history}.get(
            archive.label.host
        )
        repeats = bool(info.label_history) and info.label_history[0][2] == last
        self.metrics[info.name] = replace(
            info,
            samples=old.samples + info.samples,
            not_converted=old.not_converted + info.not_converted,
            errors=dict(added),
            label_history=[*old.label_history, *info.label_history[repeats:]],
        )

    def info(self, archives: Sequence[Archive], rows: int) -> ArchiveInfo:
        """Facts about the whole recording, for the footer."""
        labels = [archive.label for archive in archives]
        return ArchiveInfo(
            host=labels[0].host,
            hosts=sorted({label.host for label in labels}),
            timezone=labels[0].timezone,
            zoneinfo=labels[0].zoneinfo,
            archives=[_described(archive) for archive in archives],
            start_ns=self.first if self.first is not None else labels[0].start_ns,
            end_ns=self.last if self.last is not None else labels[-1].start_ns,
            marks_ns=sorted(self.marks),
            problems=self.problems.all(),
            rows=rows,
        )


def _described(archive: Archive) -> dict[str, object]:
    label = archive.label
    return {
        "name": archive.files.base,
        "host": label.host,
        "timezone": label.timezone,
        "zoneinfo": label.zoneinfo,
        "version": label.version,
        "start_ns": label.start_ns,
        "volumes": len(archive.files.volumes),
    }


def matcher(patterns: Sequence[str] | None) -> Callable[[Desc], bool]:
    """Selects metrics by name, by a name's prefix at a dot (`kernel.all`) or by a shell pattern (`disk.*.read`)."""
    if not patterns:
        return lambda desc: True
    return lambda desc: any(
        matches(name, pattern) for name in desc.names for pattern in patterns
    )


def matches(name: str, pattern: str) -> bool:
    """Whether a metric's name is the pattern, lies below it at a dot, or fits it as a shell pattern."""
    return (
        name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)
    )


def convert(
    source: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    start_ns: int | None = None,
    finish_ns: int | None = None,
) -> ConversionSummary:
    """Write an archive as one Parquet file in the long form.

    `source`: a folder, the base name of an archive, or a tar (.tar.zst) of these, or several such. `metrics`: names,
    prefixes or shell patterns, all if None. The window, in ns since 1970 UTC, includes both its ends.
    Damage does not stop it: see `problems` of the summary. Raises ArchiveError if there is no archive in `source`.
    """
    problems = ProblemLog()
    sources = [source] if isinstance(source, str | Path) else source
    with ExitStack() as stack:
        file_sets = [
            files
            for path in sources
            for files in _entered(stack, Path(path), problems, alone=len(sources) == 1)
        ]
        archives = load_all(file_sets, ", ".join(map(str, sources)), problems)
        hosts = {archive.label.host for archive in archives}
        scan = Scan(problems, matcher(metrics), *_window(start_ns, finish_ns))
        with LongWriter(Path(output), with_host=len(hosts) > 1) as writer:
            scan.sink = writer.write
            scan.run(archives)
            info = scan.info(archives, writer.rows)
            writer.finish(encode(info, scan.metrics, scan.labels, writer.time_unit))
    return ConversionSummary(info, scan.metrics)


def _window(start_ns: int | None, finish_ns: int | None) -> tuple[int, int]:
    return start_ns or 0, LAST_NS if finish_ns is None else finish_ns


def _entered(
    stack: ExitStack, source: Path, problems: ProblemLog, *, alone: bool
) -> list[ArchiveFiles]:
    """Open a source until the stack closes. If several are given, one that is no archive is only a problem."""
    try:
        return stack.enter_context(opened(source, problems))
    except ArchiveError as error:
        if alone:
            raise
        problems.add("unreadable", source.name, str(error))
        return []


def write_empty(output: str | Path, reason: str) -> None:
    """Write a file without any value, for a recording that is missing; its one problem is `reason`."""
    info = ArchiveInfo(
        "", [], "", "", [], 0, 0, [], [ArchiveProblem("missing file", "", reason)], 0
    )
    with LongWriter(Path(output), with_host=False) as writer:
        writer.finish(encode(info, {}, {}, writer.time_unit))


def survey(
    source: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    start_ns: int | None = None,
    finish_ns: int | None = None,
    watcher: Watcher | None = None,
    sink: Sink | None = None,
) -> ConversionSummary:
    """Read an archive without writing a file: metrics with their numbers of values, and problems.

    Values are decoded only for a `sink`; without one, those that lie outside their records are not detected.
    """
    problems = ProblemLog()
    with opened(Path(source), problems) as file_sets:
        archives = load_all(file_sets, source, problems)
        scan = Scan(
            problems,
            matcher(metrics),
            *_window(start_ns, finish_ns),
            watcher=watcher,
            sink=sink,
        )
        scan.run(archives)
        info = scan.info(
            archives, sum(metric.samples for metric in scan.metrics.values())
        )
    return ConversionSummary(info, scan.metrics)
