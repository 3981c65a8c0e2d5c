"""The rule by which an arm was active: what its required counters say was loaded or hit."""

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import CONFIG
from tests.support.described import described_run
from tests.support.synthetic import run_description

from kveval.conditions.facts import terms_of
from kveval.store.conditions import Change
from kveval.store.run_file import RequiredCounter, Run
from kveval.tables.levels.activity import (
    Activity,
    activity_at,
    activity_record,
    activity_word,
    level_activity,
    required_counters,
)

KV_BYTES = 1024
QUERIES = "vllm:prefix_cache_queries_total"
HITS = RequiredCounter("vllm:external_prefix_cache_hits_total", 1, "tokens")
READ = RequiredCounter("redis_sent_bytes_total", 1, "bytes")
CHUNKS = RequiredCounter("lmcache_mp_num_chunks_loaded_total", 1, "chunks")
REQUIRED = (HITS, READ, CHUNKS)
RISES = st.floats(0, 1e12)


def changes(**rises: float) -> dict[str, Change]:
    return {
        name: Change(before=7.0, after=7.0 + rise, delta=rise)
        for name, rise in rises.items()
    }


def decided(
    rises: dict[str, float],
    required: tuple[RequiredCounter, ...] = REQUIRED,
    prompt_tokens: float = 0.0,
    **more: Any,
) -> Activity:
    counters = changes(**rises, **{QUERIES: prompt_tokens})
    return level_activity(required, counters, terms_of(counters), KV_BYTES, **more)


def rises_of(*values: float) -> dict[str, float]:
    return {entry.counter: value for entry, value in zip(REQUIRED, values, strict=True)}


@given(RISES, RISES, RISES, st.floats(0, 1e9))
def test_an_arm_is_active_if_and_only_if_every_counter_rose_enough(
    hits: float, read: float, chunks: float, prompt_tokens: float
) -> None:
    share = 0.005 * prompt_tokens
    enough = hits >= max(1, share) and read >= max(1, share * KV_BYTES) and chunks >= 1
    activity = decided(rises_of(hits, read, chunks), prompt_tokens=prompt_tokens)
    assert activity.active is enough


@given(st.lists(RISES, min_size=3, max_size=3), st.integers(0, 2), st.floats(0, 1e9))
def test_more_loads_never_make_an_active_arm_inactive(
    values: list[float], which: int, more: float
) -> None:
    before = decided(rises_of(*values), prompt_tokens=1e6).active
    values[which] += more
    assert decided(rises_of(*values), prompt_tokens=1e6).active or not before


@given(st.dictionaries(st.sampled_from(["requests", "stored", "queries"]), RISES))
def test_requests_and_writes_prove_nothing(others: dict[str, float]) -> None:
    names = {
        "requests": "lmcache_mp_l2_store_completed_requests_total",
        "stored": "vllm:kv_offload_store_bytes_total",
        "queries": "vllm:external_prefix_cache_queries_total",
    }
    rises = {names[kind]: rise for kind, rise in others.items()}
    assert decided(rises).active is False
    assert decided({**rises, **rises_of(0, 0, 0)}, prompt_tokens=1e6).active is False


def shipped_counters() -> list[Any]:
    scenarios = yaml.safe_load((CONFIG / "scenarios.yaml").read_text())
    return [
        pytest.param(counter, id=f"{name}-{place}")
        for name, entry in scenarios.items()
        for place, counter in enumerate(entry.get("exercised", ()))
    ]


@pytest.mark.parametrize("counter", shipped_counters())
def test_every_shipped_arm_requires_what_was_loaded_or_hit(
    counter: dict[str, Any],
) -> None:
    names = counter["name"]
    known = {
        **{"external_prefix_cache_hits": "tokens", "offload_load_bytes": "bytes"},
        **{"file_tier_read_bytes": "bytes", "redis_sent_bytes_total": "bytes"},
        **{"valkey_sent_bytes_total": "bytes"},
        **{"lmcache_mp_num_chunks_loaded_total": "chunks"},
        # Of the index, which serves no tokens.
        **{"kvcache_index_lookup_hits_total": "keys"},
        **{"redis_keyspace_hits_total": "keys", "valkey_keyspace_hits_total": "keys"},
    }
    for name in names.values() if isinstance(names, dict) else [names]:
        assert known[name] == counter["unit"]


def test_a_store_that_was_only_asked_and_written_to_proves_nothing() -> None:
    """What Redis counts of EXISTS and SET: hits of keys, bytes received, and short answers."""
    required = [
        *required_counters([{"counter": "vllm:external_prefix_cache_hits_total"}]),
        RequiredCounter("redis_sent_bytes_total", 100_000, "bytes"),
    ]
    counters = changes(
        **{
            QUERIES: 1e6,
            "vllm:external_prefix_cache_hits_total": 5e5,
            "redis_keyspace_hits_total": 4000.0,
            "redis_received_bytes_total": 1e9,
            "redis_sent_bytes_total": 10_000 + 4 * 4000.0,
        }
    )
    assert (
        level_activity(required, counters, terms_of(counters), KV_BYTES).active is False
    )


