"""Three times to the first token of one request: computed, served by the device's cache, and served by the tier.

A request for one token is answered with its first token, so its time is the time to the first token, HTTP included.
The prompts are drawn anew at each call, because only a prompt that nobody has sent is computed. They are as long as the
load's first prompts: what loading costs beside computing depends on the length.
"""

import random
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from kveval.campaign.specification import Specification
from kveval.engines.servers import answers
from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError
from kveval.host.http import HttpError
from kveval.stacks.counters import CounterError
from kveval.store.run_file import OneRequest, RequestTime, RequestTimes

PROMPTS = 3
SERVED_SHARE = 0.8
"""Share of a prompt's tokens that a cache must have served for the time to be that of a hit.

Not more, because caches keep whole chunks: LMCache's have 256 tokens, so that of 650 it serves 512.
"""
_LEAST_TOKENS, _MOST_TOKENS = 800, 10_000
# Longer ones take more than a second each on two slow cores.
_MINIATURE_ON_CPU_TOKENS = 2_000
# Of the longest conversation, because the tokens of a text are known by an estimate.
_ROOM_SHARE = 0.9
_TRIAL_LINES = 8
_Source = Callable[[], float]
"""Returns how many prompt tokens a cache, or several, have served so far."""


def request_tokens(specification: Specification) -> int:
    """Return how many tokens the timed prompts are to have: as many as the load's first prompts, within bounds.

    At least 800, because what shorter ones take is mostly what any request takes. At most 10,000; on a CPU 2,000 for a
    miniature and 800 for other models; 800 where they would stay in a tier that cannot be emptied.
    """
    most = _MOST_TOKENS
    if specification.on_cpu:
        most = _MINIATURE_ON_CPU_TOKENS if specification.miniature else _LEAST_TOKENS
    if specification.reset_caches == "restart":
        most = _LEAST_TOKENS
    workload = specification.workload
    first = workload.longest_prefix + workload.document_tokens + workload.prompt_tokens
    room = int(_ROOM_SHARE * specification.model.max_model_len)
    return min(room, most, max(first, _LEAST_TOKENS))


def measure(server: Endpoint, *, tier: bool, prompt_tokens: int) -> OneRequest:
    """Time prompts of some `prompt_tokens` tokens, one at a time: cold, and again from the device's cache.

    With `tier` once more from the tier, for which the device's cache is emptied; leaves caches filled. A time counts
    only if the server's counters say that the prompt's tokens came from there; without any, `reason` says why.
    """
    tier_times = None
    try:
        texts = _texts(server, prompt_tokens)
        cold_times, device_times = _cold_and_repeated(server, texts, tier=tier)
    except (HttpError, CounterError, DeploymentError) as error:
        # A server that has ended is detected by other checks.
        cold_times = device_times = RequestTimes(reason=str(error))
        tier_times = cold_times if tier else None
        return OneRequest(cold_times, device_times, tier_times, server.through)
    try:
        tier_times = _from_tier(server, texts) if tier else None
    except (HttpError, CounterError, DeploymentError) as error:
        tier_times = RequestTimes(reason=str(error))
    return OneRequest(cold_times, device_times, tier_times, server.through)


def _texts(server: Endpoint, prompt_tokens: int) -> list[str]:
    """Return prompts that nobody has sent; how many tokens a line has, the server tells of a short one."""
    trial = number_lines(_TRIAL_LINES)
    line_tokens = _requested(server, trial).prompt_tokens / _TRIAL_LINES
    lines = max(1, int(prompt_tokens / line_tokens))
    return [number_lines(lines) for _ in range(PROMPTS)]


def number_lines(lines: int) -> str:
    """Return lines of random numbers, the first of which are in the first block of tokens."""
    chosen = random.SystemRandom()
    numbers = [
        (chosen.randrange(10_000, 100_000), chosen.randrange(10_000, 100_000))
        for _ in range(lines)
    ]
    return "".join(f"The number of room {room} is {it}. " for room, it in numbers)


def _requested(server: Endpoint, text: str) -> RequestTime:
    """Request one token, and time it. Raises HttpError, DeploymentError."""
    program, begin = server.program, time.monotonic()
    completion = program.completed(server.ask, server.served_model, text, 1, 0)
    ttft_ms = 1000 * (time.monotonic() - begin)
    if completion is None:
        raise DeploymentError(
            "the server does not return the tokens of its answers", code="no_tokens"
        )
    return RequestTime(round(ttft_ms, 3), completion.prompt_tokens, 0)


def _timed(server: Endpoint, text: str, source: _Source, share: float) -> RequestTime:
    """Time a prompt of which `source` is to serve this share of the tokens."""
    before = source()
    request = _requested(server, text)
    served = answers.served_tokens(source, before, share * request.prompt_tokens)
    return replace(request, served_tokens=served)


def _is_hit(request: RequestTime) -> bool:
    """Whether the source served the prompt; more than all of it are tokens of another request."""
    least = SERVED_SHARE * request.prompt_tokens
    return least <= request.served_tokens <= request.prompt_tokens


def _cold_and_repeated(
    server: Endpoint, texts: Sequence[str], *, tier: bool
) -> tuple[RequestTimes, RequestTimes]:
    """Return the times of cold prompts, and from the device's cache: each at once, as a small device holds only one."""
    sources = [answers.hit_reader(server, tier=False)]
    device = sources[0]
    if tier:
        sources.append(answers.hit_reader(server, tier=True))

    def any_cache() -> float:
        return sum(source() for source in sources)

    cold, repeated = [], []
    for text in texts:
        cold.append(_timed(server, text, any_cache, 0.0))
        repeated.append(_timed(server, text, device, SERVED_SHARE))
    computed = [request for request in cold if request.served_tokens == 0]
    cold_times = _times(cold, computed, "caches")
    hits = [request for request in repeated if _is_hit(request)]
    return cold_times, _times(repeated, hits, "the device")


def _from_tier(server: Endpoint, texts: Sequence[str]) -> RequestTimes:
    """Return the times from the tier behind the device, once it has stored the prompts in the background.

    The newest is requested first, because a small tier has dropped the others.
    """
    source = answers.hit_reader(server, tier=True)
    requests: list[RequestTime] = []
    for wait_s in answers.STORING_S:
        time.sleep(wait_s)
        server.reset_caches(tiers=False)
        requests = []
        for text in reversed(texts):
            requests.append(_timed(server, text, source, SERVED_SHARE))
            if not _is_hit(requests[-1]):
                # What is computed now takes the place of what the tier still has.
                break
        if _is_hit(requests[0]):
            break
    return _times(requests, list(filter(_is_hit, requests)), "the tier")


def _times(
    requests: Sequence[RequestTime], counted: list[RequestTime], source: str
) -> RequestTimes:
    """Return the times that count; without any, why: what was served of the requests."""
    if counted:
        return RequestTimes(counted)
    served = sum(request.served_tokens for request in requests)
    tokens = sum(request.prompt_tokens for request in requests)
    return RequestTimes(
        reason=f"{source} served {served:,} of the prompts' {tokens:,} tokens"
    )
