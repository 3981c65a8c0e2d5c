"""The stages between prompt tokens that came before and those that caches delivered, and where most is lost."""

import dataclasses
import math
from typing import Any

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.report_text import said_by
from tests.unit.tables.test_tier_activity import run

from kveval.plugins.curve.predicted.waterfall import (
    COLUMNS,
    COMPUTED,
    COUNTED,
    LEAKS,
    LEAST_POINTS,
    RATED,
    SOURCES,
    STAGES,
    TIMED,
    UNKNOWN,
    CellFacts,
    Stages,
    leak_of,
    waterfall,
)
from kveval.report.data.hits import Leak, read_leaks
from kveval.store.run_file import OneRequest, RequestTime, RequestTimes

COUNTERS = {
    "vllm:prefix_cache_queries_total": 200_000.0,
    "vllm:prefix_cache_hits_total": 40_000.0,
    "vllm:external_prefix_cache_hits_total": 100_000.0,
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}': 40_000.0,
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': 99_000.0,
}
LEVEL = {
    **{"model": "tiny", "cpu_blocks": 2000, "run": 1, "level": 4},
    **{"predicted_offered_ratio": 0.8, "predicted_pooled_ratio": 0.72},
    **{"predicted_device_ratio": 0.2, "predicted_ratio_high": 0.72},
    **{"predicted_ratio_low": 0.70, "predicted_prompt_tokens": 200_000},
    **{"predicted_tier_blocks": 2000.0, "predicted_not": ""},
    "predicted_curve": "0=0.2;2000=0.72;4000=0.8",
    **{"device_tokens": 16_000.0, "ttft_ms_mean": 100.0, "e2e_ms_mean": 1000.0},
}
NO_COMPARISON = pd.DataFrame(
    columns=[
        "model",
        "scenario",
        "cpu_blocks",
        "metric",
        "level",
        "verdict",
        "effect_percent",
    ]
)
PEAKS = pd.DataFrame({"model": ["tiny"], "level": [4]})
FULL = {"prompts": 1000, "offered": 900, "held": 900, "found": 900, "delivered": 900}


def made(
    counters: dict[str, float] = COUNTERS,
    scenario: str = "native-offload",
    one_request: OneRequest | None = None,
    **level: Any,
) -> pd.DataFrame:
    """The rows of a cell with 200,000 prompt tokens, of which the device and its tier were to serve 72 %."""
    stored = run(scenario, **counters)
    if one_request:
        stored = msgspec.structs.replace(stored, one_request=one_request)
    levels = pd.DataFrame([LEVEL | {"scenario": scenario} | level])
    table = waterfall([stored], levels, PEAKS, NO_COMPARISON)
    assert list(table.columns) == [*COLUMNS]
    return table


