"""`kveval models`: the models of the catalogue, and how large their KV caches are."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from rich.console import Console
from rich.table import Table

from kveval.campaign.catalogue import Model
from kveval.campaign.device_estimate import DeviceEstimate
from kveval.campaign.sizing import kv_bytes_per_token, parameter_count
from kveval.campaign.types import BLOCK_TOKENS
from kveval.workflow.command.campaign import CampaignContext
from kveval.workflow.command.kv_sizes import kv_size_table, kv_sizes
from kveval.workflow.command.model_cache import CacheRows, cache_table
from kveval.workflow.command.output import print_document

KIB, MIB = 2**10, 2**20
# In a narrower terminal lines break: a column that is cut says nothing.
_LEAST_WIDTH = 100


@dataclass(frozen=True)
class ModelSize:
    """A model as a server of this campaign would serve all of it; bytes are of the KV cache over all ranks."""

    model: str
    hf_id: str
    parameters: int
    layers: int
    kv_dtype: str
    ranks: int
    kv_bytes_per_token: int
    kv_bytes_per_block: int
    kv_bytes_per_token_and_rank: int
    kv_bytes_per_block_and_rank: int

    @classmethod
    def from_model(cls, name: str, model: Model, ranks: int) -> ModelSize:
        """Compute the sizes of a model on a server of `ranks` devices."""
        auto = model.kv_cache_dtype == "auto"
        token = kv_bytes_per_token(
            model.geometry, model.kv_cache_dtype, ranks, model.dtype
        )
        return cls(
            model=name,
            hf_id=model.hf_id,
            parameters=parameter_count(model.geometry),
            layers=model.geometry.layers,
            kv_dtype=model.dtype if auto else model.kv_cache_dtype,
            ranks=ranks,
            kv_bytes_per_token=token,
            kv_bytes_per_block=BLOCK_TOKENS * token,
            kv_bytes_per_token_and_rank=token // ranks,
            kv_bytes_per_block_and_rank=BLOCK_TOKENS * token // ranks,
        )


def show_models(context: CampaignContext, *, as_json: bool) -> None:
    """Print the models of the catalogue, the campaign's own included, the smallest first, and their caches by dtype."""
    declared = getattr(context.config.campaign, "server", None)
    ranks = declared.tensor_parallel_size if declared else None
    sizes = sorted(
        (
            ModelSize.from_model(name, model, ranks or model.tensor_parallel_size)
            for name, model in context.config.catalogue.models.items()
        ),
        key=lambda size: size.parameters,
    )
    caches = _cache_rows(context, [size.model for size in sizes])
    by_dtype = list(kv_sizes(context.config.catalogue.models))
    devices = _device_estimates(context, [size.model for size in sizes])
    if as_json:
        rows = [asdict(size) for size in sizes]
        for row in rows:
            if row["model"] in caches:
                row["tier"] = asdict(caches[row["model"]])
            if row["model"] in devices:
                row["device"] = devices[row["model"]]._asdict()
        print_document({"models": rows, "kv_sizes": [size.values for size in by_dtype]})
        return
    width = max(shutil.get_terminal_size((120, 24)).columns, _LEAST_WIDTH)
    console = Console(width=width, highlight=False)
    console.print(_table(sizes))
    if devices and context.config.gpu is not None:
        console.print()
        console.print(
            "What the device of one server holds, in tokens, estimated for"
            f" {context.config.gpu[0]} (docs/tier-size.md)",
            soft_wrap=True,
        )
        console.print(_device_table(devices))
    console.print()
    console.print(kv_size_table(by_dtype))
    if caches:
        console.print()
        console.print(cache_table(caches))


def _cache_rows(
    context: CampaignContext, models: Sequence[str]
) -> dict[str, CacheRows]:
    """Return how a tier of this campaign's server holds the models whose layers are of several kinds."""
    server = getattr(context.config.campaign, "server", None)
    caches = {}
    for name in models:
        model = context.config.catalogue.models[name]
        ranks = server.tensor_parallel_size if server else None
        cache = CacheRows.from_model(
            model,
            ranks or model.tensor_parallel_size,
            server.block_size if server else BLOCK_TOKENS,
            on_cpu=server.on_cpu if server else False,
        )
        if cache is not None:
            caches[name] = cache
    return caches


def _device_estimates(
    context: CampaignContext, models: Sequence[str]
) -> dict[str, DeviceEstimate]:
    """Return what the device of one server of the campaign's GPU holds of each model that has an estimate."""
    config = context.config
    tierless = [cell for cell in config.cells if not cell.cpu_blocks]
    if config.gpu is None or not tierless:
        return {}
    cells = {name: replace(tierless[0], model=name) for name in models}
    estimates = {name: config.device_estimate(cell) for name, cell in cells.items()}
    return {name: one for name, one in estimates.items() if one is not None}


def _device_table(devices: Mapping[str, DeviceEstimate]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in ("about", "at least", "at most"):
        table.add_column(heading, justify="right")
    for model, estimate in devices.items():
        numbers = (estimate.tokens, estimate.low_tokens, estimate.high_tokens)
        fits = estimate.tokens > 0
        table.add_row(
            model,
            *(f"{tokens:,}" if fits else "no room" for tokens in numbers),
        )
    return table


def _table(sizes: Sequence[ModelSize]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in (
        "parameters",
        "layers",
        "KV dtype",
        "ranks",
        "KV per token",
        f"KV per block of {BLOCK_TOKENS}",
        "KV per token and rank",
        f"KV per block of {BLOCK_TOKENS} and rank",
    ):
        table.add_column(heading, justify="right", min_width=len(heading.split()[0]))
    for size in sizes:
        table.add_row(
            size.model,
            f"{size.parameters / 1e9:.1f} B",
            str(size.layers),
            size.kv_dtype,
            str(size.ranks),
            f"{size.kv_bytes_per_token / KIB:,.0f} KiB",
            f"{size.kv_bytes_per_block / MIB:,.2f} MiB",
            f"{size.kv_bytes_per_token_and_rank / KIB:,.0f} KiB",
            f"{size.kv_bytes_per_block_and_rank / MIB:,.2f} MiB",
        )
    return table
