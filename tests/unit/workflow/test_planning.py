"""What a campaign still has to measure, why, and what that takes."""

import copy
import csv
import json
import random
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_files import CONFIG, RAW, load_raw, on_gpus

from kveval.campaign.cell import Cell
from kveval.campaign.problems import ConfigError
from kveval.campaign.specification import described, differences
from kveval.configuration.loading import load_config
from kveval.load.sample_sizes import window_s
from kveval.plugins.curve.plan import tier_sizes
from kveval.plugins.curve.plan.tier_sizes import tier_size_lines
from kveval.plugins.curve.simulation.cells import block_count
from kveval.workflow.planning.costs import cost, disk, shortages
from kveval.workflow.planning.order import block_of, in_order, planned_runs, priority
from kveval.workflow.planning.plan import make_plan
from kveval.workflow.planning.reuse_table import (
    BY_PAUSES,
    HEADER,
    UNKNOWN,
    device_notes,
    overflow_notes,
    pinned_notes,
    reuse_rows,
)
from kveval.workflow.planning.stored import StoreIndex, read_pointers
from kveval.workflow.planning.text import PlanText

HOST, OTHER = "this-host", "other-host"
SMALL, LARGE = (
    Cell("Qwen3-0.6B", "native-offload", 500),
    Cell("Qwen3-0.6B", "native-offload", 10_000),
)
BASE = Cell("Qwen3-0.6B", "no-offload", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("config")


@pytest.fixture(scope="module")
def default(folder):
    return load_raw(RAW, folder)


def changed(folder, **values):
    """The default campaign with some of its keys changed."""
    raw = copy.deepcopy(RAW)
    raw["config"] |= values
    return load_raw(raw, folder)


def store(
    root,
    specification,
    runs=(1, 2, 3),
    *,
    hardware=HOST,
    start_s=40.0,
    levels=(),
    mark=b"",
    server=None,
):
    """Put runs of a specification into a store, as far as plans read them."""
    measurement, workload = specification.measurement_id, specification.workload
    content, seconds = specification.to_json(), len(workload.levels) * workload.seconds
    for run in runs:
        place = root / measurement / f"run-{run}"
        place.mkdir(parents=True)
        facts = {
            **{
                "measurement": measurement,
                "run": run,
                "cell": content["cell"],
                "specification": content,
            },
            **{
                "schema": 1,
                "engine": "local",
                "weights": content["weights"],
                "started": "2026-02-03T04:00:00Z",
            },
            **{
                "finished": "2026-02-03T04:05:06Z",
                "hardware": {"fingerprint": hardware},
                "levels": list(levels),
            },
            "server": server or {},
            "phases": {
                "server_start_s": start_s,
                "levels_s": seconds + 30.0,
                "collect_s": 5.0,
            },
        }
        (place / "run.json").write_text(json.dumps(facts))
        (place / "raw").write_bytes(mark)
        (place / "SHA256SUMS").write_text("")
    return measurement


def states(plan):
    return {(run.cell, run.run): (run.state, run.code) for run in plan.runs}


def reasons(plan):
    """Why runs are not there, in words."""
    return {run.reason for run in plan.runs}


def all_pointers(config, cells=None):
    return {
        (cell.path, run): config.measurement_id(cell)
        for cell in cells or config.cells
        for run in config.runs_of(cell)
    }


def test_an_empty_store_means_that_everything_is_new(default):
    plan = make_plan(default, {}, StoreIndex())
    assert set(states(plan).values()) == {("measure", "new")}
    assert len(plan.runs) == 9


def test_what_is_pointed_to_is_there_and_what_is_stored_is_adopted(default, tmp_path):
    store(tmp_path, default.specification(SMALL))
    plan = states(
        make_plan(
            default, all_pointers(default, [BASE]), StoreIndex.read(tmp_path), HOST
        )
    )
    assert {plan[BASE, run] for run in (1, 2, 3)} == {("there", "")}
    assert {plan[SMALL, run] for run in (1, 2, 3)} == {("adopt", "stored")}
    assert {plan[LARGE, run] for run in (1, 2, 3)} == {("measure", "new")}


def test_a_run_stored_by_its_blocks_is_adopted_for_the_same_size_in_gib(
    default, folder, tmp_path
):
    store(tmp_path, default.specification(LARGE))
    block_bytes = default.specification(LARGE).budget.tier_bytes // LARGE.cpu_blocks
    matrix = [
        RAW["config"]["matrix"][0],
        {
            "models": [LARGE.model],
            "scenarios": [LARGE.scenario],
            "cpu_gib": [f"{LARGE.cpu_blocks * block_bytes / 2**20} MiB"],
        },
    ]
    in_gib = changed(folder, matrix=matrix)
    plan = states(make_plan(in_gib, {}, StoreIndex.read(tmp_path), HOST))
    assert {plan[LARGE, run] for run in (1, 2, 3)} == {("adopt", "stored")}


def test_measurements_of_other_hardware_are_not_adopted(default, tmp_path):
    store(tmp_path, default.specification(SMALL), hardware=OTHER)
    plan = make_plan(default, {}, StoreIndex.read(tmp_path), HOST)
    assert states(plan)[SMALL, 1] == ("measure", "other_hardware")
    assert any(OTHER in reason for reason in reasons(plan))
    assert (
        states(make_plan(default, {}, StoreIndex.read(tmp_path)))[SMALL, 1][0]
        == "adopt"
    )


def test_an_unsealed_run_does_not_count(default, tmp_path):
    measurement = store(tmp_path, default.specification(SMALL), runs=(1,))
    (tmp_path / measurement / "run-1" / "SHA256SUMS").unlink()
    assert states(make_plan(default, {}, StoreIndex.read(tmp_path), HOST))[
        SMALL, 1
    ] == ("measure", "new")


def test_a_changed_parameter_is_named_with_what_it_was(default, folder, tmp_path):
    for cell in default.cells:
        store(tmp_path, default.specification(cell))
    server = RAW["config"]["server"] | {"guidellm": "0.9.0", "args": ["--seed", "7"]}
    newer = changed(folder, server=server)
    plan = make_plan(newer, all_pointers(default), StoreIndex.read(tmp_path), HOST)
    assert set(states(plan).values()) == {("measure", "changed")}
    changes = [("versions.guidellm", "0.8.1", "0.9.0"), ("argv.--seed", None, "7")]
    assert reasons(plan) == {f"changed: {described(changes)}"}


def test_more_runs_are_further_runs_and_the_others_stay(default, folder, tmp_path):
    for cell in default.cells:
        store(tmp_path, default.specification(cell))
    plan = states(
        make_plan(
            changed(folder, runs=5),
            all_pointers(default),
            StoreIndex.read(tmp_path),
            HOST,
        )
    )
    assert {plan[BASE, run] for run in (4, 5)} == {("measure", "another_run")}
    assert {plan[BASE, run][0] for run in (1, 2, 3)} == {"there"}


def test_what_was_changed_back_is_adopted_and_says_from_what(default, folder, tmp_path):
    store(tmp_path, default.specification(BASE))
    newer = changed(folder, reset_caches="restart")
    store(tmp_path, newer.specification(BASE))
    plan = make_plan(default, all_pointers(newer), StoreIndex.read(tmp_path), HOST)
    assert states(plan)[BASE, 1] == ("adopt", "changed")
    assert (
        f"changed: {described([('reset_caches', 'restart', 'endpoint')])}"
        in reasons(plan)
    )


def test_a_pointer_to_what_is_gone_says_so(default, tmp_path):
    pointers = dict.fromkeys(all_pointers(default), "0123456789abcdef")
    plan = make_plan(default, pointers, StoreIndex.read(tmp_path), HOST)
    assert set(states(plan).values()) == {("measure", "changed_unknown")}


def test_pointers_are_read_and_a_broken_one_points_to_nothing(default, tmp_path):
    for run, text in ((1, '{"measurement": "aa"}'), (2, "{"), (3, "[]")):
        place = tmp_path / BASE.path / f"run-{run}"
        place.mkdir(parents=True)
        (place / "measurement.json").write_text(text)
    found = read_pointers(tmp_path, [(BASE, run) for run in (1, 2, 3, 4)])
    assert found == {(BASE.path, 1): "aa", (BASE.path, 2): "", (BASE.path, 3): ""}
    assert {run.state for run in make_plan(default, found, StoreIndex()).runs} == {
        "measure"
    }


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), runs=st.integers(1, 6))
def test_blocks_come_one_after_the_other_each_in_an_order_of_its_own(
    folder, seed, runs
):
    config = changed(folder, seed=seed, runs=runs)
    order = in_order(config)
    assert sorted(order) == sorted(
        (cell, run) for cell in config.cells for run in range(1, runs + 1)
    )
    assert [run for _, run in order] == sorted(run for _, run in order)
    assert in_order(config) == order


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_what_is_planned_is_exactly_what_has_no_pointer_to_its_measurement(
    default, data
):
    runs = [(cell.path, run) for cell, run in planned_runs(default)]
    right = all_pointers(default)
    pointers = {
        key: data.draw(st.sampled_from([right[key], "0000000000000000"]))
        for key in data.draw(st.sets(st.sampled_from(runs)))
    }
    plan = make_plan(default, pointers, StoreIndex())
    needed = {key for key in runs if pointers.get(key) != right[key]}
    assert {
        (run.cell.path, run.run) for run in plan.runs if run.state != "there"
    } == needed


