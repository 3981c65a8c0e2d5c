"""The conversations that a GiB holds of models whose layers do not all keep everything, for `kveval models`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from kveval.campaign.cache_layout import CacheLayout, Retention
from kveval.campaign.catalogue import Model
from kveval.campaign.sizing import GIB

_LENGTHS = (4096, 16384, 32768)
# Of a server that is told nothing, since vLLM 0.29: windows and states at the end of each prompt.
_AT_THE_END = Retention(interval_tokens=0)


@dataclass(frozen=True)
class GroupSize:
    """Layers with blocks of their own. `window_tokens`: 0 unless kind is sliding."""

    kind: str
    layers: int
    block_tokens: int
    window_tokens: int


@dataclass(frozen=True)
class CacheRows:
    """How the native tier holds a model: rows of `row_bytes` over all ranks, each a block of one group.

    `rows_of_conversation`, `conversations_per_gib`: by the tokens of a conversation of one prompt.
    """

    groups: Sequence[GroupSize]
    row_bytes: int
    rows_of_conversation: Mapping[int, int]
    conversations_per_gib: Mapping[int, float]

    @classmethod
    def from_model(
        cls, model: Model, ranks: int, block_size: int, *, on_cpu: bool
    ) -> CacheRows | None:
        """Compute it for a server with blocks of `block_size` tokens; None for models of one kind of layers."""
        if not model.geometry.grouped:
            return None
        served = model.model_copy(update={"tensor_parallel_size": ranks})
        layout = CacheLayout.from_model(
            served, block_size, on_cpu=on_cpu, retention=_AT_THE_END
        )
        return cls(
            [
                GroupSize(
                    group.kind, group.layers, group.block_tokens, group.window_tokens
                )
                for group in layout.groups
            ],
            layout.row_bytes,
            {tokens: layout.rows_of_conversation(tokens) for tokens in _LENGTHS},
            {
                tokens: round(layout.conversations_within(GIB, tokens), 2)
                for tokens in _LENGTHS
            },
        )


def cache_table(rows: Mapping[str, CacheRows]) -> Table:
    """Return a table with a row per model."""
    table = Table(
        box=None,
        pad_edge=False,
        title="Layers of several kinds: what the server's own tier holds of them (docs/tier-size.md)",
        title_justify="left",
    )
    table.add_column("model", no_wrap=True)
    table.add_column("groups of layers")
    for heading in ("tokens of a block", "row"):
        table.add_column(heading, justify="right")
    for tokens in _LENGTHS:
        table.add_column(f"conversations of {tokens:,} in a GiB", justify="right")
    for name, cache in rows.items():
        blocks = sorted({group.block_tokens for group in cache.groups})
        table.add_row(
            name,
            _groups_text(cache.groups),
            " and ".join(f"{tokens:,}" for tokens in blocks),
            f"{cache.row_bytes / 2**10:,.0f} KiB",
            *(f"{count:,.1f}" for count in cache.conversations_per_gib.values()),
        )
    return table


def _groups_text(groups: Sequence[GroupSize]) -> str:
    """Return the groups in words: "10 full; 9, 9, 8 with a window of 1,024"."""
    parts = []
    for (kind, window), alike in itertools.groupby(
        groups, lambda group: (group.kind, group.window_tokens)
    ):
        layers = ", ".join(str(group.layers) for group in alike)
        names = {
            "full": f"{layers} full",
            "sliding": f"{layers} with a window of {window:,}",
            "recurrent": f"{layers} with a state",
        }
        parts.append(names[kind])
    return "; ".join(parts)
