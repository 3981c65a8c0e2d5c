"""From how many tokens on loading from a campaign's tiers beats computing, and what is said of it."""

import copy

import pytest
from tests.support.config_files import GPU_SERVER, RAW, load
from tests.support.stored_runs import measured

from kveval.plugins.curve.plan.curves import level_curves
from kveval.plugins.curve.plan.fit import fit_lines
from kveval.plugins.curve.plan.loading import loading_lines, loadings
from kveval.store.store import Store
from kveval.workflow.planning.stored import StoreIndex

MODEL = "Qwen3-0.6B"
TOKENS = 1000
WORDS = ["--configfile", "mine.yaml"]


def campaign(folder, scenarios=("native-offload",), **keys):
    """Return a campaign of 40 streams on 8 GiB of a GPU, which do not fit."""
    raw = copy.deepcopy(RAW)
    raw["workloads"]["fit"] = {
        "profile": "concurrent",
        "seconds": 60,
        "prompt_tokens": 1000,
        "output_tokens": 104,
        "turns": 2,
        "seed": 1,
        "levels": [40],
    }
    raw["config"] |= {"server": GPU_SERVER, "workload": "fit", "device_gib": 8}
    raw["config"] |= keys
    raw["config"]["matrix"] = [
        {"models": [MODEL], "scenarios": ["no-offload"], "cpu_blocks": [0]},
        {"models": [MODEL], "scenarios": [*scenarios], "cpu_blocks": [8000]},
    ]
    return load(folder, raw)


def timed(config, store, *, cold_ms, tier_ms, device_ms=5.0, **changes):
    """Store a run of the arm with a tier that has timed single requests; return the index."""

    def requests(ttft_ms, served):
        one = {
            "ttft_ms": ttft_ms,
            "prompt_tokens": TOKENS + 20,
            "served_tokens": served,
        }
        return {"requests": [one] * 3}

    cell = next(one for one in config.cells if one.cpu_blocks)
    request = {
        "cold": requests(cold_ms, 0),
        "device": requests(device_ms, TOKENS),
        "tier": requests(tier_ms, TOKENS),
    }
    specification = config.specification(cell).to_json()
    measured(Store(store), specification, one_request=request, **changes)
    return StoreIndex.read(store)


def test_from_typical_rates_it_is_a_range(tmp_path):
    config = campaign(tmp_path, gpu="H100")
    [of_arm] = loadings(config, MODEL, StoreIndex({})).values()
    [one] = of_arm
    assert (one.tier, one.measured) == ("host memory", False)
    low, high = one.tokens
    assert 1 <= low < high
    [line] = loading_lines(config, StoreIndex({}), WORDS)
    start = "from the first token on, or never up to 2,208"
    assert line.startswith(f"  loading from host memory beats computing {start}")
    assert "35 to 53 GB/s (typical: PCIe 5.0)" in line
    assert "(typical: 40 to 60 % of the 989 TFLOPS of H100)" in line


@pytest.mark.parametrize(
    ("scenario", "tiers"),
    [
        ("lmcache-redis", ["host memory by LMCache", "Redis"]),
        ("cpu+fs-offload", ["host memory", "files"]),
    ],
)
def test_each_tier_of_an_arm_has_a_line(tmp_path, scenario, tiers):
    lines = loading_lines(
        campaign(tmp_path, (scenario,), gpu="L40S"), StoreIndex({}), WORDS
    )
    for tier, line in zip(tiers, lines, strict=True):
        assert line.startswith(f"  loading from {tier} ")


def test_tiers_with_the_same_rates_share_a_line(tmp_path):
    config = campaign(tmp_path, ("lmcache-redis", "lmcache-valkey"), gpu="L40S")
    lines = list(loading_lines(config, StoreIndex({}), WORDS))
    assert [line.partition(" from ")[2].split(" ")[0] for line in lines] == [
        "host",
        "Redis",
    ]
    assert "  loading from Redis or Valkey " in lines[1]


def test_without_any_rate_it_says_what_to_measure(tmp_path):
    config = campaign(tmp_path)
    lines = list(loading_lines(config, StoreIndex({}), WORDS))
    assert "is not known of Qwen3-0.6B until a run with a" in lines[0]
    assert lines[1].endswith(
        "/Qwen3-0.6B/native-offload/8000/peak.csv --configfile mine.yaml"
    )


def test_single_requests_of_a_stored_run_are_believed_first(tmp_path):
    config = campaign(tmp_path, gpu="H100")
    store = timed(config, tmp_path / "store", cold_ms=105.0, tier_ms=25.0)
    [of_arm] = loadings(config, MODEL, store).values()
    [one] = of_arm
    assert one.measured and one.tokens == (1, 1)
    [line] = loading_lines(config, store, WORDS)
    assert "from host memory always beats computing; loading in 20 us a token" in line
    assert "computing at 10,000 tok/s (measured: single requests of 1,000" in line


def test_a_tier_that_is_slower_than_computing_does_not_pay(tmp_path):
    config = campaign(tmp_path, gpu="H100")
    store = timed(config, tmp_path / "store", cold_ms=105.0, tier_ms=4005.0)
    (line, *_) = fit_lines(config, list(level_curves(config, store)), store)
    assert line.startswith("Qwen3-0.6B: no tier pays: computing 2,208 tokens takes ")
    assert " ms, loading them 8,832 ms; the load needs " in line
    [of_tier] = loading_lines(config, store, WORDS)
    assert "never beats computing in this load: computing 2,208 tokens" in of_tier
