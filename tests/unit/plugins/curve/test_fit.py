"""The first line of a plan and of the curves: whether the load fits the device, so that no tier pays."""

import copy
import math

import pytest
from tests.support.config_files import CONFIG, GPU_SERVER, RAW, load

from kveval.campaign.problems import ConfigError
from kveval.configuration import resolve
from kveval.configuration.loading import load_config
from kveval.plugins.curve.plan.curves import level_curves
from kveval.plugins.curve.plan.fit import fit_lines
from kveval.plugins.curve.simulation import cells
from kveval.plugins.curve.simulation.cells import curves_of
from kveval.stacks.tier_layout import needed_size
from kveval.workflow.planning.stored import StoreIndex

# Qwen3-0.6B on 8 GiB: about 42,000 tokens, 33,000 to 48,000. A conversation has 2,208.
CONVERSATION = {
    "profile": "concurrent",
    "seconds": 60,
    "prompt_tokens": 1000,
    "output_tokens": 104,
    "turns": 2,
    "seed": 1,
}


def campaign(
    folder, levels, *, keys=None, sizes=(3000,), arm="native-offload", **workload
):
    """Return a campaign with tiers of these blocks, at these numbers of streams."""
    raw = copy.deepcopy(RAW)
    raw["workloads"]["fit"] = {**CONVERSATION, "levels": list(levels), **workload}
    raw["config"] |= {"server": GPU_SERVER, "workload": "fit", "device_gib": 8}
    raw["config"] |= keys or {}
    models = ["Qwen3-0.6B"]
    raw["config"]["matrix"] = [
        {"models": models, "scenarios": ["no-offload"], "cpu_blocks": [0]},
        {"models": models, "scenarios": [arm], "cpu_blocks": list(sizes)},
    ]
    return load(folder, raw)


def verdict(folder, levels, **changes):
    """Return the lines for a campaign as `campaign` makes it."""
    config, store = campaign(folder, levels, **changes), StoreIndex({})
    return list(fit_lines(config, list(level_curves(config, store)), store))


def test_a_load_that_fits_needs_no_tier(tmp_path):
    (line,) = verdict(tmp_path, [10])
    assert line.startswith("Qwen3-0.6B: it fits: no tier pays; the load needs 20,880")
    assert "at 10 streams, the device holds about 4" in line
    assert line.endswith("; from about 16 to 22 streams on it does not")


def test_a_load_that_does_not_fit_needs_a_tier_larger_than_the_device(tmp_path):
    line, mirrors = verdict(tmp_path, [40], sizes=(1000, 8000))
    assert line.startswith("Qwen3-0.6B: a tier can pay, at 40 streams: half of the ")
    assert " points that it can add with " in line
    assert "the load needs 86,784 tokens at 40 streams" in line
    assert mirrors == (
        "  only mirror a part of the device's cache, which is larger: native-offload with 1.71 GiB (1,000 blocks)"
    )


def test_a_device_without_a_prefix_cache_holds_nothing_for_later_requests(tmp_path):
    server = {**GPU_SERVER, "args": ["--no-enable-prefix-caching"]}
    line, *mirrors = verdict(tmp_path, [10], keys={"server": server})
    assert "a tier can pay, at 10 streams: half of the " in line
    assert line.endswith("streams, the device holds nothing for later requests")
    assert not mirrors


def test_sizes_for_layers_of_several_kinds_are_counted_in_rows():
    config = load_config(CONFIG / "campaigns/laptop-hybrid.yaml", CONFIG)
    store = StoreIndex({})
    every = list(level_curves(config, store))
    lines = list(fit_lines(config, every, store))
    assert len(lines) == len(every)
    for line, curves in zip(lines, every, strict=True):
        tokens = curves.widest.tier.size_for(0.9)
        specifications = [config.specification(cell) for cell in curves.cells]
        size = needed_size(specifications, tokens, curves.level)
        assert line.startswith(
            f"{curves.model}: a tier can pay, at 2 streams: half of "
        )
        assert f", 90 % with {size}; the load needs " in line


def test_a_load_within_the_range_of_the_estimate_is_not_told(tmp_path):
    (line,) = verdict(tmp_path, [18])
    assert "whether it fits cannot be known until a server has reported" in line


def test_the_first_level_that_outgrows_the_device_is_named(tmp_path):
    line, *_ = verdict(tmp_path, [10, 40])
    assert line.startswith(
        "Qwen3-0.6B: a tier can pay from about 16 to 22 streams on, at 40: half "
    )


def test_without_a_gpu_it_cannot_be_known(tmp_path):
    (line,) = verdict(tmp_path, [10], keys={"device_gib": None})
    assert "cannot be known until gpu or device_gib says which GPU it is" in line
    assert "the load needs 20,880" in line


