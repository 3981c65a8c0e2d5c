"""benchmark-config.txt: which connector ran, and how large its tier was."""

import pytest
from tests.support.config_files import CONFIG

from kveval.campaign import sizing
from kveval.campaign.catalogue import Catalogue
from kveval.campaign.types import BLOCK_TOKENS
from kveval.configuration.loading import load_config
from kveval.plugins.imports.settings import (
    connectors,
    effective_tier,
    ignored_sizes,
    parse_settings,
    ranks,
)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return load_config(CONFIG / "config.yaml", CONFIG).catalogue


def transfer(connector: str, extra: str = "") -> str:
    more = f',"kv_connector_extra_config":{{{extra}}}' if extra else ""
    return f"""--kv-transfer-config '{{"kv_connector":"{connector}","kv_role":"kv_both"{more}}}'"""


TEXT = f"""Run ID: 1x2xL40S_upstream-llm-d-0.4.0-mempress_Qwen3-0.6B_llm-d-valkey_replica1_rate100
Date: Thu 26 Mar 2026 20:37:22 AEDT
Rate (Concurrency): 100
Max Seconds: 120
Prefix Tokens: 10000
vLLM Extra Args: {transfer("OffloadingConnector", '"num_cpu_blocks":10000')}
vLLM Env Vars: HOME=/tmp LMCACHE_MAX_LOCAL_CPU_SIZE=29.0 PYTHONHASHSEED=123 HF_TOKEN=hf_abc
EPP Backend: valkey

a line that says nothing
"""


def test_reads_lines_arguments_and_environment_and_leaves_secrets_out() -> None:
    settings = parse_settings(TEXT)
    assert settings.values["Date"] == "Thu 26 Mar 2026 20:37:22 AEDT"
    assert (
        settings.number("Max Seconds"),
        settings.number("Date"),
        settings.number("None"),
    ) == (120, None, None)
    assert settings.args[0] == "--kv-transfer-config"
    assert settings.env == {
        **{
            "HOME": "/tmp",
            "LMCACHE_MAX_LOCAL_CPU_SIZE": "29.0",
            "PYTHONHASHSEED": "123",
        },
        "HF_TOKEN": "(left out)",
    }
    assert "hf_abc" not in str(settings)
    (unreadable,) = settings.unreadable
    assert str(unreadable) == "benchmark-config.txt, line 10: no `key: value`"


def test_what_cannot_be_split_is_said() -> None:
    settings = parse_settings("vLLM Extra Args: --a 'b\n")
    assert settings.args is None
    (unreadable,) = settings.unreadable
    assert (unreadable.code, unreadable.facts["key"]) == ("no_words", "vLLM Extra Args")
    assert "cannot be split" in str(unreadable)


@pytest.mark.parametrize(
    ("key", "value", "args"),
    [
        ("vLLM Extra Args", "--a b", ("--a", "b")),
        ("VLLM Additional Args", "--a b", ("--a", "b")),
        ("vLLM Extra Args", "", ()),
        ("Num CPU Blocks", "20000", None),
    ],
)
def test_the_arguments_are_those_of_their_line_and_unknown_without_one(
    key: str, value: str, args: tuple[str, ...] | None
) -> None:
    assert parse_settings(f"Model: m\n{key}: {value}\n").args == args


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("", ()),
        (transfer("LMCacheConnectorV1"), ("LMCacheConnectorV1",)),
        (
            "--kv-offloading-backend native --kv-offloading-size 26",
            ("OffloadingConnector",),
        ),
        (
            transfer(
                "MultiConnector",
                '"connectors":[{"kv_connector":"OffloadingConnector"},{"kv_connector":"Fs"}]',
            ),
            ("OffloadingConnector", "Fs"),
        ),
        ("--kv-transfer-config broken", ()),
        ("--kv-transfer-config '[1]'", ()),
    ],
)
def test_connectors(args: str, expected: tuple[str, ...]) -> None:
    assert connectors(parse_settings(f"vLLM Extra Args: {args}\n")) == expected