def test_bridges_are_measured_again_in_the_blocks_of_the_new_cells(
    folder, default, tmp_path
):
    bridged = changed(
        folder,
        bridges=[
            {"models": ["Qwen3-0.6B"], "scenarios": ["no-offload"], "cpu_blocks": [0]}
        ],
        matrix=[
            *RAW["config"]["matrix"],
            {
                "models": ["Qwen3-0.6B"],
                "scenarios": ["native-offload"],
                "cpu_blocks": [20_000],
            },
        ],
    )
    new = Cell("Qwen3-0.6B", "native-offload", 20_000)
    assert list(bridged.runs_of(BASE)) == [1, 2, 3, 4, 5, 6]
    assert list(bridged.runs_of(new)) == [1, 2, 3]
    for cell in default.cells:
        store(tmp_path, default.specification(cell))
    plan = make_plan(bridged, all_pointers(default), StoreIndex.read(tmp_path), HOST)
    measured = [(run.cell, run.run, run.block) for run in plan.of("measure")]
    assert sorted(measured) == sorted(
        [(new, n, n) for n in (1, 2, 3)] + [(BASE, 3 + n, n) for n in (1, 2, 3)]
    )
    assert [block for _, _, block in measured] == [1, 1, 2, 2, 3, 3]
    assert plan.stale_baselines(StoreIndex()) == {}
    assert {run.cell for run in plan.runs if run.bridge} == {BASE}
    assert [
        line
        for line in PlanText(plan, StoreIndex.read(tmp_path), 2).lines()
        if line.endswith(f": {BASE.path}")
    ]


