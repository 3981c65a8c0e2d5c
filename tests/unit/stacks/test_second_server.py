"""A server that is one file and one entry is all that the configuration asks for."""

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_files import LMCACHE, NATIVE, RAW, load
from tests.support.other_server.adapter import Toy

from kveval.campaign.problems import ConfigError
from kveval.configuration.config import Config
from kveval.stacks.registry import SERVERS, names_on_wire, server_of

SERVER = {"program": "toy", "version": "1.5", "build": "toy-cpu"}


def with_toy(folder: Path, **server: Any) -> Config:
    """Return the shipped campaign, of the other server."""
    files = copy.deepcopy(RAW)
    given = files["config"]["server"] | SERVER | server
    files["config"]["server"] = {
        key: value for key, value in given.items() if key not in ("vllm", "env")
    }
    files["config"]["matrix"] = [
        {
            "models": [NATIVE.model],
            "scenarios": [NATIVE.scenario],
            "cpu_blocks": [NATIVE.cpu_blocks],
        }
    ]
    config: Config = load(folder, files)
    return config


def test_a_server_that_is_one_class_resolves_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVERS, "toy", Toy())
    config = with_toy(tmp_path)
    specification = config.specification(NATIVE)
    assert specification.versions["toy"] == "1.5"
    assert "vllm" not in specification.versions
    tier = str(specification.budget.tier_bytes)
    assert specification.argv[-4:] == ("--listen", "{port}", "--tier-bytes", tier)
    assert specification.env["TOY_CACHE_TOKENS"]
    assert server_of(specification.versions).title == "Toy"
    proof = [entry["counter"] for entry in config.required_counters(NATIVE)]
    by_label = 'toy_moved_bytes_total{way="in"}'
    assert proof == ["toy_tier_found_tokens_total", by_label]
    assert "toy_fetched_bytes_total" in names_on_wire("offload_load_bytes")


def test_an_arm_that_a_server_lacks_names_those_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVERS, "toy", Toy())
    with pytest.raises(ConfigError) as error:
        with_toy(tmp_path).specification(LMCACHE)
    expected = "Toy has no arguments for arm lmcache; it has none, native"
    assert expected in str(error.value)


def test_an_unknown_server_is_answered_with_those_that_are_known(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as error:
        with_toy(tmp_path)
    (problem,) = error.value.problems
    assert (problem.key, problem.code) == ("server.program", "unknown_name")
    assert "toy" in problem.message
    assert "vllm" in problem.valid
