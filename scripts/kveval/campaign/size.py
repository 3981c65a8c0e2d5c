"""The size of a tier, as people are told it."""

import math
from collections.abc import Collection
from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Size:
    """A tier's size in host memory: the number in a cell's path, and the bytes of a model that it stands for.

    `cpu_blocks`: 16-token blocks; `size_bytes`: of all layers over all ranks.
    """

    cpu_blocks: int
    size_bytes: int

    @property
    def gib(self) -> float:
        """The size in GiB."""
        return self.size_bytes / GIB

    def __str__(self) -> str:
        """Return the size to three digits, as in "0.153 GiB (10,000 blocks)"; "-" for none."""
        return size_range([self])


def size_range(sizes: Collection[Size]) -> str:
    """Return the least and the largest size of equally many blocks of one or more models in the notation of a size.

    >>> size_range([Size(10_000, 18_790_481_920), Size(10_000, 26_843_545_600)])
    '17.5 to 25.0 GiB (10,000 blocks)'
    """
    least, most = min(size.gib for size in sizes), max(size.gib for size in sizes)
    if not most:
        return "-"
    texts = dict.fromkeys([_three_digits(least), _three_digits(most)])
    (blocks,) = {size.cpu_blocks for size in sizes}
    return f"{' to '.join(texts)} GiB ({blocks:,} blocks)"


def _three_digits(gib: float) -> str:
    digits = max(0, 2 - math.floor(math.log10(gib)))
    return f"{gib:,.{digits}f}"