def test_a_bridge_must_be_a_cell_of_the_matrix(folder):
    with pytest.raises(ConfigError, match=r"Qwen3-0\.6B/native-offload/7,") as error:
        changed(
            folder,
            bridges=[
                {
                    "models": ["Qwen3-0.6B"],
                    "scenarios": ["native-offload"],
                    "cpu_blocks": [7],
                }
            ],
        )
    assert [problem.code for problem in error.value.problems] == ["bridge_unlisted"]


def test_a_baseline_of_another_time_is_proposed_as_a_bridge(default, folder, tmp_path):
    for cell in (BASE, SMALL):
        store(tmp_path, default.specification(cell))
    index = StoreIndex.read(tmp_path)
    plan = make_plan(default, all_pointers(default, [BASE, SMALL]), index, HOST)
    assert plan.stale_baselines(index) == {BASE: "2026-02-03"}
    text = "\n".join(PlanText(plan, index, 2).lines())
    assert f"\n  {BASE.path}, measured 2026-02-03\n" in text
    assert (
        "    - {models: [Qwen3-0.6B], scenarios: [no-offload], cpu_blocks: [0]}" in text
    )


def test_arguments_are_compared_by_flag_and_json_in_them_by_key():
    before = {
        "argv": ["--a", "1", "--kv", '{"x":{"size":1},"y":2}', "--c"],
        "env": {"A": "1"},
    }
    after = {
        "argv": ["--kv", '{"y":2,"x":{"size":2}}', "--a", "1", "--d", "5"],
        "env": {"A": "1"},
    }
    assert list(differences(before, after)) == [
        ("argv.--kv.x.size", 1, 2),
        ("argv.--c", "", None),
        ("argv.--d", None, "5"),
    ]


