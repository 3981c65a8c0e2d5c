"""Whether a server gives the same answers with and without its caches: greedy prompts sent again, compared by token.

With a tier that returns wrong keys and values, a server answers fluently but wrongly (LMCache#4247, #4463), which no
performance metric shows. A prompt lists numbers and asks for one of the first, which needs a correct cache.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kveval.engines.servers.endpoint import Endpoint
from kveval.engines.servers.errors import DeploymentError
from kveval.host.http import HttpError
from kveval.stacks.counters import CounterError
from kveval.stacks.running_server import Completion
from kveval.store.run_file import AnswerDifference, Answers

PROMPTS = 4
TOKENS = 16
# With a cached prefix, additions are made in another order than with a cold one. That moved log-probabilities by 0.06
# nats in vLLM#5543 and by one step of bfloat16 between logits of 16 and 32, 0.125, in vLLM#52701: a tie may be two such
# steps wide. A cache that was transferred wrongly moved them by more than 3 (vLLM#52617).
TOLERANCE_NATS = 0.25
"""Largest difference of two tokens' log-probabilities, nats, at which one instead of the other is a near tie."""
_SERVED_SHARE = 0.5
"""Share of the prompts' tokens that a cache must have served for the comparison to be about the cache."""
_COLOURS = ("red", "blue", "green", "white", "black", "brown", "yellow", "grey")
_THINGS = ("door", "house", "river", "table", "horse", "garden", "letter")
_ASKED = " Once more, the number of the blue door is"
# More tokens than any tokenizer makes of a line, and of the question with its answer.
_LINE_TOKENS = 20
_REST_TOKENS = 64
STORING_S = (0.5, 2.0)
"""Seconds to wait until a tier has stored blocks in the background; files and separate servers take longer."""
_COUNTED_S = 1.0
_LIKELIEST = 5
_SUMMED = (
    "prompts",
    "same",
    "near_ties",
    "changed",
    "prompt_tokens",
    "served_tokens",
)


@dataclass(frozen=True)
class Repeated:
    """Answers to prompts that were answered before, and how many of the prompts' tokens a cache served."""

    answers: Sequence[Completion]
    served: int


