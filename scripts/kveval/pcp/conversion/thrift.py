"""The few parts of Thrift's compact protocol that a Parquet footer and page header need.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

from __future__ import annotations

from collections.abc import Sequence

TRUE, FALSE, I32, I64, BINARY, LIST, STRUCT = 1, 2, 5, 6, 8, 9, 12
Value = int | bytes | bool | tuple[int, Sequence[bytes]]


def varint(number: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(number: int) -> bytes:
    """A signed integer, as a field or an element of a list."""
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def binary(data: bytes) -> bytes:
    """Bytes or UTF-8 text, as a field or an element of a list."""
    return varint(len(data)) + data


def struct(*fields: tuple[int, int, Value | None]) -> bytes:
    """A structure of (field number, type, value) in ascending order; a value of None leaves the field out.

    Nested structures are passed as the bytes that this function returned, lists as (element type, encoded elements).
    """
    out = bytearray()
    last = 0
    for number, kind, value in fields:
        if value is None:
            continue
        # A truth value is its own type.
        shown = FALSE if kind == TRUE and not value else kind
        delta = number - last
        out += bytes([delta << 4 | shown]) if delta <= 15 else bytes([shown]) + integer(number)
        out += _encoded(kind, value)
        last = number
    out.append(0)
    return bytes(out)


def _encoded(kind: int, value: Value) -> bytes:
    if kind in (TRUE, FALSE):
        return b""
    if isinstance(value, tuple):
        element, items = value
        size = len(items)
        head = bytes([size << 4 | element]) if size < 15 else bytes([0xF0 | element]) + varint(size)
        return head + b"".join(items)
    if isinstance(value, bytes):
        return binary(value) if kind == BINARY else value
    return integer(value)