# Qwen3-14B: 163,840 bytes a token, 2,621,440 a block of 16.
@pytest.mark.parametrize(
    ("args", "env", "blocks", "said_by"),
    [
        (
            transfer("OffloadingConnector", '"num_cpu_blocks":10000'),
            "",
            10_000,
            "num_cpu_blocks 10000 of 16 tokens",
        ),
        (
            transfer("OffloadingConnector", '"num_cpu_blocks":5000')
            + " --block-size 64",
            *("", 20_000, "num_cpu_blocks 5000 of 64 tokens"),
        ),
        (
            transfer("OffloadingConnector", '"cpu_bytes_to_use":52428800000'),
            *("", 20_000, "cpu_bytes_to_use 52428800000"),
        ),
        (
            "--kv-offloading-size 24.4140625",
            "",
            10_000,
            "--kv-offloading-size 24.4140625 GiB",
        ),
        (
            "--kv-offloading-size=24.4140625",
            "",
            10_000,
            "--kv-offloading-size 24.4140625 GiB",
        ),
        (
            transfer("LMCacheConnectorV1"),
            *(
                "LMCACHE_MAX_LOCAL_CPU_SIZE=29.0",
                23_756,
                "LMCACHE_MAX_LOCAL_CPU_SIZE 29 GiB x 2 ranks",
            ),
        ),
        (
            transfer("LMCacheConnectorV1") + " --tensor-parallel-size 4",
            *(
                "LMCACHE_MAX_LOCAL_CPU_SIZE=29.0",
                47_513,
                "LMCACHE_MAX_LOCAL_CPU_SIZE 29 GiB x 4 ranks",
            ),
        ),
        (
            transfer("LMCacheConnectorV1"),
            *(
                "",
                4_096,
                "LMCACHE_MAX_LOCAL_CPU_SIZE 5 GiB x 2 ranks (LMCache's default)",
            ),
        ),
        (
            transfer("LMCacheConnectorV1"),
            "LMCACHE_LOCAL_CPU=False",
            0,
            "LMCACHE_LOCAL_CPU is off",
        ),
        (
            transfer(
                "MultiConnector",
                '"connectors":[{"kv_connector":"Fs"},{"kv_connector":"OffloadingConnector",'
                '"kv_connector_extra_config":{"num_cpu_blocks":7000}}]',
            ),
            *("", 7_000, "num_cpu_blocks 7000 of 16 tokens"),
        ),
        (
            transfer("OffloadingConnector", '"num_cpu_blocks":10000')
            + " --kv-cache-dtype fp8",
            *("", 10_000, "num_cpu_blocks 10000 of 16 tokens"),
        ),
    ],
)
def test_the_tier_that_the_arguments_size(
    catalogue: Catalogue, args: str, env: str, blocks: int, said_by: str
) -> None:
    model = catalogue.models["Qwen3-14B"]
    settings = parse_settings(f"vLLM Extra Args: {args}\nvLLM Env Vars: {env}\n")
    tier = effective_tier(settings, model, ranks(settings, model, 2))
    assert tier is not None
    assert (tier.cpu_blocks, tier.said_by) == (blocks, said_by)
    per_block = (
        BLOCK_TOKENS
        * sizing.kv_bytes_per_token(model.geometry)
        // (2 if "fp8" in args else 1)
    )
    assert abs(tier.size_bytes - blocks * per_block) < per_block


@pytest.mark.parametrize(
    ("args", "gpus", "expected"),
    [
        ("--tensor-parallel-size 4", 1, 4),
        ("", 2, 2),
        # Three GPUs cannot share the heads: other servers have some of them.
        ("", 3, 1),
        ("", None, 1),
    ],
)
def test_the_gpus_of_a_server_are_those_of_its_arguments_or_the_hardware(
    catalogue: Catalogue,
    args: str,
    gpus: int | None,
    expected: int,
) -> None:
    settings = parse_settings(f"vLLM Extra Args: {args}\n")
    assert ranks(settings, catalogue.models["Qwen3-14B"], gpus) == expected


@pytest.mark.parametrize(
    "args",
    ["", transfer("OffloadingConnector"), transfer("Fs"), "--kv-offloading-size many"],
)
def test_arguments_that_size_nothing(catalogue: Catalogue, args: str) -> None:
    model = catalogue.models["Qwen3-14B"]
    assert (
        effective_tier(parse_settings(f"vLLM Extra Args: {args}\n"), model, 2) is None
    )


def test_says_what_looks_like_a_size_and_is_none() -> None:
    ignored = transfer("LMCacheConnectorV1", '"num_cpu_blocks":10000')
    text = f"vLLM Extra Args: {ignored}\n"
    (ignored_blocks,) = ignored_sizes(parse_settings(text))
    assert str(ignored_blocks) == "LMCache ignores num_cpu_blocks (10000)"
    text = f"vLLM Extra Args: {transfer('LMCacheConnectorV1')}\nvLLM Env Vars: LMCACHE_CONFIG_FILE=/etc/lmcache.yaml\n"
    (elsewhere,) = ignored_sizes(parse_settings(text))
    assert "LMCACHE_CONFIG_FILE" in str(elsewhere)
    without_lmcache = "vLLM Env Vars: LMCACHE_CONFIG_FILE=/etc/lmcache.yaml\n"
    assert [*ignored_sizes(parse_settings(without_lmcache))] == []
