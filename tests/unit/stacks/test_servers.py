"""What serves, by the names that the specification and the analysis have for it."""

import copy
from pathlib import Path
from typing import Any

import pytest
from tests.support.config_files import NATIVE, RAW, load

from kveval.campaign.problems import ConfigError
from kveval.stacks.model_server import TERMS
from kveval.stacks.registry import (
    SERVERS,
    SIDECARS,
    UnknownServer,
    names_on_wire,
    recorded_as,
    server_of,
    server_version,
)
from kveval.stacks.vllm import VLLM

BY_RELEASE = 'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}'


def test_what_serves_is_told_by_the_declared_versions() -> None:
    assert server_of({"guidellm": "0.8.1", "vllm": "0.32.0"}) is VLLM
    assert server_version({"vllm": "0.32.0+cpu"}) == "0.32.0+cpu"
    assert server_version({}, "unknown") == "unknown"
    with pytest.raises(UnknownServer) as error:
        server_of({"guidellm": "0.8.1"})
    assert (error.value.code, error.value.facts) == (
        "unknown_server",
        {"versions": ["guidellm"], "known": ["vllm"]},
    )


def test_servers_count_under_the_terms_that_all_share() -> None:
    for server in SERVERS.values():
        assert server.metrics.keys() <= TERMS.keys()


def test_every_program_has_one_name_and_no_port_of_another() -> None:
    names = [*SERVERS, *SIDECARS]
    assert len(names) == len(set(names))
    for name, sidecar in SIDECARS.items():
        assert (sidecar.name, bool(sidecar.title)) == (name, True)
        assert all(place.startswith(f"{name}_") for place in sidecar.ports)
        assert sidecar.metrics_port in ("", *sidecar.ports)


def test_names_change_with_the_release() -> None:
    assert VLLM.on_wire("offload_load_bytes", "0.15.0") is None
    assert VLLM.on_wire("offload_load_bytes", "0.16.0") == BY_RELEASE
    assert (
        VLLM.on_wire("offload_load_bytes", "0.32.0+cpu")
        == "vllm:kv_offload_load_bytes_total"
    )
    assert list(names_on_wire("offload_load_bytes")) == [
        "vllm:kv_offload_load_bytes_total",
        BY_RELEASE,
    ]
    assert list(names_on_wire("nothing")) == []


def test_a_term_of_the_catalogue_is_read_as_the_server_names_it() -> None:
    both = ["server.requests_running + server.requests_waiting", "kernel.all.load"]
    running, waiting = (
        "openmetrics.vllm.vllm.num_requests_running",
        "openmetrics.vllm.vllm.num_requests_waiting",
    )
    assert list(recorded_as(both, "0.32.0")) == [
        [(running, waiting), ("kernel.all.load",)]
    ]
    # A label's metric is read by an entry of its own, which selects by the label.
    assert list(recorded_as(["server.offload_load_bytes"], "0.16.0")) == []
    # Of a release that is unknown, what was recorded decides.
    assert list(recorded_as(["server.external_prefix_cache_hits"], "0")) == [
        [("openmetrics.vllm.vllm.external_prefix_cache_hits_total",)]
    ]


@pytest.mark.parametrize(
    ("server", "code"),
    [
        ({"program": "toy"}, "version_missing"),
        ({"program": "toy", "version": "1.0"}, "vllm_foreign"),
        ({"version": "1.0"}, "version_foreign"),
        ({"build": "toy-cpu"}, "other_build"),
        (
            {"vllm": None, "program": "toy", "version": "1.0", "build": "toy-cpu"},
            "unknown_name",
        ),
        ({"vllm": None}, "vllm_missing"),
    ],
)
def test_mistakes_in_naming_the_server_are_told(
    server: dict[str, Any], code: str, tmp_path: Path
) -> None:
    files = copy.deepcopy(RAW)
    given = files["config"]["server"] | server
    files["config"]["server"] = {
        key: value for key, value in given.items() if value is not None
    }
    with pytest.raises(ConfigError) as error:
        load(tmp_path, files)
    assert code in [problem.code for problem in error.value.problems]


def test_the_proof_of_an_arm_goes_by_the_names_of_its_server(tmp_path: Path) -> None:
    proof = load(tmp_path, RAW).required_counters(NATIVE)
    assert [entry["counter"] for entry in proof] == [
        "vllm:external_prefix_cache_hits_total",
        "vllm:kv_offload_load_bytes_total",
    ]