def test_what_follows_from_another_difference_is_not_named():
    found = [("budget.tier_bytes", 1, 2), ("workload.seconds", 10, 20)]
    assert described(found) == "workload.seconds 10 -> 20"
    assert described(found[:1]) == "budget.tier_bytes 1 -> 2"
    assert described([("a", 1, 2), ("b", 1, 2), ("c", 1, 2), ("d", 1, 2)]).endswith(
        "and 1 more"
    )


VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["x", "{", '{"a": 1}']),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "argv"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    before=st.dictionaries(st.sampled_from("ab"), VALUES),
    after=st.dictionaries(st.sampled_from("ab"), VALUES),
)
def test_there_are_differences_only_between_what_differs(before, after):
    assert list(differences(before, before)) == []
    if list(differences(before, after)):
        assert before != after


def test_a_run_takes_its_levels_and_what_earlier_runs_took_beside(default, tmp_path):
    specification = default.specification(LARGE)
    levels = len(specification.workload.levels) * specification.workload.seconds
    assumed = cost(specification, StoreIndex())
    assert assumed.seconds > levels
    assert assumed.basis == "start-up assumed"
    store(tmp_path, default.specification(SMALL), start_s=77.0)
    seen = cost(specification, StoreIndex.read(tmp_path))
    assert (seen.start_s, seen.basis) == (77.0, "start-up as in 1 measurement")
    assert seen.seconds == pytest.approx(levels + 77 + 30 + 5)
    assert seen.gpus == 0


def test_the_nearest_run_tells_most(default, tmp_path):
    store(tmp_path, default.specification(BASE), start_s=20.0)
    store(tmp_path, default.specification(LARGE), start_s=90.0)
    assert cost(default.specification(SMALL), StoreIndex.read(tmp_path)).start_s == 90.0


def test_a_server_that_restarts_between_levels_starts_once_a_level(folder):
    raw = on_gpus("Qwen3-8B", "native-offload", 10_000, tensor_parallel_size=2)
    raw["config"]["workload"] = "published"
    cell = Cell("Qwen3-8B", "native-offload", 10_000)
    once = cost(load_raw(raw, folder).specification(cell), StoreIndex())
    raw["config"]["reset_caches"] = "restart"
    each = cost(load_raw(raw, folder).specification(cell), StoreIndex())
    assert each.seconds - once.seconds == pytest.approx(7 * once.start_s)
    assert once.gpus == 2
    assert once.gpu_hours == pytest.approx(2 * once.seconds / 3600)


def on_one_gpu_and_on_two(folder, scenario="native-offload", blocks=10_000):
    """A campaign of Qwen3-8B on one GPU, and the same on two."""
    return (
        load_raw(on_gpus("Qwen3-8B", scenario, blocks), folder),
        load_raw(on_gpus("Qwen3-8B", scenario, blocks, tensor_parallel_size=2), folder),
    )


@pytest.mark.parametrize("scenario", ["native-offload", "lmcache-local"])
def test_runs_that_are_stored_with_other_gpus_are_named_with_the_line_that_keeps_them(
    folder, tmp_path, scenario
):
    one, two = on_one_gpu_and_on_two(folder, scenario)
    store(tmp_path, two.specification(two.cells[0]))
    index = StoreIndex.read(tmp_path)
    lines = list(PlanText(make_plan(one, {}, index), index, 4).lines())
    assert "GPUs of a server (tensor_parallel_size): 1" in lines
    (place,) = [number for number, line in enumerate(lines) if "else the same" in line]
    assert lines[place] == (
        "1 cell to be measured is in the store with 2 GPUs a server, and else the same:"
        f" {one.cells[0].path}. To keep these runs, add to `server:`"
    )
    assert lines[place + 1] == "  tensor_parallel_size: 2"
    assert set(states(make_plan(two, {}, index)).values()) == {("adopt", "stored")}


