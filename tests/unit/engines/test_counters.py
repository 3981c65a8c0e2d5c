from pathlib import Path

import pytest

from kveval.engines.counters import changes
from kveval.engines.servers.endpoint import Endpoint
from kveval.stacks.counters import (
    CounterError,
    metric_types,
    parse_counters,
    unreadable,
)
from kveval.stacks.vllm import VLLM

TEXT = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 11.0
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e9
# TYPE vllm:kv_offload_bytes_total counter
vllm:kv_offload_bytes_total{engine="0",model_name="m",transfer_type="GPU_to_CPU"} 5.0
vllm:kv_offload_bytes_total{engine="0",model_name="m",transfer_type="CPU_to_GPU"} 7.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE process_cpu_seconds counter
process_cpu_seconds_total 9.0
"""


def test_counters_are_summed_over_engines_and_kept_per_own_label():
    assert parse_counters(TEXT, "vllm:") == {
        "vllm:prompt_tokens_total": 111.0,
        "vllm:kv_offload_bytes_total": 12.0,
        'vllm:kv_offload_bytes_total{transfer_type="GPU_to_CPU"}': 5.0,
        'vllm:kv_offload_bytes_total{transfer_type="CPU_to_GPU"}': 7.0,
    }


def test_text_that_is_no_metrics_page_is_refused():
    with pytest.raises(CounterError) as error:
        parse_counters("vllm:broken{ 1\n", "vllm:")
    assert error.value.code == "not_prometheus"


def test_a_counter_that_appears_meanwhile_started_at_zero():
    assert changes({"a": 2.0}, {"a": 5.0, "b": 4.0}) == {
        "a": {"before": 2.0, "after": 5.0, "delta": 3.0},
        "b": {"before": 0.0, "after": 4.0, "delta": 4.0},
    }


def test_of_histograms_only_delays_of_lookups_are_kept() -> None:
    text = (
        "# TYPE vllm:kv_offload_tiering_lookup_sync_delay_seconds histogram\n"
        'vllm:kv_offload_tiering_lookup_sync_delay_seconds_bucket{engine="0",le="0.1",tier="1:fs"} 3.0\n'
        'vllm:kv_offload_tiering_lookup_sync_delay_seconds_bucket{engine="1",le="0.1",tier="1:fs"} 4.0\n'
        'vllm:kv_offload_tiering_lookup_sync_delay_seconds_bucket{engine="0",le="+Inf",tier="1:fs"} 9.0\n'
        'vllm:kv_offload_tiering_lookup_sync_delay_seconds_count{engine="0",tier="1:fs"} 9.0\n'
        'vllm:kv_offload_tiering_lookup_sync_delay_seconds_sum{engine="0",tier="1:fs"} 1.0\n'
        "# TYPE vllm:kv_offload_load_size histogram\n"
        'vllm:kv_offload_load_size_bucket{engine="0",le="+Inf"} 9.0\n'
    )
    name = "vllm:kv_offload_tiering_lookup_sync_delay_seconds_bucket"
    assert parse_counters(text, "vllm:") == {
        f'{name}{{le="0.1",tier="1:fs"}}': 7.0,
        f'{name}{{le="+Inf",tier="1:fs"}}': 9.0,
    }


OWN = """\
# TYPE mytier:hits_total counter
mytier:hits_total{model_name="m",level="ram"} 4.0
mytier:hits_total{model_name="m",level="disk"} 3.0
# TYPE mytier:hits_created gauge
mytier:hits_created{model_name="m",level="disk"} 1.7e9
# TYPE mytier:misses_total counter
mytier:misses_total 9.0
# TYPE mytier:loads_total counter
# TYPE mytier:used_blocks gauge
mytier:used_blocks 9.0
"""


def test_a_counter_that_proves_an_arm_active_is_read_under_any_name():
    names = ['mytier:hits_total{level="disk"}', "mytier:loads_total", "mytier:none"]
    assert parse_counters(TEXT + OWN, "vllm:", names) == {
        **parse_counters(TEXT, "vllm:"),
        "mytier:hits_total": 7.0,
        'mytier:hits_total{level="ram"}': 4.0,
        'mytier:hits_total{level="disk"}': 3.0,
    }


def test_counters_that_a_page_does_not_have_are_told_with_those_that_are_like_them():
    types = metric_types(OWN)
    there = ['mytier:hits_total{level="new"}', "mytier:loads_total"]
    assert unreadable(there, types) == {}
    reasons = unreadable(["mytier:hits", "mytier:used_blocks", "no"], types)
    assert "mytier:hits_total" in reasons["mytier:hits"]
    assert "is a gauge" in reasons["mytier:used_blocks"]
    assert reasons["no"] == "there is no metric no"


def test_only_counters_that_are_not_the_servers_own_have_to_be_there_at_its_start():
    def endpoint(*required):
        def fetch(path, method, body, timeout_s):
            return OWN.encode()

        return Endpoint(VLLM, "m", fetch, Path("a.log"), required=required)

    endpoint("vllm:kv_offload_load_bytes_total").require_counters()
    known = endpoint("mytier:misses_total")
    known.require_counters()
    assert known.counters() == {"mytier:misses_total": 9.0}
    with pytest.raises(CounterError) as error:
        endpoint("mytier:mises_total", "mytier:hits_total").require_counters()
    assert error.value.code == "no_such_counter"
    assert "mytier:misses_total" in str(error.value)
    assert "hits" not in str(error.value).split(";")[0]
