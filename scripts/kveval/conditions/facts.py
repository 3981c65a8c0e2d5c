"""The conditions of a run, and its counters by term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kveval.campaign.sizing import element_bytes
from kveval.conditions.configuration import (
    arm_settings,
    effective_configuration,
    server_build,
)
from kveval.conditions.record import record_of
from kveval.stacks import lmcache
from kveval.stacks.keyvalue import STORES
from kveval.stacks.model_server import TERMS, ModelServer
from kveval.stacks.registry import (
    IMPORTED_SERVER,
    SERVERS,
    SIDECARS,
    find_server,
    names_on_wire,
    server_version,
    wrong_answers,
)
from kveval.store.conditions import Change, RunConditions
from kveval.store.run_file import Run, with_conditions

# For a release that is not recorded the recording decides which names there are.
_UNKNOWN_RELEASE = "0"
_TITLES = {name: server.title for name, server in SERVERS.items()}
_TITLES |= {name: program.title for name, program in SIDECARS.items()}


def conditions_of(run: Run) -> RunConditions:
    """Return the conditions of a run."""
    declared = run.specification.get("versions", {})
    server = find_server(run.versions) or find_server(declared) or IMPORTED_SERVER
    version = server_version(run.versions)
    # A build from a checkout may call itself older than every release.
    release = server_version(declared) or version or _UNKNOWN_RELEASE
    return RunConditions(
        record=record_of(run),
        configuration=effective_configuration(run),
        arm_settings=arm_settings(run),
        server=server.title,
        server_version=version,
        release=release,
        titles={name: _TITLES[name] for name in run.software if name in _TITLES},
        server_build=server_build(run),
        wrong_answers=wrong_answers(run.specification),
        invented_counters=_invented_counters(run),
        kv_bytes_per_token=_kv_bytes_per_token(run.specification.get("model", {})),
        recorded=_recorded(server, release),
        counters={str(level.level): terms_of(level.counters) for level in run.levels},
    )


def described(run: Run) -> Run:
    """Return a run with its conditions, for who has no conditions.json of it."""
    return with_conditions(run, conditions_of(run))


def terms_of(counters: Mapping[str, Change]) -> dict[str, Change]:
    """Return what was counted during a level by term: those of servers, and those of programs beside them.

    Of the names that a term has in several releases the newest that was read counts. Samples with labels keep them, as
    `term{label="value"}`.
    """
    terms = dict(_beside(counters))
    for term in TERMS:
        names = [*names_on_wire(term)]
        read = [counters[name] for name in names if name in counters]
        if read:
            terms[term] = read[0]
        for name, change in counters.items():
            base, brace, labels = name.partition("{")
            if brace and base in names:
                terms[f"{term}{{{labels}"] = change
    return terms


def _beside(counters: Mapping[str, Change]) -> Iterator[tuple[str, Change]]:
    """Yield what programs beside the server counted, by term."""
    for term, name in _OF_LMCACHE.items():
        if chunks := counters.get(name):
            yield term, _times(chunks, lmcache.CHUNK_TOKENS)
    for term, names in _OF_STORES.items():
        for change in (counters[name] for name in names if name in counters):
            yield term, change
            break


# LMCache counts chunks.
_OF_LMCACHE = {
    "tier_loaded_tokens": "lmcache_mp_num_chunks_loaded_total",
    "tier_stored_tokens": "lmcache_mp_l1_write_chunks_total",
}
_OF_STORES = {
    "store_hit_tokens": ("lmcache_mp_lookup_hit_l2_tokens_total",),
    "store_read_bytes": [f"{name}_sent_bytes_total" for name in STORES],
    "store_written_bytes": [f"{name}_received_bytes_total" for name in STORES],
    "second_entries": ("file_tier_files", *(f"{name}_keys" for name in STORES)),
}


def _times(change: Change, factor: int) -> Change:
    return Change(change.before * factor, change.after * factor, change.delta * factor)


def _recorded(server: ModelServer, version: str) -> dict[str, str]:
    names = {term: server.recorded(term, version) for term in server.metrics}
    return {term: name for term, name in names.items() if name is not None}


def _invented_counters(run: Run) -> list[str]:
    """Return the counters that the arm requires by names that no version of any server has."""
    invented: set[str] = set()
    for server in SERVERS.values():
        invented |= server.invented_counters
    required = [entry.counter for entry in run.required_counters]
    plain = {name: name.partition("{")[0] for name in required}
    return sorted(
        name
        for name, base in plain.items()
        if {base, base.removesuffix("_total")} & invented
    )


def _kv_bytes_per_token(model: Mapping[str, Any]) -> int | None:
    """Return the bytes of KV cache of a token by a model's geometry, over all ranks; None without a geometry."""
    if not (geometry := model.get("geometry")):
        return None
    layers = geometry["layers"] - geometry.get("recurrent", {}).get("layers", 0)
    ranks = int(model.get("tensor_parallel_size", 1))
    kv_dtype, dtype = (
        model.get("kv_cache_dtype", "auto"),
        model.get("dtype", "bfloat16"),
    )
    element = element_bytes(kv_dtype, dtype)
    if latent := geometry.get("latent"):
        return int(ranks * layers * (latent["rank"] + latent["rope_dim"]) * element)
    window = geometry.get("sliding", {})
    others = {**geometry, **window, "layers": window.get("layers", 0)}
    values = 0
    for kind, count in (
        (geometry, layers - others["layers"]),
        (others, others["layers"]),
    ):
        heads = max(1, kind["kv_heads"] // ranks) * ranks
        values += count * heads * kind["head_dim"]
    return int(2 * values * element)