def test_a_device_that_its_weights_fill_is_told(tmp_path):
    (line,) = verdict(tmp_path, [10], keys={"device_gib": 1})
    assert "the device has no room for a cache; estimated: 1 GiB of a GPU x 0.9" in line
    assert "which GPU it is" not in line


def test_a_named_gpu_whose_cache_is_not_estimated_is_not_asked_for(tmp_path):
    server = GPU_SERVER | {"args": ["--kv-cache-memory-bytes", "1000000000"]}
    (line,) = verdict(tmp_path, [10], keys={"server": server})
    assert "until a server has reported what its device holds" in line
    assert "it is not estimated; the load needs 20,880" in line


def test_a_load_that_repeats_nothing_needs_no_tier(tmp_path):
    (line,) = verdict(tmp_path, [10], turns=1)
    assert line == "Qwen3-0.6B: no tier pays: nothing is repeated"


@pytest.mark.parametrize("sizes", [(1000,), (3000,), (8000,)])
def test_the_shares_of_an_estimate_are_ranges_around_it(tmp_path, sizes):
    raw = copy.deepcopy(RAW)
    raw["workloads"]["fit"] = {
        **CONVERSATION,
        "levels": [4],
        "turns": 1,
        "prefix_tokens": 2000,
        "prefix_count": 40,
    }
    raw["config"] |= {"server": GPU_SERVER, "workload": "fit", "device_gib": 8}
    raw["config"]["matrix"] = [
        {
            "models": ["Qwen3-0.6B"],
            "scenarios": ["native-offload"],
            "cpu_blocks": list(sizes),
        }
    ]
    config = load(tmp_path, raw)
    (curves,) = level_curves(config, StoreIndex({}))
    low, high = curves.device_hit_range
    assert low < curves.widest.device_hit_share < high
    (cell,) = config.cells
    served = curves.hit_share_range(cell)
    assert served[0] <= curves.cells[cell].hit_share_range[0] <= served[1]
    assert low <= served[0]
    adds = curves.adds_range(cell)
    assert 0 <= adds[0] <= curves.cells[cell].adds_points <= adds[1]


def test_a_campaign_on_a_gpu_that_holds_all_is_warned_before_it_is_planned(tmp_path):
    raw = copy.deepcopy(RAW)
    raw["workloads"]["fit"] = {**CONVERSATION, "levels": [6]}
    raw["config"] |= {"server": GPU_SERVER, "workload": "fit"}
    raw["config"]["matrix"] = [
        {"models": ["Qwen3-8B"], "scenarios": [name], "cpu_blocks": [blocks]}
        for name, blocks in (("no-offload", 0), ("native-offload", 20_000))
    ]
    raw["models"]["Qwen3-8B"]["max_model_len"] = 8192
    (tmp_path / "unknown").mkdir()
    assert "turns_fit" not in {
        one.code for one in load(tmp_path / "unknown", raw).warnings
    }
    raw["config"]["gpu"] = "L4"
    warnings = {one.code: one for one in load(tmp_path, raw).warnings}
    assert not warnings["turns_fit"].facts["device_known"]
    text = str(warnings["turns_fit"])
    assert "cannot show a difference" in text
    assert "that the device holds at least" in text


def test_a_load_with_too_many_requests_for_a_plan_is_left_to_the_curve(tmp_path):
    raw = copy.deepcopy(RAW)
    raw["workloads"]["fit"] = {**CONVERSATION, "levels": [10]}
    raw["config"] |= {"server": GPU_SERVER, "workload": "fit", "device_gib": 8}
    raw["config"]["matrix"] = [
        {
            "models": ["Qwen3-0.6B"],
            "scenarios": ["native-offload"],
            "cpu_blocks": [3000],
        }
    ]
    config, store = load(tmp_path, raw), StoreIndex({})
    (line,) = fit_lines(config, list(level_curves(config, store, 1000)), store)
    assert "kveval curve computes whether a tier can pay" in line
    assert "conversations in progress have 22,080 tokens at 10 streams" in line


def test_sizes_for_lmcache_allow_for_the_part_of_the_tier_that_is_used(tmp_path):
    config = campaign(tmp_path, [40], sizes=(8000,), arm="lmcache-local")
    store = StoreIndex({})
    (curves,) = level_curves(config, store)
    (cell,) = [cell for cell in curves.cells if cell.cpu_blocks]
    tokens = max(one.tier.size_for(0.9) for one in curves.possible(cell))
    least = curves.cells[cell].usable[0]
    assert least < 0.7
    size = needed_size([config.specification(cell)], math.ceil(tokens / least), 40)
    (line, *_) = fit_lines(config, [curves], store)
    assert f", 90 % with {size}; the load needs " in line


