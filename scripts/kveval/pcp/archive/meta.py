"""The .meta file: descriptors, instance domains, labels and help text, each as it was at its time."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate

from kveval.pcp.archive.files import Member, Stream
from kveval.pcp.archive.problems import ProblemLog
from kveval.pcp.archive.wire import IN_NULL, LABEL_SIZE, Label, parse_label, stamp

DESC, INDOM_V2, LABELS_V2, TEXT, INDOM, INDOM_DELTA, LABELS = range(1, 8)
INDOM_NULL = 0xFFFFFFFF
# Label types, in the order in which the later overrides the earlier (pmLookupLabels(3)).
CONTEXT, DOMAIN, INDOM_LABEL, CLUSTER, ITEM, INSTANCES = 1, 2, 4, 8, 16, 32
ONELINE, HELP, OF_PMID, OF_INDOM = 1, 2, 4, 8
# No record of a real archive comes near; a longer one is a length that lies.
MAX_RECORD = 64 << 20
PIECE = 4 << 20
GONE = 0xFFFFFFFF
# After damage: a record of at most 16 MiB, of a known type.
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
    """Texts of instances through time - their names, or their labels as JSON - wherever one got a new text."""

    events: list[tuple[int, int, str]] = field(default_factory=list)
    """Time, instance, text."""
    current: dict[int, str] = field(default_factory=dict)

    def note(self, time: int, instance: int, text: str) -> None:
        """Note the text that an instance has from a time on."""
        if self.current.get(instance) != text:
            self.current[instance] = text
            self.events.append((time, instance, text))


@dataclass
class Metadata:
    """Everything in one .meta file."""

    label: Label | None = None
    descs: dict[int, Desc] = field(default_factory=dict)
    domains: dict[int, History] = field(default_factory=dict)
    labels: dict[tuple[int, int], History] = field(default_factory=dict)
    texts: dict[tuple[int, int], dict[int, str]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

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
                ordered = sorted(desc.names, key=lambda name: [created[branch] for branch in _branches(name)])
                self.descs[pmid] = replace(desc, names=tuple(ordered))


def _branches(name: str) -> list[str]:
    return list(accumulate(name.split("."), lambda branch, part: f"{branch}.{part}"))


def read_metadata(member: Member, problems: ProblemLog) -> Metadata:
    """Read a .meta file as far as it can be read; damage is recorded and what follows it is still read."""
    metadata = Metadata()
    for offset, payload in _records(member, metadata, problems):
        try:
            _take(metadata, payload)
        except (struct.error, ValueError, RecursionError) as error:
            kind = int.from_bytes(payload[:4], "big")
            problems.add("bad metadata", member.name, f"record of type {kind} cannot be read: {error}", offset)
    metadata.order_names()
    return metadata


def _records(member: Member, metadata: Metadata, problems: ProblemLog) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of every record after the label."""
    stream = Stream(member, problems)
    data = stream.read(PIECE)
    base = pos = 0
    metadata.label = parse_label(data)
    if metadata.label is not None:
        pos = LABEL_SIZE[metadata.label.version]
    else:
        problems.add("bad metadata", member.name, "no label at the start of the file", 0)
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
        if good and len(data) - pos >= need and data[pos : pos + 4] == data[pos + need - 4 : pos + need]:
            yield base + pos, data[pos + 4 : pos + need - 4]
            pos += need
            continue
        if not ended:
            rest, ended = _fill(stream, b"", PIECE)
            base, data, pos = base + pos, data[pos:] + rest, 0
        if (found := _next_record(data, pos + 1)) is None:
            kind = "truncated" if ended else "bad metadata"
            problems.add(kind, member.name, f"{len(data) - pos:,} bytes hold no whole record", base + pos)
            if ended:
                break
            pos = len(data)
        else:
            problems.add("bad metadata", member.name, f"{found - pos:,} bytes skipped", base + pos)
            pos = found
    stream.close()


