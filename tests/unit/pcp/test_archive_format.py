"""The parts: units, time stamps, Parquet pages, sorting; each against another implementation or a law."""

import base64
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pcp.test_archive_writer import units
from tests.workflow.test_archive_libpcp import python_with_pcp

from kveval.pcp.archive import wire
from kveval.pcp.archive.units import units_string
from kveval.pcp.conversion import arrow_schema, pages, thrift
from kveval.pcp.conversion.catalog import Words
from kveval.pcp.conversion.chunks import Chunk, assemble
from kveval.pcp.conversion.decode import Piece
from kveval.pcp.conversion.table import LongWriter

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("ns", tz="UTC"), nullable=False),
        pa.field("metric", DICTIONARY, nullable=False),
        pa.field("instance", DICTIONARY),
        pa.field("value", pa.float64()),
        pa.field("value_int", pa.decimal128(20, 0)),
        pa.field("text", pa.string()),
    ]
)


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (units(), ""),
        (units(1, 0, 0, (1, 0, 0)), "Kbyte"),
        (units(1, -1, 0, (2, 3, 0)), "Mbyte / sec"),
        (units(0, -1, 1, (0, 3, 0)), "count / sec"),
        (units(0, 0, 1, (0, 0, 6)), "count x 10^6"),
        (units(0, 1, 0, (0, 2, 0)), "millisec"),
        (units(0, 0, -1), "/ count"),
        (units(2, 0, 0), "byte^2"),
    ],
)
def test_units(packed: int, text: str) -> None:
    assert units_string(packed) == text


def test_units_as_libpcp_writes_them() -> None:
    rng = np.random.default_rng(0)
    # Scales up to those that PCP 6 defines: byte..Ybyte, nanosec..hour.
    cases = [
        units(*rng.integers(-3, 4, 3).tolist(), (int(rng.integers(9)), int(rng.integers(6)), int(rng.integers(-8, 8))))
        for _ in range(500)
    ]
    program = """
import sys
from pcp.pmapi import pmContext, pmUnits
from cpmapi import PM_SPACE_BYTE
signed = lambda n: (n & 15) - 16 if n & 8 else n & 15
for word in map(int, sys.argv[1:]):
    dims = signed(word >> 28), signed(word >> 24), signed(word >> 20)
    print(pmContext.pmUnitsStr(pmUnits(*dims, word >> 16 & 15, word >> 12 & 15, signed(word >> 8))))
"""
    run = subprocess.run(
        [python_with_pcp(), "-c", program, *map(str, cases)], capture_output=True, text=True, check=True
    )
    assert [units_string(case) for case in cases] == run.stdout.split("\n")[:-1]


def test_the_arrow_schema_in_the_footer_is_pyarrows() -> None:
    with_host = SCHEMA.append(pa.field("host", DICTIONARY, nullable=False))
    for text, schema in ((arrow_schema.ARROW_SCHEMA, SCHEMA), (arrow_schema.ARROW_SCHEMA_WITH_HOST, with_host)):
        assert pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))) == schema


@given(st.integers(0, 2**63 - 1))
def test_varint_ends_where_its_first_high_bit_is_clear(number: int) -> None:
    data = thrift.varint(number)
    assert sum((byte & 127) << 7 * at for at, byte in enumerate(data)) == number
    assert [byte >> 7 for byte in data] == [1] * (len(data) - 1) + [0]


@given(st.integers(0, wire.MAX_SECONDS - 1), st.integers(0, 999_999_999))
def test_times_of_version_3(seconds: int, nanos: int) -> None:
    words = np.array([[seconds & 0xFFFFFFFF, seconds >> 32, nanos]], dtype=np.uint32)
    assert wire.record_times(words, 3)[0] == wire.nanoseconds_v3(*words[0].tolist()) == seconds * 10**9 + nanos


@given(st.lists(st.integers(0, 0xFFFFFFFF), min_size=3, max_size=3))
def test_no_time_is_beyond_what_int64_holds(words: list[int]) -> None:
    for version in (2, 3):
        assert -1 <= wire.record_times(np.array([words], dtype=np.uint32), version)[0] < 2**63


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(1, 70_000)), max_size=40),
)
def test_runs_decode_to_the_codes(pairs: list[tuple[int, int]]) -> None:
    codes = np.array([code for code, _ in pairs], dtype=np.int64)
    counts = np.array([count for _, count in pairs], dtype=np.int64)
    data, at, decoded = pages.runs(codes, counts, 10), 0, []
    while at < len(data):
        head = shift = 0
        while True:
            head |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if not data[at - 1] >> 7:
                break
        assert head & 1 == 0
        decoded.append((int.from_bytes(data[at : at + 2], "little"), head >> 1))
        at += 2
    assert np.array_equal(np.repeat(*np.array(decoded or [(0, 0)]).T), np.repeat(codes, counts))


