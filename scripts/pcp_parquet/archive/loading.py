"""Loads an archive's metadata, and checks that its files are complete and belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pcp_parquet.archive.files import ArchiveFiles, without_links
from pcp_parquet.archive.index import IndexEntry, check_size, check_volumes, read_index
from pcp_parquet.archive.member import Member
from pcp_parquet.archive.meta import Metadata, read_metadata
from pcp_parquet.archive.problems import ArchiveError, ProblemLog
from pcp_parquet.archive.wire import LABEL_SIZE, Label, parse_label, pcp_version


@dataclass
class Archive:
    """One archive with its metadata and index."""

    files: ArchiveFiles
    label: Label
    metadata: Metadata
    index: list[IndexEntry]


def load(files: ArchiveFiles, problems: ProblemLog) -> Archive | None:
    """An archive with its metadata; None, with the problem recorded, if none of its files has a label."""
    for name, what in sorted(files.odd.items()):
        problems.add("unreadable", name, f"{what}: not opened")
    heads = {member: member.head(LABEL_SIZE[3]) for member in files.members()}
    label = _own_label(
        [parsed for head in heads.values() if (parsed := parse_label(head))]
    )
    if label is None:
        problems.add("unreadable", files.base, "neither .meta nor a volume has a label")
        return None
    present = list(files.volumes)
    _check_labels(files, heads, label, problems)
    if files.meta is None:
        problems.add(
            "missing file",
            files.base,
            "no .meta: without descriptors the values cannot be read",
        )
    # The index first: where the archive is still being written, what it names is then there when it is looked for.
    index = read_index(files.index, label.version, problems, label.start_ns)
    metadata = read_metadata(files.meta, problems) if files.meta else Metadata()
    if files.index is None:
        problems.add(
            "no index",
            files.base,
            "no .index: a loss at the end of a volume cannot be seen",
        )
    check_volumes(index, present, files.base, problems)
    if files.meta is not None and metadata.size:
        check_size(index, None, metadata.size, files.meta.name, problems)
    for number, member in sorted(files.volumes.items()):
        if not member.suffix:
            check_size(index, number, member.stored_size, member.name, problems)
    return Archive(files, label, metadata, index)


def load_all(
    file_sets: Sequence[ArchiveFiles], source: str | Path, problems: ProblemLog
) -> list[Archive]:
    """The archives that can be read, in order of their starts; ArchiveError if there is none."""
    archives = [
        archive
        for files in without_links(file_sets)
        if (archive := load(files, problems)) is not None
    ]
    if not archives:
        raise ArchiveError(
            f"{source}: nothing readable: {'; '.join(map(str, problems.all()))}"
        )
    archives.sort(key=lambda archive: (archive.label.start_ns, archive.files.base))
    kept = _without_copies(archives, problems)
    _refuse_overlaps(kept, source)
    return kept


def _without_copies(archives: Sequence[Archive], problems: ProblemLog) -> list[Archive]:
    """The archives without copies of one logger's volumes: those of the one with the most bytes are read."""
    seen: dict[tuple[tuple[int, int, int, str], int], Archive] = {}
    left_out = set()
    for archive in sorted(archives, key=_stored_bytes, reverse=True):
        names, files = _own_names(archive), archive.files
        copied = [
            number
            for number in files.volumes.keys() - files.repeated
            if (other := seen.setdefault((_identity(archive.label), number), archive))
            is not archive
            and names <= _own_names(other)
        ]
        files.repeated.update(copied)
        if copied and files.repeated >= files.volumes.keys():
            left_out.add(files.base)
            message = "a copy of an archive of the same logger: left out, so that no value counts twice"
            problems.add("copy", files.base, message)
    return [archive for archive in archives if archive.files.base not in left_out]


def _stored_bytes(archive: Archive) -> int:
    return sum(member.stored_size for member in archive.files.volumes.values())


def _own_names(archive: Archive) -> set[str]:
    """The names of an archive's metrics, without those that every logger has."""
    named = (desc.names[0] for desc in archive.metadata.descs.values() if desc.names)
    return {name for name in named if not name.startswith("pmcd.")}


def _refuse_overlaps(archives: Sequence[Archive], source: str | Path) -> None:
    """Raise ArchiveError for archives of one host, in order of their starts, that recorded a metric at the same time."""
    last: dict[tuple[str, str], tuple[int, Archive]] = {}
    for archive in archives:
        if not archive.index:
            continue
        end_ns = max(entry.time_ns for entry in archive.index)
        for name in sorted(_own_names(archive)):
            key = archive.label.host, name
            before_ns, other = last.get(key, (0, archive))
            if before_ns > archive.label.start_ns:
                overlap_s = (min(before_ns, end_ns) - archive.label.start_ns) / 1e9
                message = (
                    f"{source}: {other.files.base} and {archive.files.base} of host {archive.label.host} overlap by"
                    f" {overlap_s:,.0f} s and both have {name}, whose values would count twice: convert them one by one"
                )
                raise ArchiveError(message)
            last[key] = max(before_ns, end_ns), archive


def _identity(label: Label) -> tuple[int, int, int, str]:
    return label.version, label.pid, label.start_ns, label.host


def _own_label(labels: list[Label]) -> Label | None:
    """The label that most files have; of equally frequent ones the first."""
    if not labels:
        return None
    counts = Counter(map(_identity, labels))
    return max(labels, key=lambda label: counts[_identity(label)])


def _check_labels(
    files: ArchiveFiles, heads: dict[Member, bytes], own: Label, problems: ProblemLog
) -> None:
    """Leave out the files whose label is that of another archive; report other errors in labels."""
    numbers: dict[Member | None, int] = {files.meta: -1, files.index: -2}
    numbers |= {member: number for number, member in files.volumes.items()}
    for member, head in heads.items():
        label = parse_label(head)
        foreign = _foreign(label, pcp_version(head), own)
        if foreign:
            problems.add(
                "foreign file",
                member.name,
                f"it belongs to another archive ({foreign}) and is left out",
                0,
            )
            _leave_out(files, member)
            continue
        if label is None:
            continue
        if label.host != own.host:
            problems.add(
                "bad label", member.name, f"a damaged host name: {label.host}", 0
            )
        expected = numbers[member]
        if label.volume != expected:
            problems.add(
                "bad label",
                member.name,
                f"it says volume {label.volume}, the file's name {expected}",
                0,
            )
        size = LABEL_SIZE[label.version]
        if (length := int.from_bytes(head[size - 4 : size], "big")) != size:
            problems.add(
                "bad label",
                member.name,
                f"it ends with the length {length}, not {size}",
                size - 4,
            )


def _foreign(label: Label | None, version: int | None, own: Label) -> str:
    """How a file's label differs from its archive's, "" if not; a single flipped bit in the host name is ignored."""
    if label is None:
        return f"version {version}" if version == 1 else ""
    if label.version != own.version:
        return f"version {label.version}, not {own.version}"
    if label.pid != own.pid:
        return f"written by process {label.pid}, not {own.pid}"
    if label.start_ns != own.start_ns:
        return f"started {(label.start_ns - own.start_ns) / 1e9:+,.6f} s from the archive's start"
    bits = int.from_bytes(label.host.encode(), "big") ^ int.from_bytes(
        own.host.encode(), "big"
    )
    return f"host {label.host}, not {own.host}" if bits.bit_count() > 1 else ""


def _leave_out(files: ArchiveFiles, member: Member) -> None:
    if member == files.meta:
        files.meta = None
    elif member == files.index:
        files.index = None
    else:
        files.volumes = {
            number: volume
            for number, volume in files.volumes.items()
            if volume != member
        }
