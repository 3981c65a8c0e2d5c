"""Requests in bursts: when they come, and what they share."""

import itertools
import json
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveval.load.guidellm import Level, LoadTarget, command, trace_file, write_data
from kveval.load.traces import arrivals, block_tokens, rows, tokens
from kveval.load.workload import Bursts, LengthSpread, workload_of

WORKLOAD = workload_of(
    {
        **{
            "profile": "bursts",
            "bursts": {"factor": 5.0, "share": 0.1, "mean_s": 20.0},
            "seconds": 600.0,
            "warmup_s": 60,
        },
        **{
            "prompt_tokens": 400,
            "prompt_spread": {"stdev": 300, "min": 20, "max": 2000},
            "output_tokens": 200,
            "turns": 1,
        },
        **{"prefix_tokens": 600, "prefix_count": 8, "levels": [60], "seed": 1},
    }
)


@given(
    seed=st.integers(0, 10**6),
    rate=st.floats(0.1, 5),
    factor=st.floats(1.1, 9),
    part=st.floats(0.05, 1),
)
def test_arrivals_are_in_order_and_within_their_time(seed, rate, factor, part):
    bursts = Bursts(factor=factor, share=min(part / factor, 0.9), mean_s=10.0)
    times = list(arrivals(rate, 100.0, bursts, random.Random(seed)))
    assert times == sorted(times)
    assert all(0 <= time < 100 for time in times)


def test_the_mean_rate_is_the_one_asked_for_and_counts_vary_more_than_poisson():
    bursts = Bursts(factor=5.0, share=0.1, mean_s=20.0)
    times = list(arrivals(2.0, 200_000.0, bursts, random.Random(5)))
    assert len(times) / 200_000 == pytest.approx(2.0, rel=0.03)
    counts = [0] * 10_000
    for time in times:
        counts[int(time // 20)] += 1
    assert statistics.variance(counts) > 3 * statistics.mean(counts)


def test_without_bursts_worth_the_name_it_is_poisson():
    bursts = Bursts(factor=1.0001, share=0.5, mean_s=5.0)
    times = list(arrivals(4.0, 20_000.0, bursts, random.Random(2)))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.03)


@given(seed=st.integers(0, 10**6), mean=st.integers(20, 2000))
def test_lengths_stay_within_their_bounds(seed, mean):
    generator = random.Random(seed)
    spread = LengthSpread(stdev=300, min=20, max=2000)
    assert 20 <= tokens(mean, spread, generator) <= 2000
    assert tokens(mean, None, generator) == mean


def test_a_trace_outlasts_its_level_even_when_nothing_comes_for_long():
    quiet = WORKLOAD.replace(
        seconds=20.0, bursts=Bursts(factor=9.9, share=0.1, mean_s=1.0)
    )
    assert all(list(rows(quiet, 6, seed))[-1].timestamp == 30 for seed in range(50))


def test_requests_share_prefixes_and_nothing_else():
    found = list(rows(WORKLOAD, 60, seed=3))
    assert {row.hash_ids[0] for row in found} == set(range(8))
    own = [number for row in found for number in row.hash_ids[1:]]
    assert len(own) == len(set(own))
    assert not set(own) & set(range(8))


@pytest.mark.parametrize("prefix", [0, 100, 600])
def test_every_row_has_as_many_ids_as_its_blocks(prefix):
    load = WORKLOAD.replace(prefix_tokens=prefix, prefix_count=8 if prefix else 0)
    block = block_tokens(load, 60)
    for row in rows(load, 60, seed=3):
        # What GuideLLM asks of the format.
        assert -(-row.input_length // block) == len(row.hash_ids)
        assert row.input_length >= prefix + 20


def test_arms_of_a_block_get_the_same_requests_and_blocks_others(tmp_path):
    paths = []
    for seed in (7, 7, 8):
        report = tmp_path / f"{len(paths)}" / "guidellm-0060.json"
        report.parent.mkdir()
        paths.append(write_data(WORKLOAD, Level(60, 0, seed), report))
    texts = [path.read_text() for path in paths]
    assert texts[0] == texts[1] != texts[2]


def test_the_trace_lies_beside_the_report_and_the_command_names_it(tmp_path):
    report = tmp_path / "guidellm-0060.json"
    level = Level(60, 0, 5)
    path = write_data(WORKLOAD, level, report)
    assert path == trace_file(report) == tmp_path / "guidellm-0060.trace.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["timestamp"] == 610
    argv = command(
        "guidellm",
        WORKLOAD,
        level,
        LoadTarget("http://127.0.0.1:1", "m", tmp_path),
        report,
    )
    data = json.loads(argv[argv.index("--data") + 1])
    assert data == {
        "kind": "mooncake",
        "source": {"kind": "json_file", "path": str(path)},
        "hash_id_block_size": 600,
    }
    profile = json.loads(argv[argv.index("--profile") + 1])
    assert (profile["kind"], profile["schedule_turn"]) == ("replay", "timestamp")
    assert write_data(WORKLOAD.replace(profile="poisson"), level, report) is None