class Names:
    """Stands in for a catalog: series k belongs to metric k // 10; every tenth series is singular."""

    def __init__(self) -> None:
        self.metric_words, self.name_words = Words(), Words()
        for number in range(10):
            self.metric_words.number(f"metric.{number}")
            self.name_words.number(f"instance {number} é")

    def parts(self, series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return series // 10, np.where(series % 10 == 0, -1, series % 10)


cell = st.one_of(
    st.floats(allow_nan=False), st.integers(2**53, 2**64 - 1), st.integers(-(2**63), -(2**53)), st.text(max_size=8)
)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.integers(0, 99), st.lists(cell, min_size=1, max_size=30), min_size=1, max_size=12),
    st.integers(1, 40),
    st.booleans(),
)
def test_a_file_holds_its_chunk(table: dict[int, list], group_rows: int, with_host: bool) -> None:
    cells = [value for _, values in sorted(table.items()) for value in values]
    series = np.array(sorted(table))
    counts = np.array([len(table[number]) for number in series.tolist()])
    text_at = np.array([at for at, value in enumerate(cells) if isinstance(value, str)], dtype=np.int64)
    exact_at = np.array([at for at, value in enumerate(cells) if isinstance(value, int)], dtype=np.int64)
    values = np.array([0.0 if isinstance(value, str) else float(value) for value in cells])
    exact = np.array([list(cells[at].to_bytes(9, "big", signed=True)) for at in exact_at] or np.empty((0, 9)), np.uint8)
    texts = np.array([cells[at] for at in text_at] + [None], dtype=object)[:-1]
    times = np.arange(len(cells)) * 1_000_003 + 1_700_000_000_000_000_000
    chunk = Chunk(series, counts, times, values, (text_at, texts), (exact_at, exact))
    path = Path(tempfile.mkdtemp(), "chunk.parquet")
    try:
        with LongWriter(path, with_host=with_host, group_rows=group_rows) as writer:
            writer.write(chunk, Names(), "hé")
            writer.write(chunk, Names(), "hé")
            writer.finish({"key": "välue"})
        read = pq.read_table(path)
        metadata = pq.read_metadata(path)
    finally:
        shutil.rmtree(path.parent)
    read.validate(full=True)
    assert read.schema.remove_metadata() == (
        SCHEMA.append(pa.field("host", DICTIONARY, False)) if with_host else SCHEMA
    )
    assert metadata.metadata[b"key"].decode() == "välue"
    metrics, names = Names().parts(np.repeat(series, counts))
    expected = {
        "timestamp": times.tolist(),
        "metric": [f"metric.{number}" for number in metrics],
        "instance": [None if number < 0 else f"instance {number} é" for number in names],
        "value": [None if isinstance(value, str) else float(value) for value in cells],
        "value_int": [value if isinstance(value, int) else None for value in cells],
        "text": [value if isinstance(value, str) else None for value in cells],
        **({"host": ["hé"] * len(cells)} if with_host else {}),
    }
    read = read.set_column(0, "timestamp", read["timestamp"].cast(pa.int64()))
    assert {name: read[name].to_pylist() for name in read.column_names} == {k: v * 2 for k, v in expected.items()}
    assert metadata.num_row_groups == 2 * -(-len(cells) // group_rows)
    group = metadata.row_group(0)
    first = slice(0, min(group_rows, len(cells)))
    assert (group.column(0).statistics.min_raw, group.column(0).statistics.max_raw) == (
        times[first][0],
        times[first][-1],
    )
    assert group.column(1).statistics.min == min(expected["metric"][first])
    assert group.column(2).statistics.null_count == sum(name is None for name in expected["instance"][first])


samples = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True),
        st.lists(st.integers(0, 1000), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@given(samples, st.randoms(), st.sampled_from([0, 10_000_000]))
def test_a_chunk_is_its_pieces_sorted(plan: list[tuple[list[int], list[int]]], random, offset: int) -> None:
    pieces, rows = [], []
    for series, times in plan:
        values = np.array([[random.random() for _ in times] for _ in series])
        present = np.array([[random.random() < 0.8 for _ in times] for _ in series])
        piece = Piece(np.array(series) + offset, np.array(times), values, present=None if present.all() else present)
        pieces.append(piece)
        rows += [
            (number + offset, time, values[i, j])
            for i, number in enumerate(series)
            for j, time in enumerate(times)
            if present[i, j]
        ]
    chunk = assemble(pieces)
    found = list(zip(np.repeat(chunk.series, chunk.counts), chunk.times, chunk.values, strict=True))
    assert [row[:2] for row in found] == sorted(row[:2] for row in rows)
    assert sorted(found) == sorted(rows)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_nine_bytes_are_the_number(signed: list[int], unsigned: list[int]) -> None:
    for numbers, kind in ((signed, np.int64), (unsigned, np.uint64)):
        rows = pages.nine_bytes(np.array(numbers, dtype=kind))
        assert [int.from_bytes(bytes(row), "big", signed=True) for row in rows] == numbers
