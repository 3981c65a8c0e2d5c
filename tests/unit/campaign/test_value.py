"""Limits and prices of a campaign: which mistakes are caught, and that neither defines a measurement."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.config_files import CONFIG, changed, load
from tests.support.import_sheets import update
from tests.support.result_trees import write_level

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config


@pytest.mark.parametrize(
    ("key", "value", "place", "code"),
    [
        ("goodput", {"ttft": 500}, "goodput.ttft", "unknown_key"),
        ("goodput", {"ttft_ms": 0}, "goodput.ttft_ms", "greater_than"),
        ("goodput", {"itl_ms": -1.5}, "goodput.itl_ms", "greater_than"),
        ("goodput", {"e2e_ms": "1 s"}, "goodput.e2e_ms", "float_type"),
        ("goodput", {"ttft_ms": 500, "of": "users"}, "goodput.of", "unknown_name"),
        ("goodput", {"of": "sessions"}, "goodput", "no_limit"),
        ("goodput", {}, "goodput", "no_limit"),
        ("goodput", 500, "goodput", "model_type"),
        ("prices", {"gpu_hours_usd": 2.5}, "prices.gpu_hours_usd", "unknown_key"),
        ("prices", {"host_hour_usd": 0}, "prices.host_hour_usd", "greater_than"),
        ("prices", {"host_gib_hour_usd": 0.01}, "prices", "no_price"),
        ("comparison", {"primary": "goodput_per_s"}, "", "no_limits_for_primary"),
        # The default campaign's server runs on the CPU.
        ("prices", {"gpu_hour_usd": 2.5}, "", "no_gpu_to_price"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, key: str, value: Any, place: str, code: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, changed(("config", key), value))
    assert [(problem.key, problem.code) for problem in caught.value.problems] == [
        (place, code)
    ]


def test_tpot_and_itl_may_both_be_limited(tmp_path: Path) -> None:
    found = load(
        tmp_path, changed(("config", "goodput"), {"tpot_ms": 60, "itl_ms": 50.5})
    )
    assert found.campaign.goodput is not None
    assert found.campaign.goodput.declared == {
        "tpot_ms": 60,
        "itl_ms": 50.5,
        "of": "requests",
    }


def test_neither_defines_a_measurement(tmp_path: Path) -> None:
    plain = load(tmp_path / "plain", changed(("config", "title"), "T"))
    files = changed(("config", "goodput"), {"ttft_ms": 500})
    files = changed(
        ("config", "prices"), {"host_hour_usd": 0.4, "host_gib_hour_usd": 0.004}, files
    )
    valued = load(tmp_path / "valued", files)
    assert valued.campaign.prices is not None
    assert {cell: valued.measurement_id(cell) for cell in valued.cells} == {
        cell: plain.measurement_id(cell) for cell in plain.cells
    }


def test_imported_results_are_held_against_limits_as_well(tmp_path: Path) -> None:
    write_level(tmp_path / "tree", "Qwen3-0.6B", "no-offload", 4, archive=False)
    sheet = tmp_path / "imports.csv"
    update(sheet, tmp_path / "tree")
    raw = {
        "name": "old",
        "import": str(sheet),
        "goodput": {"ttft_ms": 500},
        "prices": {"gpu_hour_usd": 2.5},
    }
    campaign = load_config(raw, CONFIG).campaign
    assert (campaign.goodput is not None, campaign.prices is not None) == (True, True)
