"""What a level counts, and what a workload may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kveval.load import levels as workloads
from kveval.load.workload import Workload, WorkloadError, workload_of

PLAIN = {"seconds": 60.0, "prompt_tokens": 64, "output_tokens": 32, "seed": 1}
SPREAD = {"stdev": 10, "min": 5, "max": 200}
BURSTS = {"factor": 5.0, "share": 0.1, "mean_s": 20.0}
USERS = {"profile": "users", "turns": 5, "document_tokens": 100, "pause_s": 10}
PAUSE = {"mean": 8.0, "stdev": 6.0}
SHARED = {"prefix_tokens": 10, "prefix_count": 30, "prefix_zipf": 1}


def workload(**values):
    return Workload.model_validate({**PLAIN, "levels": [1, 60], **values}).definition


@pytest.mark.parametrize(
    ("values", "streams", "rate", "unit"),
    [
        ({}, 60, None, "streams"),
        ({"profile": "users"}, 60, None, "users"),
        ({"profile": "constant"}, None, 1.0, "requests/min"),
        ({"profile": "poisson"}, None, 1.0, "requests/min"),
        ({"profile": "bursts", "bursts": BURSTS}, None, 1.0, "requests/min"),
        ({"profile": "prefix-length", "prefix_count": 3}, 1, None, "prefix tokens"),
    ],
)
def test_the_profile_says_what_a_level_counts(values, streams, rate, unit):
    load = workload(**values)
    assert workloads.streams_at(load, 60) == streams
    assert workloads.rate_req_s_at(load, 60) == rate
    assert workloads.level_unit(load) == unit


@pytest.mark.parametrize(
    ("values", "lengths", "arrivals"),
    [
        ({}, "fixed lengths", "without pause"),
        ({"profile": "constant"}, "fixed lengths", "evenly spaced"),
        (
            {"profile": "poisson", "prompt_spread": SPREAD},
            "drawn at random",
            "at random, whether or not",
        ),
        ({"profile": "bursts", "bursts": BURSTS}, "fixed lengths", "in random bursts"),
        (USERS, "fixed lengths", "after a pause of 10 s from"),
        (
            USERS | {"pause_s": PAUSE, "document_spread": SPREAD},
            "drawn at random",
            "after a pause of 8 s in the mean",
        ),
        (
            {"profile": "prefix-length", "prefix_count": 3},
            "fixed lengths",
            "without pause",
        ),
    ],
)
def test_the_words_for_a_workload_are_those_of_its_profile(values, lengths, arrivals):
    words = workloads.describe_requests(workload(**values))
    assert lengths in words
    assert arrivals in words.partition("requests")[2]


@pytest.mark.parametrize(
    ("values", "level", "tokens", "count"),
    [
        ({}, 60, 0, 0),
        ({"prefix_tokens": 100, "prefix_count": 7}, 60, 100, 7),
        ({"prefix_tokens": 100, "prefix_count": {"per_level": 2}}, 60, 100, 120),
        ({"prefix_tokens": 100, "prefix_count": {"tokens": 1050}}, 60, 100, 10),
        ({"profile": "prefix-length", "prefix_count": 3}, 60, 60, 3),
        ({"profile": "prefix-length", "prefix_count": {"tokens": 600}}, 60, 60, 10),
        ({"profile": "prefix-length", "prefix_count": {"tokens": 600}}, 1, 1, 600),
    ],
)
def test_prefixes_may_follow_the_level(values, level, tokens, count):
    load = workload(**values)
    assert workloads.prefix_tokens_at(load, level) == tokens
    assert workloads.prefix_count_at(load, level) == count
    assert workloads.working_set_tokens_at(load, level) == tokens * count


@given(length=st.integers(1, 10_000), tokens=st.integers(10_000, 10**7))
def test_a_working_set_is_never_larger_than_asked_and_short_by_less_than_a_prefix(
    length, tokens
):
    load = workload(
        profile="prefix-length", prefix_count={"tokens": tokens}, levels=[length]
    )
    assert tokens - length < workloads.working_set_tokens_at(load, length) <= tokens


def test_results_from_elsewhere_may_say_nothing():
    assert workloads.streams_at(workload_of({}), 8) == 8
    assert workloads.streams_at(workload_of({"profile": "sweep"}), 8) is None
    assert workload_of({"levels": [8.0]}).given_levels == (8,)
    assert (
        workloads.working_set_tokens_at(
            workload_of({"prefix_tokens": 10, "prefix_count": None}), 8
        )
        == 0
    )


def test_a_stored_workload_of_another_kind_is_named():
    with pytest.raises(WorkloadError, match="prefix_count"):
        workload_of({"prefix_count": "many"})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"profile": "bursts"}, "bursts"),
        ({"bursts": BURSTS}, "bursts"),
        ({"profile": "bursts", "bursts": BURSTS, "turns": 2}, "turns must be 1"),
        ({"profile": "bursts", "bursts": BURSTS | {"share": 0.5}}, "with at most 0.2"),
        (
            {"profile": "prefix-length", "prefix_count": 3, "prefix_tokens": 10},
            "no prefix_tokens",
        ),
        ({"profile": "prefix-length"}, "takes prefix_count"),
        (
            {"profile": "prefix-length", "prefix_count": {"tokens": 30}},
            "holds no prefix of 60",
        ),
        ({"profile": "poisson", "levels": []}, "at least one"),
        (
            {"prompt_spread": SPREAD | {"min": 65}},
            "prompt_tokens 64 is not between 65 and 200",
        ),
        (
            {"output_spread": SPREAD | {"max": 31}},
            "output_tokens 32 is not between 5 and 31",
        ),
        ({"prefix_tokens": 10}, "go together"),
        ({"pause_s": 5, "turns": 2}, "pause_s: only profile users"),
        ({"document_tokens": 5}, "document_tokens: only profile users"),
        ({"prefix_zipf": 1}, "prefix_zipf needs prefix_count"),
        (SHARED | {"profile": "bursts", "bursts": BURSTS}, "not bursts"),
        (SHARED | {"prime": True}, "leave out prime or prefix_zipf"),
        (USERS | {"turns": 1}, "turns must be 2 or more"),
        (USERS | {"pause_s": 60}, "arrive over 60 s, the level has only 60 s"),
        (USERS | {"arrive_s": 99}, "arrive over 99 s"),
        (USERS | {"pause_s": -1}, "greater than or equal to 0"),
        (USERS | {"document_spread": SPREAD | {"min": 101}}, "document_tokens 100 is"),
    ],
)
def test_what_makes_no_load_is_refused(values, says):
    with pytest.raises(ValidationError, match=says):
        Workload.model_validate({**PLAIN, "levels": [1, 60], **values})


def test_what_is_left_out_is_not_in_the_specification():
    known = {
        *PLAIN,
        "profile",
        "levels",
        "warmup_s",
        "request_timeout_s",
        "turns",
        "prefix_tokens",
        "prefix_count",
    }
    assert workload().to_json().keys() == known
    assert workload(prompt_spread=SPREAD).to_json().keys() == known | {"prompt_spread"}


def test_the_longest_conversation_counts():
    load = Workload.model_validate(
        {**PLAIN, "levels": [60], "turns": 3, "prompt_spread": SPREAD}
    )
    assert load.conversation_tokens == 3 * (200 + 32)
    load = Workload.model_validate(
        {**PLAIN, "levels": [60, 500], "profile": "prefix-length", "prefix_count": 2}
    )
    assert load.conversation_tokens == 500 + 64 + 32


@pytest.mark.parametrize(
    ("count", "varies"),
    [(3, True), ({"tokens": 6000}, False), ({"per_level": 1}, True)],
    ids=str,
)
def test_a_working_set_that_follows_the_level_is_known_to(count, varies):
    values = {
        **PLAIN,
        "levels": [50, 60],
        "profile": "prefix-length",
        "prefix_count": count,
    }
    assert workloads.working_set_varies(Workload.model_validate(values)) is varies


def test_users_have_documents_of_their_own_before_their_first_question():
    load = workload(**USERS, prefix_tokens=50, prefix_count=2)
    assert load.first_prompt_tokens == 50 + 100 + 64
    assert load.conversation_tokens == 50 + 100 + 5 * (64 + 32)
    varying = workload(**USERS | {"document_spread": SPREAD})
    assert varying.conversation_tokens == 200 + 5 * (64 + 32)


@pytest.mark.parametrize("values", [USERS, USERS | {"pause_s": PAUSE, "arrive_s": 3}])
def test_users_are_in_the_specification_and_read_back(values):
    load = workload(**values)
    assert {"document_tokens", "pause_s"} <= load.to_json().keys()
    assert workload_of(load.to_json()).to_json() == load.to_json()


def test_the_first_users_arrive_within_a_pause():
    assert workload(**USERS).arrival_s == 10
    assert workload(**USERS | {"pause_s": PAUSE}).arrival_s == PAUSE["mean"]
    assert workload(**USERS | {"arrive_s": 3}).arrival_s == 3
    assert not workloads.has_pauses(workload(**USERS | {"pause_s": 0}))


@given(count=st.integers(0, 3000), zipf=st.floats(0, 3))
def test_every_prefix_has_its_part_of_the_popularity(count, zipf):
    groups = workloads.popularity(count, zipf)
    assert sum(number for _, number in groups) == count
    weights = [weight for weight, _ in groups]
    assert weights == sorted(weights, reverse=True)
    assert all(weight > 0 for weight in weights)


def test_popularity_follows_zipfs_law():
    weights = [
        weight
        for weight, number in workloads.popularity(500, 0.8)
        for _ in range(number)
    ]
    assert weights[0] / weights[99] == pytest.approx(100**0.8, rel=0.05)
    assert weights[0] / weights[-1] == pytest.approx(500**0.8, rel=0.15)
    assert workloads.popularity(7, 0.0) == ((1, 7),)
    assert "prefix_zipf" not in workload(prefix_tokens=9, prefix_count=3).to_json()
