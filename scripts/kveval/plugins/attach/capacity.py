"""The capacity of a server's caches, from outside: so many contexts are sent, and asked for again, the newest first.

Caches drop what was used least recently, so what is served again, up to the first context that is not, is what they
retain. A tier that has a copy of everything the device holds retains its own size; the device's is part of it.
"""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kveval.engines.servers.one_request import SERVED_SHARE, number_lines
from kveval.host.errors import Failure
from kveval.plugins.attach.meter import Window
from kveval.plugins.attach.prefix import Target
from kveval.stacks.running_server import RunningFacts

_BEYOND = 1.25
"""How much more than what is declared is sent."""
_ROOM_SHARE = 0.9
# Without counters the capacity is known to one of so many contexts; with counters the last one counts in part.
_CONTEXTS = 50
_STORING_S = 2.0
_TRIAL_LINES = 8


class CapacityError(Failure):
    """The capacity cannot be searched for; the message says what is lacking."""


@dataclass(frozen=True)
class CapacityPlan:
    """A search, before it is made: it evicts all that the caches hold of others, if they hold no more than is sent."""

    contexts: int
    context_tokens: int
    declared_tokens: int | None
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens that are sent, and that take the place of what the caches hold."""
        return self.contexts * self.context_tokens

    @property
    def requests(self) -> int:
        """Requests at most: each context is sent, and asked for again."""
        return 2 * self.contexts


@dataclass
class Capacity:
    """The tokens that a server retained; `at_least` if every context was served again, or the search was stopped.

    `proof`: "counters", "usage" or "time" (whole contexts); `stored_bytes_per_token`: None if stores are not counted.
    """

    plan: CapacityPlan
    sent_tokens: int = 0
    device_tokens: int = 0
    tier_tokens: int = 0
    other_tokens: int = 0
    """Served by one of the two, of which it is not known."""
    at_least: bool = True
    proof: str = ""
    stored_bytes_per_token: float | None = None
    asked: int = 0
    cold_ms: list[float] = field(default_factory=list)
    hit_ms: list[float] = field(default_factory=list)

    @property
    def retained_tokens(self) -> int:
        """All that was served again."""
        return self.device_tokens + self.tier_tokens + self.other_tokens


def declared_tokens(facts: RunningFacts, bytes_per_token: float | None) -> int | None:
    """Return how many tokens the larger of device and tier holds, as declared; None if nothing declares it."""
    tier = facts.tier_tokens
    if tier is None and facts.tier_bytes and bytes_per_token:
        tier = int(facts.tier_bytes / bytes_per_token)
    sizes = [size for size in (facts.device_tokens, tier) if size]
    tier_is_known = tier is not None or facts.connector == ""
    return max(sizes) if sizes and tier_is_known else None


def plan_search(
    target: Target,
    *,
    declared: int | None,
    tokens: int | None,
    cold_ms_per_token: float,
    hit_ms: float,
) -> CapacityPlan:
    """Return what a search would do, within the requests that are left. Raises CapacityError.

    `tokens`: to send in all, None for 1.25 times what is declared; `hit_ms`: of a request that a cache serves, reading
    the counters included.
    """
    if tokens is None and declared is None:
        message = "nothing tells how large the caches are: say with --capacity-tokens how many tokens to send"
        raise CapacityError(message, code="undeclared")
    wanted = tokens or math.ceil(_BEYOND * (declared or 0))
    most_contexts = (target.client.requests_left - 1) // 2
    if most_contexts < 1:
        raise CapacityError("no request is left for it: --max-requests", code="spent")
    room = int(_ROOM_SHARE * target.room_tokens) if target.room_tokens else None
    length = math.ceil(wanted / min(most_contexts, _CONTEXTS))
    if room:
        length = min(length, room)
    contexts = min(most_contexts, math.ceil(wanted / length))
    seconds = contexts * (length * cold_ms_per_token + hit_ms) / 1000
    return CapacityPlan(contexts, length, declared, seconds + _STORING_S)


def fill_and_ask(capacity: Capacity, target: Target) -> None:
    """Send the contexts of the plan, then ask for them again, adding to `capacity` as they are answered."""
    plan = capacity.plan
    trial = target.send(number_lines(_TRIAL_LINES), 1).answer
    lines = max(1, int(plan.context_tokens * _TRIAL_LINES / trial.prompt_tokens))
    before = target.meter.so_far
    texts = []
    for _ in range(plan.contexts):
        texts.append(number_lines(lines))
        body = target.program.text_request(target.model, texts[-1], 1)
        answer = target.client.complete(body)
        capacity.sent_tokens += answer.prompt_tokens
        capacity.cold_ms.append(answer.ttft_ms)
    # Stores go on in the background.
    time.sleep(_STORING_S)
    target.meter.skip()
    stored = target.meter.so_far.since(before).store_bytes
    if stored:
        capacity.stored_bytes_per_token = stored / capacity.sent_tokens
    _ask_again(capacity, target, texts[::-1])


def _ask_again(capacity: Capacity, target: Target, newest_first: Sequence[str]) -> None:
    """Ask for the contexts until one is not served; by times until two are not, as others may delay one."""
    missed_tokens = 0
    for text in newest_first:
        capacity.asked += 1
        window = target.send(text, 1)
        if _add(capacity, window):
            # What came after it is served, so that it was served, too, and late.
            capacity.other_tokens += missed_tokens
            missed_tokens = 0
        elif capacity.proof != "time" or missed_tokens:
            capacity.at_least = False
            return
        else:
            missed_tokens = window.answer.prompt_tokens
    capacity.at_least = not missed_tokens


def _add(capacity: Capacity, window: Window) -> bool:
    """Add what was served of a context; return whether all of it was."""
    answer, rise = window.answer, window.rise
    if window.own and rise.device_tokens is not None and rise.tier_tokens is not None:
        capacity.device_tokens += int(rise.device_tokens)
        capacity.tier_tokens += int(rise.tier_tokens)
        served, capacity.proof = rise.device_tokens + rise.tier_tokens, "counters"
    elif answer.cached_tokens is not None:
        capacity.other_tokens += answer.cached_tokens
        served, capacity.proof = answer.cached_tokens, capacity.proof or "usage"
    else:
        is_hit = _is_hit(capacity, answer.ttft_ms)
        served = answer.prompt_tokens if is_hit else 0
        capacity.other_tokens += served
        capacity.proof = "time"
    complete = served >= SERVED_SHARE * answer.prompt_tokens
    if complete:
        capacity.hit_ms.append(answer.ttft_ms)
    return complete


def _is_hit(capacity: Capacity, ttft_ms: float) -> bool:
    """Whether a time is nearer to those of hits than to those of computing, as factors."""
    cold = statistics.median(capacity.cold_ms)
    hit = statistics.median(capacity.hit_ms) if capacity.hit_ms else cold / 4
    return ttft_ms < math.sqrt(cold * hit)
