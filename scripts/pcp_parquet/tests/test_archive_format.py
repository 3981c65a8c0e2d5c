"""The parts: units, time stamps, sorting, wide integers; each against another implementation or a law."""

import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp_parquet.archive import wire
from pcp_parquet.archive.units import units_string
from pcp_parquet.conversion.chunks import assemble
from pcp_parquet.conversion.decode import Piece, wide_integers
from pcp_parquet.tests.test_archive_libpcp import python_with_pcp
from pcp_parquet.tests.test_archive_writer import units


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
        (units(0, 0, 0, (0, 0, 6)), "count x 10^6"),
        (1 << 3 | 1, "temperature (C)"),
        (2 << 3 | 2, "voltage (mV)"),
        (3 << 3 | 1, "current (A)"),
        (4 << 3 | 2, "power (W)"),
        (units(0, 1, 0, (0, 3, 0)) | 4 << 3 | 1, "power (kW) sec"),
        (units(0, 0, 1) | (-4 & 31) << 3 | 2, "count / power (W)"),
        (4 << 3 | 7, "power (scale-7)"),
        (9 << 3 | 1, "extra-9"),
    ],
)
def test_units(packed: int, text: str) -> None:
    assert units_string(packed) == text


def test_units_as_libpcp_writes_them() -> None:
    rng = np.random.default_rng(0)
    # Scales up to those that PCP 6 defines: byte..Ybyte, nanosec..hour.
    cases = [
        units(
            *rng.integers(-3, 4, 3).tolist(),
            (int(rng.integers(9)), int(rng.integers(6)), int(rng.integers(-8, 8))),
        )
        | int(rng.integers(-4, 5)) % 32 << 3
        | int(rng.integers(1, 4))
        for _ in range(500)
    ]
    program = """
import sys
from pcp.pmapi import pmContext, pmUnits
signed = lambda n: (n & 15) - 16 if n & 8 else n & 15
extra = any(field[0] == "extraUnit" for field in pmUnits._fields_)
print(extra)
for word in map(int, sys.argv[1:]):
    dims = signed(word >> 28), signed(word >> 24), signed(word >> 20)
    units = pmUnits(*dims, word >> 16 & 15, word >> 12 & 15, signed(word >> 8))
    if extra:
        units.extraUnit, units.extraScale = word >> 3 & 31, word & 7
    print(pmContext.pmUnitsStr(units))
"""
    run = subprocess.run(
        [python_with_pcp(), "-c", program, *map(str, cases)],
        capture_output=True,
        text=True,
        check=True,
    )
    knows_extra, *texts = run.stdout.split("\n")[:-1]
    expected = list(zip(cases, texts, strict=True))
    if knows_extra == "False":
        # Before 7.2 PCP wrote a scale without a dimension in another way, too.
        expected = [(case & ~0xFF, text) for case, text in expected if case >> 20]
    assert [(case, units_string(case)) for case, _ in expected] == expected


@given(st.integers(0, wire.MAX_SECONDS - 1), st.integers(0, 999_999_999))
def test_times_of_version_3(seconds: int, nanos: int) -> None:
    words = np.array([[seconds & 0xFFFFFFFF, seconds >> 32, nanos]], dtype=np.uint32)
    assert (
        wire.record_times(words, 3)[0]
        == wire.nanoseconds_v3(*words[0].tolist())
        == seconds * 10**9 + nanos
    )


@given(st.lists(st.integers(0, 0xFFFFFFFF), min_size=3, max_size=3))
def test_no_time_is_beyond_what_int64_holds(words: list[int]) -> None:
    for version in (2, 3):
        assert (
            -1
            <= wire.record_times(np.array([words], dtype=np.uint32), version)[0]
            < 2**63
        )


samples = st.lists(
    st.tuples(
        st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True),
        st.lists(st.integers(0, 1000), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@given(samples, st.randoms(), st.sampled_from([0, 10_000_000]))
def test_a_chunk_is_its_pieces_sorted(
    plan: list[tuple[list[int], list[int]]], random, offset: int
) -> None:
    pieces, rows = [], []
    for series, times in plan:
        values = np.array([[random.random() for _ in times] for _ in series])
        present = np.array([[random.random() < 0.8 for _ in times] for _ in series])
        piece = Piece(
            np.array(series) + offset,
            np.array(times),
            values,
            present=None if present.all() else present,
        )
        pieces.append(piece)
        rows += [
            (number + offset, time, values[i, j])
            for i, number in enumerate(series)
            for j, time in enumerate(times)
            if present[i, j]
        ]
    chunk = assemble(pieces)
    found = list(
        zip(
            np.repeat(chunk.series, chunk.counts),
            chunk.times,
            chunk.values,
            strict=True,
        )
    )
    assert [row[:2] for row in found] == sorted(row[:2] for row in rows)
    assert sorted(found) == sorted(rows)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.lists(st.integers(0, 2**64 - 1)))
def test_wide_integers_are_the_numbers(signed: list[int], unsigned: list[int]) -> None:
    for numbers, kind in ((signed, ">i8"), (unsigned, np.uint64)):
        rows = wide_integers(np.array(numbers, dtype=kind))
        assert [
            int.from_bytes(row.tobytes(), "little", signed=True) for row in rows
        ] == numbers
