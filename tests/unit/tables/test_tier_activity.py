"""What the caches did, from counters as the arms really move them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.store.conditions import Change
from kveval.store.run_file import LevelRun, Run
from kveval.tables.system.lookups import ALL_TIERS, lookups, quantile
from kveval.tables.system.tier_activity import COLUMNS, tier_activity

DEVICE = {
    "vllm:prefix_cache_queries_total": 200_000.0,
    "vllm:prefix_cache_hits_total": 130_000.0,
}


def run(scenario, level=4, **counters):
    changes = {
        name: Change(before=0.0, after=value, delta=value)
        for name, value in counters.items()
    }
    return described(
        Run(
            schema=1,
            measurement="id",
            run=1,
            cell=Cell("tiny", scenario, 2000),
            specification={"model": {"kv_bytes_per_token": 1024}},
            engine="local",
            weights="miniature",
            started="",
            finished="",
            levels=[LevelRun(level=level, counters=changes)],
        )
    )


def row(*runs):
    table = tier_activity(runs)
    assert list(table.columns) == [
        "model",
        "scenario",
        "cpu_blocks",
        "run",
        "level",
        *COLUMNS,
    ]
    return table.iloc[0]


def test_without_a_prefix_cache_on_the_device_all_prompt_tokens_count_as_looked_up():
    counters = {
        "vllm:prefix_cache_queries_total": 0.0,
        "vllm:prefix_cache_hits_total": 0.0,
        "vllm:prompt_tokens_total": 200_000.0,
        "vllm:external_prefix_cache_hits_total": 50_000.0,
    }
    found = row(run("native-offload", **counters))
    assert found["prompt_tokens"] == 200_000
    assert found["device_hit_percent"] == 0
    assert found["external_hit_percent"] == pytest.approx(25.0)


def test_without_a_tier_only_the_device_has_something_to_say():
    found = row(run("no-offload", **DEVICE))
    assert found["prompt_tokens"] == 200_000
    assert found["device_hit_percent"] == pytest.approx(65.0)
    assert (
        found[
            [
                "loaded_mb",
                "stored_mb",
                "second_read_mb",
                "second_entries",
                "store_hit_percent",
            ]
        ]
        .isna()
        .all()
    )


def test_vllms_own_tier_counts_bytes():
    found = row(
        run(
            "native-offload",
            **DEVICE,
            **{
                "vllm:external_prefix_cache_hits_total": 20_000.0,
                "vllm:kv_offload_load_bytes_total": 20_480_000.0,
                "vllm:kv_offload_store_bytes_total": 61_440_000.0,
            },
        )
    )
    assert found["external_hit_percent"] == pytest.approx(10.0)
    assert (found["loaded_mb"], found["stored_mb"]) == (20.48, 61.44)
    assert np.isnan(found["second_written_mb"])


def test_what_is_loaded_beyond_hits_of_prompts_is_of_preempted_requests():
    counters = {
        "vllm:external_prefix_cache_hits_total": 5_000.0,
        "vllm:kv_offload_load_bytes_total": 1024 * 17_000.0,
        "vllm:num_preemptions_total": 17.0,
    }
    found = row(run("native-offload", **DEVICE, **counters))
    assert (found["requests_preempted"], found["reloaded_tokens"]) == (17.0, 12_000.0)
    without = row(run("no-offload", **DEVICE, **{"vllm:num_preemptions_total": 21.0}))
    assert without["requests_preempted"] == 21.0
    assert np.isnan(without["reloaded_tokens"])


@pytest.mark.parametrize("store", ["redis", "valkey"])
def test_lmcaches_tier_counts_chunks_and_its_store_bytes(store):
    found = row(
        run(
            f"lmcache-{store}",
            **DEVICE,
            **{
                "lmcache_mp_num_chunks_loaded_total": 100.0,
                "lmcache_mp_l1_write_chunks_total": 200.0,
                "lmcache_mp_lookup_hit_l2_tokens_total": 10_000.0,
                f"{store}_received_bytes_total": 50e6,
                f"{store}_sent_bytes_total": 5e6,
                f"{store}_keys": 190.0,
            },
        )
    )
    # A chunk is 256 tokens of 1,024 bytes.
    assert found["loaded_mb"] == pytest.approx(100 * 256 * 1024 / 1e6)
    assert found["stored_mb"] == pytest.approx(200 * 256 * 1024 / 1e6)
    assert found["store_hit_percent"] == pytest.approx(5.0)
    assert (
        found["second_read_mb"],
        found["second_written_mb"],
        found["second_entries"],
    ) == (5.0, 50.0, 190.0)


def test_files_count_what_is_read_and_written():
    found = row(
        run(
            "fs-offload",
            **DEVICE,
            **{
                "vllm:kv_offload_tiering_read_bytes_total": 3e6,
                "vllm:kv_offload_tiering_write_bytes_total": 4e6,
                "file_tier_files": 122.0,
            },
        )
    )
    assert (
        found["second_read_mb"],
        found["second_written_mb"],
        found["second_entries"],
    ) == (3.0, 4.0, 122.0)


def test_a_level_without_counters_is_left_out_and_nothing_is_no_error():
    silent = run("no-offload")
    assert tier_activity([silent, run("no-offload", level=1, **DEVICE)])[
        "level"
    ].tolist() == [1]
    assert tier_activity([]).empty


def test_lookups_are_counted_by_tier_and_their_delays_by_bucket():
    queries, hits = (
        f"vllm:kv_offload_tiering_chunk_{what}_total" for what in ("queries", "hits")
    )
    delay = "vllm:kv_offload_tiering_lookup_sync_delay_seconds_bucket"
    whole = "vllm:kv_offload_lookup_async_delay_seconds_bucket"
    counters = {
        **{queries: 110.0, f'{queries}{{tier="0:primary"}}': 100.0},
        **{f'{queries}{{tier="1:fs"}}': 10.0, hits: 60.0},
        f'{hits}{{tier="0:primary"}}': 60.0,
        **{f'{delay}{{le="0.001",tier="1:fs"}}': 5.0},
        **{f'{delay}{{le="0.1",tier="1:fs"}}': 8.0},
        **{f'{delay}{{le="+Inf",tier="1:fs"}}': 10.0},
        **{f'{whole}{{le="0.5"}}': 4.0, f'{whole}{{le="+Inf"}}': 4.0},
    }
    prompts, primary, files = lookups(run("cpu+fs-offload", **counters).levels)
    assert (prompts.tier, prompts.deferred_s) == (ALL_TIERS, (0.5, 0.5))
    assert (primary.tier, primary.chunks, primary.hits) == ("0:primary", 100, 60)
    assert all(np.isnan((*primary.blocked_s, *primary.deferred_s)))
    # A tier whose counter of hits is not there yet had none.
    assert (files.tier, files.chunks, files.hits) == ("1:fs", 10, 0)
    assert files.blocked_s == (0.001, np.inf)
    assert lookups(run("no-offload", **DEVICE).levels) == []


@given(st.lists(st.floats(min_value=0, max_value=12), min_size=1))
def test_a_quantile_of_buckets_is_at_least_that_of_the_values(values):
    ends = (0.1, 1.0, 5.0, 10.0, np.inf)
    buckets = {end: sum(value <= end for value in values) for end in ends}
    for part in (0.5, 0.9):
        exact = np.quantile(values, part, method="inverted_cdf")
        at_most = quantile(buckets, part)
        assert at_most >= exact
        assert not any(exact <= end < at_most for end in ends)
