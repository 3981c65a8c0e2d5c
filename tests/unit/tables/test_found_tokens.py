"""Where a level's prompt tokens were found, by the counters of a server that may look them up several times."""

import math

import pytest

from kveval.conditions.facts import terms_of
from kveval.store.conditions import Change
from kveval.tables.levels.server_counters import FoundTokens, found_tokens

# vLLM 0.26 on an H100: 8 streams of prompts of 4,160 tokens, whose device had no room for all of them.
LOOKUPS = {
    "vllm:prefix_cache_queries_total": 1_383_776,
    "vllm:prefix_cache_hits_total": 507_904,
    "vllm:external_prefix_cache_queries_total": 726_064,
    "vllm:external_prefix_cache_hits_total": 704_752,
}
BEGUN = {
    "vllm:prompt_tokens_total": 1_208_720,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 502_464,
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': 685_376,
}


def found(*counted: dict[str, float]) -> FoundTokens:
    changes = {
        name: Change(0.0, value, value)
        for counters in counted
        for name, value in counters.items()
    }
    return found_tokens(terms_of(changes))


def test_prompts_that_were_looked_up_repeatedly_count_once():
    tokens = found(LOOKUPS, BEGUN)
    assert tokens == FoundTokens(1_208_720, 502_464, 706_256, 685_376)
    # It computed 20,880 of them.
    assert tokens.prompts - tokens.device - tokens.behind == 20_880


@pytest.mark.parametrize("missing", BEGUN)
def test_lookups_count_where_the_server_does_not_tell_where_tokens_came_from(missing):
    known = {name: value for name, value in BEGUN.items() if name != missing}
    assert found(LOOKUPS, known) == FoundTokens(1_383_776, 507_904, 726_064, 704_752)


def test_requests_in_progress_at_a_levels_end_are_no_repeated_lookups():
    lookups = LOOKUPS | {"vllm:prefix_cache_queries_total": 1_242_000}
    assert found(lookups, BEGUN).behind == 704_752


def test_without_counters_nothing_is_known():
    tokens = found()
    assert all(math.isnan(value) for value in (tokens.prompts, tokens.device))


def test_a_server_without_a_cache_on_its_device_has_all_prompts_looked_up_behind_it():
    lookups = LOOKUPS | {
        "vllm:prefix_cache_queries_total": 0,
        "vllm:prefix_cache_hits_total": 0,
    }
    assert found(lookups, BEGUN).prompts == 1_208_720