def prompts(longest: int, seed: int) -> list[str]:
    """Return texts with equal ends of some 800 tokens each, fewer if `longest`, tokens of a conversation, is less."""
    room = max(4, (longest - _REST_TOKENS) // _LINE_TOKENS)
    names = [
        f"{colour} {thing}" for thing, colour in itertools.product(_THINGS, _COLOURS)
    ][:room]
    chosen = random.Random(seed)
    texts = []
    for _ in range(PROMPTS):
        lines = [
            f" The number of the {name} is {chosen.randrange(10_000, 100_000)}."
            for name in names
        ]
        texts.append("".join(lines).lstrip() + _ASKED)
    return texts


def _answers(
    server: Endpoint, texts: Sequence[str], likeliest: int = 0
) -> list[Completion]:
    """Return the answers, requested one at a time: other requests in a batch change the order of additions."""
    completions = (
        server.program.completed(
            server.ask, server.served_model, text, TOKENS, likeliest
        )
        for text in texts
    )
    answers = [completion for completion in completions if completion is not None]
    if len(answers) < len(texts):
        raise DeploymentError(
            "the server does not return the tokens of its answers", code="no_tokens"
        )
    return answers


def hit_reader(server: Endpoint, *, tier: bool) -> Callable[[], float]:
    """Return what reads how many prompt tokens the tier, or the device's cache, has served. Raises DeploymentError."""
    program = server.program
    name = program.served_tokens_counter(server.version, tier=tier)
    if name is None:
        message = f"{program.title} {server.version} does not count the tokens that its caches serve"
        raise DeploymentError(message, code="no_counter")
    return lambda: server.counters().get(name, 0.0)


def served_tokens(read: Callable[[], float], before: float, expected: float) -> int:
    """Return the prompt tokens served since the counter was at `before`, at most a second after the answers."""
    deadline = time.monotonic() + _COUNTED_S
    # The metrics may be updated a moment after the answers.
    while (served := read() - before) < expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return int(served)


def _from_device(
    server: Endpoint, texts: Sequence[str]
) -> tuple[list[Completion], Repeated]:
    """Return cold answers, and those from the device's cache.

    Each prompt is repeated at once, because a small device holds one prompt and no more.
    """
    read = hit_reader(server, tier=False)
    before = read()
    pairs = [_answers(server, [text, text]) for text in texts]
    cold = [first for first, _ in pairs]
    again = [second for _, second in pairs]
    return cold, Repeated(again, served_tokens(read, before, _expected_tokens(cold)))


def _from_tier(server: Endpoint, texts: Sequence[str], expected: float) -> Repeated:
    """Return the answers from the tier behind the device, asked for until it has stored what it is to serve."""
    read = hit_reader(server, tier=True)
    for wait_s in STORING_S:
        time.sleep(wait_s)
        server.reset_caches(tiers=False)
        before = read()
        repeated = Repeated(
            _answers(server, texts), served_tokens(read, before, expected)
        )
        if repeated.served >= expected:
            break
    return repeated


def _expected_tokens(cold: Sequence[Completion]) -> float:
    """Return how many of the prompts' tokens a cache must serve."""
    return _SERVED_SHARE * sum(completion.prompt_tokens for completion in cold)


def check(server: Endpoint, *, tier: bool, longest: int) -> Answers:
    """Send prompts to a server with cold caches, then again, and compare the answers.

    The first repetition is served by the device's own cache. With `tier` another one is served by the tier behind it,
    for which the device's cache is emptied; the result is then the tier's, which has the device's as `device`.
    `longest`: tokens of a conversation; replicas get different prompts. If nothing could be checked, `unchecked` says
    why.
    """
    texts = prompts(longest, server.number)
    try:
        cold, device = _from_device(server, texts)
        if _all_alike(cold):
            return compare(cold, cold, {}, 0, tier=tier)
        repeated = {"device": device}
        if tier:
            repeated["tier"] = _from_tier(server, texts, _expected_tokens(cold))
        pairs = [
            zip(cold, repetition.answers, strict=True)
            for repetition in repeated.values()
        ]
        parted = sorted(
            {
                number
                for of_one in pairs
                for number, pair in enumerate(of_one)
                if _place(*pair) is not None
            }
        )
        if parted:
            server.reset_caches()
        # Only now, because at the first request for log-probabilities the server compiles for up to 15 s.
        judged = dict(
            zip(
                parted,
                _answers(server, [texts[number] for number in parted], _LIKELIEST),
                strict=True,
            )
        )
    except (HttpError, CounterError, DeploymentError) as error:
        # A server that has ended is detected by other checks.
        return Answers(unchecked=str(error))
    of_device = compare(cold, device.answers, judged, device.served, tier=False)
    if not tier:
        return of_device
    behind = repeated["tier"]
    return replace(
        compare(cold, behind.answers, judged, behind.served, tier=True),
        device=of_device,
    )


def compare(
    cold: Sequence[Completion],
    again: Sequence[Completion],
    judged: Mapping[int, Completion],
    served: int,
    *,
    tier: bool,
) -> Answers:
    """Compare answers to the same prompts.

    `judged`: for each prompt, by number, whose answers differ here or in another comparison, a third answer with the
    likeliest tokens; `served`: prompt tokens that the cache served.
    """
    parted = [
        number for number in judged if _place(cold[number], again[number]) is not None
    ]
    differences = [
        _difference(number, cold[number], again[number], judged[number])
        for number in parted
    ]
    changed = [difference for difference in differences if not difference.near_tie]
    prompt_tokens = sum(completion.prompt_tokens for completion in cold)
    source = "tier" if tier else "device"
    return Answers(
        prompts=len(cold),
        tokens=TOKENS,
        same=len(cold) - len(differences),
        near_ties=len(differences) - len(changed),
        changed=len(changed),
        served_from=source if served >= _SERVED_SHARE * prompt_tokens else "none",
        prompt_tokens=prompt_tokens,
        served_tokens=served,
        tolerance_nats=TOLERANCE_NATS,
        first_difference=next(iter([*changed, *differences]), None),
        unchecked=_unchecked(cold, differences, served, source),
    )


def combine(comparisons: Sequence[Answers]) -> Answers:
    """Return the comparisons of several servers as one; `unchecked` if one of them is."""
    sums: Counter[str] = Counter()
    for comparison in comparisons:
        sums.update({name: getattr(comparison, name) for name in _SUMMED})
    by_changes = sorted(
        comparisons, key=lambda comparison: comparison.changed, reverse=True
    )
    devices = [
        comparison.device for comparison in comparisons if comparison.device is not None
    ]
    return Answers(
        **sums,
        tokens=comparisons[0].tokens,
        served_from=comparisons[0].served_from
        if len({comparison.served_from for comparison in comparisons}) == 1
        else "none",
        tolerance_nats=TOLERANCE_NATS,
        first_difference=next(
            (
                comparison.first_difference
                for comparison in by_changes
                if comparison.first_difference
            ),
            None,
        ),
        unchecked=next(
            (
                comparison.unchecked
                for comparison in comparisons
                if comparison.unchecked
            ),
            "",
        ),
        device=combine(devices) if devices else None,
    )


def _place(cold: Completion, again: Completion) -> int | None:
    """Return the index of the first token at which two answers to one prompt differ, None if they do not."""
    pairs = itertools.zip_longest(cold.tokens, again.tokens)
    return next(
        (place for place, (first, second) in enumerate(pairs) if first != second), None
    )


def _difference(
    number: int, cold: Completion, again: Completion, judged: Completion
) -> AnswerDifference:
    """Judge the first difference of two answers to one prompt; after it they continue different texts.

    Uses the log-probabilities of a third answer that is equal up to there, cold or, if a tier cannot be emptied, not:
    at a near tie they are close. The log-probability of a token that is not among the likeliest is unknown.
    """
    place = _place(cold, again) or 0
    first, second = (
        "".join(completion.tokens[place : place + 1]) for completion in (cold, again)
    )
    same = cold.tokens[:place] == judged.tokens[:place] and place < len(
        judged.likeliest
    )
    likeliest = judged.likeliest[place] if same else {}
    known = first in likeliest and second in likeliest
    margin = abs(likeliest[first] - likeliest[second]) if known else None
    return AnswerDifference(
        number,
        place,
        first,
        second,
        margin,
        margin is not None and margin <= TOLERANCE_NATS,
    )


def _all_alike(answers: Sequence[Completion]) -> bool:
    """Whether all prompts got the same answer, so that a wrong cache would not change it."""
    return len({tuple(completion.tokens) for completion in answers}) == 1


def _unchecked(
    cold: Sequence[Completion],
    differences: Sequence[AnswerDifference],
    served: int,
    source: str,
) -> str:
    """Return why the comparison proves nothing; "" if it proves something."""
    prompt_tokens = sum(completion.prompt_tokens for completion in cold)
    if _all_alike(cold):
        return (
            "the answers do not depend on what is cached: every prompt got the same one"
        )
    if served < _SERVED_SHARE * prompt_tokens:
        return (
            f"the {source} served {served:,} of the prompts' {prompt_tokens:,} tokens"
        )
    if len(differences) == len(cold) and all(
        difference.near_tie for difference in differences
    ):
        return "every answer differs at a near tie"
    return ""