def test_runs_that_differ_in_more_than_gpus_are_not_said_to_be_kept(folder, tmp_path):
    one, two = on_one_gpu_and_on_two(folder)
    store(tmp_path, two.specification(two.cells[0]).with_workload(seconds=7))
    index = StoreIndex.read(tmp_path)
    assert not any(
        "else the same" in line
        for line in PlanText(make_plan(one, {}, index), index, 4).lines()
    )


def test_caches_beyond_this_hosts_memory_are_named(folder):
    one, _ = on_one_gpu_and_on_two(folder)
    plan = make_plan(one, {}, StoreIndex())
    small = "\n".join(PlanText(plan, StoreIndex(), 4, 16 * 2**30).lines())
    # vLLM pins the tier rounded up to powers of two.
    assert (
        "keeps 36.0 GiB of KV cache in host memory, and this host has 16.0 GiB" in small
    )
    assert "this host has" not in "\n".join(
        PlanText(plan, StoreIndex(), 4, 64 * 2**30).lines()
    )
    assert "this host has" not in "\n".join(PlanText(plan, StoreIndex(), 4).lines())


def test_all_replicas_count(folder):
    guide = load_config(CONFIG / "campaigns" / "llm-d-guide-high-cache.yaml", CONFIG)
    assert cost(guide.specification(guide.cells[0]), StoreIndex()).gpus == 16


def test_disk_is_what_runs_of_the_load_left_or_else_the_most(default, tmp_path):
    workload = default.specification(BASE).workload
    most, seen = disk(workload, StoreIndex(), 2)
    assert not seen
    store(tmp_path, default.specification(SMALL), mark=b"x" * 100_000)
    size, seen = disk(workload, StoreIndex.read(tmp_path), 2)
    assert seen
    assert 100_000 < size < most


def level(number, requests, tokens):
    counters = {
        "vllm:request_success_total": {
            "before": 0.0,
            "after": requests,
            "delta": requests,
        },
        "vllm:generation_tokens_total": {
            "before": 0.0,
            "after": tokens,
            "delta": tokens,
        },
    }
    return {"level": number, "counters": counters}


def test_a_level_that_will_hold_too_little_is_named_with_the_seconds_it_needs(
    default, tmp_path
):
    specification = default.specification(BASE)
    seconds = specification.workload.seconds
    store(tmp_path, specification, levels=[level(2, 2 * seconds, 10 * seconds)])
    found, unknown = shortages(
        [default.specification(LARGE)], StoreIndex.read(tmp_path)
    )
    assert not unknown
    (short,) = found
    window = window_s(seconds, specification.workload.warmup_s)
    assert "200 requests for a 90th percentile" in short.lacks
    assert "2500 output tokens" in short.lacks
    # Ten tokens a second: 250 s for 2,500, behind the same warm-up.
    assert short.seconds == pytest.approx(seconds - window + 250)


def test_a_model_of_which_nothing_was_measured_is_said_to_be_unknown(default):
    assert shortages([default.specification(BASE)], StoreIndex()) == (
        [],
        ["Qwen3-0.6B"],
    )


def test_what_is_sent_at_a_rate_is_known_before_anything_is_measured(folder):
    raw = copy.deepcopy(RAW)
    raw["config"]["workloads"] = {
        "own": {
            **{"profile": "poisson", "levels": [6, 600], "seconds": 100.0, "seed": 1},
            **{"prompt_tokens": 64, "output_tokens": 64},
        }
    }
    raw["config"]["workload"] = "own"
    config = load_raw(raw, folder)
    found, unknown = shortages([config.specification(BASE)], StoreIndex())
    assert not unknown
    assert [entry.level for entry in found] == [6]
    assert found[0].lacks.startswith("about 8 requests and 480 output tokens in 75 s")


def test_the_table_has_every_run_in_the_order_of_measuring(default, tmp_path):
    plan = make_plan(default, all_pointers(default, [BASE]), StoreIndex())
    PlanText(plan, StoreIndex(), 2).write_table(tmp_path / "plan.csv")
    rows = list(csv.DictReader((tmp_path / "plan.csv").open()))
    assert [int(row["order"]) for row in rows] == list(range(1, 10))
    assert [(row["scenario"], row["run"]) for row in rows] == [
        (run.cell.scenario, str(run.run)) for run in plan.runs
    ]
    assert all((row["gpu_hours"] == "") == (row["state"] == "there") for row in rows)


