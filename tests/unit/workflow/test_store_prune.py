"""Pruning shows what nothing refers to and deletes it on request: never what a campaign or a result refers to."""

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.import_sheets import update
from tests.support.paths import REPOSITORY
from tests.support.result_trees import write_level
from tests.support.stored_runs import CELL, finished, measured, pointed

from kveval.configuration.loading import load_config
from kveval.host.files import write_json
from kveval.store.store import Key, Store
from kveval.workflow.upkeep import prune as store_prune
from kveval.workflow.upkeep.prune import (
    KINDS,
    PruneError,
    Pruning,
    Workflow,
    outcome_text,
    plan_pruning,
    prune,
    workflows,
)
from kveval.workflow.upkeep.references import References, campaign_files, references

WANTED = {"cell": CELL, "engine": "local", "seconds": 60}
POINTED = {"cell": CELL, "engine": "local", "seconds": 61}
OLD = {"cell": CELL, "engine": "local", "seconds": 62}
DAY_S = 86400.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with a run that a campaign wants, one that a result points to, and one of neither."""
    monkeypatch.chdir(tmp_path)
    # What was made here a moment ago is spared; a test's is.
    monkeypatch.setattr(store_prune, "_YOUNG_S", -1.0)
    made = Store(Path("results/measurements"))
    for specification in (WANTED, POINTED, OLD):
        measured(made, specification)
    pointed(Path("results"), place_of(made, POINTED), POINTED)
    return made


def place_of(store: Store, specification: dict[str, object]) -> Path:
    from kveval.configuration.config import measurement_id  # noqa: PLC0415

    return store.root / measurement_id(specification) / "run-1"


@pytest.fixture
def using(store: Store) -> list[Workflow]:
    wanted = References(
        {(place_of(store, WANTED).parent.name, 1): ["a cell of a campaign"]}
    )
    return [Workflow(Path(), wanted)]


def names(pruning: Pruning) -> dict[str, str]:
    return {
        one.entry.place.relative_to("results/measurements").as_posix(): one.kind
        for one in pruning.candidates
    }


def whole(store: Store) -> set[str]:
    return {path.parts[-3] for path in store.root.glob("*/run-*/SHA256SUMS")}


def test_only_what_nothing_refers_to_is_shown_and_nothing_is_deleted(
    store: Store, using: list[Workflow]
) -> None:
    shown = plan_pruning(store, using)
    assert names(shown) == {f"{place_of(store, OLD).parent.name}/run-1": "measurement"}
    text = outcome_text(plan_pruning(store, using), deleted=False)
    assert (
        f"{shown.text()}\n\nNothing was deleted. All of this: kveval prune --delete\n"
        in text
    )
    assert len(whole(store)) == 3


def test_it_is_deleted_on_request_and_the_rest_is_not_touched(
    store: Store, using: list[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_prune.time, "sleep", lambda seconds: None)
    text = outcome_text(prune(store, using), deleted=True)
    assert text.startswith("Deleted:")
    assert whole(store) == {
        place_of(store, WANTED).parent.name,
        place_of(store, POINTED).parent.name,
    }
    assert not (store.root / "pruned").exists()
    assert outcome_text(prune(store, using), deleted=True) == "Nothing to prune."


def test_every_run_of_a_wanted_id_stays_whatever_its_hardware(
    store: Store, using: list[Workflow]
) -> None:
    measured(store, WANTED, host={"fingerprint": "ffff"}, engine="cluster")
    measured(store, WANTED, run=2)
    assert set(names(plan_pruning(store, using)).values()) == {"measurement"}
    assert f"{place_of(store, WANTED).parent.name}/run-2" in names(
        plan_pruning(store, using)
    )
    assert not any("@ffff" in name for name in names(plan_pruning(store, using)))


def test_attempts_that_gave_nothing_are_shown_by_kind_and_deleted_by_kind(
    store: Store, using: list[Workflow]
) -> None:
    key = Key("0123456789abcdef", 2, "aaaa")
    store.keep_failed(finished(store, key), key)
    damaged = store.set_aside(store.commit(finished(store, key), key), "a bit flipped")
    assert damaged is not None
    assert set(names(plan_pruning(store, using)).values()) == {
        "measurement",
        "failed",
        "damaged",
    }
    prune(store, using, ["failed"], grace_s=0)
    assert set(names(plan_pruning(store, using)).values()) == {"measurement", "damaged"}
    assert set(names(plan_pruning(store, using, older_than_days=1)).values()) == set()


def test_age_is_the_runs_own_and_a_clock_that_was_set_makes_nothing_old(
    store: Store, using: list[Workflow]
) -> None:
    sums = place_of(store, OLD) / "SHA256SUMS"
    os.utime(sums, (time.time() - 40 * DAY_S,) * 2)
    (one,) = plan_pruning(store, using, older_than_days=30).candidates
    assert round(one.days) == 40
    os.utime(sums, (time.time() + 40 * DAY_S,) * 2)
    assert plan_pruning(store, using, older_than_days=0.01).candidates == []
    assert [one.days for one in plan_pruning(store, using).candidates] == [0.0]


def test_what_came_a_moment_ago_is_spared(
    store: Store, using: list[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_prune, "_YOUNG_S", 3600.0)
    pruning = prune(store, using, KINDS, grace_s=0)
    assert pruning.candidates == []
    assert [one.code for one in pruning.spared] == ["young"]


def test_another_users_runs_are_spared(
    store: Store, using: list[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    pruning = prune(store, using, KINDS, grace_s=0)
    assert [one.code for one in pruning.spared] == ["not_mine"]
    assert (
        f"kept: {place_of(store, OLD)}: another user's" in pruning.text().splitlines()
    )
    assert place_of(store, OLD).exists()


# Work in progress


def test_a_run_in_progress_and_a_copy_in_progress_are_spared(
    store: Store, using: list[Workflow]
) -> None:
    mine = store.scratch(Key("0123456789abcdef", 2, "aaaa"))
    elsewhere = mine.with_name("0123456789abcdef-run-2-elsewhere-1-1")
    elsewhere.mkdir()
    (place_of(store, OLD) / "SHA256SUMS").unlink()
    shutil.copytree(
        place_of(store, WANTED), store.root / "incoming" / "0123456789abcdef" / "run-1"
    )
    pruning = prune(store, using, KINDS, grace_s=0)
    assert pruning.candidates == []
    assert sorted(one.code for one in pruning.spared) == [
        "arriving",
        "arriving",
        "in_progress",
        "in_progress",
    ]


def test_they_are_shown_once_nothing_happens_any_more(
    store: Store, using: list[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    (store.root / "partial").mkdir(exist_ok=True)
    (store.root / "partial" / "0123456789abcdef-run-2-elsewhere-1-1").mkdir()
    shutil.copytree(
        place_of(store, WANTED), store.root / "incoming" / "0123456789abcdef" / "run-1"
    )
    monkeypatch.setattr(store_prune, "_SILENT_S", -1.0)
    assert set(names(plan_pruning(store, using)).values()) == {
        "measurement",
        "partial",
        "incoming",
    }


def test_it_waits_for_those_who_adopt(
    store: Store, using: list[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kveval.store.lock import StoreInUse, store_lock  # noqa: PLC0415

    monkeypatch.setattr(
        store_prune,
        "store_lock",
        lambda root, exclusive: store_lock(root, exclusive=exclusive, patience_s=0),
    )
    with store.no_deletions(), pytest.raises(StoreInUse):
        prune(store, using, KINDS, grace_s=0)
    assert len(whole(store)) == 3


def test_a_run_that_is_pointed_to_while_it_goes_is_brought_back(
    store: Store, using: list[Workflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job on a host whose file system has no locks adopts between the look and the deletion."""
    place = place_of(store, OLD)
    kept = pointed(Path("elsewhere"), place, OLD).read_text()

    def adopted(seconds: float) -> None:
        assert not place.exists()
        target = Path("results/Qwen3-0.6B/no-offload/0/run-7/measurement.json")
        target.parent.mkdir(parents=True)
        target.write_text(kept)

    monkeypatch.setattr(store_prune.time, "sleep", adopted)
    pruning = prune(store, using, KINDS)
    assert pruning.candidates == []
    assert [one.code for one in pruning.spared] == ["referred_to"]
    assert len(whole(store)) == 3


