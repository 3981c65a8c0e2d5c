import pytest

from kveval.engines.counters import changes
from kveval.stacks.counters import CounterError, parse_counters

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