def whole(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of all caches together, by stage."""
    return table[table["place"] == ""].set_index("stage")


def timed(cold_ms: float, device_ms: float, tier_ms: float) -> OneRequest:
    """Times of a prompt of 1,000 tokens."""
    cold, device, tier = (
        RequestTimes([RequestTime(ttft_ms, 1000, served)])
        for ttft_ms, served in ((cold_ms, 0), (device_ms, 1000), (tier_ms, 1000))
    )
    return OneRequest(cold, device, tier)


def stages(**tokens: float) -> Stages:
    """Stages of 1,000 prompt tokens; nothing is lost but what is given."""
    known = {name: float(count) for name, count in (FULL | tokens).items()}
    places = {"found": {"device": 0.0, "tier": known["found"]}}
    return Stages(known, places, dict.fromkeys(known, COUNTED))


def leak(facts: CellFacts, **tokens: float) -> Leak:
    return leak_of(stages(**tokens), facts)


def leak_sentence(seen: Leak) -> str:
    """What the report says of a leak without clues."""
    of_leak = seen.code, seen.stage, seen.facts
    return said_by("leaks.md.j2", "where_lost", *of_leak, None)


TIERED = CellFacts(
    has_tier=True,
    device_tokens=1000,
    tier_tokens=5000,
    device_percent=10,
    largest_percent=90,
    needed_blocks=500,
    needed_bytes=2**30,
)


def test_each_number_says_where_it_is_from() -> None:
    table = made()
    at = whole(table)
    assert list(at.index) == [name for name in STAGES if name != "routed"]
    assert at["tokens"].to_dict() == pytest.approx(
        {
            **{"prompts": 200_000, "offered": 160_000, "held": 144_000},
            **{"found": 140_000, "delivered": 139_000, "saved": math.nan},
        },
        nan_ok=True,
    )
    assert at.loc["delivered", "percent_of_offered"] == pytest.approx(86.875)
    assert at["source"].to_dict() == {
        **{"prompts": COUNTED, "offered": COMPUTED, "held": COMPUTED},
        **{"found": COUNTED, "delivered": COUNTED, "saved": UNKNOWN},
    }
    found = table[table["stage"] == "found"].set_index("place")["tokens"]
    assert (found["device"], found["tier"]) == (40_000, 100_000)
    (only,) = read_leaks(table).values()
    assert (only.code, only.stage) == ("caches_too_small", "held")
    assert "4,000 blocks" in leak_sentence(only)


def test_a_place_in_a_store_is_no_part_of_the_tier_in_host_memory() -> None:
    table = made(COUNTERS | {"lmcache_mp_lookup_hit_l2_tokens_total": 30_000.0})
    found = table[table["stage"] == "found"].set_index("place")["tokens"]
    assert (found["tier"], found["store"]) == (70_000, 30_000)


def test_what_nothing_says_is_unknown_and_never_0() -> None:
    without_sources = {
        name: count for name, count in COUNTERS.items() if "by_source" not in name
    }
    at = whole(made(without_sources))
    assert math.isnan(at.loc["delivered", "tokens"])
    assert at.loc["delivered", "source"] == UNKNOWN
    nothing = whole(made({"vllm:prompt_tokens_total": 5.0}))
    assert nothing.loc["prompts", "source"] == COMPUTED
    assert nothing.loc["found", "source"] == UNKNOWN
    why = {"predicted_offered_ratio": math.nan, "predicted_pooled_ratio": math.nan}
    unknown = made(**why, predicted_not="imported")
    assert whole(unknown).loc[["offered", "held"], "tokens"].isna().all()
    (only,) = read_leaks(unknown).values()
    assert (only.code, only.facts["reason"]) == ("unknown", "imported")


def test_tables_of_earlier_versions_lack_what_came_before() -> None:
    earlier = pd.DataFrame([LEVEL | {"scenario": "native-offload"}]).drop(
        columns=["predicted_offered_ratio", "predicted_pooled_ratio"]
    )
    stored = run("native-offload", **COUNTERS)
    table = waterfall([stored], earlier, PEAKS, NO_COMPARISON)
    assert whole(table).loc["offered", "source"] == UNKNOWN
    assert whole(table).loc["found", "tokens"] == 140_000


def test_time_is_saved_as_single_requests_say_and_else_by_the_rate_of_computing() -> (
    None
):
    both = whole(made(one_request=timed(1000, 100, 400)))
    assert both.loc["saved", "source"] == TIMED
    assert both.loc["saved", "seconds"] == pytest.approx(40 * 0.9 + 99 * 0.6)
    no_tier = timed(1000, 100, 400)
    no_tier = msgspec.structs.replace(no_tier, tier=RequestTimes(reason="idle"))
    rated = whole(made(one_request=no_tier))
    assert rated.loc["saved", "source"] == RATED
    assert rated.loc["saved", "seconds"] == pytest.approx(139.0)
    assert {TIMED, RATED, COUNTED, COMPUTED, UNKNOWN} == {*SOURCES}


def test_with_several_servers_routing_is_a_stage() -> None:
    stored = run("native-offload", **COUNTERS)
    stored = msgspec.structs.replace(stored, declared={"replicas": 3})
    levels = pd.DataFrame([LEVEL | {"scenario": "native-offload"}]).assign(
        predicted_pooled_ratio=0.79, predicted_ratio_high=0.7
    )
    table = waterfall([stored], levels, PEAKS, NO_COMPARISON)
    assert whole(table).loc["routed", "percent_of_prompts"] == pytest.approx(70)
    (only,) = read_leaks(table).values()
    assert (only.code, only.facts["servers"]) == ("routing", 3)


@pytest.mark.parametrize(
    ("code", "facts", "tokens"),
    [
        ("nothing_offered", {}, {"offered": 30, "held": 30, "found": 30}),
        ("no_tier", {"has_tier": False}, {"held": 300, "found": 300}),
        ("tier_mirrors_device", {"tier_tokens": 1000}, {"held": 300, "found": 300}),
        ("caches_too_small", {}, {"held": 300, "found": 300}),
        ("no_size_helps", {"largest_percent": 31}, {"held": 300, "found": 300}),
        ("routing", {"servers": 2}, {"routed": 400, "found": 400}),
        ("not_found", {}, {"found": 400}),
        ("tier_idle", {}, {"found": 0}),
        ("transfers_failed", {"failed": {"stores_dropped": 3.0}}, {"found": 400}),
        ("not_delivered", {}, {"delivered": 400}),
        ("transfers_failed", {"failed": {"promotions_failed": 3.0}}, {"delivered": 9}),
        ("device_serves_all", {"device_percent": 88}, {}),
        ("loading_slower", {"tier_saves": -0.1}, {}),
        ("decoding", {"throughput_percent": 6, "decoding_percent": 92}, {}),
        ("none", {"throughput_percent": 6, "decoding_percent": 50}, {}),
        ("none", {"throughput_percent": 60, "decoding_percent": 92}, {}),
        ("none", {}, {}),
        ("contradiction", {}, {"held": 300}),
        ("contradiction", {}, {"offered": math.nan, "found": 1200}),
        ("unknown", {}, {"offered": math.nan}),
        ("unknown", {}, {"found": math.nan, "delivered": math.nan}),
    ],
)
def test_the_leak_is_where_most_is_lost(
    code: str, facts: dict[str, Any], tokens: dict[str, float]
) -> None:
    rest = {"delivered": tokens["found"]} if {*tokens} & {"found"} else {}
    if "routed" in tokens:
        order = ("prompts", "offered", "held", "routed", "found", "delivered")
        of_all = FULL | rest | tokens
        known = Stages(
            {name: float(of_all[name]) for name in order},
            {"found": {"device": 0.0, "tier": 400.0}},
            {},
        )
        seen = leak_of(known, dataclasses.replace(TIERED, **facts))
    else:
        seen = leak(dataclasses.replace(TIERED, **facts), **rest | tokens)
    assert seen.code == code
    sentence = leak_sentence(seen)
    assert sentence and "nan" not in sentence


def test_every_leak_is_one_of_the_list_and_has_a_sentence() -> None:
    """That each code of the list is reached is the test above."""
    marks = test_the_leak_is_where_most_is_lost.pytestmark  # type: ignore[attr-defined]
    reached = {values[0] for mark in marks for values in mark.args[1]}
    assert reached == {*LEAKS}


def test_requests_in_progress_may_be_found_and_not_delivered_yet() -> None:
    short = dataclasses.replace(stages(found=900, delivered=800), tolerance_points=12.0)
    assert leak_of(short, TIERED).code == "none"
    # They do not explain what is computed.
    small = dataclasses.replace(
        stages(held=800, found=800, delivered=800), tolerance_points=12.0
    )
    assert leak_of(small, TIERED).code == "caches_too_small"


@pytest.mark.parametrize(
    ("failed", "remedy"),
    [
        ({"stores_dropped": 9.0, "store_allocations_failed": 1.0}, "faster tier"),
        ({"stores_dropped": 1.0, "store_allocations_failed": 9.0}, "larger tier"),
        ({"promotions_failed": 9.0}, "log"),
    ],
)
def test_the_most_frequent_failed_transfer_has_the_remedy(
    failed: dict[str, float], remedy: str
) -> None:
    facts = dataclasses.replace(TIERED, failed=failed)
    assert remedy in leak_sentence(leak(facts, found=400, delivered=400))


def test_hits_without_throughput_are_said_as_such() -> None:
    facts = dataclasses.replace(TIERED, throughput_percent=6.0, decoding_percent=92.0)
    said = leak_sentence(leak(facts, found=890, delivered=890))
    hits = "89.0 % of the prompt tokens were hits, with +6 % of throughput"
    assert said.startswith(f"{hits}: decoding is 92 %")


def test_a_size_that_is_not_known_is_not_named() -> None:
    facts = dataclasses.replace(TIERED, needed_blocks=math.nan, tier_tokens=500)
    said = leak_sentence(leak(facts, held=300, found=300, delivered=300))
    assert "500 tokens" in said and "GiB" not in said


FALLING = st.lists(
    st.integers(min_value=0, max_value=1000), min_size=5, max_size=5
).map(lambda counts: sorted(counts, reverse=True))


@given(FALLING)
def test_stages_that_fall_have_no_excess_and_lose_what_they_differ_by(
    counts: list[int],
) -> None:
    names = ["offered", "held", "routed", "found", "delivered"]
    known = {"prompts": 1000.0, **dict(zip(names, map(float, counts), strict=True))}
    of_cell = Stages(known, {}, {})
    assert not of_cell.excess()
    assert all(loss >= 0 for loss in of_cell.losses().values())
    losses = of_cell.losses()
    # Never offered, so not lost.
    new = losses.pop("offered")
    assert new == pytest.approx(100 - of_cell.percent("offered"))
    lost = sum(losses.values())
    assert lost == pytest.approx(
        of_cell.percent("offered") - of_cell.percent("delivered")
    )
    named = leak_of(of_cell, TIERED)
    assert named.code in LEAKS and named.code not in ("contradiction", "unknown")
    if "lost_points" in named.facts:
        assert named.facts["lost_points"] >= LEAST_POINTS
        assert named.facts["lost_points"] == max(losses.values())


@given(st.permutations([100, 300, 500, 700, 900]))
def test_a_stage_above_the_one_before_it_is_said_and_never_clipped(
    counts: list[int],
) -> None:
    names = ["offered", "held", "routed", "found", "delivered"]
    known = {"prompts": 1000.0, **dict(zip(names, map(float, counts), strict=True))}
    of_cell = Stages(known, {}, {})
    falls = counts == sorted(counts, reverse=True)
    assert (leak_of(of_cell, TIERED).code == "contradiction") is not falls
    assert bool(of_cell.excess()) is not falls