def test_an_interrupted_prune_is_finished_or_undone_by_the_next(
    store: Store, using: list[Workflow]
) -> None:
    for specification in (OLD, WANTED):
        away = (
            store.root
            / "pruned"
            / place_of(store, specification).relative_to(store.root)
        )
        away.parent.mkdir(parents=True)
        place_of(store, specification).rename(away)
    assert set(names(plan_pruning(store, using)).values()) == {"pruned"}
    pruning = prune(store, using, KINDS, grace_s=0)
    assert [one.code for one in pruning.spared] == ["referred_to"]
    assert whole(store) == {
        place_of(store, WANTED).parent.name,
        place_of(store, POINTED).parent.name,
    }


# Campaigns


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    """A folder with the repository's configuration and a store that holds a run of each of its cells."""
    folder = tmp_path / "workflow"
    shutil.copytree(REPOSITORY / "config", folder / "config")
    shutil.rmtree(folder / "config" / "campaigns")
    (folder / "config" / "campaigns").mkdir()
    shutil.copy2(
        REPOSITORY / "config" / "campaigns" / "smoke.yaml",
        folder / "config" / "campaigns",
    )
    return folder


def fill(workflow: Path, campaign: Path) -> int:
    config = load_config(campaign, workflow / "config")
    store = Store(workflow / "results" / "measurements")
    for cell in config.cells:
        for run in range(1, config.campaign.runs + 1):
            measured(store, config.specification(cell).to_json(), run)
    return len(config.cells) * config.campaign.runs


