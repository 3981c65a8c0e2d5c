"""GPU code inside shared libraries: overwrites what is for other GPUs with zeros, so that the library packs small.

A compiler of CUDA puts, for each source file, one "fat binary" into the library: a header (magic number, version 1, size of
the header, size of what follows), then entries, each a header and a payload: machine code for one compute capability
(kind 2), or PTX (kind 1), which the driver compiles where no machine code fits. The driver chooses an entry by the headers
alone, which stay as they are, as do all offsets. There is no official description; the fields are as read by
https://github.com/GrigoryEvko/nvopen-tools/blob/main/fatbin/FORMAT_SPECIFICATION.md, which agrees with every fat binary of
vLLM 0.26.0.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<4sHHQ")
# kind, version, size of the header, size of the payload, four fields, compute capability times ten
_ENTRY = struct.Struct("<HHIQ12xI")
_PTX, _MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class _Entry:
    kind: int
    capability: int
    start: int
    end: int


def compute_capability(text: str) -> int:
    """Return ten times a compute capability: 90 for "9.0". Raises ValueError for what is none."""
    major, point, minor = text.partition(".")
    if not (point and major.isdigit() and minor.isdigit() and len(minor) == 1):
        raise ValueError(f"not a compute capability: {text!r}; write 9.0, for example")
    return 10 * int(major) + int(minor)


def zero_other_gpu_code(library: bytearray, capability: int) -> int:
    """Overwrite, inside a library, the code that a GPU of a compute capability (times ten) never runs.

    Of each fat binary stays the machine code that runs there (of the same major number, and not newer); where there is
    none, the PTX that can be compiled for it. What has neither is left empty of code. Returns the bytes overwritten.
    """
    overwritten = 0
    for entries in _fat_binaries(library):
        fits = [_runs_on(entry, capability) for entry in entries]
        for entry, kept in zip(entries, fits, strict=True):
            needless_ptx = entry.kind == _PTX and (
                any(fits) or entry.capability > capability
            )
            other_code = entry.kind == _MACHINE_CODE and not kept
            if needless_ptx or other_code:
                size = entry.end - entry.start
                library[entry.start : entry.end] = bytes(size)
                overwritten += size
    return overwritten


def has_gpu_code(library: bytes | bytearray) -> bool:
    """Return whether there is a fat binary in a library."""
    return next(_fat_binaries(library), None) is not None


def _runs_on(entry: _Entry, capability: int) -> bool:
    same_major = entry.capability // 10 == capability // 10
    return entry.kind == _MACHINE_CODE and same_major and entry.capability <= capability


def _fat_binaries(library: bytes | bytearray) -> Iterator[Sequence[_Entry]]:
    position = library.find(MAGIC)
    while position >= 0:
        entries, end = _entries(library, position)
        if entries:
            yield entries
        position = library.find(MAGIC, end)


def _entries(library: bytes | bytearray, position: int) -> tuple[Sequence[_Entry], int]:
    """Return the entries of the fat binary at a position, and where it ends; none if there is no fat binary."""
    nothing = (), position + len(MAGIC)
    if position + _CONTAINER.size > len(library):
        return nothing
    _, version, header, size = _CONTAINER.unpack_from(library, position)
    end = position + header + size
    if version != 1 or header != _CONTAINER.size or end > len(library):
        return nothing
    entries: list[_Entry] = []
    start = position + header
    while start < end:
        if start + _ENTRY.size > end:
            return nothing
        kind, _, entry_header, payload, capability = _ENTRY.unpack_from(library, start)
        following = start + entry_header + payload
        if entry_header < _ENTRY.size or following > end:
            return nothing
        entries.append(_Entry(kind, capability, start + entry_header, following))
        start = following
    return entries, end
