"""Conclusions from the requests: whether the tier is active, whether answers stay the same, and what to measure next."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kveval.engines.servers import answers
from kveval.host.http import HttpError
from kveval.plugins.attach.capacity import Capacity
from kveval.plugins.attach.client import StreamedAnswer, SurveyStopped
from kveval.plugins.attach.meter import Counts, ForeignTraffic, Window
from kveval.plugins.attach.prefix import (
    ANSWER_TOKENS,
    SEVERAL_SERVERS,
    PrefixRequests,
    SourceTimes,
    Target,
    place_of,
    served_tokens,
)
from kveval.stacks.running_server import Completion

_LIKELIEST = 5
# A device hit must take less than this share of computing before times can tell the two apart.
_TELLING_SHARE = 0.7
_MUCH_SLOWER = 0.9


@dataclass(frozen=True)
class TierActivity:
    """Whether the tier serves what the device has lost.

    `state`: "active", "not active" or "unknown"; `proof`: "counters", "usage", "time", "counters since start" or
    "configuration"; `why`: the figures.
    """

    state: str = "unknown"
    proof: str = ""
    why: str = ""


@dataclass(frozen=True)
class SameAnswers:
    """Whether greedy answers are the same cold and from a cache, judged against those of two computations.

    `state`: "same", "near ties", "changed" or "unknown", for which `why` has the reason. Numbers are of prompts.
    `first_token` and `margin_nats`: where the first answer differs, from 0, and by how much the computed token was
    likelier there than the other; None where that is not known.
    """

    source: str = "tier"
    state: str = "unknown"
    prompts: int = 0
    same: int = 0
    near_ties: int = 0
    changed: int = 0
    cold_prompts: int = 0
    cold_same: int = 0
    first_token: int | None = None
    margin_nats: float | None = None
    why: str = ""


def tier_activity(
    target: Target,
    requests: PrefixRequests,
    times: Mapping[str, SourceTimes],
    capacity: Capacity | None,
) -> TierActivity:
    """Decide whether the tier is active: by what served our prompts, else by what it has served since its start."""
    block = target.facts.block_tokens
    if capacity is not None and capacity.tier_tokens:
        served = f"{capacity.tier_tokens:,} tokens of the search for the capacity came from it"
        return TierActivity("active", "counters", served)
    tier = times["tier"]
    if requests.several_servers and tier.proof != "counters":
        return TierActivity("unknown", "", SEVERAL_SERVERS)
    if tier.proof in ("counters", "usage"):
        served = f"{tier.served_tokens:,} of a prompt's {tier.prompt_tokens:,} tokens came from it"
        return TierActivity("active", tier.proof, served)
    windows = list(requests.tier.values())
    known = [window for window in windows if place_of(window, block) is not None]
    if known:
        tokens = sum(window.answer.prompt_tokens for window in known)
        loaded = sum(map(served_tokens, known))
        why = f"of {tokens:,} tokens that the device had lost, {loaded:,} were served"
        proof = "counters" if all(window.own for window in known) else "usage"
        state, engines = "not active", target.facts.engines
        if engines > 1:
            state = "unknown"
            why += (
                f": {engines} engines answer here, each with caches of its own, and a prompt may be asked of another one than"
                " before"
            )
        return TierActivity(state, proof, why)
    if tier.ttft_ms:
        return _activity_by_time(times["cold"], times["device"], tier)
    return _activity_since_start(target.meter.at_start, target.facts.connector)


def _activity_by_time(
    cold: SourceTimes, device: SourceTimes, tier: SourceTimes
) -> TierActivity:
    """Decide by times alone: a tier's are nearer to a device hit's than to computing, as factors."""
    if not cold.ttft_ms or not device.ttft_ms:
        return TierActivity("unknown", "time", "there is nothing to compare times with")
    computed, hit = min(cold.ttft_ms), max(device.ttft_ms)
    if hit > _TELLING_SHARE * computed:
        why = f"a device hit took up to {hit:.1f} ms, computing from {computed:.1f} ms: times do not tell them apart"
        return TierActivity("unknown", "time", why)
    median = tier.median_ms or 0.0
    why = f"{median:.1f} ms, between {hit:.1f} ms of a device hit and {computed:.1f} ms of computing"
    if median < math.sqrt(computed * hit):
        return TierActivity("active", "time", why)
    if median >= _MUCH_SLOWER * computed:
        return TierActivity("not active", "time", why)
    return TierActivity("unknown", "time", f"{why}: neither")


def _activity_since_start(start: Counts, connector: str | None) -> TierActivity:
    """Decide by what the counters had before we came."""
    proof = "counters since start"
    if start.tier_tokens:
        why = f"it has served {start.tier_tokens:,.0f} prompt tokens since the server's start"
        return TierActivity("active", proof, why)
    if connector == "":
        why = "nothing is configured behind the device"
        return TierActivity("not active", "configuration", why)
    if start.store_bytes:
        why = (
            f"since the server's start it has stored {start.store_bytes:,.0f} bytes and served nothing: either nothing was"
            " asked for that only it had, or it does not serve"
        )
        return TierActivity("unknown", proof, why)
    return TierActivity("unknown", "", "no request could be served by a tier alone")


def same_answers(target: Target, requests: PrefixRequests) -> SameAnswers:
    """Compare the answers of the tier, or of the device where the tier gave none, with the cold ones."""
    block = target.facts.block_tokens
    if requests.several_servers:
        return SameAnswers(why=SEVERAL_SERVERS)
    for source in ("tier", "device"):
        windows: Mapping[int, Window] = getattr(requests, source)
        served = {
            number: window
            for number, window in windows.items()
            if place_of(window, block) in (source, "cache", None)
        }
        if served:
            return _compared(target, requests, source, served)
    return SameAnswers("tier", "unknown", why="no prompt was served by a cache")


def _compared(
    target: Target,
    requests: PrefixRequests,
    source: str,
    served: Mapping[int, Window],
) -> SameAnswers:
    # With equal answers from the device's cache, which makes the same additions, a tier's copy is right.
    as_device = _as_from_device(requests, served) if source == "tier" else set()
    numbers = sorted(served.keys() - as_device)
    cold = [_completion(requests.cold[number].answer) for number in numbers]
    again = [_completion(served[number].answer) for number in numbers]
    differing = [
        place
        for place, pair in enumerate(zip(cold, again, strict=True))
        if pair[0].tokens != pair[1].tokens
    ]
    texts = [requests.texts[number] for number in numbers]
    try:
        judged = {
            place: _likeliest(target, texts[place], cold[place]) for place in differing
        }
    except (SurveyStopped, HttpError) as error:
        why = f"answers differ, and the request that would judge them failed: {error}"
        return SameAnswers(source, "unknown", why=why)
    # What served them was decided above; by time it is not counted in tokens.
    tokens = sum(completion.prompt_tokens for completion in cold)
    comparison = answers.compare(
        cold, again, answers.Judges(judged), tokens, tokens, tier=source == "tier"
    )
    pairs = _cold_pairs(requests, target.facts.block_tokens)
    alike = [first.tokens == second.tokens for first, second in pairs]
    near_ties = comparison.near_ties + len(as_device)
    state, why = _state(comparison.changed, near_ties, alike)
    if comparison.unchecked and not as_device:
        state, why = "unknown", comparison.unchecked
    first = comparison.first_difference
    return SameAnswers(
        source,
        state,
        prompts=len(served),
        same=comparison.same,
        near_ties=near_ties,
        changed=comparison.changed,
        cold_prompts=len(alike),
        cold_same=sum(alike),
        first_token=None if first is None else first.token,
        margin_nats=None if first is None else first.margin_nats,
        why=why,
    )


def _as_from_device(requests: PrefixRequests, served: Mapping[int, Window]) -> set[int]:
    """Return the texts whose answers differ from the cold ones, and are those that the device's cache gave."""
    return {
        number
        for number, window in served.items()
        if number in requests.device
        and window.answer.tokens != requests.cold[number].answer.tokens
        and window.answer.tokens == requests.device[number].answer.tokens
    }