def test_the_plan_in_words_adds_up(default, tmp_path):
    store(tmp_path, default.specification(SMALL))
    index = StoreIndex.read(tmp_path)
    plan = make_plan(default, all_pointers(default, [BASE]), index, HOST)
    lines = list(PlanText(plan, index, 2).lines())
    assert "3 cells, 9 runs: 3 measured, 3 in the store, 3 to be measured" in lines
    assert [cell.path for cell in plan.to_measure] == [LARGE.path]
    assert [line for line in lines if line.startswith(f"  {LARGE.path} ")]


def reuse(plan, index):
    return [dict(zip(HEADER, row, strict=True)) for row in reuse_rows(plan, index)]


def test_what_users_find_depends_on_their_pauses(tmp_path):
    index = StoreIndex.read(tmp_path)
    found = {}
    for name in ("laptop-users", "laptop-users-no-pauses"):
        config = load_config(CONFIG / "campaigns" / f"{name}.yaml", CONFIG)
        plan = make_plan(config, {}, index)
        found[name] = {row["found"] for row in reuse(plan, index)}
    assert found["laptop-users"] == {BY_PAUSES}
    assert BY_PAUSES not in found["laptop-users-no-pauses"]


def two_turns(folder, **workload):
    """The default campaign with another workload."""
    raw = copy.deepcopy(RAW)
    raw["workloads"]["laptop"] |= {
        **{
            "levels": [1, 2, 4],
            "seconds": 24,
            "warmup_s": 7.5,
            "prefix_tokens": 4000,
            "prefix_count": 10,
            "turns": 2,
        },
        **{"prompt_tokens": 64, "output_tokens": 128, "prime": False},
        **workload,
    }
    return load_raw(raw, folder)


def test_the_plan_says_what_each_arm_can_find_of_the_prompts(folder):
    plan = make_plan(two_turns(folder), {}, StoreIndex())
    found = {row["arm"]: row for row in reuse(plan, StoreIndex())}
    assert list(found) == ["no-offload/0", "native-offload/500", "native-offload/10000"]
    assert {
        (row["levels"], row["prefixes"], row["device holds"]) for row in found.values()
    } == {("1, 2, 4", "40,000", "17,920 (45 %)")}
    assert [row["tier holds"] for row in found.values()] == [
        "-",
        "8,000 (20 %)",
        "160,000 (100 %)",
    ]
    assert [row["found"] for row in found.values()] == [
        "70 %",
        "70 %; 70 % with tier",
        "70 %; 98 % with tier",
    ]
    assert {row["first visits"] for row in found.values()} == {"up to 40,000"}
    assert len(HEADER) <= 8
    assert [
        line
        for line in PlanText(plan, StoreIndex(), 2).lines()
        if line.startswith("  native-offload/10000 ")
    ]


def on_unknown_hardware(name):
    """A shipped campaign whose hardware names no GPU."""
    raw = yaml.safe_load((CONFIG / "campaigns" / f"{name}.yaml").read_text())
    return load_config(raw | {"hardware": "two GPUs"}, CONFIG)


def test_cells_and_levels_that_are_alike_have_one_row():
    config = on_unknown_hardware("feb-2026")
    plan = make_plan(config, {}, StoreIndex())
    rows = reuse(plan, StoreIndex())
    assert [(row["arm"], row["levels"]) for row in rows[:3]] == [
        ("no-offload/0, llm-d-redis/0, llm-d-valkey/0", "1 to 650 (8)"),
        ("native-offload/10000, lmcache-local/10000", "1"),
        ("native-offload/10000, lmcache-local/10000", "50 to 650 (7)"),
    ]
    assert {row["device holds"] for row in rows} == {UNKNOWN}
    (note,) = device_notes(plan, StoreIndex())
    assert note.startswith(
        "Device cache of Qwen3-0.6B, Qwen3-8B, Qwen3-14B, Qwen3-32B-AWQ: unknown until"
    )


