"""Writes PCP archives of both versions, for tests, fuzzing and the benchmark; and shows that PCP can read them."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

I32, U32, I64, U64, FLOAT, DOUBLE, STRING, AGGREGATE = range(8)
COUNTER, INSTANT, DISCRETE = 1, 3, 4
NULL = 0xFFFFFFFF
START = 1_700_000_000_000_000_000
_FORMATS = {I32: ">i", U32: ">I", I64: ">q", U64: ">Q", FLOAT: ">f", DOUBLE: ">d"}


@dataclass
class Metric:
    pmid: int
    names: tuple[str, ...]
    type: int
    indom: int = NULL
    semantics: int = INSTANT
    units: int = 0


def pmid(domain: int, cluster: int, item: int) -> int:
    return domain << 22 | cluster << 10 | item


def indom(domain: int, serial: int) -> int:
    return domain << 22 | serial


def units(
    space: int = 0,
    time: int = 0,
    count: int = 0,
    scales: tuple[int, int, int] = (0, 0, 0),
) -> int:
    parts = (space, time, count, *scales)
    return sum(
        (part & 15) << shift
        for part, shift in zip(parts, (28, 24, 20, 16, 12, 8), strict=True)
    )


@dataclass
class Writer:
    """One archive. Values are given as {metric: {instance number: value}}; None for the instances is an error code."""

    folder: Path
    name: str = "test"
    version: int = 3
    host: str = "testhost"
    zone: str = "UTC"
    start: int = START
    metrics: dict[int, Metric] = field(default_factory=dict)
    _meta: bytearray = field(default_factory=bytearray)
    _volumes: list[bytearray] = field(default_factory=list)
    _index: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._meta += self._label(-1)
        self._index += self._label(-2)
        self.volume()

    def _label(self, volume: int) -> bytes:
        if self.version == 2:
            body = struct.pack(">III", 0x50052602, 4711, self.start // 10**9)
            body += struct.pack(
                ">Ii64s40s",
                self.start % 10**9 // 1000,
                volume,
                self.host.encode(),
                self.zone.encode(),
            )
        else:
            body = struct.pack(">II", 0x50052603, 4711) + self.stamp(self.start)
            body += struct.pack(
                ">iII256s256s256s",
                volume,
                0,
                0,
                self.host.encode(),
                self.zone.encode(),
                b"",
            )
        return framed(body)

    def stamp(self, time: int) -> bytes:
        seconds, nanos = divmod(time, 10**9)
        if self.version == 2:
            return struct.pack(">II", seconds, nanos // 1000)
        return struct.pack(">III", seconds & 0xFFFFFFFF, seconds >> 32, nanos)

    def volume(self) -> None:
        """Start the next volume."""
        self._volumes.append(bytearray(self._label(len(self._volumes))))

    def metric(self, metric: Metric, oneline: str = "", help_text: str = "") -> Metric:
        self.metrics[metric.pmid] = metric
        body = struct.pack(
            ">IIiIiI",
            1,
            metric.pmid,
            metric.type,
            metric.indom,
            metric.semantics,
            metric.units,
        )
        body += struct.pack(">I", len(metric.names))
        for name in metric.names:
            body += struct.pack(">I", len(name.encode())) + name.encode()
        self._meta += framed(body)
        for kind, text in ((1, oneline), (2, help_text)):
            if text:
                self._meta += framed(
                    struct.pack(">III", 4, 4 | kind, metric.pmid)
                    + text.encode()
                    + b"\0"
                )
        return metric

    def domain(
        self,
        time: int,
        number: int,
        instances: dict[int, str | None],
        *,
        delta: bool = False,
    ) -> None:
        kind = 2 if self.version == 2 else 6 if delta else 5
        table, offsets = b"", []
        for name in instances.values():
            offsets.append(NULL if name is None else len(table))
            table += b"" if name is None else name.encode() + b"\0"
        body = (
            struct.pack(">I", kind)
            + self.stamp(time)
            + struct.pack(">II", number, len(instances))
        )
        body += struct.pack(f">{2 * len(instances)}I", *instances, *offsets) + table
        self._meta += framed(body)

    def labels(
        self, time: int, kind: int, ident: int, sets: dict[int, dict[str, object]]
    ) -> None:
        body = struct.pack(">I", 3 if self.version == 2 else 7) + self.stamp(time)
        body += struct.pack(">III", kind, ident, len(sets))
        for instance, labels in sets.items():
            text = json.dumps(labels, separators=(",", ":")).encode()
            body += (
                struct.pack(">II", instance, len(text))
                + text
                + struct.pack(">I", len(labels))
            )
            for name, value in labels.items():
                at = text.index(json.dumps(name).encode()) + 1
                shown = json.dumps(value).encode()
                begin = text.index(shown, at + len(name))
                body += struct.pack(">HBBHH", at, len(name), 0, begin, len(shown))
        self._meta += framed(body)

    def record(
        self,
        time: int,
        values: dict[int, dict[int, object] | int],
        *,
        index: bool = True,
    ) -> None:
        """One record; an empty dict of values is a mark."""
        self.raw_record(time, self.sets(values), len(values), index=index)

    def sets(self, values: dict[int, dict[int, object] | int]) -> bytes:
        """Value sets and their blocks as bytes, for a record that begins with the usual header."""
        head = 16 if self.version == 2 else 20
        size = sum(
            8 if isinstance(v, int) or not v else 12 + 8 * len(v)
            for v in values.values()
        )
        sets, blocks = b"", b""
        for number, instances in values.items():
            if isinstance(instances, int) or not instances:
                sets += struct.pack(
                    ">Ii", number, instances if isinstance(instances, int) else 0
                )
                continue
            kind = self.metrics[number].type
            in_place = kind in (I32, U32)
            sets += struct.pack(">IiI", number, len(instances), 0 if in_place else 1)
            for instance, value in instances.items():
                sets += struct.pack(">I", instance)
                if in_place:
                    sets += struct.pack(_FORMATS[kind], value)
                    continue
                sets += struct.pack(">I", (head + size + len(blocks)) // 4 + 2)
                data = value_bytes(kind, value)
                blocks += (
                    struct.pack(">I", kind << 24 | len(data) + 4)
                    + data
                    + b"\0" * (-len(data) % 4)
                )
        return sets + blocks

    def raw_record(
        self, time: int, body: bytes, count: int, *, index: bool = False
    ) -> None:
        if index:
            self.index_entry(time)
        self._volumes[-1] += framed(self.stamp(time) + struct.pack(">I", count) + body)

    def index_entry(self, time: int) -> None:
        number, offset = len(self._volumes) - 1, len(self._volumes[-1])
        tail = struct.pack(
            ">III" if self.version == 2 else ">IQQ", number, len(self._meta), offset
        )
        self._index += self.stamp(time) + tail

    def close(self) -> Path:
        """Write the files; the archive's base name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self.folder / self.name
        base.with_name(self.name + ".meta").write_bytes(self._meta)
        base.with_name(self.name + ".index").write_bytes(self._index)
        for number, data in enumerate(self._volumes):
            base.with_name(f"{self.name}.{number}").write_bytes(data)
        return base


