"""Code for other GPUs inside a library, on libraries made up of fat binaries."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.host.setup.gpu_code import (
    MAGIC,
    compute_capability,
    has_gpu_code,
    zero_other_gpu_code,
)

PTX, CODE = 1, 2
Entry = tuple[int, int]
"""Kind and compute capability."""


def payload(entry: Entry) -> bytes:
    kind, capability = entry
    return bytes([kind, capability % 251 + 1]) * 20


def fat_binary(*entries: Entry) -> bytes:
    """A container of entries with headers of 64 bytes."""
    content = b""
    for kind, capability in entries:
        size = len(payload((kind, capability)))
        head = struct.pack("<HHIQ12xI", kind, 0x101, 64, size, capability)
        content += head.ljust(64, b"\x07") + payload((kind, capability))
    return struct.pack("<4sHHQ", MAGIC, 1, 16, len(content)) + content


def kept(*entries: Entry, capability: int = 90) -> list[Entry]:
    """The entries whose payload stays."""
    library = bytearray(b"\x7fELF" + fat_binary(*entries) + b"end")
    before = bytes(library)
    overwritten = zero_other_gpu_code(library, capability)
    assert overwritten == sum(
        old != new for old, new in zip(before, library, strict=True)
    )
    return [entry for entry in entries if payload(entry) in library]


@pytest.mark.parametrize(
    ("entries", "capability", "expected"),
    [
        ([(CODE, 80), (CODE, 90), (CODE, 100), (PTX, 90)], 90, [(CODE, 90)]),
        ([(CODE, 80), (PTX, 80), (PTX, 120)], 90, [(PTX, 80)]),
        ([(CODE, 80), (CODE, 86), (CODE, 90)], 86, [(CODE, 80), (CODE, 86)]),
        ([(CODE, 89), (PTX, 80)], 86, [(PTX, 80)]),
        ([(CODE, 100)], 90, []),
    ],
)
def test_what_runs_there_stays(
    entries: list[Entry], capability: int, expected: list[Entry]
) -> None:
    assert kept(*entries, capability=capability) == expected


def test_an_entry_of_another_kind_stays() -> None:
    assert kept((8, 120), (CODE, 120), (CODE, 90)) == [(8, 120), (CODE, 90)]


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from([PTX, CODE]), st.sampled_from([75, 80, 86, 89, 90, 100, 120])
    ),
    min_size=1,
    max_size=6,
    unique=True,
)
FILLING = st.binary(max_size=40).filter(lambda content: MAGIC not in content)


@given(st.lists(st.tuples(ENTRIES, FILLING), max_size=4), FILLING)
def test_nothing_but_payloads_changes_and_a_second_time_nothing(
    binaries: list[tuple[list[Entry], bytes]], beginning: bytes
) -> None:
    library, ours = bytearray(beginning), set(range(len(beginning)))
    for entries, following in binaries:
        start = len(library)
        library += fat_binary(*entries) + following
        position = start + 16
        ours |= set(range(start, position))
        for entry in entries:
            ours |= set(range(position, position + 64))
            position += 64 + len(payload(entry))
        ours |= set(range(position, len(library)))
    before = bytes(library)
    zero_other_gpu_code(library, 90)
    assert all(library[place] == before[place] for place in ours)
    assert zero_other_gpu_code(bytearray(library), 90) in {0, _zeroed_again(library)}
    for entries, _ in binaries:
        for entry in entries:
            if entry == (CODE, 90):
                assert payload(entry) in library


def _zeroed_again(library: bytearray) -> int:
    """The bytes that are overwritten again, as zeros: the content does not change."""
    again = bytearray(library)
    overwritten = zero_other_gpu_code(again, 90)
    assert again == library
    return overwritten


@given(FILLING, st.integers(0, 200))
def test_a_library_that_ends_early_stays_as_it_is(beginning: bytes, cut: int) -> None:
    whole = fat_binary((CODE, 80), (CODE, 90))
    library = bytearray(beginning + whole[: min(cut, len(whole) - 1)])
    before = bytes(library)
    assert zero_other_gpu_code(library, 90) == 0
    assert library == before
    assert not has_gpu_code(library)


def test_the_mere_magic_number_is_no_fat_binary() -> None:
    library = bytearray(MAGIC * 9 + bytes(100))
    assert zero_other_gpu_code(library, 90) == 0
    assert not has_gpu_code(library)


def test_compute_capabilities() -> None:
    assert compute_capability("9.0") == 90
    assert compute_capability("12.1") == 121
    for text in ("9", "sm_90", "9.", "9.0a"):
        with pytest.raises(ValueError, match=r"9\.0, for example"):
            compute_capability(text)
