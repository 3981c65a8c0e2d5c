"""Campaigns of models whose layers do not all keep everything: arguments, refusals, warnings, what tiers serve."""

import pytest
from tests.support.config_files import CONFIG, RAW, changed, load_raw, on_gpus

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.configuration.reuse import reuse_of
from kveval.stacks.tier_layout import (
    layout_of,
    match_steps,
    needed_size,
    prompts_of_conversation,
    tokens_in_rows,
)
from kveval.stacks.vllm import VLLM

GEMMA, GDN, MLA = "Gemma-3-27B", "Qwen3-Next-80B-A3B", "DeepSeek-V2-Lite"
INTERVAL = "--prefix-cache-retention-interval"
SIZE = 10_000


@pytest.fixture(scope="module")
def shipped():
    return load_config(CONFIG / "campaigns/laptop-hybrid.yaml", CONFIG)


def miniature(tmp_path, model, *args, scenario="native-offload", size=SIZE, base=None):
    """The default campaign, with one tier of one model; `args`: more arguments of the server."""
    entry = {"models": [model], "scenarios": [scenario], "cpu_blocks": [size]}
    files = changed(("config", "matrix"), [entry], base)
    return load_raw(changed(("config", "server", "args"), [*args], files), tmp_path)


def codes(config):
    return {warning.code for warning in config.warnings}


def refused(load):
    with pytest.raises(ConfigError) as caught:
        load()
    return {problem.code for problem in caught.value.problems}


def test_the_device_holds_what_is_declared_in_conversations_of_full_length(shipped):
    for cell in shipped.cells:
        specification = shipped.specification(cell)
        argv = specification.argv
        pool = int(argv[argv.index("--num-gpu-blocks-override") + 1])
        longest = specification.model.max_model_len
        needed = layout_of(specification).blocks_in_use(longest, 2048)
        # As the server computes the size that it reports, which is compared with the declared one.
        reported = pool * longest // needed
        assert reported == pytest.approx(specification.budget.device_tokens, rel=0.02)


def test_the_shipped_campaign_serves_prefixes_from_every_tier(shipped):
    assert shipped.warnings == ()
    tiers = [cell for cell in shipped.cells if cell.cpu_blocks]
    assert len(tiers) == 9
    for cell in tiers:
        (level,) = reuse_of(shipped.specification(cell))
        # Of sixteen prefixes it keeps those whose windows or states, and no batch, fit its pool.
        pool = level.caches.device
        assert 9_000 <= pool < 24_000
        assert level.device < 0.5
        assert level.caches.tier > pool
    largest = {cell.model: cell for cell in tiers}
    for cell in largest.values():
        (level,) = reuse_of(shipped.specification(cell))
        assert level.served > 0.9


def test_a_tier_that_stores_and_never_loads_is_named_with_its_remedy(tmp_path):
    silent = miniature(tmp_path, GEMMA)
    (warning,) = (
        entry for entry in silent.warnings if entry.code == "windows_at_the_end"
    )
    assert "vllm#53595" in warning.what
    cell = Cell(GEMMA, "native-offload", SIZE)
    (level,) = reuse_of(silent.specification(cell))
    assert level.caches.tier == 0
    interval = str(warning.facts["interval_tokens"])
    assert warning.fix == f"server.args: [{INTERVAL}, '{interval}']"
    helped = miniature(tmp_path, GEMMA, INTERVAL, interval)
    assert "windows_at_the_end" not in codes(helped)
    assert reuse_of(helped.specification(cell))[0].served > 0.9


def test_releases_that_keep_every_block_have_no_such_tier(tmp_path):
    files = on_gpus(GEMMA, "native-offload", SIZE, vllm="0.22.1")
    assert "windows_at_the_end" not in codes(load_raw(files, tmp_path))
    files = on_gpus(GEMMA, "native-offload", SIZE, vllm="0.32.0")
    assert "windows_at_the_end" in codes(load_raw(files, tmp_path))


def test_a_tier_of_fewer_rows_than_a_conversation_is_named(tmp_path):
    small = miniature(tmp_path, GEMMA, INTERVAL, "2880", size=80)
    (warning,) = (entry for entry in small.warnings if entry.code == "rows_too_few")
    assert warning.facts["rows"] < warning.facts["needed_rows"]
    assert "fewer than the" in warning.what


def test_prefixes_shorter_than_a_block_are_named(tmp_path):
    files = changed(("workloads", "laptop", "prefix_tokens"), 128)
    short = miniature(tmp_path, GDN, base=files)
    assert "prefix_below_block" in codes(short)
    assert "prefix_below_block" not in codes(
        miniature(tmp_path, GDN, "--prefix-match-unit", "32", base=files)
    )


