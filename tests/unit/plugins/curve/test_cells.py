"""The curves of cells: the requests of a load on the caches of an arm."""

import json
import re
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.config_files import load, on_cluster
from tests.support.paths import REPOSITORY

from kveval.campaign.cell import Cell
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.configuration.loading import load_config
from kveval.load import traces
from kveval.load.guidellm import data_argument, levels_of
from kveval.load.workload import workload_of
from kveval.plugins.curve.plan.curve_figure import curve_panel
from kveval.plugins.curve.plan.curve_files import (
    curve_rows,
    level_lines,
    load_lines,
)
from kveval.plugins.curve.plan.curves import draw_error, level_curves
from kveval.plugins.curve.simulation.cells import (
    block_count,
    curves_of,
    curves_of_prompts,
    demands,
    needed_sizes,
    pooled_shares,
    prompts_of,
    serving_of,
    worst_order_is_assumed,
)
from kveval.workflow.planning.stored import StoreIndex

CONFIG = REPOSITORY / "config"
PYTHON = REPOSITORY / ".server-venv" / "bin" / "python"
# Has GuideLLM draw prefixes, as numbers, for a data argument and the seed of a level.
DRAWN = """
import itertools, json, sys
from random import Random
from guidellm.data.deserializers.synthetic import _SyntheticTextExamplesIterable
from guidellm.schemas.data.deserializers import SyntheticTextDataArgs


def drawn(text, seed, count):
    pairs = (part.split("=") for part in text.split(","))
    made, names = _SyntheticTextExamplesIterable, itertools.count()
    source = made.__new__(made)
    source.config = SyntheticTextDataArgs(**(json.loads(text) if text[0] == "{" else dict(pairs)))
    source._create_prompt = lambda *_: str(next(names))
    drawing = Random(Random(seed).getrandbits(32) + 3)
    return [*map(int, itertools.islice(source._create_prefix_iter(None, drawing), count))]


print(json.dumps([drawn(*asked) for asked in json.loads(sys.argv[1])]))
"""
# Prefixes, and how unevenly they are drawn.
SHARED = [(50, 1.0), (5000, 1.2), (30, 0.0)]


@pytest.fixture(scope="module")
def laptop() -> Config:
    return load_config(CONFIG / "config.yaml", CONFIG)


@pytest.fixture(scope="module")
def replayed() -> Config:
    return load_config(CONFIG / "campaigns" / "laptop-trace.yaml", CONFIG)


def of(config: Config, scenario: str, blocks: int) -> Specification:
    return config.specification(Cell("Qwen3-0.6B", scenario, blocks))


def test_the_default_campaigns_caches_serve_what_was_measured_of_them(laptop):
    """Percent of the prompt tokens found on the device, by run, after so many requests: from the servers' counters."""
    measured = {1: (28.2, 83), 2: (21.8, 80), 3: (29.8, 76)}
    for run, (percent, requests) in measured.items():
        found = curves_of(of(laptop, "no-offload", 0), 2, run, requests=requests)
        assert 100 * found.device_hit_share == pytest.approx(percent, abs=0.3)
    served = curves_of(
        of(laptop, "native-offload", 10_000), 2, 1, requests=290
    ).hit_share_range
    assert served == pytest.approx((0.990, 0.990), abs=0.005)
    small = curves_of(of(laptop, "native-offload", 500), 2)
    assert small.hit_share_range == (small.device_hit_share, small.device_hit_share)


def test_a_cache_that_evicts_early_serves_a_range(laptop):
    found = curves_of(of(laptop, "lmcache-local", 4000), 2)
    low, high = found.hit_share_range
    assert 0.2 < low < high < 0.95
    assert found.adds_points == 100 * (high - found.device_hit_share)
    assert curves_of(of(laptop, "native-offload", 4000), 2).hit_share_range[0] > high


def test_a_traces_requests_are_those_that_are_sent(replayed):
    specification = of(replayed, "native-offload", 12_000).with_workload(
        levels=(300,), seconds=120.0
    )
    prompts = prompts_of(specification.workload, 300, 1, specification.block_size)
    sent = [
        row
        for row in traces.rows(specification.workload, 300, 1)
        if row.timestamp < 120
    ]
    assert prompts.input_tokens.tolist() == [row.input_length for row in sent]
    found = curves_of(specification, 300, requests=585)
    # Measured: 3.6 % on the device, 12.7 % with the tier.
    assert (
        100 * found.device_hit_share,
        100 * found.hit_share_range[0],
    ) == pytest.approx((3.6, 12.7), abs=0.3)
    assert specification.to_json()["workload"]["trace"].keys() >= {"sha256", "tokens"}
    assert "file" not in specification.to_json()["workload"]["trace"]
    assert (
        Specification.from_json(specification.to_json()).measurement_id
        == specification.measurement_id
    )