def test_a_plan_says_how_much_more_host_memory_a_tier_takes():
    february = load_config(CONFIG / "campaigns" / "feb-2026.yaml", CONFIG)
    (note,) = pinned_notes(make_plan(february, {}, StoreIndex()))
    # 28 layers on two ranks, 312.5 MiB each: 512.
    assert "Qwen3-0.6B/native-offload/10000 takes up to 28 GiB of host memory" in note
    assert "for a tier of 17.1 GiB (10,000 blocks); so do 3 more" in note
    newer = load_config(CONFIG / "config.yaml", CONFIG)
    assert list(pinned_notes(make_plan(newer, {}, StoreIndex()))) == []


def test_a_device_that_no_server_reported_is_estimated_for_a_gpu_that_is_named():
    config = load_config(CONFIG / "campaigns" / "feb-2026.yaml", CONFIG)
    plan = make_plan(config, {}, StoreIndex())
    held = {row["device holds"] for row in reuse(plan, StoreIndex())}
    assert all(text.startswith("~") for text in held)
    notes = [*device_notes(plan, StoreIndex())]
    assert len(notes) == 4
    # Servers reported 390,704.
    assert (
        "Device cache of Qwen3-8B: about 394,608 tokens (352,752 to 421,248)"
        in notes[1]
    )
    assert "2 x 44.39 GiB of L40S x 0.9, less 15.3 GiB of weights" in notes[1]


def test_a_device_that_a_server_reported_is_known_for_its_model_alone(tmp_path):
    config = on_unknown_hardware("feb-2026")
    base = Cell("Qwen3-8B", "no-offload", 0)
    store(
        tmp_path,
        config.specification(base),
        server={"facts": {"kv_cache_tokens": 390_704}},
    )
    index = StoreIndex.read(tmp_path)
    plan = make_plan(config, {}, index)
    known = [row for row in reuse(plan, index) if row["device holds"] != UNKNOWN]
    assert {row["device holds"] for row in known} == {"390,704 (5 %)"}
    assert {row["arm"].split(":")[0] for row in known} == {"Qwen3-8B"}
    reported, unknown = device_notes(plan, index)
    assert "Qwen3-8B: 390,704 tokens" in reported
    assert HOST in reported
    assert "Qwen3-8B" not in unknown


def test_first_visits_follow_from_the_requests_that_runs_completed(folder, tmp_path):
    config = two_turns(folder)
    specification = config.specification(BASE)
    # Ten requests a second are five conversations: 37 before the window and 82 in it; two in 24 s, hardly any.
    store(
        tmp_path,
        specification,
        levels=[level(1, 2, 100), level(2, 240, 100), level(4, 240, 100)],
    )
    index = StoreIndex.read(tmp_path)
    (row, *_) = reuse(make_plan(config, {}, index), index)
    assert row["first visits"] == "0 % to 47 %"


def test_first_visits_are_none_without_prefixes_and_before_the_window_where_these_are_primed(
    folder,
):
    for workload, said in (
        ({"prefix_tokens": 0, "prefix_count": 0}, "-"),
        ({"prime": True}, "primed"),
    ):
        plan = make_plan(two_turns(folder, **workload), {}, StoreIndex())
        assert {row["first visits"] for row in reuse(plan, StoreIndex())} == {said}


def test_a_campaign_that_cannot_show_a_difference_is_told_so_by_its_plan(folder):
    config = two_turns(folder, prefix_count=2)
    lines = list(PlanText(make_plan(config, {}, StoreIndex()), StoreIndex(), 2).lines())
    assert lines[-2:] == ["Warnings:", f"  {config.warnings[0]}"]
    assert config.warnings[0].code == "prefixes_fit"


def test_levels_whose_requests_outgrow_the_device_are_named(folder):
    small, large = (
        {"prefix_tokens": 0, "prefix_count": 0, "turns": 1, "prompt_tokens": size}
        for size in (64, 4000)
    )
    assert (
        list(overflow_notes(make_plan(two_turns(folder, **small), {}, StoreIndex())))
        == []
    )
    # Eight requests of 4,128 tokens for 17,920.
    (note,) = overflow_notes(
        make_plan(two_turns(folder, **large, levels=[1, 4, 8]), {}, StoreIndex())
    )
    assert " at level 8: " in note


