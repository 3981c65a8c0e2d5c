"""The campaign that is meant by the files and values that snakemake was given."""

import datetime
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from snakemake.utils import update_config
from tests.support.paths import REPOSITORY

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.workflow.campaign_source import (
    campaign_source,
    complete_values,
    overlaid,
    requested_campaign,
    resolved_campaign_file,
    write_resolved_campaign,
)

CAMPAIGNS = REPOSITORY / "config" / "campaigns"
DEFAULT, FILE, EXTENDING = (
    REPOSITORY / "config" / "config.yaml",
    CAMPAIGNS / "feb-2026.yaml",
    CAMPAIGNS / "feb-2026-20k.yaml",
)


def read(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    return values


def test_nothing_given_means_the_default_campaign() -> None:
    assert campaign_source({}, [], DEFAULT) == DEFAULT


@pytest.mark.parametrize("file", [FILE, EXTENDING])
def test_a_file_alone_is_that_file_so_that_mistakes_have_a_place(file: Path) -> None:
    assert campaign_source(read(file), [file], DEFAULT) == file


@pytest.mark.parametrize("file", [FILE, EXTENDING])
def test_values_go_over_those_of_the_file_and_of_what_it_extends(file: Path) -> None:
    found = campaign_source(read(file) | {"runs": 2}, [file], DEFAULT)
    assert found == complete_values(file) | {"runs": 2}


def test_values_alone_go_over_those_of_the_default_campaign() -> None:
    given = {"comparison": {"margin": 0.1}}
    found = campaign_source(given, [], DEFAULT)
    assert isinstance(found, dict)
    assert found == {
        **read(DEFAULT),
        "comparison": {**read(DEFAULT)["comparison"], "margin": 0.1},
    }
    assert given == {"comparison": {"margin": 0.1}}


def test_of_two_files_the_second_goes_over_the_first(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("runs: 7\n")
    assert campaign_source(read(FILE) | {"runs": 7}, [FILE, over], DEFAULT) == read(
        FILE
    ) | {"runs": 7}


def test_another_workflow_gives_a_whole_campaign_of_its_own(tmp_path: Path) -> None:
    """As the module statement does: its own file, which is no campaign, is the one of --configfile."""
    campaign = read(FILE)
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(yaml.safe_dump({"samples": ["a"], "kveval": campaign}))
    assert campaign_source(campaign, [theirs], DEFAULT) == campaign
    assert campaign_source(campaign, [], DEFAULT) == campaign


def test_a_sites_own_file_goes_over_the_cluster_and_changes_no_id(
    tmp_path: Path,
) -> None:
    site = tmp_path / "ours.yaml"
    site.write_text("namespace: ours\ntolerations: [{key: nvidia.com/gpu}]\n")
    found = campaign_source(read(FILE) | {"site": str(site)}, [FILE], DEFAULT)
    assert isinstance(found, dict)
    cluster = complete_values(FILE)["cluster"]
    assert found["cluster"] == {
        **cluster,
        "namespace": "ours",
        "tolerations": [{"key": "nvidia.com/gpu"}],
    }
    assert "site" not in found
    here, there = (
        load_config(FILE, CAMPAIGNS.parent),
        load_config(found, CAMPAIGNS.parent),
    )
    assert [there.measurement_id(cell) for cell in there.cells] == [
        here.measurement_id(cell) for cell in here.cells
    ]


def test_a_site_is_nothing_to_a_campaign_on_this_machine(tmp_path: Path) -> None:
    assert campaign_source({"site": str(tmp_path / "none.yaml")}, [], DEFAULT) == read(
        DEFAULT
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [(None, "no_file"), ("namespaze: ours\n", "unknown_name"), ("[]", "no_mapping")],
)
def test_a_site_file_that_is_wrong_is_named(
    tmp_path: Path, text: str | None, code: str
) -> None:
    site = tmp_path / "ours.yaml"
    if text is not None:
        site.write_text(text)
    with pytest.raises(ConfigError) as error:
        campaign_source(read(FILE) | {"site": str(site)}, [FILE], DEFAULT)
    assert [(problem.file, problem.code) for problem in error.value.problems] == [
        (site.as_posix(), code)
    ]


def test_a_command_means_the_same_campaign_as_snakemake(tmp_path: Path) -> None:
    site = tmp_path / "ours.yaml"
    site.write_text("namespace: ours\n")
    assert requested_campaign(None, DEFAULT) == DEFAULT
    assert requested_campaign(EXTENDING, DEFAULT) == EXTENDING
    margin = {"comparison": {"margin": 0.1}}
    changed = requested_campaign(None, DEFAULT, overrides=margin)
    assert changed == campaign_source(margin, [], DEFAULT)
    both = requested_campaign(FILE, DEFAULT, site=site, overrides={"runs": 2})
    given = read(FILE) | {"runs": 2, "site": str(site)}
    assert both == campaign_source(given, [FILE], DEFAULT)


def test_a_command_without_a_file_that_can_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        requested_campaign(tmp_path / "none.yaml", DEFAULT, overrides={"runs": 2})


@pytest.mark.parametrize("file", [DEFAULT, FILE, EXTENDING])
def test_jobs_read_the_same_campaign_from_its_own_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = complete_values(file)
    written = write_resolved_campaign(values)
    assert written == resolved_campaign_file(values)
    assert written.parts[:2] == ("logs", values["name"])
    here, there = (
        load_config(source, CAMPAIGNS.parent) for source in (values, written)
    )
    assert here.campaign == there.campaign
    assert [there.measurement_id(cell) for cell in there.cells] == [
        here.measurement_id(cell) for cell in here.cells
    ]


def test_values_of_another_workflow_keep_their_folder_and_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that YAML takes for a number, numbers that it takes for text, and dates, which are no text in YAML."""
    monkeypatch.chdir(tmp_path)
    values = {
        "name": "own",
        "title": "1e5",
        "margin": 1e-05,
        "description": "\U0001f600",
    }
    written = read(write_resolved_campaign(values | {"day": datetime.date(2026, 2, 1)}))
    assert written == values | {"results": "results", "day": "2026-02-01"}


def test_another_campaign_has_another_file_which_is_never_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = complete_values(FILE)
    first = write_resolved_campaign(values)
    first.write_text("name: edited\n")
    assert write_resolved_campaign(values) == first
    assert first.read_text() == "name: edited\n"
    assert write_resolved_campaign(values | {"runs": 9}) != first


VALUES = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(
        st.one_of(st.none(), st.integers(), st.lists(st.integers(), max_size=2)),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=6,
    ),
)


@example({"a": 1}, {"a": {}})
@given(VALUES, VALUES)
def test_values_are_merged_as_snakemake_merges_them(
    below: dict[str, Any], above: dict[str, Any]
) -> None:
    """A command reads a campaign as the jobs do, also where snakemake is not installed."""
    expected = deepcopy(below)
    update_config(expected, deepcopy(above))
    assert overlaid(below, above) == expected