def _fill(stream: Stream, data: bytes, size: int) -> tuple[bytes, bool]:
    """`data` extended to `size` bytes, and whether the stream ended first."""
    data += stream.read_all(size - len(data))
    return data, len(data) < size


def _next_record(data: bytes, start: int) -> int | None:
    for match in _CANDIDATE.finditer(data, start):
        pos = match.start()
        size = int.from_bytes(data[pos : pos + 4], "big")
        if 12 <= size <= len(data) - pos and data[pos : pos + 4] == data[pos + size - 4 : pos + size]:
            return pos
    return None


def _take(metadata: Metadata, payload: bytes) -> None:
    (kind,) = struct.unpack_from(">I", payload)
    if kind == DESC:
        _take_desc(metadata, payload)
    elif kind in (INDOM_V2, INDOM, INDOM_DELTA):
        _take_domain(metadata, payload, 2 if kind == INDOM_V2 else 3)
    elif kind in (LABELS_V2, LABELS):
        _take_labels(metadata, payload, 2 if kind == LABELS_V2 else 3)
    elif kind == TEXT:
        what, ident = struct.unpack_from(">II", payload, 4)
        texts = metadata.texts.setdefault((what & (OF_PMID | OF_INDOM), ident), {})
        texts[what & (ONELINE | HELP)] = _decode(payload[12:].split(b"\0", 1)[0])
    else:
        raise ValueError("unknown record type")


def _take_desc(metadata: Metadata, payload: bytes) -> None:
    pmid, kind, indom, semantics, units, count = struct.unpack_from(">IiIiII", payload, 4)
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
    metadata.descs[pmid] = replace(known, names=tuple(dict.fromkeys((*known.names, *names))))
    metadata.names += names


def _take_domain(metadata: Metadata, payload: bytes, version: int) -> None:
    time, pos = stamp(payload, 4, version)
    indom, count = struct.unpack_from(">II", payload, pos)
    pos += 8
    if count * 8 > len(payload) - pos:
        raise ValueError(f"{count:,} instances in {len(payload):,} bytes")
    instances = struct.unpack_from(f">{count}I", payload, pos)
    offsets = struct.unpack_from(f">{count}I", payload, pos + 4 * count)
    names = _Names(payload[pos + 8 * count :])
    domain = metadata.domains.setdefault(indom, History())
    for instance, offset in zip(instances, offsets, strict=True):
        # A number that is gone keeps its last name: only a value recorded by then can refer to it.
        if offset != GONE:
            domain.note(time, instance, names[offset])


class _Names(dict[int, str]):
    """Names by their offset in the string table; one that shares another's tail is found on demand."""

    def __init__(self, table: bytes) -> None:
        parts = table.split(b"\0")
        starts = accumulate((len(part) + 1 for part in parts), initial=0)
        super().__init__(zip(starts, map(_decode, parts), strict=False))
        self._table = table

    def __missing__(self, offset: int) -> str:
        if offset >= len(self._table):
            raise ValueError(f"a name at offset {offset:,} of a table of {len(self._table):,} bytes")
        return _decode(self._table[offset : self._table.find(b"\0", offset)])


def _take_labels(metadata: Metadata, payload: bytes, version: int) -> None:
    time, pos = stamp(payload, 4, version)
    kind, ident, count = struct.unpack_from(">III", payload, pos)
    pos += 12
    history = metadata.labels.setdefault((kind & 0x3F, ident), History())
    for _ in range(count):
        instance, size = struct.unpack_from(">II", payload, pos)
        end = pos + 8 + size
        if end + 4 > len(payload):
            raise ValueError(f"a label set of {size:,} bytes reaches beyond the record")
        text = _decode(payload[pos + 8 : end].rstrip(b"\0"))
        (labels,) = struct.unpack_from(">I", payload, end)
        pos = end + 4 + 8 * labels
        instance = instance if kind & INSTANCES else IN_NULL
        if history.current.get(instance) != text:
            # Raises ValueError for what is no JSON.
            json.loads(text or "{}")
            history.note(time, instance, text)


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")
