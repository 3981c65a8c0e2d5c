"""A campaign about servers that answer already: what its file says, and what its measurements are known by."""

import pytest
from tests.support.config_files import RAW, changed, load

from kveval.campaign.problems import ConfigError

URL = "http://127.0.0.1:8000"
SERVERS = {
    "no-offload": {"url": URL},
    "native-offload": {"url": "http://127.0.0.1:8001/v1/"},
}


def campaign(existing, **more):
    files = changed(("config", "engine"), "existing")
    files["config"] |= {"existing": existing, **more}
    return files


def arms_of(files):
    return {arm for entry in files["config"]["matrix"] for arm in entry["scenarios"]}


def codes(folder, files):
    with pytest.raises(ConfigError) as error:
        load(folder, files)
    return {problem.code for problem in error.value.problems}


def test_the_default_campaign_has_the_arms_that_are_tested_here():
    assert arms_of(RAW) == SERVERS.keys()


def test_an_id_knows_the_address_and_neither_key_nor_switch(tmp_path):
    plain = load(tmp_path / "1", campaign(SERVERS))
    private = {
        arm: {**server, "key": "OUR_KEY", "switch": "true", "switch_limit_s": 5}
        for arm, server in SERVERS.items()
    }
    same = load(tmp_path / "2", campaign(private))
    moved = {**SERVERS, "no-offload": {"url": "http://127.0.0.1:9000"}}
    other = load(tmp_path / "3", campaign(moved))
    started = load(tmp_path / "4", RAW)
    for cell in plain.cells:
        key = plain.measurement_id(cell)
        assert same.measurement_id(cell) == key != started.measurement_id(cell)
        changes = cell.scenario == "no-offload"
        assert (other.measurement_id(cell) != key) is changes
        assert URL not in str(plain.specification(cell).to_json())
    assert same.campaign.keys == ["OUR_KEY"]
    assert plain.campaign.existing["native-offload"].url == "http://127.0.0.1:8001"


def test_requests_name_the_model_as_its_server_does(tmp_path):
    named = {**SERVERS, "no-offload": {"url": URL, "served_model": "prod/qwen"}}
    config = load(tmp_path, campaign(named))
    names = {
        cell.scenario: config.specification(cell).model.served_name
        for cell in config.cells
    }
    assert names["no-offload"] == "prod/qwen" != names["native-offload"]


@pytest.mark.parametrize(
    ("existing", "more", "code"),
    [
        ({"no-offload": {"url": URL}}, {}, "no_server"),
        ({arm: {"url": URL} for arm in SERVERS}, {}, "no_switch"),
        ({**SERVERS, "no-offload": {"url": "localhost:8000"}}, {}, "no_address"),
        (SERVERS, {"reset_caches": "restart"}, "never_restarted"),
        (SERVERS, {"engine": "local"}, "existing_alone"),
    ],
)
def test_what_cannot_be_measured_is_told_at_once(tmp_path, existing, more, code):
    assert code in codes(tmp_path, campaign(existing, **more))


def test_one_server_is_two_arms_where_the_requests_of_one_load_nothing(tmp_path):
    one = {arm: {"url": URL} for arm in SERVERS}
    one["no-offload"] = {"url": URL, "load_from_tier": False}
    config, plain = (
        load(tmp_path / "1", campaign(one)),
        load(tmp_path / "2", campaign(SERVERS)),
    )
    for cell in config.cells:
        off = cell.scenario == "no-offload"
        specification = config.specification(cell)
        assert specification.load_from_tier is not off
        assert ("load_from_tier" in specification.to_json()) is off
        if off:
            assert config.measurement_id(cell) != plain.measurement_id(cell)


