"""The size of a tier, as people are told it."""

import math
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
        if not self.size_bytes:
            return "-"
        digits = max(0, 2 - math.floor(math.log10(self.gib)))
        return f"{self.gib:,.{digits}f} GiB ({self.cpu_blocks:,} blocks)"
