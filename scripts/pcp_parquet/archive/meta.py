"""The .meta file: descriptors, help text, and instance domains and labels with the times at which they changed."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp_parquet.archive.compression import allowance, allowance_hint
from pcp_parquet.archive.member import Member, Stream
from pcp_parquet.archive.problems import ProblemLog
from pcp_parquet.archive.wire import IN_NULL, LABEL_SIZE, Label, parse_label, stamp

DESC, INDOM_V2, LABELS_V2, TEXT, INDOM, INDOM_DELTA, LABELS = range(1, 8)
INDOM_NULL = 0xFFFFFFFF
# Label types, in the order in which the later overrides the earlier (pmLookupLabels(3)).
CONTEXT, DOMAIN, INDOM_LABEL, CLUSTER, ITEM, INSTANCES = 1, 2, 4, 8, 16, 32
ONELINE, HELP, OF_PMID, OF_INDOM = 1, 2, 4, 8
# Records of real archives are far shorter; a greater length is damage.
MAX_RECORD = 64 << 20
PIECE = 4 << 20
GONE = 0xFFFFFFFF
MAX_INSTANCE = 0x7FFFFFFF
# Bounds memory and time: a file may hold ENTRIES names and labels, and as many records, or one per BYTES_PER_ENTRY of
# its size if that is more.
ENTRIES = 300_000
BYTES_PER_ENTRY = 4
STAMPED = {INDOM_V2: 2, LABELS_V2: 2, INDOM: 3, INDOM_DELTA: 3, LABELS: 3}
# What may be the next record after damage: at most 16 MiB, of a known type.
_CANDIDATE = re.compile(rb"(?=\x00[\x00-\xff]{3}\x00\x00\x00[\x01-\x07])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Desc:
    """One metric's descriptor; `names` are all its names, the first is the one used."""

    pmid: int
    type: int
    indom: int
    semantics: int
    units: int
    names: tuple[str, ...]


@dataclass
class History:
    """The names of a domain's instances over time: one event for each new name."""

    events: list[tuple[int, int, str]] = field(default_factory=list)
    """Time, instance, name."""
    current: dict[int, str] = field(default_factory=dict)

    def note(self, time: int, instance: int, name: str) -> int:
        """Note the name that an instance has from `time` (ns) on; returns 1 if it is new, else 0."""
        if self.current.get(instance) == name:
            return 0
        self.current[instance] = name
        self.events.append((time, instance, name))
        return 1


Labels = dict[str, Any]
LabelRecords = dict[int, dict[int, Labels]]
"""Time in ns -> instance (IN_NULL if the labels are not those of instances) -> labels. Each record replaces the
previous one, as in libpcp."""


@dataclass(frozen=True)
class InstanceList:
    """The instances of a domain from `time` (ns) on; with `gone`, only the changes, True where one was removed."""

    time: int
    instances: NDArray[np.int64]
    gone: NDArray[np.bool_] | None


@dataclass
class Metadata:
    """Everything in one .meta file."""

    label: Label | None = None
    descs: dict[int, Desc] = field(default_factory=dict)
    domains: dict[int, History] = field(default_factory=dict)
    instance_lists: dict[int, list[InstanceList]] = field(default_factory=dict)
    labels: dict[tuple[int, int], LabelRecords] = field(default_factory=dict)
    """Keyed by label type and the number of their owner (IN_NULL for labels of the context)."""
    texts: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    size: int = 0
    """Uncompressed bytes of the file, 0 if it was not read to its end."""
    stamps: list[tuple[int, int]] = field(default_factory=list)
    """Offset and time of each record that has a time."""
    held: int = 0
    """Number of names, labels and texts held in memory."""
    _parsed: dict[bytes, Labels] = field(default_factory=dict)

    def parsed_labels(self, text: bytes) -> Labels:
        """The labels in a JSON text, one shared object for equal texts; ValueError if it is not a JSON object."""
        if (labels := self._parsed.get(text)) is None:
            labels = json.loads(_decode(text.rstrip(b"\0")) or "{}")
            if not isinstance(labels, dict):
                raise ValueError("labels that are no JSON object")
            self._parsed[text] = labels
        return labels

    def order_names(self) -> None:
        """Put the name that libpcp would use first where a metric has several.

        libpcp's name space is a tree; of several names it uses the one on the branch that was created first.
        """
        created: dict[str, int] = {}
        for name in dict.fromkeys(self.names):
            for branch in _branches(name):
                created.setdefault(branch, len(created))
        for pmid, desc in self.descs.items():
            if len(desc.names) > 1:
                ordered = sorted(
                    desc.names,
                    key=lambda name: [created[branch] for branch in _branches(name)],
                )
                self.descs[pmid] = replace(desc, names=tuple(ordered))