@pytest.mark.parametrize(
    ("arm", "version", "code"),
    [
        ("no-offload", "0.31.0", "loading_not_switched"),
        ("native-offload", "0.32.0", "loading_off_with_tier"),
    ],
)
def test_where_loading_cannot_be_switched_off_is_told_at_once(
    tmp_path, arm, version, code
):
    servers = {**SERVERS, arm: {**SERVERS[arm], "load_from_tier": False}}
    server = RAW["config"]["server"] | {"vllm": version}
    assert codes(tmp_path, campaign(servers, server=server)) == {code}


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ({"most_streams": 1}, "above_most_streams"),
        ({"most_streams": 1000, "most_requests_per_minute": 0.5}, ""),
    ],
)
def test_levels_that_a_server_may_not_get_are_refused(tmp_path, limit, code):
    """The requests a minute of closed loops are known only when they have run."""
    servers = {**SERVERS, "no-offload": {"url": URL, **limit}}
    files = campaign(servers)
    assert codes(tmp_path, files) == {code} if code else load(tmp_path, files).cells


def test_rates_that_a_server_may_not_get_are_refused(tmp_path):
    servers = {**SERVERS, "no-offload": {"url": URL, "most_requests_per_minute": 59.0}}
    rates = {**RAW["workloads"]["laptop"], "profile": "constant", "levels": [30, 60]}
    files = campaign(servers, workload="rates", workloads={"rates": rates})
    assert codes(tmp_path, files) == {"above_most_requests"}
    servers["no-offload"]["most_requests_per_minute"] = 60.0
    files = campaign(servers, workload="rates", workloads={"rates": rates})
    assert load(tmp_path, files).cells


def test_a_replica_counts_once(tmp_path):
    twice = {**SERVERS, "no-offload": {"url": URL, "metrics": [URL, f"{URL}/v1"]}}
    assert "metrics_twice" in codes(tmp_path, campaign(twice))


def test_a_build_that_nothing_would_start_is_refused(tmp_path):
    files = campaign(SERVERS)
    files["scenarios"]["native-offload"]["server"] = {"vllm": "0.31.0"}
    assert codes(tmp_path, files) == {"existing_build"}


def test_what_is_to_be_restored_needs_a_switch(tmp_path):
    assert "nothing_to_restore" in codes(tmp_path, campaign(SERVERS, restore="true"))


def test_arms_behind_one_address_need_a_command_that_switches(tmp_path):
    switched = {
        arm: {"url": URL, "switch": f"systemctl restart {arm}"} for arm in SERVERS
    }
    assert load(tmp_path, campaign(switched)).cells


LMCACHE = {"url": "http://127.0.0.1:8002", "lmcache": "http://127.0.0.1:8081"}


def with_arm(arm, server):
    """A campaign with a further arm, of 10,000 blocks."""
    matrix = [*RAW["config"]["matrix"]]
    matrix.append({"models": ["Qwen3-0.6B"], "scenarios": [arm], "cpu_blocks": [10000]})
    return campaign({**SERVERS, arm: server}, matrix=matrix)


@pytest.mark.parametrize(
    ("arm", "server", "code"),
    [
        ("lmcache-redis", LMCACHE, "existing_sidecars"),
        ("lmcache-local", {"url": LMCACHE["url"]}, "no_lmcache_address"),
        (
            "lmcache-local",
            {**LMCACHE, "metrics": ["http://a", "http://b"]},
            "one_lmcache",
        ),
        ("verbatim-offload", LMCACHE, "no_lmcache"),
    ],
)
def test_servers_beside_an_arms_own_are_lmcaches_at_an_address(
    tmp_path, arm, server, code
):
    files = with_arm(arm, server)
    files["scenarios"]["verbatim-offload"] = files["scenarios"]["native-offload"]
    assert codes(tmp_path, files) == {code}


def test_the_address_of_lmcache_defines_no_measurement(tmp_path):
    one, other = (
        load(
            tmp_path / str(port),
            with_arm(
                "lmcache-local", {**LMCACHE, "lmcache": f"http://127.0.0.1:{port}"}
            ),
        )
        for port in (8081, 8082)
    )
    [cell] = [cell for cell in one.cells if cell.scenario == "lmcache-local"]
    assert one.measurement_id(cell) == other.measurement_id(cell)