def test_arms_with_devices_of_their_own_have_a_line_each(tmp_path):
    raw = copy.deepcopy(RAW)
    raw["workloads"]["fit"] = {**CONVERSATION, "levels": [10]}
    raw["scenarios"]["uncached"] = {
        "extends": "native-offload",
        "args": ["--no-enable-prefix-caching"],
    }
    raw["config"] |= {"server": GPU_SERVER, "workload": "fit", "device_gib": 8}
    raw["config"]["matrix"] = [
        {
            "models": ["Qwen3-0.6B"],
            "scenarios": [name],
            "cpu_blocks": [8000],
        }
        for name in ("uncached", "native-offload")
    ]
    config, store = load(tmp_path, raw), StoreIndex({})
    every = list(level_curves(config, store))
    uncached, cached = fit_lines(config, every, store)
    assert uncached.startswith("Qwen3-0.6B with uncached: a tier can pay, at 10")
    assert uncached.endswith("the device holds nothing for later requests")
    assert cached.startswith("Qwen3-0.6B with native-offload: it fits: no tier pays")
    assert "the device holds about 4" in cached


OPEN = {
    "profile": "poisson",
    "turns": 1,
    "prefix_tokens": 8000,
    "prefix_count": 90,
    "prompt_tokens": 100,
}


def test_more_requests_than_are_computed_are_said_first(tmp_path):
    keys = {"gpu": "L4", "device_gib": 22}
    # Four fifths of 8,100 tokens are found at most: a server computes 121 TFLOPS / 2 / 0.6 billion weights at 60 %.
    first, second, *_ = verdict(tmp_path, [60, 6000], keys=keys, sizes=(90000,), **OPEN)
    assert first.startswith(
        "Qwen3-0.6B: overloaded at 6000 requests/min: 100 requests/s come, at most "
    )
    assert " are served without a tier and " in first
    assert "with native-offload of 154 GiB" in first
    assert second.startswith("Qwen3-0.6B: a tier can pay")
    alone, tier = (
        float(text.split()[0])
        for text in (first.split("at most ")[1], first.split("tier and ")[1])
    )
    assert 0 < alone < tier
    # At the highest rate that is served nothing is said.
    fewer = int(60 * alone * 0.9)
    assert "overloaded" not in "".join(
        verdict(tmp_path, [fewer], keys=keys, sizes=(90000,), **OPEN)
    )
    # A closed loop sends no faster than it is answered.
    assert "overloaded" not in "".join(verdict(tmp_path, [500], keys=keys))


def test_what_a_server_prints_of_its_device_is_believed(tmp_path):
    line, *_ = verdict(tmp_path, [10], keys={"device_tokens": 50_000})
    assert "it fits: no tier pays; the load needs 20,880 tokens" in line
    assert "the device holds 50,000 tokens; from" in line
    by_model = {"device_tokens": {"Qwen3-0.6B": 9000}}
    line, *_ = verdict(tmp_path, [10], keys=by_model)
    assert "a tier can pay" in line
    assert line.endswith("the device holds 9,000 tokens")


def test_the_servers_longest_conversation_is_the_campaigns(tmp_path):
    server = {**GPU_SERVER, "max_model_len": 40_960}
    config = campaign(tmp_path, [10], keys={"server": server})
    cell = config.cells[0]
    model = config.catalogue.models[cell.model]
    shorter = model.model_copy(update={"max_model_len": 8192})
    assert (
        resolve.served_model(
            cell.model,
            shorter,
            config.catalogue.scenarios[cell.scenario],
            config.campaign.server,
        ).max_model_len
        == 40_960
    )
    # Beyond its positions only where arguments say so.
    server["max_model_len"] = 100_000
    with pytest.raises(ConfigError, match=r"40960 positions of Qwen3-0\.6B"):
        campaign(tmp_path, [10], keys={"server": server}).specification(cell)
    server["args"] = ['--hf-overrides={"rope_scaling": {}}']
    config = campaign(tmp_path, [10], keys={"server": server})
    assert config.specification(cell).model.max_model_len == 100_000


def test_very_many_blocks_are_followed_in_steps(tmp_path, monkeypatch):
    load = {"prefix_tokens": 4000, "prefix_count": 4, "turns": 6}
    config = campaign(tmp_path, [40], **load)
    specification = config.specification(config.cells[1])
    exact = curves_of(specification, 40, reported_tokens=40_000)
    monkeypatch.setattr(cells, "_FEW_BLOCKS", 1000)
    cells.step_tokens.cache_clear()
    coarse = curves_of(specification, 40, reported_tokens=40_000)
    cells.step_tokens.cache_clear()
    assert len(coarse.device.sizes) < len(exact.device.sizes)
    for part in (0.5, 0.9):
        size = exact.tier.size_for(part)
        assert coarse.tier.size_for(part) == pytest.approx(size, rel=0.02)
    assert coarse.device.ceiling == pytest.approx(exact.device.ceiling, abs=0.005)
