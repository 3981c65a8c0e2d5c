"""Names of results: by a grammar, never by parts of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.plugins.imports.forms import (
    Declared,
    NamedHardware,
    parse_fields,
    parse_folder,
    parse_hardware,
    parse_october,
)

MODELS = {"Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B", "Qwen3-32B-AWQ"}
ARMS = {
    "no-offload",
    "native-offload",
    "lmcache-local",
    "lmcache-redis",
    "llm-d-valkey",
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "1x2xL40S_upstream-llm-d-0.4.0_Qwen3-14B_lmcache-local-20kcpu_replica1_rate50",
            Declared(
                "lmcache-local",
                20_000,
                False,
                "1x2xL40S",
                "upstream-llm-d-0.4.0",
                "Qwen3-14B",
                1,
                50,
            ),
        ),
        (
            "1x2xL40S_upstream-llm-d-0.4.0-mempress_Qwen3-0.6B_llm-d-valkey_replica1_rate100",
            Declared(
                "llm-d-valkey",
                None,
                True,
                "1x2xL40S",
                "upstream-llm-d-0.4.0",
                "Qwen3-0.6B",
                1,
                100,
            ),
        ),
        (
            "2x8xH200_llm-d-0.5.1_Qwen3-32B-AWQ_native-offload-10k_replica4_rate650",
            Declared(
                "native-offload",
                10_000,
                False,
                "2x8xH200",
                "llm-d-0.5.1",
                "Qwen3-32B-AWQ",
                4,
                650,
            ),
        ),
        (
            "1x2xL40S_a_b_cpu+fs-offload-20k_replica1_rate1",
            Declared("cpu+fs-offload", 20_000, False, "1x2xL40S", "a", "b", 1, 1),
        ),
    ],
)
def test_a_folder_declares_its_fields(name: str, expected: Declared) -> None:
    assert parse_folder(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "results",
        "1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1",
        "1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1_rate",
        "1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1_rate050",
        "1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1_rate50_old",
        "old_1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1_rate50",
        "L40S_llm-d_Qwen3-8B_no-offload_replica1_rate50",
        "1x2xL40S_llm_d_Qwen3-8B_no-offload_replica1_rate50",
        "1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1_rate50\n",
    ],
)
def test_a_name_of_another_form_is_refused_whole(name: str) -> None:
    assert parse_folder(name) is None


WORDS = st.sampled_from(
    [
        "llm-d",
        "upstream-llm-d-0.4.0",
        "Qwen3-32B-AWQ",
        "a",
        "k10",
        "cpu+fs-offload",
        "v1.2",
    ]
)


@given(
    *(st.integers(1, 999) for _ in range(4)),
    WORDS,
    WORDS,
    WORDS,
    st.sampled_from(["", "-10k", "-20k", "-20kcpu"]),
    st.booleans(),
)
def test_every_field_of_a_name_comes_back(
    nodes: int,
    gpus: int,
    replicas: int,
    rate: int,
    software: str,
    model: str,
    arm: str,
    size: str,
    mempress: bool,
) -> None:
    pressure = "-mempress" if mempress else ""
    name = f"{nodes}x{gpus}xL4_{software}{pressure}_{model}_{arm}{size}_replica{replicas}_rate{rate}"
    blocks = {"": None, "-10k": 10_000, "-20k": 20_000, "-20kcpu": 20_000}[size]
    assert parse_folder(name) == Declared(
        arm, blocks, mempress, f"{nodes}x{gpus}xL4", software, model, replicas, rate
    )


@given(st.integers(1, 99), st.integers(0, 9))
def test_a_rate_is_the_whole_number(rate: int, digit: int) -> None:
    name = "1x2xL40S_llm-d_Qwen3-8B_no-offload_replica1_rate"
    assert (parse_folder(f"{name}{rate}") or Declared()).rate == rate
    longer = parse_folder(f"{name}{rate}{digit}") or Declared()
    assert longer.rate == 10 * rate + digit


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no-offload", Declared("no-offload")),
        ("lmcache-local-20kcpu", Declared("lmcache-local", 20_000)),
        (
            "Qwen3-8B_native-offload_rate50",
            Declared("native-offload", model="Qwen3-8B", rate=50),
        ),
        (
            "1x2xL4_vllm-0.11-mempress_Qwen3-32B-AWQ_lmcache-redis_replica2_rate500",
            Declared(
                "lmcache-redis",
                None,
                True,
                "1x2xL4",
                "vllm-0.11",
                "Qwen3-32B-AWQ",
                2,
                500,
            ),
        ),
    ],
)
def test_names_of_dated_reports_give_some_of_the_fields(
    name: str, expected: Declared
) -> None:
    assert parse_fields(name, MODELS, ARMS) == expected


@pytest.mark.parametrize(
    "name",
    ["", "offload", "no-offload-now", "Qwen3-8B", "Qwen4-8B_no-offload", "rate50"],
)
def test_names_of_dated_reports_without_a_known_arm_are_refused(name: str) -> None:
    assert parse_fields(name, MODELS, ARMS) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("oct2025-Qwen3-0.6B-offload", Declared("offload", model="Qwen3-0.6B")),
        ("oct2025-Qwen3-32B-AWQ-default", Declared("default", model="Qwen3-32B-AWQ")),
        ("oct2025-Qwen3-0.6B-other", None),
        ("xoct2025-Qwen3-0.6B-offload", None),
    ],
)
def test_a_name_of_october_2025_is_known_as_a_whole(
    name: str, expected: Declared | None
) -> None:
    assert parse_october(name) == expected


def test_hardware_is_nodes_gpus_and_a_gpu() -> None:
    assert parse_hardware("2x8xH100") == NamedHardware(2, 8, "H100")
    assert parse_hardware("my-laptop") is None