def framed(body: bytes) -> bytes:
    size = struct.pack(">I", len(body) + 8)
    return size + body + size


def value_bytes(kind: int, value: object) -> bytes:
    if kind == STRING:
        return str(value).encode() + b"\0"
    if isinstance(value, bytes):
        return value
    return struct.pack(_FORMATS[kind], value)


def packed_sets(
    version: int, groups: Sequence[tuple[int, int, np.ndarray, np.ndarray]]
) -> bytes:
    """Value sets of many values at once: (pmid, type, instance numbers, values) each; numbers only."""
    head = 4 if version == 2 else 5
    words = head + sum(3 + 2 * len(instances) for _, _, instances, _ in groups)
    sets, blocks = [], []
    for number, kind, instances, values in groups:
        in_place = kind in (I32, U32)
        sets.append(
            np.array([number, len(instances), 0 if in_place else 1], dtype=">u4")
        )
        pairs = np.empty((len(instances), 2), dtype=">u4")
        pairs[:, 0] = instances
        if in_place:
            pairs[:, 1] = (
                np.asarray(values).astype(_FORMATS[kind].lower() + "4").view(">u4")
            )
        else:
            size = 2 if kind == FLOAT else 3
            pairs[:, 1] = words + size * np.arange(len(instances)) + 2
            block = np.empty((len(instances), size), dtype=">u4")
            block[:, 0] = kind << 24 | 4 * size
            wire = {FLOAT: ">f4", DOUBLE: ">f8", I64: ">i8", U64: ">u8"}[kind]
            block[:, 1:] = (
                np.ascontiguousarray(values)
                .astype(wire)
                .view(">u4")
                .reshape(len(instances), size - 1)
            )
            blocks.append(block.reshape(-1))
            words += size * len(instances)
        sets.append(pairs.reshape(-1))
    return b"".join(part.tobytes() for part in [*sets, *blocks])