def test_campaigns_in_config_and_named_ones_keep_their_runs(
    workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_prune, "_YOUNG_S", -1.0)
    monkeypatch.chdir(workflow)
    smoke = Path("config/campaigns/smoke.yaml")
    assert campaign_files(Path("config")) == [Path("config/config.yaml"), smoke]
    fill(workflow, Path("config/config.yaml"))
    count = fill(workflow, smoke)
    store = Store(Path("results/measurements"))

    def candidates(campaign: Path, also: Sequence[Path] = ()) -> int:
        return len(
            plan_pruning(
                store, workflows(Path(), Path("config"), campaign, also)
            ).candidates
        )

    assert candidates(smoke) == 0
    shutil.move(smoke, "mine.yaml")
    assert candidates(Path("config/config.yaml")) == count
    assert candidates(Path("config/config.yaml"), [Path("mine.yaml")]) == 0


def test_another_copy_of_the_workflow_keeps_what_its_campaigns_and_results_refer_to(
    workflow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_prune, "_YOUNG_S", -1.0)
    other = tmp_path / "other"
    shutil.copytree(workflow, other)
    count = fill(workflow, other / "config" / "campaigns" / "smoke.yaml")
    extra = measured(Store(workflow / "results" / "measurements"), OLD)
    (workflow / "config" / "campaigns" / "smoke.yaml").unlink()
    (other / "results").mkdir()
    (other / "results" / "measurements").symlink_to(
        workflow / "results" / "measurements"
    )
    write_json(
        other / "results/a/b/0/run-1/measurement.json",
        {
            "measurement": extra.parent.name,
            "run": 1,
            "path": f"results/measurements/{extra.parent.name}/run-1",
            "sha256": "0" * 64,
        },
    )
    store = Store(workflow / "results" / "measurements")
    campaign = workflow / "config" / "config.yaml"
    assert (
        len(
            plan_pruning(
                store, workflows(workflow, workflow / "config", campaign)
            ).candidates
        )
        == count + 1
    )
    assert (
        plan_pruning(
            store, workflows(workflow, workflow / "config", campaign, [other])
        ).candidates
        == []
    )