def test_prefixes_are_found_in_steps_of_blocks_and_of_the_interval(shipped, tmp_path):
    steps = {
        cell.model: match_steps(shipped.specification(cell)) for cell in shipped.cells
    }
    assert steps == {GEMMA: (32, 2880), "gpt-oss-20b": (32, 2880), GDN: (160, 2880)}
    plain = load_config(CONFIG / "config.yaml", CONFIG)
    assert match_steps(plain.specification(plain.cells[0])) == (32, 32)
    specification = shipped.specification(shipped.cells[0])
    assert match_steps(specification.with_workload(turns=2)) == (32, 32)


def test_the_size_that_holds_tokens_is_the_least_that_does(shipped):
    for cell in shipped.cells:
        specification = shipped.specification(cell)
        size = needed_size([specification], 60_320, 2)
        if not cell.cpu_blocks:
            assert size.cpu_blocks == 60_320 / 16
            continue
        assert 60_320 <= tokens_in_rows(specification, size.size_bytes, 2) < 66_000
        assert size.cpu_blocks < 60_320 / 16 or cell.model == GDN


def test_turns_leave_windows_of_their_own(shipped):
    specification = shipped.specification(shipped.cells[0])
    turns = specification.with_workload(turns=3, output_tokens=316)
    prompts = prompts_of_conversation(turns, 2)
    assert prompts == (2944, 3292, 3640)
    layout = layout_of(turns)
    assert layout.rows_of_conversation(*prompts) > layout.rows_of_conversation(3640)


@pytest.mark.parametrize(
    ("model", "args", "code"),
    [
        (GEMMA, (INTERVAL, "1000"), "retention_uneven"),
        (GDN, (INTERVAL, "1024"), "retention_uneven"),
        ("Qwen3-0.6B", (INTERVAL, "1024"), "retention_without_windows"),
        ("Qwen3-0.6B", ("--speculative-config", "{}"), "speculative_offload"),
        (GEMMA, ("--speculative-config={}",), "speculative_offload"),
        (MLA, (), "no_random_weights"),
    ],
)
def test_combinations_that_cannot_work_are_refused(tmp_path, model, args, code):
    assert code in refused(lambda: miniature(tmp_path, model, *args))


def test_drafting_without_a_tier_is_not_refused(tmp_path):
    config = miniature(
        tmp_path, GEMMA, "--speculative-config", "{}", scenario="no-offload", size=0
    )
    assert config.cells


def test_a_tier_behind_latent_attention_is_for_gpus(tmp_path):
    files = changed(("config", "server", "weights"), "full")
    assert "latent_on_cpu" in refused(lambda: miniature(tmp_path, MLA, base=files))
    on_gpu = load_raw(on_gpus(MLA, "native-offload", SIZE), tmp_path)
    (cell,) = on_gpu.cells
    # 27 layers of 576 values: 30 KiB a token, an eighth of what its heads would take.
    assert on_gpu.specification(cell).model.kv_bytes_per_token == 27 * 576 * 2


def test_lmcache_is_refused_behind_states_on_a_cpu_alone(tmp_path):
    load = miniature
    assert "lmcache_recurrent" in refused(
        lambda: load(tmp_path, GDN, scenario="lmcache-local")
    )
    assert load(tmp_path, GEMMA, scenario="lmcache-local").cells


def test_experts_have_no_random_weights_in_full(tmp_path):
    files = changed(("config", "server", "weights"), "random")
    assert "random_experts" in refused(lambda: miniature(tmp_path, GDN, base=files))


def test_the_last_value_of_an_argument_counts():
    argv = (INTERVAL, "64", "--prefix_match_unit=16", f"{INTERVAL}=128")
    assert VLLM.retention(argv, "0.32.0") == (128, 16, True)
    assert VLLM.retention((), "0.28.1").interval_tokens is None
    assert VLLM.retention((), "0.29.0").interval_tokens == 0
    assert not VLLM.retention(("--disable-hybrid-kv-cache-manager",), "0.32.0").grouped


def test_models_with_one_kind_of_layers_are_as_they_were():
    assert "sliding" not in RAW["models"]["Qwen3-0.6B"]["geometry"]
    model = load_config(CONFIG / "config.yaml", CONFIG).catalogue.models["Qwen3-0.6B"]
    kinds = {"sliding", "recurrent", "latent", "parameters"}
    assert kinds.isdisjoint(model.geometry.model_dump())