def _state(changed: int, near_ties: int, alike: Sequence[bool]) -> tuple[str, str]:
    if changed and not all(alike):
        return "unknown", "two computations of one prompt differ as well"
    if changed:
        return "changed", "" if alike else "no prompt was computed twice"
    return ("near ties" if near_ties else "same"), ""


def _cold_pairs(
    requests: PrefixRequests, block_tokens: int | None
) -> list[tuple[StreamedAnswer, StreamedAnswer]]:
    """Return the answers of the texts that were computed twice."""
    return [
        (requests.cold[number].answer, window.answer)
        for number, window in requests.second_cold.items()
        if place_of(window, block_tokens) in ("cold", None)
    ]


def _completion(answer: StreamedAnswer) -> Completion:
    return Completion(answer.prompt_tokens, answer.tokens)


def _likeliest(target: Target, text: str, cold: Completion) -> Completion:
    """Return a further answer with the likeliest tokens at each place; the cold one where the server has none."""
    completion = target.program.completed(
        target.client.ask, target.model, text, ANSWER_TOKENS, _LIKELIEST
    )
    if completion is None:
        return cold
    target.client.prompt_tokens += completion.prompt_tokens
    return completion


def next_steps(
    target: Target,
    activity: TierActivity,
    times: Mapping[str, SourceTimes],
    same: SameAnswers,
    foreign: ForeignTraffic,
    capacity: Capacity | None,
) -> list[str]:
    """Return what to do next, the most important first."""
    advice, facts = target.program.advice, target.facts
    steps = []
    if foreign.size in ("named", "large") or foreign.running_most:
        steps.append(
            "others use this server: repeat this while it is quiet, before you rely on the times"
        )
    if target.meter.several_servers:
        steps.append(
            "several servers answer here: ask each replica, at its own address"
        )
    elif target.meter.closed:
        steps.append(f"its counters are not readable here: {advice.metrics}")
    if same.state == "changed":
        steps.append(
            f"answers from the {same.source} differ from computed ones: do not use it until that is explained"
        )
    if activity.state == "not active" and facts.connector == "":
        steps.append(f"no tier is configured: {advice.tier}")
    elif activity.state == "not active":
        steps.append(
            "the tier is configured and serves nothing: see the server's log for what it says of it, and send longer prefixes"
            " with --share, as tiers keep whole chunks"
        )
    elif activity.state == "unknown":
        evicting = "; or --capacity, which evicts what the caches hold"
        steps.append(
            f"whether the tier serves is open: {advice.emptying}{'' if capacity else evicting}"
        )
    else:
        steps += _of_an_active_tier(times, capacity)
    return steps


def _of_an_active_tier(
    times: Mapping[str, SourceTimes], capacity: Capacity | None
) -> list[str]:
    cold, tier = times["cold"].median_ms, times["tier"].median_ms
    steps = []
    if cold and tier and tier >= cold:
        steps.append(
            f"loading took as long as computing at {times['tier'].prompt_tokens:,} tokens: send longer prefixes with --share"
        )
    if capacity is None:
        steps.append("how much the tier retains: --capacity")
    elif capacity.device_tokens and not capacity.tier_tokens:
        steps.append(
            "all that was retained came from the device: a tier that is smaller than the device's cache mirrors it"
        )
    steps.append(
        "what your own load gains: a log of its requests with `kveval trace`, then `kveval curve`"
    )
    return steps
