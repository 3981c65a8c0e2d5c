"""A trial of one cell: what it sends, and what it tells of pods; the whole runs in test_cluster_nodes.py."""

from typing import Any

import pytest
from tests.support.cluster_cells import cells
from tests.support.config_files import CONFIG, RAW, RELEASES
from tests.support.fake_cluster import Call, FakeTransport, made, ok

from kveval.campaign.problems import ConfigError
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.api.client import Api
from kveval.engines.kubernetes.api.transport import Reply
from kveval.host.findings import aligned
from kveval.load.workload import Bursts
from kveval.workflow.deploy_one import (
    PodStory,
    TrialError,
    demand,
    deploy_one,
    note,
    trial_of,
)

SPECIFICATION = cells(RELEASES[1])[0]["Qwen3-0.6B/native-offload/10000"]
MADE = "2026-01-01T00:00:00Z"


def test_a_trial_is_the_same_cell_under_a_load_of_seconds() -> None:
    heavy = SPECIFICATION.with_workload(
        profile="bursts", bursts=Bursts(factor=4.0, share=0.1, mean_s=5.0), prime=True
    )
    for specification in (SPECIFICATION, heavy):
        trial = trial_of(specification)
        assert (trial.cell, trial.argv, trial.deployment) == (
            specification.cell,
            specification.argv,
            specification.deployment,
        )
        assert trial.measurement_id != specification.measurement_id
        load = trial.workload
        assert (load.profile, load.levels, load.bursts, load.prime) == (
            "concurrent",
            (1,),
            None,
            False,
        )
        assert load.seconds <= 10


@pytest.mark.parametrize(("cell", "code"), [("", "no_cluster")])
def test_what_is_no_campaign_on_a_cluster_is_refused(
    cell: str, code: str, tmp_path: Any
) -> None:
    with pytest.raises(TrialError) as error:
        deploy_one(load_config(RAW["config"], CONFIG), cell, tmp_path, tmp_path)
    assert error.value.code == code


def test_a_cell_that_is_none_is_refused_before_anything_is_removed(
    tmp_path: Any,
) -> None:
    (tmp_path / "kept").touch()
    campaign = load_config(CONFIG / "campaigns" / "cluster-first.yaml", CONFIG)
    with pytest.raises(ConfigError) as error:
        deploy_one(campaign, "Qwen3-0.6B", tmp_path, tmp_path)
    (problem,) = error.value.problems
    assert (problem.code, problem.file) == ("no_path", "cell Qwen3-0.6B")
    assert (tmp_path / "kept").exists()


def test_the_cell_that_asks_for_most_is_tried() -> None:
    campaign = load_config(CONFIG / "campaigns" / "cluster-first.yaml", CONFIG)
    demands = {
        cell.scenario: demand(campaign.specification(cell)) for cell in campaign.cells
    }
    assert max(demands, key=demands.__getitem__) == "native-offload"


def pod(phase: str, node: str = "", **changes: Any) -> dict[str, Any]:
    times = {"PodScheduled": "2026-01-01T00:00:03Z", "Ready": "2026-01-01T00:00:42Z"}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": at}
        for kind, at in times.items()
    ]
    found = made(
        "Pod",
        "server-0",
        {"kveval.dev/component": "model-server"},
        spec={"nodeName": node} if node else {},
    )
    found["status"] = {"phase": phase, "conditions": conditions if node else []}
    found["metadata"] |= {"creationTimestamp": MADE, **changes}
    return found


def test_what_a_pod_waits_for_is_said_once_and_its_times_are_kept() -> None:
    event = {
        "reason": "FailedScheduling",
        "message": "0/3 nodes are available",
        "metadata": {},
    }

    def answer(call: Call) -> Reply:
        return ok({"items": [event], "metadata": {}})

    api, seen, said = (
        Api(FakeTransport(answer), outage_s=0),
        dict[str, PodStory](),
        list[str](),
    )
    for one in (pod("Pending"), pod("Pending")):
        note(api, one, seen, said.append)
    assert said == ["model-server waits: FailedScheduling: 0/3 nodes are available"]
    (story,) = seen.values()
    assert story.row()[2:] == (
        "",
        "",
        "",
        "Pending FailedScheduling: 0/3 nodes are available",
    )
    recorder = pod("Pending", labels={"kveval.dev/component": "recorder"}, uid="r")
    note(api, recorder, seen, said.append)
    # It is for a node without a server.
    assert len(seen) == len(said) == 1
    note(api, pod("Running", "gpu-0"), seen, said.append)
    # What it was is told, not how it goes.
    for uid in ("Pod-server-0", "first seen when it goes"):
        going = pod("Failed", "", deletionTimestamp=MADE, uid=uid)
        note(api, going, seen, said.append)
    assert len(seen) == 1
    assert story.row() == (
        "server-0",
        "model-server",
        "gpu-0",
        "3 s",
        "42 s",
        "Running",
    )


def test_columns_begin_below_each_other() -> None:
    assert aligned([("pod", "node"), ("server-0", "a")]) == [
        "pod       node",
        "server-0  a",
    ]
