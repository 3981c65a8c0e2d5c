import dataclasses
import json
from pathlib import Path

import pytest
from tests.support.config_files import CONFIG
from tests.support.report_text import Table, part_of, result_of, tables_in, text_of
from tests.support.synthetic import run_description
from tests.unit.report import test_report as small

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.load import guidellm as load
from kveval.load.workload import workload_of
from kveval.tables.levels.pilot import (
    Pilot,
    PilotError,
    freeze,
    frozen_levels,
    read_pilot,
)

SETTINGS = {
    "start": 1,
    "stop": 64,
    "resolution": 0.1,
    "budget": 7,
    "keep": 3,
    "noise": 0.02,
    "seconds": None,
}
WORKLOAD = {"profile": "concurrent", "levels": {"search": SETTINGS}, "seed": 889}
CURVE = {1: 100.0, 4: 300.0, 16: 400.0, 64: 350.0, 10: 420.0, 7: 380.0}
CAMPAIGN = CONFIG / "campaigns" / "laptop-peak-search.yaml"


def described(levels: dict[int, float], workload: object = None) -> dict[str, object]:
    description = run_description("Qwen3-0.6B", "no-offload", 0, 1)
    description["specification"] = {"workload": workload or WORKLOAD}
    description["levels"] = [
        {"level": level, "throughput_tok_s": value} for level, value in levels.items()
    ]
    return description


def pointer(folder: Path, description: object) -> Path:
    entry = folder / "entry"
    entry.mkdir()
    (entry / "run.json").write_text(json.dumps(description))
    (folder / "measurement.json").write_text(json.dumps({"path": str(entry)}))
    return folder / "measurement.json"


def test_a_pilot_freezes_its_peak_and_what_is_beside_it(tmp_path):
    freeze(pointer(tmp_path, described(CURVE)), tmp_path / "levels.json")
    pilot = read_pilot(tmp_path / "levels.json")
    assert (pilot.peak, pilot.below, pilot.above) == (10, 7, 16)
    assert frozen_levels(tmp_path / "levels.json") == (7, 10, 16)
    assert list(pilot.tried) == list(CURVE.items())


def pilot_tables(*pilots: Pilot) -> list[Table]:
    """The tables of a report's configuration that show what pilots tried."""
    measured = dataclasses.replace(small.measured(), pilots=pilots)
    text = text_of(result_of(small.plan(), measured))
    tables = tables_in(part_of(text, "Configuration"))
    return [table for table in tables if table.header[0] == "pilot"]


def test_the_report_shows_every_level_that_was_tried_in_its_order(tmp_path):
    freeze(pointer(tmp_path, described(CURVE)), tmp_path / "levels.json")
    (table,) = pilot_tables(read_pilot(tmp_path / "levels.json"))
    assert [row[2:6] for row in table.rows] == [
        ["1", "100", "", "no"],
        ["4", "300", "", "no"],
        ["16", "400", "next above it", "yes"],
        ["64", "350", "", "no"],
        ["10", "420", "the peak", "yes"],
        ["7", "380", "next below it", "yes"],
    ]
    assert pilot_tables() == []


def test_a_peak_at_the_last_level_is_said_not_to_be_bracketed(tmp_path):
    freeze(
        pointer(tmp_path, described({1: 1.0, 4: 4.0, 16: 16.0, 64: 60.0})),
        tmp_path / "levels.json",
    )
    pilot = read_pilot(tmp_path / "levels.json")
    assert (pilot.peak, pilot.above) == (64, None)
    (table,) = pilot_tables(pilot)
    assert table.column("is")[-1].endswith("not bracketed")
    assert table.column("concurrent requests")[-1] == "64"


def test_a_measurement_of_given_levels_is_no_pilot(tmp_path):
    with pytest.raises(PilotError) as error:
        freeze(
            pointer(tmp_path, described(CURVE, {**WORKLOAD, "levels": [1, 4]})),
            tmp_path / "levels.json",
        )
    assert error.value.code == "no_search"


def test_a_damaged_file_of_levels_is_named(tmp_path):
    (tmp_path / "levels.json").write_text('{"tried": [[1, 2')
    with pytest.raises(PilotError, match=r"levels\.json") as error:
        frozen_levels(tmp_path / "levels.json")
    assert error.value.code == "damaged_levels"


def test_a_file_that_is_not_there_yet_is_no_error_of_ours(tmp_path):
    with pytest.raises(FileNotFoundError):
        frozen_levels(tmp_path / "levels.json")


