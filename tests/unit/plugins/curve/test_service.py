"""Requests on a server of known speed: what any such server obeys, and that its speed is found from what it served."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kveval.plugins.curve.simulation.service import (
    Demanded,
    ServedLevel,
    ServerSpeed,
    Service,
    TierSpeed,
)
from kveval.plugins.curve.simulation.speed import (
    ObservedLevel,
    fit_speed,
    level_figures,
)

SPEED = ServerSpeed(
    token_s=5e-5, context_share=1e-4, batch_s=0.004, answer_s=0.0005, request_s=0.01
)
WINDOW = (5.0, 60.0)


def demanded(
    found: list[int],
    *,
    prompt: int = 3000,
    answer: int = 16,
    loaded: bool = True,
    **changes,
) -> Demanded:
    """Requests of one length, of which a cache has so many tokens each: a tier's, or the device's."""
    ones = np.ones(len(found), np.int64)
    cached, nothing = np.array(found, np.int64), 0 * ones
    made = Demanded(
        arrivals_s=None,
        input_tokens=prompt * ones,
        output_tokens=answer * ones,
        on_device=nothing if loaded else cached,
        in_tier=cached if loaded else nothing,
        groups=np.arange(len(found)),
    )
    return replace(made, **changes)


def serve(*settings, **more) -> ServedLevel:
    return Service(*settings, **more).simulate()


def test_a_request_by_itself_takes_the_sum_of_its_parts():
    one = demanded([0] * 400, prompt=3000, answer=11)
    found = serve(one, SPEED, TierSpeed(), WINDOW, streams=1)
    # Two batches of prompt, 2,048 and 952 tokens, and ten of one answer.
    ttft_s = 0.01 + 2 * 0.004 + 5e-5 * (3000 + 1e-4 * 3000**2 / 2)
    assert found.ttft_ms == pytest.approx(1000 * ttft_s)
    assert found.itl_ms.mean() == pytest.approx(4.5)
    each_s = ttft_s + 10 * 0.0045
    assert found.completed_req_s == pytest.approx(1 / each_s, rel=0.03)
    assert found.throughput_tok_s == pytest.approx(11 / each_s, rel=0.03)
    assert found.busy == pytest.approx(1 - 0.01 / each_s, rel=0.01)


def test_a_closed_loop_ends_when_its_first_stream_has_no_request_left():
    # A token in each batch, by each of two streams, until the shorter answer ends; the rest of the other is not counted.
    answers = np.array([10, 30])
    one_token_prompts = demanded([0, 0], prompt=1, output_tokens=answers)
    found = serve(one_token_prompts, SPEED, TierSpeed(), (0.0, 60.0), streams=2)
    first_s = 0.01 + 0.004 + 2 * 5e-5 * (1 + 1e-4 / 2)
    end_s = first_s + 9 * (0.004 + 2 * 0.0005)
    assert found.throughput_tok_s == pytest.approx((10 + 10) / end_s)


def test_what_the_device_holds_is_a_bound_on_what_it_takes_in():
    many = demanded([0] * 400)
    narrow = serve(many, SPEED, TierSpeed(), WINDOW, streams=8, device_tokens=3100)
    alone = serve(many, SPEED, TierSpeed(), WINDOW, streams=1, device_tokens=3100)
    wide = serve(many, SPEED, TierSpeed(), WINDOW, streams=8)
    assert narrow.throughput_tok_s == pytest.approx(alone.throughput_tok_s, rel=0.08)
    assert wide.throughput_tok_s > 1.05 * narrow.throughput_tok_s


def test_what_prompts_have_in_common_takes_room_once_while_one_of_them_is_served():
    apart = demanded([1500] * 400, loaded=False)
    alike = replace(apart, groups=np.zeros(400, np.int64))

    def served(requests: Demanded, tokens: float) -> ServedLevel:
        return serve(
            requests, SPEED, TierSpeed(), WINDOW, streams=2, device_tokens=tokens
        )

    # Room for two that share half of their prompts, and not for two that share nothing.
    together, each = served(alike, 4600), served(apart, 4600)
    assert together.throughput_tok_s > 1.02 * each.throughput_tok_s
    # Room for one: nothing of it is left behind, to be shared with those that come later.
    assert served(alike, 3600).completed_req_s == served(apart, 3600).completed_req_s


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=200, max_size=200),
    st.integers(1, 12),
    st.booleans(),
)
def test_a_tier_with_nothing_to_give_changes_nothing(blocks, streams, on_cpu):
    requests = demanded([32 * count for count in blocks], loaded=False)
    without = serve(requests, SPEED, TierSpeed(), WINDOW, streams)
    with_tier = serve(
        requests, SPEED, TierSpeed(load_tokens_s=1e5, blocks=on_cpu), WINDOW, streams
    )
    assert with_tier.throughput_tok_s == without.throughput_tok_s
    assert with_tier.ttft_ms.tolist() == without.ttft_ms.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=300, max_size=300
    ),
    st.integers(1, 12),
    st.booleans(),
)
def test_more_hits_are_never_slower_where_loading_is_faster_than_computing(
    pairs, streams, on_cpu
):
    fewer = demanded([32 * min(pair) for pair in pairs])
    more = demanded([32 * max(pair) for pair in pairs])
    # Ten times as fast as computing is at the beginning of a prompt.
    tier = TierSpeed(load_tokens_s=2e5, blocks=on_cpu)
    slow, fast = (
        serve(requests, SPEED, tier, WINDOW, streams) for requests in (fewer, more)
    )
    # Requests are whole numbers, and a copy takes a batch of its own.
    assert fast.throughput_tok_s >= 0.96 * slow.throughput_tok_s


@pytest.mark.parametrize("on_cpu", [True, False])
def test_loading_slower_than_computing_is_a_loss(on_cpu):
    cold, hit = demanded([0] * 300), demanded([2976] * 300)
    slow = TierSpeed(load_tokens_s=0.3 / SPEED.token_s, blocks=on_cpu)
    found = [
        serve(requests, SPEED, slow, WINDOW, streams=4) for requests in (cold, hit)
    ]
    assert found[1].throughput_tok_s < 0.9 * found[0].throughput_tok_s
    assert np.median(found[1].ttft_ms) > np.median(found[0].ttft_ms)


def test_storing_costs_where_the_cpu_is_the_device_and_nothing_beside_a_gpu():
    cold = demanded([0] * 300)
    copies = TierSpeed(store_tokens_s=1 / SPEED.token_s)
    alone = serve(cold, SPEED, TierSpeed(), WINDOW, streams=2).throughput_tok_s
    assert serve(cold, SPEED, copies, WINDOW, streams=2).throughput_tok_s == alone
    assert (
        serve(
            cold, SPEED, replace(copies, blocks=True), WINDOW, streams=2
        ).throughput_tok_s
        < 0.7 * alone
    )


@pytest.mark.parametrize("rate", [2.0, 12.0])
def test_an_open_loop_is_served_at_its_rate_until_it_is_more_than_the_device_can_do(
    rate,
):
    count = int(60 * rate)
    found = serve(
        demanded([0] * count, arrivals_s=np.arange(count) / rate),
        SPEED,
        TierSpeed(),
        WINDOW,
    )
    most = 1 / (SPEED.prefill_s(0, 3000) + 2 * SPEED.batch_s)
    if rate < most:
        assert found.completed_req_s == pytest.approx(rate, rel=0.03)
        assert found.busy < 0.95 and found.waiting <= 2
    else:
        assert found.completed_req_s < most and found.busy == pytest.approx(1)
        assert found.waiting == pytest.approx(
            (rate - found.completed_req_s) * 60, rel=0.1
        )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(0, 90), st.integers(1, 60))
def test_streams_obey_littles_law(streams, blocks, answer):
    requests = demanded([32 * blocks] * 4000, answer=answer, loaded=False)
    found = serve(requests, SPEED, TierSpeed(), (20.0, 200.0), streams)
    gap = float(found.itl_ms.mean()) if len(found.itl_ms) else 0.0
    response_s = (found.ttft_ms.mean() + gap * (answer - 1)) / 1000
    assert found.completed_req_s * response_s == pytest.approx(streams, rel=0.06)
    assert 0 <= found.busy <= 1


def observed(speed: ServerSpeed, streams: int, seed: int = 1) -> ObservedLevel:
    """A level as a server of that speed would be measured: a quarter of its prompts are on the device."""
    generator = np.random.default_rng(seed)
    requests = demanded(
        [2976 if hit else 0 for hit in generator.random(900) < 0.25], loaded=False
    )
    served = serve(requests, speed, TierSpeed(), WINDOW, streams)
    return ObservedLevel(
        [requests], WINDOW, streams, math.inf, 2048, *level_figures([served])
    )


@pytest.mark.parametrize("factor", [0.3, 20.0])
def test_a_speed_is_found_from_what_it_served(factor):
    """Faster and slower servers than the guess; what it then predicts of a tier is what that speed does."""
    true = ServerSpeed(
        5e-5 * factor, 3e-4, 0.004 * factor, 0.0005 * factor, 0.01 * factor
    )
    window = (WINDOW[0] * factor, WINDOW[1] * factor)
    levels = []
    for streams, seed in ((2, 1), (6, 3)):
        requests = observed(SPEED, streams, seed).demanded
        served = serve(requests[0], true, TierSpeed(), window, streams)
        levels.append(
            ObservedLevel(
                requests, window, streams, math.inf, 2048, *level_figures([served])
            )
        )
    found = fit_speed(levels, context_share=1e-4)
    assert found.misfit < 2
    assert found.best.prefill_s(0, 3000) == pytest.approx(
        true.prefill_s(0, 3000), rel=0.1
    )
    hits = [demanded([2976] * 6000)]
    gains = []
    for speed in (true, *found.draws(20)):
        with_tier = (
            levels[0]
            .simulate(speed, TierSpeed(load_tokens_s=1e6), hits)[0]
            .throughput_tok_s
        )
        gains.append(
            with_tier / levels[0].simulate(speed, TierSpeed())[0].throughput_tok_s
        )
    assert min(gains[1:]) < 1.1 * gains[0] and max(gains[1:]) > 0.9 * gains[0]
    assert np.median(gains[1:]) == pytest.approx(gains[0], rel=0.25)


def test_what_levels_do_not_tell_stays_unsure():
    answers = demanded([0] * 900, answer=1)
    served = serve(answers, SPEED, TierSpeed(), WINDOW, 2)
    one = ObservedLevel([answers], WINDOW, 2, math.inf, 2048, *level_figures([served]))
    found = fit_speed([one], 1e-4)
    # Prompts are what was measured; a batch with an answer never was.
    prompts = [
        speed.prefill_s(0, 3000) + 2 * speed.batch_s for speed in found.draws(50)
    ]
    assert np.std(np.log(prompts)) < 0.15
    assert np.std([math.log(speed.answer_s) for speed in found.likely]) > 0.5


@pytest.mark.parametrize("pause_s", [0.5, 2.0])
def test_users_who_pause_set_the_throughput(pause_s):
    users, answer = 4, 16
    waits = np.full(4000, pause_s)
    load = demanded([2900] * 4000, answer=answer, loaded=False, pauses_s=waits)
    found = serve(load, SPEED, TierSpeed(), WINDOW, streams=users)
    each_s = float(found.ttft_ms.mean() + (answer - 1) * found.itl_ms.mean()) / 1000
    assert found.completed_req_s == pytest.approx(users / (each_s + pause_s), rel=0.05)


def test_the_first_users_arrive_one_after_the_other():
    load = demanded([0] * 400, arrival_s=8.0)
    service = Service(load, SPEED, TierSpeed(), WINDOW, streams=4)
    service.simulate()
    assert {0.0, 2.0, 4.0, 6.0} <= {*service.came}