@given(st.lists(st.one_of(st.none(), RISES), min_size=3, max_size=3))
def test_in_a_recording_an_absent_counter_is_unknown_and_one_at_rest_decides(
    values: list[float | None],
) -> None:
    rises = {
        entry.counter: value
        for entry, value in zip(REQUIRED, values, strict=True)
        if value is not None
    }
    activity = decided(rises, absent_is_zero=False)
    if any(value is not None and value < 1 for value in values):
        assert activity.active is False
    else:
        assert activity.active is (None if None in values else True)


def test_a_counter_that_a_server_does_not_show_yet_stands_at_zero() -> None:
    assert decided({HITS.counter: 5000.0, READ.counter: 1e9}).active is False


def test_without_any_counter_nothing_is_known() -> None:
    assert level_activity(REQUIRED, {}, {}, KV_BYTES).active is None


def test_nothing_is_required_of_a_baseline() -> None:
    assert decided(rises_of(1, 1, 1), required=()).active is None


def test_the_record_says_which_counter_rose_by_how_much_and_what_it_needed() -> None:
    activity = decided(rises_of(9000, 5, 3), prompt_tokens=1e6)
    assert [
        (rise.counter, rise.unit, rise.rise, rise.needed, rise.enough)
        for rise in activity.rises
    ] == [
        (HITS.counter, "tokens", 9000, 5000, True),
        (READ.counter, "bytes", 5, 5000 * KV_BYTES, False),
        (CHUNKS.counter, "chunks", 3, 1, True),
    ]


def test_where_the_device_has_no_prefix_cache_the_share_is_of_all_prompt_tokens() -> (
    None
):
    rises = {HITS.counter: 100.0, "vllm:prompt_tokens_total": 1e6}
    assert decided(rises, (HITS,)).rises[0].needed == 5000


def plain(*required: RequiredCounter) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = msgspec.to_builtins(required)
    return entries


def test_run_json_keeps_by_how_much_each_counter_rose_and_where_most() -> None:
    levels = {
        1: decided({HITS.counter: 0.0, READ.counter: 9.0}, (HITS, READ)),
        8: decided({HITS.counter: 32.0, READ.counter: 2.0}, (HITS, READ)),
    }
    record = activity_record(plain(HITS, READ), levels)
    assert record == {
        "required": [
            {**plain(HITS)[0], "moved": 32.0, "level_max": 8, "exercised": True},
            {**plain(READ)[0], "moved": 11.0, "level_max": 1, "exercised": True},
        ],
        "exercised": True,
    }


def test_a_run_was_active_if_all_its_counters_rose_enough_at_one_level() -> None:
    levels = {
        1: decided({HITS.counter: 0.0, READ.counter: 9.0}, (HITS, READ)),
        8: decided({HITS.counter: 32.0, READ.counter: 0.0}, (HITS, READ)),
    }
    assert activity_record(plain(HITS, READ), levels)["exercised"] is False


@pytest.mark.parametrize("levels", [{}, {1: Activity()}])
def test_run_json_of_a_baseline_counts_as_active(levels: dict[int, Activity]) -> None:
    assert activity_record([], levels) == {"required": [], "exercised": True}


def test_run_json_without_a_level_was_not_active() -> None:
    record = activity_record(plain(HITS), {})
    assert record["required"][0]["level_max"] is None
    assert record["exercised"] is False


def run_with(exercised: dict[str, Any], engine: str = "local") -> Run:
    facts = run_description("Qwen3-8B", "native-offload", 10_000, 1)
    return described_run({**facts, "exercised": exercised, "engine": engine})


def test_run_json_of_earlier_versions_is_read_and_judged_by_its_levels() -> None:
    """What it kept of the answer decides nothing."""
    entry = {"counter": "vllm:hits_total", "at_least": 1, "unit": "tokens"}
    kept = {**entry, "moved": 0.0, "level_max": 8, "exercised": False}
    run = run_with({"required": [kept], "exercised": False})
    assert run.required_counters == required_counters([entry])
    activity = activity_at(run, run.levels[0])
    assert activity.active is True
    assert activity_word(run, activity) == "shown"


@pytest.mark.parametrize(
    ("counters", "word"),
    [
        ({}, "not shown"),
        ({QUERIES: 1e6}, "not shown"),
        ({HITS.counter: 9000.0, QUERIES: 1e6}, "not shown"),
        ({HITS.counter: 9000.0, CHUNKS.counter: 3.0, QUERIES: 1e6}, "shown"),
        ({HITS.counter: 10.0, QUERIES: 1e6}, "none"),
    ],
)
def test_an_imported_run_is_judged_by_what_was_recorded(
    counters: dict[str, float], word: str
) -> None:
    run = run_with({"required": plain(HITS, CHUNKS)}, engine="imported")
    counted = changes(**counters)
    level = msgspec.structs.replace(
        run.levels[0], counters=counted, terms=terms_of(counted)
    )
    assert activity_word(run, activity_at(run, level)) == word


def test_an_imported_index_without_a_recording_is_not_known_to_be_active() -> None:
    facts = run_description("Qwen3-8B", "llm-d-redis", 0, 1)
    facts |= {"exercised": {"required": [], "unread": plain(HITS)}}
    run = described_run({**facts, "engine": "imported"})
    assert activity_word(run, activity_at(run, run.levels[0])) == "not shown"