def all_types(folder: Path, version: int, times: Iterable[int] = range(5)) -> Writer:
    """An archive with every type, singular and with instances, an alias, labels, help, an error and a mark."""
    writer = Writer(folder, version=version)
    disks = indom(60, 1)
    kinds = {
        "i32": I32,
        "u32": U32,
        "i64": I64,
        "u64": U64,
        "float": FLOAT,
        "double": DOUBLE,
        "string": STRING,
    }
    for item, (name, kind) in enumerate(kinds.items()):
        writer.metric(Metric(pmid(60, 0, item), (f"one.{name}",), kind), f"one {name}")
        writer.metric(
            Metric(
                pmid(60, 1, item),
                (f"disk.{name}", f"alias.{name}"),
                kind,
                disks,
                COUNTER,
                units(1, 0, 0),
            )
        )
    writer.metric(
        Metric(pmid(60, 2, 0), ("blob",), AGGREGATE),
        "an aggregate",
        "that has no column",
    )
    writer.domain(writer.start, disks, {0: "sda", 1: "sdb", 7: "nvme0n1"})
    writer.labels(writer.start, 1, NULL, {NULL: {"hostname": "testhost"}})
    writer.labels(
        writer.start,
        32,
        disks,
        {0: {"bus": "sata"}, 1: {"bus": "sata"}, 7: {"bus": "nvme"}},
    )
    for step in times:
        samples = {
            **{
                I32: -step,
                U32: 4_000_000_000 + step,
                I64: -(2**62) - step,
                U64: 2**64 - 1 - step,
            },
            **{FLOAT: step / 4, DOUBLE: step / 3, STRING: f"text {step}" * (step % 3)},
        }
        values: dict[int, dict[int, object] | int] = {}
        for item, kind in enumerate(kinds.values()):
            values[pmid(60, 0, item)] = {NULL: samples[kind]}
            values[pmid(60, 1, item)] = dict.fromkeys((0, 1, 7), samples[kind])
        values[pmid(60, 2, 0)] = {NULL: b"\1\2\3"} if step % 2 else -12350
        writer.record(writer.start + step * 10**9, values)
    return writer


@pytest.mark.parametrize("version", [2, 3])
def test_pcp_reads_what_is_written(tmp_path: Path, version: int) -> None:
    if not shutil.which("pmdumplog"):
        pytest.skip("no pmdumplog on this machine (Debian: pcp)")
    base = all_types(tmp_path, version).close()
    run = subprocess.run(["pmdumplog", "-a", str(base)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert 'value "text 1"' in run.stdout
    assert run.stdout.count("nvme0n1") >= 30
    assert "18446744073709551611" in run.stdout
