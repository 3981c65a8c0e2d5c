"""The estimate of what a device holds before a server has reported it, against the sizes that servers did report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, GPU_SERVER, changed, load
from tests.support.device_truths import read_truths

from kveval.campaign.device_estimate import gpu_named_in
from kveval.campaign.problems import ConfigError
from kveval.campaign.sizing import gib, weight_bytes
from kveval.configuration.loading import load_config
from kveval.stacks.vllm_memory import (
    ServerMemory,
    default_batch_tokens,
    estimate_device,
    estimate_for,
)

DEFAULT = load_config(CONFIG / "config.yaml", CONFIG)
GPUS = DEFAULT.catalogue.gpus
MODELS = DEFAULT.catalogue.models


def test_nine_of_ten_ranges_have_what_the_server_reported():
    truths = read_truths()
    assert len(truths) >= 20
    missed = [truth for truth in truths if not truth.inside]
    assert len(missed) <= len(truths) / 10, missed


@pytest.mark.parametrize("truth", read_truths(), ids=str)
def test_no_range_of_a_gpu_of_the_catalogue_is_wider_than_15_percent(truth):
    if truth.gpu in GPUS:
        assert truth.half_width <= 0.15
        assert abs(truth.error) <= 0.15


# "Model loading took ... GiB" in vLLM's logs; with Marlin's padding for 4 bits.
@pytest.mark.parametrize(
    ("model", "loaded_gib"),
    [
        ("Qwen3-0.6B", 1.12),
        ("Qwen3-8B", 15.27),
        ("Qwen3-14B", 27.52),
        ("Qwen3-32B", 61.03),
        ("Qwen3-32B-AWQ", 18.14),
        ("Llama-3.1-8B", 14.99),
    ],
)
def test_weights_are_as_large_as_servers_say(model, loaded_gib):
    known = MODELS[model]
    size = gib(weight_bytes(known.geometry, known.quantization, known.dtype))
    assert size == pytest.approx(loaded_gib, rel=0.01)


def test_fp8_halves_all_weights_but_the_embeddings():
    shape = MODELS["Qwen3-8B"].geometry
    embeddings = 2 * 2 * shape.vocab_size * shape.hidden_size
    full, half = weight_bytes(shape), weight_bytes(shape, "fp8")
    assert half == (full - embeddings) // 2 + embeddings


@given(
    memory_gib=st.floats(8, 300),
    more=st.floats(0, 50),
    utilization=st.floats(0.3, 0.95),
    ranks=st.sampled_from([1, 2, 4]),
    version=st.sampled_from(["0.11.2", "0.19.1", "0.32.0"]),
)
def test_more_memory_never_holds_less(memory_gib, more, utilization, ranks, version):
    server = ServerMemory(
        MODELS["Qwen3-8B"].geometry, version, utilization, ranks, max_num_seqs=256
    )
    small, large = (
        estimate_device(server, GPUS["L4"].model_copy(update={"memory_gib": memory}))
        for memory in (memory_gib, memory_gib + more)
    )
    batched = server._replace(max_num_batched_tokens=2048)
    if (memory_gib < 70) == (memory_gib + more < 70):
        assert small.tokens <= large.tokens
    for estimate in (small, large, estimate_device(batched, GPUS["H100"])):
        assert 0 <= estimate.low_tokens <= estimate.tokens <= estimate.high_tokens
        assert estimate.tokens % 16 == 0


def test_a_gpu_that_the_weights_fill_holds_nothing():
    server = ServerMemory(MODELS["Qwen3-32B"].geometry, "0.32.0", 0.9)
    assert estimate_device(server, GPUS["L4"])[:3] == (0, 0, 0)


def test_the_source_names_every_number():
    server = ServerMemory(MODELS["Qwen3-8B"].geometry, "0.19.1", 0.9)
    source = estimate_device(server, GPUS["H100"], "H100").source
    assert source == (
        "estimated: 79.19 GiB of H100 x 0.9, less 15.3 GiB of weights and 1.5 to 3.6 GiB for activations and graphs"
    )


@pytest.mark.parametrize(
    ("hardware", "gpu"),
    [
        ("2x L40S", "L40S"),
        ("1x2xL40S", "L40S"),
        ("2x L4", "L4"),
        ("1x H100 80 GB", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("A100-SXM4-40GB", "A100-40"),
        ("8x A100 80GB", "A100-80"),
        ("one A10G", "A10G"),
        ("AMD MI300X", "MI300X"),
        ("A100", None),
        ("H100 and H200", None),
        ("this host", None),
        ("4 NVIDIA GPUs", None),
        ("nodes without GPUs", None),
    ],
)
def test_hardware_in_words_names_a_gpu(hardware, gpu):
    assert gpu_named_in(hardware, GPUS) == gpu


def on_gpus(tmp_path, *args, **server):
    """Return the estimate for the default campaign's first cell on GPUs, with arguments of the server."""
    server = {**GPU_SERVER, **server, "args": list(args)}
    files = changed(("config", "server"), server)
    config = load(tmp_path, files)
    return estimate_for(config.specification(config.cells[0]), GPUS["H100"], "H100")