def test_the_levels_of_a_search_come_one_by_one_with_seeds_of_their_own():
    delivered: dict[int, float] = {}
    seeds = []
    while (level := load.next_level(workload_of(WORKLOAD), 1, delivered)) is not None:
        seeds.append(level.seed)
        delivered[level.streams] = CURVE.get(level.streams, 10.0)
    assert len(seeds) == len(set(seeds)) == len(delivered) == 7
    assert load.levels_of(workload_of(WORKLOAD), 1) == []


def test_given_levels_come_in_their_order_whatever_they_deliver():
    workload = workload_of({"levels": [8, 1, 4], "seed": 1})
    delivered: dict[int, float] = {}
    while (level := load.next_level(workload, 2, delivered)) is not None:
        assert level == load.levels_of(workload, 2)[len(delivered)]
        delivered[level.streams] = 0.0
    assert list(delivered) == [8, 1, 4]


def test_a_search_is_known_by_its_ends_and_by_the_most_it_tries():
    workload = workload_of(WORKLOAD)
    assert workload.given_levels == (1, 64)
    assert workload.level_count == 7
    assert workload.searched is not None
    assert workload.searched.stop == 64
    assert workload_of({"levels": [1, 2]}).searched is None


@pytest.fixture(scope="module")
def campaign():
    return load_config(CAMPAIGN, CONFIG)


def test_every_cell_waits_for_the_pilot_of_its_baseline(campaign):
    baseline, native = campaign.cells
    assert campaign.pilot(baseline) == campaign.pilot(native) == baseline


def test_frozen_levels_define_the_same_measurement_as_given_ones(campaign):
    cell = campaign.cells[1]
    frozen = campaign.specification(cell, (3, 5, 9))
    assert frozen.workload.levels == (3, 5, 9)
    assert campaign.measurement_id(cell, (3, 5, 9)) != campaign.measurement_id(
        cell, (3, 5, 10)
    )
    assert "search" not in json.dumps(frozen.to_json())


def test_the_pilot_has_prompts_and_a_length_of_its_own(campaign):
    pilot, cell = (
        campaign.pilot_specification(campaign.cells[0]),
        campaign.specification(campaign.cells[0]),
    )
    assert pilot.workload.seconds == 20
    assert cell.workload.seconds == 24
    given = workload_of({"levels": [*range(1, 99)], "seed": 889})
    seeds = {level.seed for run in range(1, 9) for level in load.levels_of(given, run)}
    assert load.next_level(pilot.workload, 1, {}).seed not in seeds


def test_campaigns_with_given_levels_have_no_pilot():
    config = load_config(CONFIG / "config.yaml", CONFIG)
    assert config.pilot(config.cells[0]) is None
    assert config.specification(config.cells[0], (1, 2)) == config.specification(
        config.cells[0]
    )


@pytest.mark.parametrize(
    ("search", "key", "word"),
    [
        ({"from": 50, "to": 1}, "search", " 50 to 1"),
        ({"from": 1, "to": 50, "resolution": "ten"}, "search.resolution", "'ten'"),
        ({"from": 1, "to": 50, "budget": 2}, "search", "budget"),
        ({"from": 1, "to": 50, "resolution": 0.0}, "search", "resolution"),
        ({"from": 1, "to": 50, "noise": 1.0}, "search", "below 1"),
        ({"from": 10, "to": 10}, "search", "from 10 to 10"),
        ({"from": 1, "until": 50}, "search.until", "unknown"),
    ],
)
def test_mistakes_in_a_search_are_named(tmp_path, search, key, word):
    text = CAMPAIGN.read_text()
    old = next(line for line in text.splitlines() if "search:" in line)
    (tmp_path / "campaign.yaml").write_text(
        text.replace(old, f"      search: {json.dumps(search)}")
    )
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "campaign.yaml", CONFIG)
    found = {problem.key: problem.message for problem in error.value.problems}
    assert word in found[f"workloads.laptop-searched.levels.{key}"]


def test_a_search_is_for_closed_loops(tmp_path):
    text = (
        CAMPAIGN.read_text()
        .replace("profile: concurrent", "profile: poisson")
        .replace("turns: 2", "turns: 1")
    )
    (tmp_path / "campaign.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "campaign.yaml", CONFIG)
    (problem,) = error.value.problems
    assert problem.key == "workloads.laptop-searched"
    assert "not poisson" in problem.message
