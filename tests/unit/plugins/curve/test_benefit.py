"""What a tier buys: what any prediction obeys, on the default campaign's load, and what it is made from."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.support.described import described_run
from tests.support.paths import REPOSITORY
from tests.support.synthetic import run_description

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.conditions.facts import described
from kveval.configuration.loading import load_config
from kveval.plugins.curve.predicted.benefit import (
    Basis,
    MeasuredLevel,
    basis_of,
)
from kveval.plugins.curve.predicted.tier_copies import TierCopies, tier_copies
from kveval.plugins.curve.simulation.break_even import context_share
from kveval.plugins.curve.simulation.service import ServerSpeed
from kveval.plugins.curve.simulation.speed import FittedSpeed
from kveval.store.conditions import Change
from kveval.store.run_file import LevelRun

CONFIG = REPOSITORY / "config"
SPEED = ServerSpeed(
    token_s=5e-5, context_share=2e-4, batch_s=0.004, answer_s=0.0005, request_s=0.01
)
LEVEL, DEVICE, BATCH_TOKENS = 2, 17_920, 2048
UNCOPIED = TierCopies()
SEEN = MeasuredLevel(
    run=1,
    window=(4.0, 26.0),
    requests=60,
    prompt_tokens=6032.0,
    throughput_tok_s=40.0,
    ttft_ms_mean=500.0,
    ttft_ms_p50=480.0,
    itl_ms=np.full(40, 15.0),
    # A quarter of the prompts are on the device.
    ttft_ms=np.repeat([60.0, 640.0], (10, 30)),
)


def of(scenario: str, blocks: int, campaign: str = "config.yaml") -> Specification:
    return load_config(CONFIG / campaign, CONFIG).specification(
        Cell("Qwen3-0.6B", scenario, blocks)
    )


def basis(copies: TierCopies = UNCOPIED, *speeds: ServerSpeed) -> Basis:
    drawn = speeds or (SPEED,)
    return Basis(
        of("no-offload", 0),
        DEVICE,
        {LEVEL: [SEEN]},
        BATCH_TOKENS,
        FittedSpeed(drawn[0], drawn, 0.0),
        copies,
    )


def gains(
    made: Basis, *tokens: float, scenario: str = "native-offload"
) -> list[tuple[float, float, float]]:
    found = made.benefits(
        of(scenario, 10_000), LEVEL, [(size, size) for size in tokens]
    )
    return [
        (
            one.throughput_percent.low,
            one.throughput_percent.value,
            one.throughput_percent.high,
        )
        for one in found
    ]


def test_a_tier_smaller_than_the_device_buys_nothing():
    [benefit] = basis().benefits(of("native-offload", 500), LEVEL, [(8_000.0, 8_000.0)])
    assert (benefit.throughput_percent.low, benefit.throughput_percent.high) == (
        0.0,
        0.0,
    )
    # It is what was measured without one.
    assert benefit.throughput_tok_s.value == 40.0
    assert (benefit.ttft_ms_mean.value, benefit.ttft_ms_p50.value) == (500.0, 480.0)
    assert not benefit.saturates and 0.9 < benefit.busy <= 1


def test_a_larger_tier_buys_more_until_it_has_all_that_comes_again():
    found = gains(basis(), 40_000.0, 56_000.0, 80_000.0, 160_000.0)
    values = [value for _, value, _ in found]
    assert 0 < values[0] < values[1] < values[2] == values[3]
    # Some 60 tokens of 6,032 are left to be computed.
    assert values[3] > 300
    assert all(low <= value <= high for low, value, high in found)


@pytest.mark.parametrize("rate", [3e6, 0.5e7, 1e9])
def test_slow_copies_make_a_tier_a_loss(rate):
    [(_, gain, _)] = gains(basis(TierCopies((rate,), (1e9,), ("a/b/1",))), 160_000.0)
    compute_bytes_s = 1024 * 6032 / SPEED.prefill_s(0, 6032)
    assert (gain < 0) == (rate < 0.7 * compute_bytes_s)


def test_what_is_not_sure_widens_the_interval():
    narrow = gains(basis(), 160_000.0)[0]
    slower = replace(SPEED, batch_s=0.016, request_s=0.03)
    wide = gains(basis(TierCopies(), SPEED, slower), 160_000.0)[0]
    assert wide[2] - wide[0] > narrow[2] - narrow[0] > 0
    made = basis()
    part, whole = made.benefits(
        of("lmcache-local", 4_000), LEVEL, [(51_200.0, 51_200.0), (41_000.0, 51_200.0)]
    )
    assert whole.throughput_percent.low < part.throughput_percent.low


def test_an_open_loop_is_answered_at_its_rate_until_it_saturates():
    config = "campaigns/laptop-trace.yaml"
    seen, [level] = (
        replace(SEEN, window=(30.0, 120.0)),
        of("no-offload", 0, config).workload.given_levels,
    )
    for factor, saturates in ((0.05, False), (8.0, True)):
        speed = ServerSpeed(*(factor * one for one in (5e-5, 0, 0.004, 0.0005, 0.01)))
        made = Basis(
            of("no-offload", 0, config),
            DEVICE,
            {level: [seen]},
            BATCH_TOKENS,
            FittedSpeed(speed, [speed], 0),
            TierCopies(),
        )
        [benefit] = made.benefits(
            of("native-offload", 12_000, config), level, [(192_000.0, 192_000.0)]
        )
        assert benefit.saturates == saturates
        assert (abs(benefit.throughput_percent.value) < 0.5) != saturates
        assert (benefit.busy < 0.5) != saturates


def test_the_speed_follows_from_the_levels():
    made = basis_of(of("no-offload", 0), DEVICE, {LEVEL: [SEEN]}, TierCopies(), {})
    assert made.batch_tokens == BATCH_TOKENS
    assert made.cell == Cell("Qwen3-0.6B", "no-offload", 0) and made.runs == [1]
    # Both streams' prompts, a quarter of them on the device, in the time of a request.
    assert 0.1 < made.speed.best.prefill_s(0, 6032) < 1.0


def test_a_server_on_a_large_gpu_computes_larger_batches():
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85_520_809_984}
    made = basis_of(
        of("no-offload", 0), DEVICE, {LEVEL: [SEEN]}, TierCopies(), {"gpus": [gpu]}
    )
    assert made.batch_tokens == 8192


def test_a_tokens_context_counts_as_its_operations():
    # Two layers of 256 wide: 4 query heads of 64 over 983,040 weights a layer.
    assert context_share(of("no-offload", 0).model.geometry) == pytest.approx(
        2 * 256 / 983_040
    )


def test_copies_are_those_that_tiers_counted():
    def change(value: float) -> Change:
        return Change(0.0, value, value)

    counters = {
        "vllm:kv_offload_load_bytes_total": change(4e8),
        "vllm:kv_offload_load_time_total": change(0.2),
        "vllm:kv_offload_store_bytes_total": change(1e5),
        "vllm:kv_offload_store_time_total": change(0.001),
    }
    description = run_description("Qwen3-0.6B", "native-offload", 500, 1)
    run = msgspec.structs.replace(
        described_run(description), levels=[LevelRun(2, counters=counters), LevelRun(4)]
    )
    found = tier_copies([described(run)])
    assert found == TierCopies((2e9,), (), ("Qwen3-0.6B/native-offload/500",))
    assert tier_copies([]) == TierCopies() and math.isinf(
        basis()._tier(of("no-offload", 0), 0).load_tokens_s
    )


def test_a_tier_that_adds_nothing_costs_its_copies_and_nothing_is_said_where_none_are_known():
    copies = TierCopies((3e8, 4e8), (2e8, 3e8), ("a/b/1",))
    sizes = [(8_000.0, 8_000.0), (96_000.0, 96_000.0)]
    tiers = of("native-offload", 10_000)
    copied, larger = basis(copies).benefits(tiers, LEVEL, sizes)
    assert copied.has_effect and copied.throughput_percent.low < 0
    assert copied.throughput_percent.high < larger.throughput_percent.low
    unknown, served = basis(TierCopies()).benefits(tiers, LEVEL, sizes)
    assert (unknown.has_effect, served.has_effect) == (False, True)