def test_while_a_campaign_cannot_be_read_nothing_is_deleted(workflow: Path) -> None:
    store = Store(workflow / "results" / "measurements")
    measured(store, OLD)
    broken = workflow / "config" / "campaigns" / "broken.yaml"
    broken.write_text("name: [")
    using = workflows(
        workflow, workflow / "config", workflow / "config" / "config.yaml"
    )
    assert [*plan_pruning(store, using).unreadable] == [str(broken)]
    assert str(broken) in plan_pruning(store, using).text()
    with pytest.raises(PruneError) as error:
        prune(store, using)
    assert (error.value.code, error.value.facts["campaigns"]) == (
        "references_unknown",
        [str(broken)],
    )
    assert len(whole(store)) == 1


def test_imports_are_kept_by_the_reports_that_a_sheet_names(
    workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_prune, "_YOUNG_S", -1.0)
    store = Store(workflow / "results" / "measurements")
    tree, sheet = workflow / "tree", workflow / "imports.csv"
    level = write_level(tree, "Qwen3-0.6B", "no-offload", 4, archive=False)
    report = level / "guidellm-results.json.zst"
    other = {"sources": [{"path": "elsewhere.json"}]}
    measured(store, OLD, engine="imported", sources=[{"path": str(report)}])
    measured(store, POINTED, engine="imported", **other)
    update(sheet, tree)
    campaign = {"name": "imports", "import": str(sheet)}
    (workflow / "config" / "campaigns" / "imports.yaml").write_text(
        json.dumps(campaign)
    )
    using = workflows(
        workflow, workflow / "config", workflow / "config" / "config.yaml"
    )
    (one,) = plan_pruning(store, using).candidates
    assert (one.kind, one.entry.facts["sources"]) == ("import", other["sources"])


def test_a_path_that_is_no_campaign_and_no_workflow_is_refused(workflow: Path) -> None:
    with pytest.raises(PruneError) as error:
        workflows(
            workflow,
            workflow / "config",
            workflow / "config" / "config.yaml",
            [Path("nowhere")],
        )
    assert (error.value.code, error.value.facts) == (
        "unknown_path",
        {"path": Path("nowhere")},
    )


def test_references_name_cells_and_campaigns(workflow: Path) -> None:
    found = references([workflow / "config" / "config.yaml"], workflow / "config")
    assert found.unreadable == {}
    assert all(" of " in text for texts in found.runs.values() for text in texts)
    assert found.roots(Path()) == [Path("results")]


def test_a_campaign_that_searches_its_levels_keeps_every_run_of_its_cells(
    workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their ids hold levels that a pilot has found, and the pilot's own levels."""
    monkeypatch.setattr(store_prune, "_YOUNG_S", -1.0)
    store = Store(workflow / "results" / "measurements")
    measured(store, OLD)
    measured(store, {**OLD, "cell": {**CELL, "model": "Qwen3-8B"}})
    using = workflows(
        workflow, workflow / "config", workflow / "config" / "config.yaml"
    )
    assert len(plan_pruning(store, using).candidates) == 2
    shutil.copy2(
        REPOSITORY / "config" / "campaigns" / "laptop-peak-search.yaml",
        workflow / "config" / "campaigns",
    )
    using = workflows(
        workflow, workflow / "config", workflow / "config" / "config.yaml"
    )
    assert using[0].references.unreadable == {}
    (one,) = plan_pruning(store, using).candidates
    assert one.label == "Qwen3-8B/no-offload/0 run 1"