def test_turns_find_what_earlier_ones_had(laptop):
    load = of(laptop, "native-offload", 10_000)
    turns = load.with_workload(
        prefix_tokens=0,
        prefix_count=0,
        turns=4,
        prime=False,
        prompt_tokens=320,
        output_tokens=64,
    )
    prompts = prompts_of(turns.workload, 2, 1, 32)
    assert sorted(set(prompts.input_tokens.tolist())) == [320, 704, 1088, 1472]
    ceiling = curves_of(turns, 2).device.ceiling
    assert ceiling == pytest.approx(
        (384 + 768 + 1152) / (320 + 704 + 1088 + 1472), abs=0.01
    )


def test_the_blocks_of_random_bursts_are_those_of_the_requests_that_are_sent():
    workload = workload_of(
        {
            "profile": "bursts",
            "bursts": {"factor": 5.0, "share": 0.1, "mean_s": 20.0},
            "levels": [240],
            "seconds": 20,
            **{"prompt_tokens": 128, "output_tokens": 32},
            **{"prefix_tokens": 320, "prefix_count": 5},
        }
    )
    # 240 a minute for 20 s: 80 requests of 480 tokens.
    assert block_count(workload, 240, 16) == pytest.approx(80 * 480 / 16)
    assert block_count(workload, 240, 32) == pytest.approx(80 * 480 / 32)


@pytest.mark.parametrize("name", ["laptop", "replayed"])
def test_what_the_target_says_and_draws(name, request, tmp_path: Path):
    config = request.getfixturevalue(name)
    curves = list(level_curves(config, StoreIndex.read(tmp_path)))
    rows = [row for one in curves for row in curve_rows(config, one)]
    assert len(rows) == len(config.cells) * len(config.workload.given_levels)
    adds = [row.adds_points for row in rows]
    assert max(adds) > 10 and min(adds) >= 0
    text = [line for one in curves for line in level_lines(config, one)]
    assert (
        sum(
            f"{row.arm}/{row.cpu_blocks}" in line
            for line in text
            for row in rows
            if row.cpu_blocks
        )
        >= len(rows) - 1
    )
    panel = curve_panel(config, curves[0])
    sizes = [size for _, size in needed_sizes(panel.curve)]
    assert sizes == sorted(sizes) and np.all(np.diff(panel.curve.sizes) > 0)


@pytest.mark.parametrize(
    ("address", "release", "route", "by_prefix"),
    [
        ("router", "llm-d-0.8.0", "standalone", True),
        ("router", "llm-d-0.4.0", "gateway", True),
        ("service", "llm-d-0.8.0", "service", False),
    ],
)
def test_a_router_sends_prompts_by_prefix_with_and_without_a_gateway(
    address, release, route, by_prefix, tmp_path
):
    site = {"address": address}
    config = load(
        tmp_path,
        on_cluster(release, [(["Qwen3-14B"], ["native-offload"], [10_000])], site=site),
    )
    specification = config.specification(config.cells[0])
    assert specification.on_cluster.route == route
    assert serving_of(specification).by_prefix == by_prefix


def test_servers_hold_together_what_none_of_them_does(laptop, tmp_path):
    """Requests are dealt out in turn: every server needs every prefix, and together they have room for more of them."""
    alone = of(laptop, "native-offload", 2000)
    prompts = prompts_of(alone.workload, 2, 1, alone.block_size, 200)
    curves = curves_of_prompts(alone, prompts)
    offered, held = pooled_shares(alone, prompts, curves)
    assert held == curves.hit_share_range[1] <= offered == curves.device.ceiling
    cluster = load(
        tmp_path,
        on_cluster(
            "llm-d-0.8.0",
            [(["Qwen3-14B"], ["native-offload"], [10_000])],
            site={"address": "service"},
        ),
    )
    deployment = cluster.specification(cluster.cells[0]).on_cluster
    several = msgspec.structs.replace(
        alone, deployment=msgspec.structs.replace(deployment, replicas=3)
    )
    assert serving_of(several).servers == 3
    on_servers = curves_of_prompts(several, prompts)
    together = pooled_shares(several, prompts, on_servers)
    assert together[0] == offered
    assert on_servers.hit_share_range[1] < together[1] <= offered


def test_conversations_of_a_closed_loop_are_marked_as_approximate(laptop):
    one = of(laptop, "native-offload", 10_000)
    assert not worst_order_is_assumed(one.workload)
    assert worst_order_is_assumed(one.with_workload(turns=3).workload)
    assert not worst_order_is_assumed(one.with_workload(turns=3, levels=(1,)).workload)


def test_the_target_says_that_the_order_of_turns_is_assumed():
    config = load_config(CONFIG / "campaigns" / "cpu-blocks-ladder.yaml", CONFIG)
    assert any(
        "Approximate: assumes that the conversations of a closed loop" in line
        for line in load_lines(config)
    )


