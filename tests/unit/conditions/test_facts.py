"""The conditions of a run: what was counted by term, and the names of its release."""

import msgspec
import pytest
from tests.support.described import described_run, raw_run
from tests.support.synthetic import run_description

from kveval.conditions.facts import terms_of
from kveval.store.conditions import Change
from kveval.store.run_file import RunFileError


def change(rise: float) -> Change:
    return Change(before=1.0, after=1.0 + rise, delta=rise)


def test_names_are_those_of_the_declared_release() -> None:
    """A build from a checkout without tags calls itself 0.1.dev1, older than every release."""
    run = run_description("Qwen3-0.6B", "native-offload", 500, 1)
    built = {"versions": {**run["versions"], "vllm": "0.1.dev1+g1a2b3c"}}
    declared = {"specification": {**run["specification"], "versions": run["versions"]}}
    plain = described_run(run | declared).described
    unusual = described_run(run | declared | built).described
    assert unusual.release == plain.release == run["versions"]["vllm"]
    assert unusual.recorded == plain.recorded
    assert unusual.server_version == "0.1.dev1+g1a2b3c"


def test_counters_stand_under_terms_that_are_the_same_for_all_servers() -> None:
    counted = terms_of(
        {
            "vllm:prompt_tokens_total": change(3.0),
            "lmcache_mp_num_chunks_loaded_total": change(2.0),
            "redis_sent_bytes_total": change(5.0),
            "of_somebody_else": change(9.0),
        }
    )
    assert counted["prompt_tokens"].delta == 3.0
    assert counted["tier_loaded_tokens"].delta == 512.0
    assert counted["store_read_bytes"].delta == 5.0
    assert "of_somebody_else" not in counted


def test_a_run_without_conditions_is_refused_and_does_not_count_as_nothing() -> None:
    run = raw_run(
        described_run(run_description("Qwen3-0.6B", "native-offload", 500, 1))
    )
    with pytest.raises(RunFileError):
        _ = run.described
    with pytest.raises(RunFileError):
        _ = run.levels[0].counted
    idle = msgspec.structs.replace(run.levels[0], counters={})
    assert idle.counted == {}
