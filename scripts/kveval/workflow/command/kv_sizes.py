"""KV caches of the models by dtype and ranks: for `kveval models`, and for the table in docs/tier-size.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from kveval.campaign.catalogue import Model
from kveval.campaign.size import GIB
from kveval.campaign.sizing import kv_bytes_per_token, parameter_count
from kveval.campaign.types import BLOCK_TOKENS

RANKS = (1, 2, 4, 8)
_MIB = 2**20
HEADINGS = (
    "model",
    "KV dtype",
    "ranks",
    "bytes of a token",
    f"MiB of a block of {BLOCK_TOKENS}",
    "tokens in a GiB",
)


@dataclass(frozen=True)
class KvSize:
    """Bytes of a model's keys and values over all ranks, equal for each of these numbers of `ranks`."""

    model: str
    kv_dtype: str
    ranks: Sequence[int]
    kv_bytes_per_token: int

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of a block of 16 tokens."""
        return BLOCK_TOKENS * self.kv_bytes_per_token

    @property
    def tokens_per_gib(self) -> int:
        """Whole tokens that a GiB holds."""
        return GIB // self.kv_bytes_per_token

    @property
    def texts(self) -> tuple[str, ...]:
        """The row of a table with HEADINGS."""
        return (
            self.model,
            self.kv_dtype,
            ", ".join(map(str, self.ranks)),
            f"{self.kv_bytes_per_token:,}",
            f"{self.kv_bytes_per_block / _MIB:.4g}",
            f"{self.tokens_per_gib:,}",
        )

    @property
    def values(self) -> dict[str, object]:
        """The same as plain values."""
        return {
            "model": self.model,
            "kv_dtype": self.kv_dtype,
            "ranks": list(self.ranks),
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_per_block": self.kv_bytes_per_block,
            "tokens_per_gib": self.tokens_per_gib,
        }


def kv_sizes(models: Mapping[str, Model]) -> Iterator[KvSize]:
    """Yield the sizes of every model, the smallest first: with a cache of the model's own dtype, then of 8-bit floats.

    Numbers of ranks that cannot share the model's heads are left out.
    """
    by_parameters = sorted(
        models.items(), key=lambda item: parameter_count(item[1].geometry)
    )
    for name, model in by_parameters:
        for dtype in (model.dtype, "fp8"):
            ranks_by_bytes: dict[int, list[int]] = {}
            for ranks in filter(model.divides_among, RANKS):
                size = kv_bytes_per_token(model.geometry, dtype, ranks)
                ranks_by_bytes.setdefault(size, []).append(ranks)
            for size, equal in ranks_by_bytes.items():
                yield KvSize(name, dtype, tuple(equal), size)


def kv_size_table(sizes: Sequence[KvSize]) -> Table:
    """Return the table for a terminal."""
    table = Table(
        box=None,
        pad_edge=False,
        title="Keys and values over all ranks, by dtype and number of ranks",
        title_justify="left",
    )
    for heading in HEADINGS[:3]:
        table.add_column(heading, no_wrap=True)
    for heading in HEADINGS[3:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for size in sizes:
        table.add_row(*size.texts)
    return table