def test_priorities_are_the_order(default):
    runs = planned_runs(default)
    random.Random(1).shuffle(runs)
    assert sorted(runs, key=lambda entry: -priority(default, *entry)) == in_order(
        default
    )
    assert {block_of(default, run) for _, run in runs} == {1, 2, 3}


def test_no_two_cells_are_measured_in_one_order_in_every_block(default):
    blocks = {}
    for cell, run in in_order(default):
        blocks.setdefault(run, []).append(cell)
    assert blocks[2] == blocks[1][::-1]
    assert sorted(blocks[3], key=str) == sorted(blocks[1], key=str)


def test_levels_that_a_pilot_is_to_find_make_the_plan_wait_for_it(folder):
    raw = copy.deepcopy(RAW)
    raw["workloads"]["laptop"]["levels"] = {
        "search": {"from": 1, "to": 16, "budget": 6, "keep": 4}
    }
    config = load_raw(raw, folder)
    plan = make_plan(config, {}, StoreIndex())
    assert plan.pilots == [BASE]
    assert {(run.state, run.code, run.measurement) for run in plan.runs} == {
        ("measure", "pilot_first", "")
    }
    assert f"  {BASE.path}" in list(PlanText(plan, StoreIndex(), 2).lines())
    assert (
        cost(plan.pilot_specification(BASE), StoreIndex()).seconds
        > cost(plan.specification(BASE), StoreIndex()).seconds
    )

    found = (2, 4, 8)
    pointers = {
        (cell.path, run): config.measurement_id(cell, found)
        for cell, run in planned_runs(config)
    }
    plan = make_plan(config, pointers, StoreIndex(), frozen={BASE: found})
    assert not plan.pilots
    assert {run.state for run in plan.runs} == {"there"}


def test_a_plan_says_what_each_size_of_a_tier_adds(folder):
    matrix = copy.deepcopy(RAW["config"]["matrix"])
    matrix[1]["cpu_blocks"] = [500, 4_000, 9_000, 10_000]
    lines = list(tier_size_lines(changed(folder, matrix=matrix), StoreIndex({})))
    small, alike = (
        line
        for line in lines
        if "no more than the device" in line or "add no more" in line
    )
    assert "native-offload/500;" in small and "native-offload/10000" in alike
    assert "/4000" not in small + alike
    proposed = [
        int(blocks.replace(",", ""))
        for blocks in re.findall(r" GiB \(([\d,]+) blocks\)", small)
    ]
    assert 500 < proposed[0] < 4_000 < proposed[1] < 9_000
    assert len(lines) <= 6


def test_what_a_tier_adds_to_a_device_of_unknown_size_is_not_said(folder, monkeypatch):
    monkeypatch.setattr(tier_sizes, "MOST_BLOCKS", 0)
    raw = on_gpus("Qwen3-8B", "native-offload", 10_000)
    assert list(tier_size_lines(load_raw(raw, folder), StoreIndex({}))) == []


def test_levels_with_too_many_requests_are_left_to_the_curve(folder, monkeypatch):
    monkeypatch.setattr(tier_sizes, "MOST_BLOCKS", 1_000)
    (_, _, left) = tier_size_lines(changed(folder), StoreIndex({}))
    assert "1 of 1" in left


def test_models_that_share_a_computation_are_counted_once_and_those_without_a_tier_not_at_all(
    folder, monkeypatch
):
    models = ["Qwen3-8B", "Qwen3-0.6B", "Qwen3-14B"]
    matrix = [
        {"models": models, "scenarios": ["no-offload"], "cpu_blocks": [0]},
        {"models": models[1:], "scenarios": ["native-offload"], "cpu_blocks": [4_000]},
    ]
    config = changed(
        folder, matrix=matrix, server={**RAW["config"]["server"], "device_blocks": 1120}
    )
    one = config.specification(next(cell for cell in config.cells if cell.cpu_blocks))
    (level,) = one.workload.given_levels
    monkeypatch.setattr(
        tier_sizes, "MOST_BLOCKS", block_count(one.workload, level, one.block_size)
    )
    text = "\n".join(tier_size_lines(config, StoreIndex({})))
    assert [
        model
        for model in models
        if f"{model}, {level} streams: the device serves" in text
    ] == models[1:]
    assert "too many requests" not in text