def test_arguments_of_the_server_count(tmp_path):
    plain = on_gpus(tmp_path)
    fewer = on_gpus(tmp_path, "--max-num-seqs", "64")
    more = on_gpus(tmp_path, "--max-num-batched-tokens=200000")
    assert more.tokens < plain.tokens < fewer.tokens
    assert on_gpus(tmp_path, "--kv-cache-memory-bytes", "1000000") is None


def test_an_unknown_gpu_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match="H1000"):
        load(tmp_path, changed(("config", "gpu"), "H1000"))


def test_a_cpu_has_no_gpu_to_estimate(tmp_path):
    files = changed(("config", "device_gib"), 80)
    files["config"]["server"] |= {"weights": "miniature", "device_blocks": 1000}
    with pytest.raises(ConfigError, match="device_blocks sets its size"):
        load(tmp_path, files)


def on_hardware(tmp_path, **keys):
    """Return the estimate of a campaign on GPUs with these keys."""
    files = changed(("config", "server"), GPU_SERVER)
    files["config"] |= keys
    config = load(tmp_path, files)
    return config.device_estimate(config.cells[0])


def test_a_campaign_names_its_gpu_in_three_ways(tmp_path):
    by_key = on_hardware(tmp_path, gpu="H100")
    assert by_key == on_hardware(tmp_path, hardware="1x H100 80 GB")
    assert by_key == on_hardware(tmp_path, hardware="2x L40S", gpu="H100")
    by_memory = on_hardware(tmp_path, device_gib=GPUS["H100"].memory_gib)
    assert by_memory.tokens == by_key.tokens
    assert "of a GPU" in by_memory.source
    assert on_hardware(tmp_path, gpu="H100", device_gib=40).tokens < by_key.tokens
    assert on_hardware(tmp_path) is None


def test_a_size_that_is_given_is_not_estimated():
    assert DEFAULT.device_estimate(DEFAULT.cells[0]) is None


@pytest.mark.parametrize(
    ("args", "compiled"),
    [
        ([], True),
        (["--enforce-eager"], False),
        (
            [
                "--compilation-config",
                '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}',
            ],
            False,
        ),
        (["--compilation-config=0"], False),
        (["--compilation-config", '{"mode": "NONE"}'], False),
        (["--compilation-config", '{"cudagraph_mode": "FULL"}'], True),
        (["--compilation-config", "no JSON"], True),
    ],
)
def test_a_server_that_compiles_nothing_leaves_more_to_its_cache(
    args, compiled, tmp_path
):
    given, default = (
        on_gpus(tmp_path / name, *more, vllm="0.26.0").tokens
        for name, more in (("given", args), ("default", []))
    )
    assert given == default if compiled else given > default


@pytest.mark.parametrize(
    ("gpus", "tokens"),
    [
        ([], 2048),
        ([("NVIDIA H100 80GB HBM3", 79.6)], 8192),
        ([("NVIDIA H100 80GB HBM3", 79.6)] * 2, 8192),
        ([("NVIDIA A100-SXM4-80GB", 79.3)], 2048),
        ([("NVIDIA L40S", 45.0)], 2048),
        ([("a GPU that does not tell", None)], 2048),
    ],
)
def test_batches_are_as_large_as_vllm_makes_them_by_default_on_these_gpus(
    gpus: list[tuple[str, float | None]], tokens: int
) -> None:
    recorded = [
        {"name": name, "memory_bytes": None if gib is None else int(gib * 2**30)}
        for name, gib in gpus
    ]
    assert default_batch_tokens(recorded) == tokens