def test_a_share_is_printed_with_how_much_another_draw_of_the_load_differs(laptop):
    curves = next(level_curves(laptop, StoreIndex({})))
    text = "\n".join(level_lines(laptop, curves))
    specification = of(laptop, "no-offload", 0)
    shares = [
        100 * curves_of(specification, curves.level, run).device_hit_share
        for run in range(1, 9)
    ]
    # More than half of the last digit.
    assert np.std(shares) > 0.05
    (points,) = re.findall(r"others differ by up to ±([\d.]+) points", text)
    assert float(points) == pytest.approx(np.std(shares), rel=1)


def test_a_trace_is_not_drawn(replayed):
    curves = next(level_curves(replayed, StoreIndex({})))
    assert draw_error(replayed, curves) == 0
    assert "±" not in "\n".join(level_lines(replayed, curves))


@pytest.fixture(scope="module")
def readers() -> Config:
    return load_config(CONFIG / "campaigns" / "laptop-users.yaml", CONFIG)


def test_so_many_users_are_in_a_session_at_any_time(readers):
    workload = readers.workload.definition
    prompts = prompts_of(workload, 6, 1, 16, requests=200)
    # The last block of a prompt and its answer, which no other session has.
    first = prompts.first_ids
    ends = {session: place for place, session in enumerate(first.tolist())}
    begins = {
        session: place for place, session in reversed([*enumerate(first.tolist())])
    }
    for place in range(20, 150):
        present = [
            session for session in begins if begins[session] <= place <= ends[session]
        ]
        assert 5 <= len(present) <= 6
    turns = np.unique_counts(first).counts
    assert turns.max() == workload.turns
    assert prompts.input_tokens.min() == 3000 + 32
    assert prompts.input_tokens.max() == 3000 + 32 + 4 * 48


def test_a_cache_for_all_users_serves_all_but_first_visits(readers):
    found = curves_of(of(readers, "native-offload", 2400), 6)
    # Documents, questions, and the blocks that an answer does not fill.
    turns = np.arange(5)
    prompts = 5 * 3000 + 32 * 5 + 48 * turns.sum()
    repeated = prompts - (3000 + 32) - 4 * 32
    assert found.tier.ceiling == pytest.approx(repeated / prompts, abs=0.01)
    assert found.hit_share_range[1] > 0.98 * found.tier.ceiling
    assert found.device_hit_share < 0.3


def test_the_order_in_which_users_asked_replaces_the_one_that_is_drawn(readers):
    workload = readers.workload.definition
    one_by_one = [(session, turn) for session in range(40) for turn in range(5)]
    prompts = prompts_of(workload, 6, 1, 16, 200, one_by_one)
    found = curves_of_prompts(of(readers, "no-offload", 0), prompts)
    assert found.device_hit_share == pytest.approx(found.device.ceiling)
    drawn = curves_of(of(readers, "no-offload", 0), 6, requests=200)
    assert drawn.device_hit_share < 0.3


def test_what_is_assumed_of_answers_is_said(readers):
    text = "\n".join(load_lines(readers))
    assert "how long answers take, decide whose questions come between two" in text
    assert not worst_order_is_assumed(readers.workload.definition)


def test_demands_have_the_pauses_after_each_answer(readers):
    (of_servers,) = demands(of(readers, "no-offload", 0), 6, 1, 60, 8960, [0.0])
    (one,) = of_servers
    assert len(one.pauses_s) == len(one.input_tokens) == 60
    last = np.isin(one.input_tokens, 3032 + 48 * 4)
    assert not one.pauses_s[last].any()
    assert one.pauses_s.mean() == pytest.approx(8 * 4 / 5, rel=0.4)


def sharing(laptop, count, zipf):
    """A load whose prompts share prefixes."""
    return laptop.workload.definition.replace(
        prefix_tokens=320, prefix_count=count, prefix_zipf=zipf, prime=False
    )


@pytest.fixture(scope="module")
def drawn(laptop):
    """The prefixes of the first 300 prompts of each load, as GuideLLM draws them; its start takes most of it."""
    loads = [sharing(laptop, *shared) for shared in SHARED]
    asked = [
        [data_argument(load, 2), levels_of(load, 1)[0].seed, 300] for load in loads
    ]
    argv = [str(PYTHON), "-c", DRAWN, json.dumps(asked)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return dict(zip(SHARED, json.loads(said), strict=True))


@pytest.mark.e2e
@pytest.mark.skipif(
    not PYTHON.exists(), reason="no server environment: bash scripts/setup.sh server"
)
@pytest.mark.parametrize(("count", "zipf"), SHARED)
def test_prefixes_are_drawn_as_guidellm_draws_them(laptop, drawn, count, zipf):
    prompts = prompts_of(sharing(laptop, count, zipf), 2, 1, 32, requests=300)
    assert prompts.first_ids.tolist() == [10 * prefix for prefix in drawn[count, zipf]]