def _branches(name: str) -> list[str]:
    return list(accumulate(name.split("."), lambda branch, part: f"{branch}.{part}"))


def read_metadata(member: Member, problems: ProblemLog) -> Metadata:
    """Read a .meta file as far as it can be read; damage is recorded and what follows it is still read."""
    metadata = Metadata()
    room = max(ENTRIES, member.stored_size // BYTES_PER_ENTRY) * allowance()
    for number, (offset, payload) in enumerate(_records(member, metadata, problems)):
        if number >= room or metadata.held > room:
            excess = "records" if number >= room else "names and labels"
            limit = f"more than {room:,.0f} {excess} in {member.stored_size:,} bytes"
            problems.add(
                "too large",
                member.name,
                f"{limit}; the rest is left out: {allowance_hint()}",
                offset,
            )
            break
        try:
            _take(metadata, payload)
            _note_time(metadata, payload, offset)
        except (struct.error, ValueError, RecursionError) as error:
            kind = int.from_bytes(payload[:4], "big")
            problems.add(
                "bad metadata",
                member.name,
                f"record of type {kind} cannot be read: {error}",
                offset,
            )
    metadata.order_names()
    return metadata


def _note_time(metadata: Metadata, payload: bytes, offset: int) -> None:
    """Keep the time of a record; ValueError where the archive's version has no records of this type."""
    kind = int.from_bytes(payload[:4], "big")
    if kind in STAMPED:
        if metadata.label is not None and metadata.label.version != STAMPED[kind]:
            raise ValueError(f"version {metadata.label.version} has no such records")
        metadata.stamps.append((offset, stamp(payload, 4, STAMPED[kind])[0]))


def _records(
    member: Member, metadata: Metadata, problems: ProblemLog
) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of every record after the label."""
    stream = Stream(member, problems)
    data = stream.read(PIECE)
    base = pos = 0
    metadata.label = parse_label(data)
    if metadata.label is not None:
        pos = LABEL_SIZE[metadata.label.version]
    else:
        problems.add(
            "bad metadata", member.name, "no label at the start of the file", 0
        )
    ended = False
    while True:
        need = int.from_bytes(data[pos : pos + 4], "big") if len(data) - pos >= 4 else 4
        good = len(data) - pos < 4 or 12 <= need <= MAX_RECORD
        if good and len(data) - pos < need and not ended:
            base, data, pos = base + pos, data[pos:], 0
            data, ended = _fill(stream, data, max(need, PIECE))
            continue
        if len(data) == pos:
            break
        if (
            good
            and len(data) - pos >= need
            and data[pos : pos + 4] == data[pos + need - 4 : pos + need]
        ):
            yield base + pos, data[pos + 4 : pos + need - 4]
            pos += need
            continue
        if not ended and len(data) - pos < 4 * PIECE:
            rest, ended = _fill(stream, b"", PIECE)
            base, data, pos = base + pos, data[pos:] + rest, 0
        if (next_pos := _next_record(data, pos + 1)) is None:
            kind = "truncated" if ended else "bad metadata"
            problems.add(
                kind,
                member.name,
                f"{len(data) - pos:,} bytes hold no whole record",
                base + pos,
            )
            if ended:
                break
            pos = len(data)
        else:
            problems.add(
                "bad metadata",
                member.name,
                f"{next_pos - pos:,} bytes skipped",
                base + pos,
            )
            pos = next_pos
    metadata.size = stream.position
    stream.close()


def _fill(stream: Stream, data: bytes, size: int) -> tuple[bytes, bool]:
    """`data` extended to `size` bytes, and whether the stream ended first."""
    data += stream.read_all(size - len(data))
    return data, len(data) < size


def _next_record(data: bytes, start: int) -> int | None:
    for match in _CANDIDATE.finditer(data, start):
        pos = match.start()
        size = int.from_bytes(data[pos : pos + 4], "big")
        if (
            12 <= size <= len(data) - pos
            and data[pos : pos + 4] == data[pos + size - 4 : pos + size]
        ):
            return pos
    return None


def _take(metadata: Metadata, payload: bytes) -> None:
    (kind,) = struct.unpack_from(">I", payload)
    if kind == DESC:
        _take_desc(metadata, payload)
    elif kind in (INDOM_V2, INDOM, INDOM_DELTA):
        _take_domain(metadata, payload, kind)
    elif kind in (LABELS_V2, LABELS):
        _take_labels(metadata, payload, 2 if kind == LABELS_V2 else 3)
    elif kind == TEXT:
        what, ident = struct.unpack_from(">II", payload, 4)
        texts = metadata.texts.setdefault((what & (OF_PMID | OF_INDOM), ident), {})
        texts[what & (ONELINE | HELP)] = _decode(payload[12:].split(b"\0", 1)[0])
        metadata.held += 1
    else:
        raise ValueError("unknown record type")


def _take_desc(metadata: Metadata, payload: bytes) -> None:
    pmid, kind, indom, semantics, units, count = struct.unpack_from(
        ">IiIiII", payload, 4
    )
    names, pos = [], 28
    for _ in range(count):
        (size,) = struct.unpack_from(">I", payload, pos)
        pos += 4 + size
        if pos > len(payload):
            raise ValueError(f"a name of {size:,} bytes reaches beyond the record")
        # Some old archives pad names with zeros.
        names.append(_decode(payload[pos - size : pos].split(b"\0", 1)[0]))
    if not names or "" in names:
        raise ValueError("a metric without a name")
    # The first descriptor counts, as in libpcp; later ones repeat it, and may add names.
    known = metadata.descs.get(pmid) or Desc(pmid, kind, indom, semantics, units, ())
    metadata.descs[pmid] = replace(
        known, names=tuple(dict.fromkeys((*known.names, *names)))
    )
    metadata.names += names
    metadata.held += len(names)
    if pos != len(payload):
        raise ValueError(
            f"{len(payload) - pos:,} bytes after the last name of {names[0]}"
        )


def _take_domain(metadata: Metadata, payload: bytes, kind: int) -> None:
    time, pos = stamp(payload, 4, STAMPED[kind])
    indom, count = struct.unpack_from(">II", payload, pos)
    pos += 8
    if count * 8 > len(payload) - pos:
        raise ValueError(f"{count:,} instances in {len(payload):,} bytes")
    instances = struct.unpack_from(f">{count}I", payload, pos)
    offsets = struct.unpack_from(f">{count}I", payload, pos + 4 * count)
    names = _Names(payload[pos + 8 * count :])
    numbers = np.array(instances, dtype=np.int64)
    gone = np.array(offsets, dtype=np.int64) == GONE if kind == INDOM_DELTA else None
    metadata.instance_lists.setdefault(indom, []).append(
        InstanceList(time, numbers, gone)
    )
    domain = metadata.domains.setdefault(indom, History())
    bad: list[str] = []
    for instance, offset in zip(instances, offsets, strict=True):
        # A removed instance keeps its last name: only values recorded before its removal can refer to it.
        if offset == GONE and kind == INDOM_DELTA:
            continue
        if instance > MAX_INSTANCE or offset >= len(names.table):
            bad.append(
                f"instance {instance:,} with a name at offset {offset:,} of {len(names.table):,} bytes"
            )
        else:
            metadata.held += domain.note(time, instance, names[offset])
    if bad:
        raise ValueError(f"{len(bad):,} bad names, the first: {bad[0]}")


class _Names(dict[int, str]):
    """Names by their offset in the string table, read on demand; a name may be the tail of another."""

    def __init__(self, table: bytes) -> None:
        super().__init__()
        self.table = table
        # A sound table gives each name once, and tails of some; a larger total is damage.
        self._room = 4 * len(table)

    def __missing__(self, offset: int) -> str:
        end = self.table.find(b"\0", offset)
        text = self.table[offset : end if end >= 0 else None]
        self._room -= len(text)
        if self._room < 0:
            raise ValueError(
                f"names of more than {4 * len(self.table):,} bytes in a table of {len(self.table):,}"
            )
        name = self[offset] = _decode(text)
        return name


def _take_labels(metadata: Metadata, payload: bytes, version: int) -> None:
    time, pos = stamp(payload, 4, version)
    kind, ident, count = struct.unpack_from(">III", payload, pos)
    kind &= CONTEXT | DOMAIN | INDOM_LABEL | CLUSTER | ITEM | INSTANCES
    pos += 12
    sets: dict[int, Labels] = {}
    for _ in range(count):
        instance, size = struct.unpack_from(">II", payload, pos)
        end = pos + 8 + size
        if end + 4 > len(payload):
            raise ValueError(f"a label set of {size:,} bytes reaches beyond the record")
        (labels,) = struct.unpack_from(">i", payload, end)
        if labels >= 0:
            # Of several sets where there should be one, libpcp uses the first.
            sets.setdefault(
                instance if kind == INSTANCES else IN_NULL,
                metadata.parsed_labels(payload[pos + 8 : end]),
            )
        # A negative number is PCP's error code; there are no labels then.
        pos = end + 4 + 8 * max(labels, 0)
    records = metadata.labels.setdefault(
        (kind, IN_NULL if kind == CONTEXT else ident), {}
    )
    last = next(reversed(records.values()), None)
    # Of two records with the same time libpcp uses the first. One that repeats the last takes no memory.
    metadata.held += len(sets) if sets != last else 0
    records.setdefault(time, last if sets == last else sets)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")
